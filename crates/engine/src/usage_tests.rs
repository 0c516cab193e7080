use super::*;
use doors::{
    Usage as Tokens,
    ledger::{Call, Durability, Ledger, Outcome},
};
use spec::Money;
use std::fs;

/// A state folder that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("airlock-books-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn ledger(&self, name: &str) -> Ledger {
        Ledger::open(&self.0.join(LEDGER), name, Durability::Process).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(LEDGER).join(format!("{name}.jsonl"))
    }

    fn books(&self) -> Books {
        Books::open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn serve(ledger: &Ledger, run: &str, money: u64) {
    let n = reserve(ledger, run);
    let usage = Tokens { input: 10, cache_read: 5, output: 20, reasoning: 1, ..Tokens::default() };
    let outcome = Outcome { usage, source: Source::Final, ..Outcome::unknown(Money(money), "complete") };
    ledger.settle(n, &outcome).unwrap();
}

fn reserve(ledger: &Ledger, run: &str) -> u64 {
    let call = Call { run: run.into(), model: "m".into(), provider: "p".into(), ..Call::default() };
    ledger.reserve(&call, Money(100), 50).unwrap()
}

fn total(books: &Books) -> (u64, u64, u64) {
    let sums = books.totals(By::Model, &Filter::default()).unwrap();
    sums.first().map(|total| (total.calls, total.money, total.unsettled)).unwrap_or_default()
}

#[test]
fn what_is_new_is_copied_once_and_what_is_lost_counts_in_full() {
    let scratch = Scratch::new("new");
    let books = scratch.books();
    assert_eq!((books.refresh().unwrap(), total(&books)), (vec![], (0, 0, 0)), "nothing was used");
    let ledger = scratch.ledger("run-a");
    serve(&ledger, "a", 30);
    reserve(&ledger, "a");
    for _ in 0..2 {
        assert_eq!((books.refresh().unwrap(), total(&books)), (vec![], (2, 130, 1)), "one is under way");
    }
    drop(ledger);
    serve(&scratch.ledger("run-b"), "b", 7);
    assert_eq!((books.refresh().unwrap(), total(&books)), (vec![], (3, 137, 1)), "its owner died");
    let runs = books.totals(By::Run, &Filter::default()).unwrap();
    let a = Total {
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
        ..Total::default()
    };
    assert_eq!((&runs[0], runs[1].money), (&a, 7));
    assert_eq!(books.verify().unwrap(), []);
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
    let (file, whole) = (scratch.file("owner"), fs::read(scratch.file("owner")).unwrap());
    let told = |problems: Vec<Problem>| problems.into_iter().map(|problem| problem.what).collect::<Vec<_>>();
    assert_eq!((books.refresh().unwrap(), books.verify().unwrap()), (vec![], vec![]));

    // A line less is a chain as good as any, but not the one that was read.
    let shorter = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
    fs::write(&file, &whole[..shorter]).unwrap();
    assert_eq!(told(books.verify().unwrap()), [SHRANK]);

    fs::remove_file(&file).unwrap();
    assert_eq!(told(books.verify().unwrap()), ["it is gone, but what it said is known"]);
    assert_eq!(told(books.refresh().unwrap()), ["it is gone, but what it said is known"]);

    for _ in 0..3 {
        serve(&scratch.ledger("owner"), "a", 1);
    }
    assert_eq!(told(books.verify().unwrap()), ["it is not the one that was read before"]);
    assert_eq!(books.refresh().unwrap().len(), 1, "what follows does not follow");
    assert_eq!(total(&books), (1, 30, 0), "what was known stays");

    let changed = String::from_utf8(whole.clone()).unwrap().replacen("\"money\":30", "\"money\":10", 1);
    fs::write(&file, changed).unwrap();
    let problems = books.verify().unwrap();
    assert_eq!((problems.len(), problems[0].line, &problems[0].file), (1, 3, &file));
    fs::write(&file, whole).unwrap();
    assert_eq!(books.verify().unwrap(), []);
}
