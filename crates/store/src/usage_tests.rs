use super::*;
use std::{fs, path::PathBuf};

/// A state folder, removed when dropped.
struct StateFolder(PathBuf);

impl StateFolder {
    fn new(name: &str) -> StateFolder {
        let path =
            std::env::temp_dir().join(format!("airlock-usage-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        StateFolder(path)
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const DAY: u64 = 86_400_000;

fn attempt(n: u64, run: &str, model: &str, at_ms: u64) -> UsageChange {
    let run = run.to_owned();
    let model = model.to_owned();
    UsageChange::Reserved(ModelAttempt {
        n,
        run,
        model,
        at_ms,
        reserved: 100,
        attempt: 1,
        ..ModelAttempt::default()
    })
}

fn ended(n: u64, source: &'static str, money: u64) -> UsageChange {
    UsageChange::Settled(SettledAttempt {
        n,
        source,
        money,
        counts: [1, 2, 3, 4, 5, 6, 7, 8, 9],
        ..SettledAttempt::default()
    })
}

fn place(n: u64) -> SegmentProgress {
    SegmentProgress {
        part: 1,
        offset: n * 100,
        n,
        hash: [n as u8; 32],
    }
}

#[test]
fn what_is_open_counts_in_full_and_what_is_settled_as_it_was() {
    let folder = StateFolder::new("open");
    let usage = UsageDatabase::open(&folder.0).unwrap();
    let first = [
        attempt(2, "a", "m", DAY),
        attempt(3, "a", "m", DAY),
        ended(2, "final", 30),
    ];
    assert!(usage.add("owner", None, place(4), &first).unwrap());
    let total = |key: &str, calls, money, unsettled| UsageTotal {
        key: key.to_owned(),
        calls,
        input_tokens: 15,
        output_tokens: 21,
        cached_tokens: 2,
        money,
        overrun: 0,
        unsettled,
        unsettled_money: unsettled * 100,
        open: unsettled,
        ..UsageTotal::default()
    };
    assert_eq!(
        usage.totals(GroupBy::Run, &UsageFilter::default()).unwrap(),
        [total("a", 2, 130, 1)]
    );
    assert!(
        usage
            .add(
                "owner",
                Some(place(4)),
                place(5),
                &[ended(3, "reserved", 100)]
            )
            .unwrap()
    );
    let sums = usage.totals(GroupBy::Day, &UsageFilter::default()).unwrap();
    assert_eq!(
        (sums[0].key.as_str(), sums[0].money, sums[0].unsettled),
        ("1970-01-02", 130, 1)
    );
}

#[test]
fn sums_are_made_by_what_was_asked_and_of_what_was_asked() {
    let folder = StateFolder::new("sums");
    let usage = UsageDatabase::open(&folder.0).unwrap();
    let changes = [
        attempt(1, "a", "m", 0),
        attempt(2, "b", "m", DAY),
        attempt(3, "b", "x", 2 * DAY),
    ];
    usage.add("owner", None, place(3), &changes).unwrap();
    let keys = |by, filter: &UsageFilter| {
        let sums = usage.totals(by, filter).unwrap();
        sums.into_iter()
            .map(|total| (total.key, total.calls))
            .collect::<Vec<_>>()
    };
    let pairs = |pairs: &[(&str, u64)]| {
        pairs
            .iter()
            .map(|(key, calls)| ((*key).to_owned(), *calls))
            .collect::<Vec<_>>()
    };
    let all = UsageFilter::default();
    assert_eq!(keys(GroupBy::Run, &all), pairs(&[("b", 2), ("a", 1)]));
    assert_eq!(keys(GroupBy::Model, &all), pairs(&[("m", 2), ("x", 1)]));
    assert_eq!(keys(GroupBy::Tenant, &all), pairs(&[("", 3)]));
    assert_eq!(
        keys(GroupBy::Day, &all),
        pairs(&[("1970-01-01", 1), ("1970-01-02", 1), ("1970-01-03", 1)])
    );
    assert_eq!(
        keys(
            GroupBy::Model,
            &UsageFilter {
                run: Some("b".into()),
                ..all.clone()
            }
        ),
        pairs(&[("m", 1), ("x", 1)])
    );
    assert_eq!(
        keys(
            GroupBy::Run,
            &UsageFilter {
                since_ms: Some(DAY),
                ..all.clone()
            }
        ),
        pairs(&[("b", 2)])
    );
    assert_eq!(
        keys(
            GroupBy::Run,
            &UsageFilter {
                run: Some("' OR 1=1 --".into()),
                ..all
            }
        ),
        []
    );
}

#[test]
fn of_two_that_copy_the_same_lines_one_is_believed() {
    let folder = StateFolder::new("two");
    let one = UsageDatabase::open(&folder.0).unwrap();
    let other = UsageDatabase::open(&folder.0).unwrap();
    assert!(
        one.add("owner", None, place(1), &[attempt(1, "a", "m", 0)])
            .unwrap()
    );
    assert!(
        !other
            .add("owner", None, place(9), &[attempt(9, "a", "m", 0)])
            .unwrap()
    );
    assert_eq!(
        other.segments().unwrap(),
        BTreeMap::from([("owner".to_owned(), place(1))])
    );
    assert_eq!(
        other.totals(GroupBy::Run, &UsageFilter::default()).unwrap()[0].calls,
        1
    );
}

#[test]
fn a_provider_that_lies_does_not_break_the_sums() {
    let folder = StateFolder::new("lies");
    let usage = UsageDatabase::open(&folder.0).unwrap();
    let lie = |n| {
        UsageChange::Settled(SettledAttempt {
            n,
            source: "final",
            money: u64::MAX,
            counts: [u64::MAX; 9],
            ..SettledAttempt::default()
        })
    };
    let changes: Vec<UsageChange> = (1..=100)
        .flat_map(|n| [attempt(n, "a", "m", u64::MAX), lie(n)])
        .collect();
    usage.add("owner", None, place(1), &changes).unwrap();
    assert_eq!(
        usage.totals(GroupBy::Day, &UsageFilter::default()).unwrap()[0].money,
        100 * MAX_MONEY
    );
}
