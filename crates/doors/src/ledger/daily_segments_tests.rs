use super::*;
use crate::ledger::{Durability, Ledger, ModelCall};
use journal::LineWriter;
use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

const DAY_MS: u64 = 86_400_000;
const TODAY: Day = Day(20_000);

/// A temporary folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("airlock-days-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        drop(JournalDir::make(&path).unwrap());
        Scratch(path)
    }

    /// The segment of a day in which the tenant `t` spent so much at each of these times, and when it was written last.
    fn write(&self, day: Day, spent: &[(u64, u64)], changed_ms: u64) {
        let (name, mut text, mut hash, mut n) = (daily_segment(day), Vec::new(), [0; 32], 0);
        let mut put = |at, kind: &str, write_fields: &dyn Fn(&mut LineWriter<'_>)| {
            let mut one = Vec::new();
            n += 1;
            let mut line = LineWriter::begin(&mut one, n, at, kind);
            write_fields(&mut line);
            hash = line.seal(&hash);
            text.extend(one);
            n
        };
        for &(at, money) in spent {
            let of = put(at, "reserve", &|line| {
                _ = line.text("tenant", "t").number("money", 1000)
            });
            put(at, "settle", &|line| {
                _ = line
                    .number("of", of)
                    .text("source", "final")
                    .number("money", money);
            });
        }
        put(day.start().0, "close", &|_| ());
        let path = self.0.join(format!("{name}.jsonl"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        self.touch(&name, changed_ms);
    }

    fn touch(&self, name: &str, changed_ms: u64) {
        let file = fs::File::options()
            .append(true)
            .open(self.0.join(format!("{name}.jsonl")))
            .unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(changed_ms))
            .unwrap();
    }

    fn of_today(&self, today: Day) -> io::Result<(Money, u64)> {
        let names: Vec<_> = super::super::segments(&self.0)?.into_keys().collect();
        let recovered = recover_past_usage(&self.0, &names, today)?;
        let past = recovered.tenants.get("t").copied().unwrap_or_default();
        Ok((
            if past.day >= today.0 {
                past.day_money
            } else {
                Money::ZERO
            },
            recovered.lost,
        ))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn names_are_those_of_days_and_of_nothing_else() {
    assert_eq!(daily_segment(TODAY), "owner-2024-10-04");
    assert!(
        daily_segment(Day(9)) < daily_segment(Day(10)) && *daily_segment(Day(0)) > *OWNER_SEGMENT
    );
    assert!(is_daily_segment("owner-2024-10-04"));
    for other in [
        "owner",
        "owner-",
        "owner-2024-02-30",
        "owner-2024-10-4",
        "run-2024-10-04",
        "owner2024-10-04",
    ] {
        assert!(!is_daily_segment(other), "{other}");
    }
}

#[test]
fn what_was_spent_today_is_in_the_segment_of_any_day_and_counts_together() {
    let scratch = Scratch::new("together");
    let midnight = TODAY.start().0;
    // A call over midnight; the day itself; and a wrong clock that was set back.
    scratch.write(
        Day(TODAY.0 - 1),
        &[(midnight - 9, 100), (midnight + 1, 5)],
        midnight + 1,
    );
    scratch.write(TODAY, &[(midnight + 2, 7), (midnight + 3, 8)], midnight + 3);
    scratch.write(TODAY.next(), &[(midnight + DAY_MS, 30)], midnight + DAY_MS);
    assert_eq!(scratch.of_today(TODAY).unwrap(), (Money(50), 0));
    assert_eq!(
        scratch.of_today(TODAY.next()).unwrap(),
        (Money(30), 0),
        "no day counts on the next"
    );
    assert_eq!(
        scratch.of_today(Day(TODAY.0 + 2)).unwrap(),
        (Money::ZERO, 0)
    );
}

#[test]
fn a_day_that_is_over_is_not_read_and_one_that_may_not_be_is() {
    let scratch = Scratch::new("over");
    let (midnight, old, older) = (TODAY.start().0, Day(TODAY.0 - 1), Day(TODAY.0 - 2));
    scratch.write(older, &[(midnight - DAY_MS, 100)], midnight - DAY_MS);
    scratch.write(old, &[(midnight - 9, 100)], midnight - DAY_MS / 2);
    let file = scratch.0.join(format!("{}.jsonl", daily_segment(old)));
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, whole.replacen("1000", "1001", 1)).unwrap();
    for (changed, is_read) in [
        (midnight - DAY_MS / 2, false),
        (midnight, true),
        // File times come from another clock than records.
        (midnight - 1000, true),
        (midnight + 9 * DAY_MS, true),
    ] {
        scratch.touch(&daily_segment(old), changed);
        assert_eq!(
            may_hold_usage_of(&scratch.0, &daily_segment(old), TODAY).unwrap(),
            is_read,
            "{changed}"
        );
        assert_eq!(
            scratch.of_today(TODAY).is_err(),
            is_read,
            "what is read must be believed: {changed}"
        );
    }
    // Only the name counts: one of the two times is wrong.
    scratch.touch(&daily_segment(old), 0);
    assert!(scratch.of_today(old).is_err());
    fs::write(&file, &whole[..whole.trim_end().rfind('\n').unwrap() + 1]).unwrap();
    scratch.touch(&daily_segment(old), 0);
    assert!(
        may_hold_usage_of(&scratch.0, &daily_segment(old), TODAY).unwrap(),
        "it was not closed"
    );
}

#[test]
fn calls_that_a_dead_owner_left_open_are_lost_once() {
    let (scratch, today) = (
        Scratch::new("dead"),
        Day::of(spec::Timestamp(journal::now_ms())),
    );
    for day in [Day(today.0 - 3), today] {
        let ledger = Ledger::open(&scratch.0, &daily_segment(day), Durability::Process).unwrap();
        let call = ModelCall {
            tenant: "t".into(),
            ..ModelCall::default()
        };
        ledger.reserve(&call, Money(100), 1).unwrap();
        drop(ledger);
        scratch.touch(&daily_segment(day), 0);
    }
    assert_eq!(scratch.of_today(today).unwrap(), (Money(200), 2));
    assert_eq!(
        super::super::recover(&scratch.0).unwrap().lost,
        0,
        "nobody finds them again"
    );
    for _ in 0..2 {
        assert_eq!(
            scratch.of_today(today).unwrap(),
            (Money(200), 0),
            "they stay spent"
        );
    }
    let live = Ledger::open(&scratch.0, &daily_segment(today), Durability::Process).unwrap();
    assert!(
        scratch
            .of_today(today)
            .unwrap_err()
            .to_string()
            .ends_with("belongs to another process")
    );
    drop(live);
}
