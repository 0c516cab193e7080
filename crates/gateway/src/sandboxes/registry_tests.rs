//! Which sandboxes are remembered, how many one may have, and what is told of their ends.

use super::*;

fn ended(owner: &str, number: usize, promise: Option<&str>) -> (u64, Arc<Entry>) {
    let row = SandboxRow {
        id: format!("{owner}-{number}"),
        owner: owner.to_owned(),
        labels: "{}".to_owned(),
        backend: "native".to_owned(),
        profile: "standard".to_owned(),
        created_ms: 1,
        promise: promise.map(|name| (name.to_owned(), vec![1])),
        ended: Some((number as u64, "asked".to_owned())),
    };
    (number as u64, Arc::new(Entry::recalled(row)))
}

#[test]
fn one_owners_ends_push_out_his_own_and_nobody_elses() {
    let gone = |of_one, of_all| -> Vec<String> {
        let loud = (1..6).map(|number| ended("loud", number, None));
        let all = loud.chain([ended("quiet", 0, None)]).collect();
        too_many(all, of_one, of_all).iter().map(|entry| entry.id.clone()).collect()
    };
    assert!(gone(5, 6).is_empty(), "the positive control: all of them fit");
    assert_eq!(gone(3, 6), ["loud-2", "loud-1"]);
    assert_eq!(gone(5, 3), ["loud-3", "loud-2", "loud-1"]);
}

#[test]
fn what_was_promised_is_remembered_for_a_day_and_the_rest_for_an_hour() {
    let now = engine::now().0 as usize;
    let hour = REMEMBERED_MS as usize;
    let entries = [
        ended("a", now - hour / 2, None),
        ended("b", now - 2 * hour, None),
        ended("c", now - 2 * hour, Some("k")),
        ended("d", now - 25 * hour, Some("k")),
    ];
    let mut known = Known::default();
    known.all.extend(entries.map(|(_, entry)| (entry.owner.clone(), entry)));
    known.forget();
    assert_eq!(known.all.into_keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn those_being_made_count_among_those_that_one_may_have() {
    let mut known = Known::default();
    known.making.insert("loud".to_owned(), MOST_OF_ONE - 1);
    assert!(known.has_room("loud"), "the positive control: one more fits");
    *known.making.get_mut("loud").unwrap() += 1;
    assert!(!known.has_room("loud"));
    assert!(known.has_room("quiet"), "there is room for others");
    known.is_made("loud");
    assert!(known.has_room("loud"));
    known.making.insert("quiet".to_owned(), 1);
    known.is_made("quiet");
    assert_eq!(known.making.len(), 1, "who makes nothing takes no room");
}
