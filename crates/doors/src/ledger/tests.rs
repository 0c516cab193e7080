use super::*;
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc};

/// A temporary folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("airlock-ledger-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn open(&self) -> Ledger {
        Ledger::open(&self.0, "owner", Durability::Process).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.0.join("owner.jsonl")
    }

    fn problems(&self) -> Vec<String> {
        verify(&self.0)
            .unwrap()
            .iter()
            .map(JournalProblem::to_string)
            .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn call(tenant: &str) -> ModelCall {
    ModelCall {
        run: "r".into(),
        tenant: tenant.into(),
        model: "gpt-4o".into(),
        attempt: 1,
        ..ModelCall::default()
    }
}

fn served(money: u64) -> CallOutcome {
    let usage = TokenUsage {
        input: 10,
        cache_read: 5,
        output: 20,
        ..TokenUsage::default()
    };
    CallOutcome {
        usage,
        source: UsageSource::Final,
        status: 200,
        ..CallOutcome::unknown(Money(money), "complete")
    }
}

/// Opens, serves two calls, closes.
fn small(scratch: &Scratch) {
    let ledger = scratch.open();
    for money in [70, 80] {
        let n = ledger.reserve(&call("t"), Money(100), 50).unwrap();
        ledger.settle(n, &served(money)).unwrap();
    }
}

#[test]
fn what_was_spent_is_found_again_and_goes_on() {
    let scratch = Scratch::new("found");
    small(&scratch);
    let ledger = scratch.open();
    let past = ledger.recovered_usage().tenants["t"];
    assert_eq!(
        (past.calls, past.money, past.tokens, past.cached_tokens),
        (2, Money(150), 70, 10)
    );
    assert_eq!(ledger.recovered_usage().lost, 0);
    drop(ledger);
    assert_eq!(scratch.problems(), Vec::<String>::new());
    let kinds: Vec<RecordKind> = rows(&scratch.file(), |record| record.kind);
    use RecordKind::{Close, Open, Reserve, Settle};
    assert_eq!(
        kinds,
        [Open, Reserve, Settle, Reserve, Settle, Close, Open, Close]
    );
}

fn rows<T>(file: &Path, mut see: impl FnMut(&LedgerRecord<'_>) -> T) -> Vec<T> {
    let mut reader = LedgerReader::new(
        io::BufReader::new(File::open(file).unwrap()),
        ChainHead::default(),
    );
    let mut seen = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        seen.push(see(&record));
    }
    seen
}

#[test]
fn a_reservation_that_nobody_settled_counts_in_full_and_does_not_stay_open() {
    let scratch = Scratch::new("lost");
    let ledger = scratch.open();
    let settled = ledger.reserve(&call("t"), Money(100), 50).unwrap();
    ledger.settle(settled, &served(30)).unwrap();
    ledger.reserve(&call("t"), Money(100), 50).unwrap();
    drop(ledger);
    let recovered = recover(&scratch.0).unwrap();
    let expected = RecoveryReport {
        segments: 1,
        lost: 1,
        lost_money: Money(100),
        ..RecoveryReport::default()
    };
    assert_eq!(recovered, expected);
    assert_eq!(
        recover(&scratch.0).unwrap(),
        RecoveryReport::default(),
        "it was closed"
    );
    let ends = rows(&scratch.file(), |record| {
        (
            record.kind,
            record.source,
            record.ending.to_string(),
            record.money,
        )
    });
    assert_eq!(
        ends[4],
        (
            RecordKind::Settle,
            Some(UsageSource::Reserved),
            "lost".to_owned(),
            100
        )
    );
    let past = scratch.open().recovered_usage().tenants["t"];
    assert_eq!(
        (past.calls, past.money, past.tokens),
        (2, Money(130), 35 + 50)
    );
}

#[test]
fn a_segment_with_a_living_owner_is_left_alone() {
    let scratch = Scratch::new("live");
    let ledger = scratch.open();
    ledger.reserve(&call("t"), Money(100), 50).unwrap();
    assert_eq!(
        recover(&scratch.0).unwrap(),
        RecoveryReport {
            live: 1,
            ..RecoveryReport::default()
        }
    );
    let second = Ledger::open(&scratch.0, "owner", Durability::Process)
        .unwrap_err()
        .to_string();
    assert!(second.ends_with("belongs to another process"), "{second}");
    assert!(
        Ledger::open(&scratch.0, "run-1", Durability::Process).is_ok(),
        "another segment is free"
    );
}

#[test]
fn a_change_of_any_byte_is_found() {
    let scratch = Scratch::new("bytes");
    small(&scratch);
    assert_eq!(scratch.problems(), Vec::<String>::new());
    let whole = fs::read(scratch.file()).unwrap();
    assert!(believed(&whole));
    for at in 0..whole.len() {
        for put in [
            &[whole[at] ^ 1][..],
            b"\n",
            b" ",
            b"",
            &[whole[at], whole[at]],
        ] {
            let changed = [&whole[..at], put, &whole[at + 1..]].concat();
            assert!(
                changed == whole || !believed(&changed),
                "byte {at} became {put:?}"
            );
            // Sometimes also through the file, which costs a thousand times as much.
            if at % 97 == 0 && changed != whole {
                fs::write(scratch.file(), &changed).unwrap();
                assert_eq!(scratch.problems().len(), 1, "byte {at} became {put:?}");
            }
        }
    }
}

fn believed(text: &[u8]) -> bool {
    let mut reader = LedgerReader::new(text, ChainHead::default());
    loop {
        match reader.next_record() {
            Ok(Some(_)) => {}
            end => return end.is_ok(),
        }
    }
}

#[test]
fn a_line_that_is_missing_doubled_or_moved_is_found_and_recovery_touches_nothing() {
    let scratch = Scratch::new("lines");
    let ledger = scratch.open();
    for _ in 0..4 {
        ledger.reserve(&call("t"), Money(1), 1).unwrap();
    }
    drop(ledger);
    let whole = fs::read_to_string(scratch.file()).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    for at in 0..lines.len() - 1 {
        let without = [&lines[..at], &lines[at + 1..]].concat().concat();
        let doubled = [&lines[..=at], &lines[at..]].concat().concat();
        let mut swapped = lines.clone();
        swapped.swap(at, at + 1);
        for changed in [without, doubled, swapped.concat()] {
            fs::write(scratch.file(), &changed).unwrap();
            let problems = recover(&scratch.0).unwrap().problems;
            assert_eq!(problems.len(), 1, "line {at}");
            assert!(
                problems[0].line > 0 && problems == verify(&scratch.0).unwrap(),
                "{problems:?}"
            );
            assert_eq!(fs::read_to_string(scratch.file()).unwrap(), changed);
            assert!(Ledger::open(&scratch.0, "owner", Durability::Process).is_err());
        }
    }
}

#[test]
fn half_a_line_is_cut_off_and_the_rest_is_kept() {
    let scratch = Scratch::new("torn");
    let ledger = scratch.open();
    ledger.reserve(&call("t"), Money(100), 50).unwrap();
    ledger.reserve(&call("t"), Money(10), 5).unwrap();
    drop(ledger);
    let whole = fs::read(scratch.file()).unwrap();
    let line = |number: usize| {
        whole
            .split_inclusive(|&byte| byte == b'\n')
            .take(number)
            .flatten()
            .count()
    };
    for length in line(2)..whole.len() {
        fs::write(scratch.file(), &whole[..length]).unwrap();
        let torn = length != line(2);
        assert_eq!(
            verify(&scratch.0).unwrap().len(),
            usize::from(torn),
            "{length}"
        );
        let recovered = recover(&scratch.0).unwrap();
        assert_eq!(
            (recovered.lost, recovered.lost_money),
            (1, Money(100)),
            "{length}"
        );
        assert_eq!(scratch.problems(), Vec::<String>::new());
    }
}

#[test]
fn zeros_that_a_power_loss_left_at_the_end_are_cut_off_as_half_a_line_is() {
    let scratch = Scratch::new("zeros");
    let ledger = scratch.open();
    ledger.reserve(&call("t"), Money(100), 50).unwrap();
    drop(ledger);
    let whole = fs::read(scratch.file()).unwrap();
    let cases = [whole.len(), whole.len() - 1, whole.len() - 7];
    for (length, zeros) in cases
        .into_iter()
        .flat_map(|length| [1, 4096, 300_000].map(|zeros| (length, zeros)))
    {
        let tail = [&whole[..length], &vec![0; zeros]].concat();
        fs::write(scratch.file(), &tail).unwrap();
        assert_eq!(
            scratch.problems().len(),
            1,
            "{length} and {zeros} zeros are no whole ledger"
        );
        assert_eq!(
            recover(&scratch.0).unwrap().problems,
            [],
            "{length} and {zeros} zeros"
        );
        assert_eq!(scratch.problems(), Vec::<String>::new());
        // Followed by anything else they are no end.
        let changed = [&tail[..], b"x\n"].concat();
        fs::write(scratch.file(), &changed).unwrap();
        assert_eq!(
            recover(&scratch.0).unwrap().problems.len(),
            1,
            "{length} and {zeros} zeros"
        );
        assert_eq!(fs::read(scratch.file()).unwrap(), changed);
    }
}

#[test]
fn a_long_ledger_goes_on_in_the_next_file_and_a_missing_file_is_found() {
    let scratch = Scratch::new("parts");
    let ledger = Ledger::open_with(&scratch.0, "owner", Durability::Process, 2000).unwrap();
    for _ in 0..20 {
        let n = ledger.reserve(&call("t"), Money(100), 50).unwrap();
        ledger.settle(n, &served(70)).unwrap();
    }
    drop(ledger);
    let parts = segments(&scratch.0).unwrap().remove("owner").unwrap();
    assert!(
        parts.len() > 3 && parts[1].ends_with("owner~2.jsonl"),
        "{parts:?}"
    );
    assert_eq!(scratch.problems(), Vec::<String>::new());
    assert_eq!(
        scratch.open().recovered_usage().tenants["t"].money,
        Money(1400)
    );
    for part in &parts[..parts.len() - 1] {
        let kept = fs::read(part).unwrap();
        fs::remove_file(part).unwrap();
        assert_eq!(verify(&scratch.0).unwrap().len(), 1, "{}", part.display());
        fs::write(part, kept).unwrap();
    }
    assert_eq!(scratch.problems(), Vec::<String>::new());
}

#[test]
fn nobody_else_can_read_it_and_what_others_can_write_is_refused() {
    let scratch = Scratch::new("modes");
    small(&scratch);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&scratch.0), mode(&scratch.file())), (0o700, 0o600));
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, open, shut) in [(&scratch.0, 0o770, 0o700), (&scratch.file(), 0o622, 0o600)] {
        set(path, open);
        assert!(
            Ledger::open(&scratch.0, "owner", Durability::Process).is_err(),
            "{}",
            path.display()
        );
        set(path, shut);
    }
    let elsewhere = scratch.0.join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, scratch.0.join("run-x.jsonl")).unwrap();
    assert!(Ledger::open(&scratch.0, "run-x", Durability::Process).is_err());
    assert!(!elsewhere.exists());
    let recovered = recover(&scratch.0).unwrap();
    assert_eq!(
        (recovered.problems.len(), recovered.live),
        (1, 0),
        "the link is named, and keeps nobody from the rest"
    );
    for name in ["", "../up", ".hidden", "a~2", "a b"] {
        assert!(
            Ledger::open(&scratch.0, name, Durability::Process).is_err(),
            "{name}"
        );
    }
    assert_eq!(
        scratch.open().recovered_usage().tenants["t"].money,
        Money(150)
    );
}

