use super::*;
use doors::{
    TokenUsage as Tokens,
    ledger::{CallOutcome, Durability, Ledger, ModelCall, OWNER_SEGMENT},
};
use spec::Money;
use std::fs;

/// A state folder that is removed afterwards.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("airlock-books-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    pub(super) fn ledger(&self, name: &str) -> Ledger {
        Ledger::open(&self.0.join(LEDGER), name, Durability::Process).unwrap()
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(LEDGER).join(format!("{name}.jsonl"))
    }

    pub(super) fn books(&self) -> UsageProjection {
        UsageProjection::open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The text without its last line.
pub(super) fn cut(text: &[u8]) -> &[u8] {
    let end = text[..text.len() - 1]
        .iter()
        .rposition(|&byte| byte == b'\n')
        .unwrap()
        + 1;
    &text[..end]
}

fn serve(ledger: &Ledger, run: &str, money: u64) {
    let n = reserve(ledger, run);
    let usage = Tokens {
        input: 10,
        cache_read: 5,
        output: 20,
        reasoning: 1,
        ..Tokens::default()
    };
    let outcome = CallOutcome {
        usage,
        source: UsageSource::Final,
        ..CallOutcome::unknown(Money(money), "complete")
    };
    ledger.settle(n, &outcome).unwrap();
}

fn reserve(ledger: &Ledger, run: &str) -> u64 {
    let call = ModelCall {
        run: run.into(),
        model: "m".into(),
        provider: "p".into(),
        ..ModelCall::default()
    };
    ledger.reserve(&call, Money(100), 50).unwrap()
}

fn total(books: &UsageProjection) -> (u64, u64, u64) {
    let sums = books
        .totals(GroupBy::Model, &UsageFilter::default())
        .unwrap();
    sums.first()
        .map(|total| (total.calls, total.money, total.unsettled))
        .unwrap_or_default()
}

#[test]
fn what_is_new_is_copied_once_and_what_is_lost_counts_in_full() {
    let scratch = Scratch::new("new");
    let books = scratch.books();
    assert_eq!(
        (books.refresh().unwrap(), total(&books)),
        (vec![], (0, 0, 0)),
        "nothing was used"
    );
    let ledger = scratch.ledger("run-a");
    serve(&ledger, "a", 30);
    reserve(&ledger, "a");
    for _ in 0..2 {
        assert_eq!(
            (books.refresh().unwrap(), total(&books)),
            (vec![], (2, 130, 1)),
            "one is under way"
        );
    }
    drop(ledger);
    serve(&scratch.ledger("run-b"), "b", 7);
    assert_eq!(
        (books.refresh().unwrap(), total(&books)),
        (vec![], (3, 137, 1)),
        "its owner died"
    );
    let runs = books.totals(GroupBy::Run, &UsageFilter::default()).unwrap();
    let a = UsageTotal {
        key: "a".into(),
        calls: 2,
        input_tokens: 15,
        output_tokens: 21,
        cached_tokens: 5,
        money: 130,
        overrun: 0,
        unsettled: 1,
        unsettled_money: 100,
        may_change: true,
        // Was 1 once when other tests ran: probably a forked child that held the dead owner's lock
        // until its exec.
        open: runs[0].open,
        ..UsageTotal::default()
    };
    assert!(
        runs[0].open <= 1,
        "no more than the one that nobody settled"
    );
    assert_eq!((&runs[0], runs[1].money), (&a, 7));
    assert_eq!(books.verify().unwrap(), []);
}

#[test]
fn whoever_is_overtaken_while_he_copies_goes_on_to_the_end() {
    let (scratch, calls) = (Scratch::new("overtaken"), BATCH as u64 + 100);
    let ledger = scratch.ledger("owner");
    (0..calls).for_each(|_| serve(&ledger, "a", 1));
    drop(ledger);
    // The progress was read, and another process has copied the first of three batches since.
    let (books, files) = (scratch.books(), [scratch.file("owner")]);
    let mut reader = open_at(&files[0], ChainHead::default()).unwrap();
    let (changes, _) = batch(&mut reader);
    let at = reader.head();
    let to = SegmentProgress {
        part: 1,
        offset: at.offset,
        n: at.n,
        hash: at.hash,
    };
    assert!(books.usage.add("owner", None, to, &changes).unwrap());
    assert!(total(&books).0 < calls);
    assert_eq!(books.copy("owner", &files, None).unwrap(), None);
    assert_eq!(total(&books), (calls, calls, 0));
}

#[test]
fn each_of_two_readers_at_once_is_told_all() {
    let (scratch, calls) = (Scratch::new("at-once"), 2 * BATCH as u64);
    let ledger = scratch.ledger("owner");
    (0..calls).for_each(|_| serve(&ledger, "a", 1));
    drop(ledger);
    scratch.books();
    let both = std::sync::Barrier::new(2);
    let read = || {
        let books = scratch.books();
        both.wait();
        (books.refresh().unwrap(), total(&books))
    };
    std::thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        for reader in readers {
            assert_eq!(reader.join().unwrap(), (vec![], (calls, calls, 0)));
        }
    });
}

