use super::*;
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const BOUNDS: AdmissionLimits = AdmissionLimits {
    slots: 1,
    waiting: 16,
    waiting_bytes: 1600,
};

fn pending(client: &str, id: u32, weight: usize) -> PendingCall<()> {
    PendingCall {
        id: id.to_string(),
        names: [String::new(), String::new()],
        client: client.to_owned(),
        tool: String::new(),
        sent_ms: 0,
        timeout: Duration::from_secs(1),
        weight,
        payload: (),
    }
}

/// Takes in what may come, and tells how many did.
fn come(lines: &mut FairQueue<()>, client: &str, count: u32, weight: usize) -> usize {
    let before = lines.len();
    for id in 0..count {
        let one = pending(client, id, weight);
        if lines.rejection(&one, BOUNDS).is_none() {
            lines.push(one);
        }
    }
    lines.len() - before
}

#[test]
fn whoever_asks_for_much_leaves_some_to_others_and_all_take_turns() {
    let mut lines = FairQueue::default();
    assert_eq!(come(&mut lines, "greedy", 100, 1), 14, "some is left");
    assert_eq!(come(&mut lines, "b", 100, 1), 2, "which others may have");
    assert_eq!(
        lines.before("b").count(),
        5,
        "two of its own, and three of the other"
    );
    let parties: Vec<_> = (0..5)
        .filter_map(|_| lines.next())
        .map(|one| one.client)
        .collect();
    assert_eq!(parties, ["greedy", "b", "greedy", "b", "greedy"]);
    assert_eq!(come(&mut lines, "c", 100, 1), 5);
    assert_eq!(
        come(&mut lines, "greedy", 100, 1),
        0,
        "it has half of all, and more"
    );
}

#[test]
fn the_same_holds_for_bytes_but_a_first_one_may_be_large() {
    let mut lines = FairQueue::default();
    assert_eq!(come(&mut lines, "greedy", 100, 300), 4);
    assert_eq!(come(&mut lines, "b", 1, 401), 0, "more than there is");
    assert_eq!(come(&mut lines, "b", 1, 400), 1);
    let mut lines = FairQueue::default();
    assert_eq!(come(&mut lines, "one", 2, 1600), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Come(u8, usize),
    Next,
    Take(u32),
}

proptest! {
    #[test]
    fn counts_are_right_bounds_hold_and_nobody_is_passed_over(
        steps in prop::collection::vec(
            prop_oneof![
                4 => (0..4_u8, 0..400_usize).prop_map(|(client, weight)| Step::Come(client, weight)),
                2 => Just(Step::Next),
                1 => (0..100_u32).prop_map(Step::Take),
            ],
            0..100,
        ),
    ) {
        let (mut lines, mut model, mut passed) = (FairQueue::default(), BTreeMap::new(), BTreeMap::new());
        for (id, step) in (0_u32..).zip(steps) {
            match step {
                Step::Come(client, weight) => {
                    let one = pending(&client.to_string(), id, weight);
                    if lines.rejection(&one, BOUNDS).is_none() {
                        model.insert(id, (one.client.clone(), weight));
                        lines.push(one);
                    }
                }
                Step::Next => {
                    let next = lines.next();
                    prop_assert_eq!(next.is_none(), model.is_empty());
                    let Some(next) = next else { continue };
                    let is_own = |(_, (client, _)): &(&u32, &(String, usize))| *client == next.client;
                    let first = model.iter().find(is_own).map(|(id, _)| id.to_string());
                    prop_assert_eq!(first, Some(next.id.clone()), "in their order");
                    passed.insert(next.client.clone(), 0);
                    let parties = model.values().map(|(client, _)| client);
                    let others: BTreeSet<_> = parties.filter(|one| **one != next.client).collect();
                    passed.retain(|client, _| *client == next.client || others.contains(client));
                    for other in others {
                        let count = passed.entry(other.clone()).or_insert(0);
                        *count += 1;
                        prop_assert!(*count < 4, "passed over by all others, and by one of them twice");
                    }
                    model.remove(&next.id.parse().unwrap());
                }
                Step::Take(wanted) => {
                    let taken = lines.take(|one| one.id == wanted.to_string());
                    prop_assert_eq!(taken.is_some(), model.remove(&wanted).is_some());
                    // Whoever has left its line begins anew.
                    passed.retain(|client, _| model.values().any(|(other, _)| other == client));
                }
            }
            let bytes: usize = model.values().map(|(_, weight)| weight).sum();
            prop_assert_eq!((lines.len, lines.bytes, lines.iter().count()), (model.len(), bytes, model.len()));
            prop_assert!(lines.len <= BOUNDS.waiting && bytes <= BOUNDS.waiting_bytes);
            prop_assert!(lines.lines.iter().all(|line| !line.is_empty()));
        }
    }
}