#[test]
fn a_ledger_that_cannot_be_written_says_so_and_keeps_saying_it() {
    let scratch = Scratch::new("full");
    let ledger = scratch.open();
    ledger.state.lock().unwrap().writer.file = Arc::new(File::open(scratch.file()).unwrap());
    assert!(ledger.reserve(&call("t"), Money(1), 1).is_err());
    let after = ledger
        .reserve(&call("t"), Money(1), 1)
        .unwrap_err()
        .to_string();
    assert!(after.contains("half a line"), "{after}");
}

#[tokio::test]
async fn many_wait_for_one_disk() {
    let scratch = Scratch::new("power");
    let ledger = Arc::new(Ledger::open(&scratch.0, "owner", Durability::Power).unwrap());
    let waiters: Vec<_> = (0..200)
        .map(|_| {
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move {
                let n = ledger.reserve(&call("t"), Money(100), 50).unwrap();
                ledger.wait_durable(n).await.unwrap();
                ledger.settle(n, &served(1)).unwrap();
            })
        })
        .collect();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    drop(ledger);
    assert_eq!(scratch.problems(), Vec::<String>::new());
    assert_eq!(
        scratch.open().recovered_usage().tenants["t"].money,
        Money(200)
    );
}

#[test]
fn a_call_over_midnight_is_of_the_day_on_which_it_ended_as_in_memory() {
    let scratch = Scratch::new("midnight");
    drop(scratch.open());
    let (mut text, mut hash) = (Vec::new(), [0; 32]);
    let midnight = 20_000 * 86_400_000;
    let mut put = |n, at, kind: &str, write_fields: &dyn Fn(&mut LineWriter<'_>)| {
        let mut one = Vec::new();
        let mut line = LineWriter::begin(&mut one, n, at, kind);
        write_fields(&mut line);
        hash = line.seal(&hash);
        text.extend(one);
    };
    put(1, midnight - 5, "open", &|line| {
        _ = line.text("segment", "owner")
    });
    put(2, midnight - 4, "reserve", &|line| {
        _ = line
            .text("run", "r")
            .text("tenant", "t")
            .number("money", 100)
    });
    put(3, midnight - 3, "reserve", &|line| {
        _ = line
            .text("run", "r")
            .text("tenant", "t")
            .number("money", 100)
    });
    put(4, midnight - 2, "settle", &|line| {
        _ = line
            .number("of", 2)
            .text("source", "final")
            .number("money", 7)
    });
    put(5, midnight + 1, "settle", &|line| {
        _ = line
            .number("of", 3)
            .text("source", "final")
            .number("money", 40)
    });
    fs::write(scratch.file(), &text).unwrap();
    let past = scratch.open().recovered_usage().tenants["t"];
    assert_eq!(
        (past.day, past.day_money, past.money),
        (20_000, Money(40), Money(47))
    );
}