#[test]
fn of_a_ledger_that_is_set_aside_all_up_to_its_damage_counts() {
    let scratch = Scratch::new("aside");
    let ledger = scratch.ledger("owner");
    serve(&ledger, "a", 30);
    reserve(&ledger, "a");
    drop(ledger);
    let mut damaged = fs::read(scratch.file("owner")).unwrap();
    damaged.extend_from_slice(b"{}\n");
    fs::write(scratch.file("owner"), damaged).unwrap();
    // Nothing was copied before.
    let books = scratch.books();
    assert!(
        books
            .set_aside(7)
            .unwrap()
            .place
            .is_some_and(|place| place.exists())
    );
    assert_eq!(total(&books), (2, 130, 1));
    assert_eq!(
        books
            .totals(GroupBy::Model, &UsageFilter::default())
            .unwrap()[0]
            .open,
        0,
        "nobody will settle it"
    );
}

#[test]
fn the_copy_can_be_thrown_away() {
    let scratch = Scratch::new("away");
    serve(&scratch.ledger("owner"), "a", 30);
    let books = scratch.books();
    books.refresh().unwrap();
    let before = total(&books);
    drop(books);
    for name in ["airlock.db", "airlock.db-wal", "airlock.db-shm"] {
        let _ = fs::remove_file(scratch.0.join(name));
    }
    let books = scratch.books();
    assert_eq!(total(&books), (0, 0, 0));
    assert_eq!((books.refresh().unwrap(), total(&books)), (vec![], before));
}

#[test]
fn a_ledger_that_shrank_changed_or_vanished_is_named() {
    let scratch = Scratch::new("taken");
    serve(&scratch.ledger("owner"), "a", 30);
    let books = scratch.books();
    books.refresh().unwrap();
    let (file, whole) = (
        scratch.file("owner"),
        fs::read(scratch.file("owner")).unwrap(),
    );
    let told = |problems: Vec<JournalProblem>| {
        problems
            .into_iter()
            .map(|problem| problem.what)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (books.refresh().unwrap(), books.verify().unwrap()),
        (vec![], vec![])
    );

    // With one line less the hash chain is valid, but it is not the one that was copied.
    fs::write(&file, cut(&whole)).unwrap();
    assert_eq!(told(books.verify().unwrap()), [SHRANK]);

    fs::remove_file(&file).unwrap();
    assert_eq!(
        told(books.verify().unwrap()),
        ["it is gone, but what it said is known"]
    );
    assert_eq!(
        told(books.refresh().unwrap()),
        ["it is gone, but what it said is known"]
    );

    for _ in 0..3 {
        serve(&scratch.ledger("owner"), "a", 1);
    }
    assert_eq!(
        told(books.verify().unwrap()),
        ["it is not the one that was read before"]
    );
    assert_eq!(
        books.refresh().unwrap().len(),
        1,
        "what follows does not follow"
    );
    assert_eq!(total(&books), (1, 30, 0), "what was known stays");

    let changed =
        String::from_utf8(whole.clone())
            .unwrap()
            .replacen("\"money\":30", "\"money\":10", 1);
    fs::write(&file, changed).unwrap();
    let problems = books.verify().unwrap();
    assert_eq!(
        (problems.len(), problems[0].line, &problems[0].file),
        (1, 3, &file)
    );
    fs::write(&file, whole).unwrap();
    assert_eq!(books.verify().unwrap(), []);
}

#[test]
fn nothing_is_missed_of_a_ledger_that_others_begin_read_and_take_away_meanwhile() {
    let folder = Scratch::new("busy");
    let (state, books) = (&folder.0, folder.books());
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let books = UsageProjection::open(state).unwrap();
            for number in 0..100 {
                let name = format!("run-{number}");
                spend(state, &name, 1);
                books.copy_live_segments([&name]).unwrap();
                if number % 10 == 9 {
                    books.retire(state, u64::MAX, crate::now().0).unwrap();
                }
            }
        });
        while !others.is_finished() {
            let gone = "it is gone, but what it said is known";
            let problems = books.verify().unwrap();
            assert!(
                problems.iter().all(|problem| problem.what != gone),
                "{problems:?}"
            );
        }
    });
    assert_eq!(books.verify().unwrap(), []);
}

#[test]
fn a_ledger_is_not_put_aside_while_somebody_copies_it() {
    let folder = Scratch::new("copied");
    spend(&folder.0, OWNER_SEGMENT, 1);
    let (books, file) = (folder.books(), folder.file(OWNER_SEGMENT));
    assert_eq!(books.refresh().unwrap(), []);
    fs::write(&file, cut(&fs::read(&file).unwrap())).unwrap();
    let copying = store::UpkeepLock::shared(&folder.0).unwrap();
    assert!(books.set_aside(1).is_err() && file.exists());
    drop(copying);
    assert!(books.set_aside(1).unwrap().place.is_some() && !file.exists());
}

#[test]
fn an_old_ledger_goes_and_what_it_cost_stays() {
    let (folder, now) = (Scratch::new("old"), crate::now().0);
    let state = &folder.0;
    spend(state, "run-old", 2);
    let books = UsageProjection::open(state).unwrap();
    // Nothing was copied yet.
    assert_eq!(books.retire(state, u64::MAX, now).unwrap(), 0);
    assert_eq!(books.refresh().unwrap(), []);
    let all =
        |books: &UsageProjection| books.totals(GroupBy::Run, &UsageFilter::default()).unwrap();
    let before = all(&books);
    // Not old enough; then while a backup is being made.
    assert_eq!(books.retire(state, 1000, now).unwrap(), 0);
    let backup = store::UpkeepLock::shared(state).unwrap();
    assert_eq!(books.retire(state, u64::MAX, now).unwrap(), 0);
    drop(backup);
    assert_eq!(books.retire(state, u64::MAX, now).unwrap(), 1);
    assert!(!state.join("ledger/run-old.jsonl").exists());
    assert_eq!(
        (books.refresh().unwrap(), books.verify().unwrap()),
        (vec![], vec![])
    );
    assert_eq!(all(&books), before);
    // The name may be used again, and nothing is counted twice or lost.
    spend(state, "run-old", 1);
    assert_eq!(
        (books.refresh().unwrap(), books.verify().unwrap()),
        (vec![], vec![])
    );
    assert_eq!(all(&books)[0].calls, before[0].calls + 1);
    assert_eq!(books.retire(state, u64::MAX, now + 1).unwrap(), 1);
    assert_eq!(all(&books)[0].calls, before[0].calls + 1);
}

#[test]
fn a_ledger_that_was_being_taken_away_when_we_died_goes_the_next_time() {
    let (folder, now) = (Scratch::new("dying"), crate::now().0);
    let state = &folder.0;
    spend(state, "run-old", 2);
    let books = UsageProjection::open(state).unwrap();
    books.refresh().unwrap();
    let before = books.totals(GroupBy::Run, &UsageFilter::default()).unwrap();
    for files_are_gone in [false, true] {
        let end = books.usage.segments().unwrap()["run-old"];
        assert!(
            books
                .usage
                .begin_retirement("run-old", end, now + u64::from(files_are_gone))
                .unwrap()
        );
        if files_are_gone {
            std::fs::remove_file(state.join("ledger/run-old.jsonl")).unwrap();
        }
        assert_eq!(
            (books.refresh().unwrap(), books.verify().unwrap()),
            (vec![], vec![]),
            "{files_are_gone}"
        );
        assert_eq!(books.retire(state, 0, now).unwrap(), 0);
        assert!(
            books.usage.retiring_segments().unwrap().is_empty()
                && !state.join("ledger/run-old.jsonl").exists()
        );
        assert_eq!(
            (books.refresh().unwrap(), books.verify().unwrap()),
            (vec![], vec![]),
            "{files_are_gone}"
        );
        assert_eq!(
            books.totals(GroupBy::Run, &UsageFilter::default()).unwrap()[0].money,
            before[0].money * (1 + u64::from(files_are_gone))
        );
        spend(state, "run-old", 2);
        books.refresh().unwrap();
    }
}

#[test]
fn ledgers_that_are_open_changed_or_not_of_a_run_stay() {
    let (folder, now) = (Scratch::new("staying"), crate::now().0);
    let state = &folder.0;
    spend(state, "owner", 1);
    spend(state, "run-changed", 1);
    let live = Ledger::open(&state.join(LEDGER), "run-live", Durability::Process).unwrap();
    let books = UsageProjection::open(state).unwrap();
    books.refresh().unwrap();
    let changed = state.join("ledger/run-changed.jsonl");
    let text = std::fs::read_to_string(&changed).unwrap();
    std::fs::write(&changed, text.replacen("\"money\":7", "\"money\":8", 1)).unwrap();
    assert_eq!(books.retire(state, u64::MAX, now).unwrap(), 0);
    assert_eq!(books.segments().unwrap(), 3);
    assert_ne!(books.verify().unwrap(), []);
    drop(live);
}

fn spend(state: &Path, segment: &str, calls: usize) {
    let ledger = Ledger::open(&state.join(LEDGER), segment, Durability::Process).unwrap();
    for _ in 0..calls {
        let call = ModelCall {
            run: "old".into(),
            ..ModelCall::default()
        };
        let n = ledger.reserve(&call, Money(7), 1).unwrap();
        ledger
            .settle(n, &CallOutcome::unknown(Money(7), "complete"))
            .unwrap();
    }
}