#[test]
fn a_reservation_that_nobody_settled_is_of_the_day_on_which_it_was_found() {
    let scratch = Scratch::new("lost-today");
    drop(scratch.open());
    let mut text = Vec::new();
    let mut line = LineWriter::begin(&mut text, 1, 5, "reserve");
    line.text("run", "r")
        .text("tenant", "t")
        .number("money", 100);
    line.seal(&[0; 32]);
    fs::write(scratch.file(), &text).unwrap();
    let first = scratch.open().recovered_usage().tenants["t"];
    let again = scratch.open().recovered_usage().tenants["t"];
    assert_eq!(
        (first.day, first.day_money),
        (again.day, again.day_money),
        "as the line says that was written"
    );
    assert!(
        first.day > 20_000 && first.day_money == Money(100),
        "{first:?}"
    );
}

#[test]
fn what_is_put_aside_is_whole_there_and_the_next_begins_anew() {
    let (scratch, aside) = (Scratch::new("aside"), Scratch::new("aside-place"));
    small(&scratch);
    let text = fs::read(scratch.file()).unwrap();
    let owner = scratch.open();
    assert!(
        set_aside(&scratch.0, "owner", &aside.0).is_err(),
        "it has an owner"
    );
    drop(owner);
    fs::write(scratch.file(), &text).unwrap();
    assert!(set_aside(&scratch.0, "owner", &aside.0).unwrap());
    assert_eq!(fs::read(aside.file()).unwrap(), text);
    assert!(scratch.open().recovered_usage().tenants.is_empty());
}
