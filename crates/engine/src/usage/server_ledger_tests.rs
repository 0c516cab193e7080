use super::super::{
    GroupBy, UsageFilter,
    tests::{Scratch, cut},
};
use super::*;
use doors::ledger::{CallOutcome, ModelCall, PastUsage};
use spec::{Money, Timestamp};
use std::{fs, time::SystemTime};

fn today() -> Day {
    Day::of(crate::now())
}

/// What a server does at its start. Nothing of it depends on the rest of the day.
fn start(scratch: &Scratch, today: Day) -> (BudgetManager, PastUsage, u64) {
    let books = scratch.books();
    assert_eq!(books.check(today).unwrap(), None);
    let mut owner = scratch.ledger(OWNER_SEGMENT);
    owner.add_past_usage(books.spent_today(today).unwrap(), today);
    let lost =
        owner.recovered_usage().lost + ledger::recover(&scratch.0.join(LEDGER)).unwrap().lost;
    let past = owner
        .recovered_usage()
        .tenants
        .get("t")
        .copied()
        .unwrap_or_default();
    let till = BudgetManager::new(Arc::new(owner));
    begin_day(&till, &scratch.0, Durability::Process, today).unwrap();
    (till, past, lost)
}

fn reserve(ledger: &Ledger) -> u64 {
    let call = ModelCall {
        run: "r".into(),
        tenant: "t".into(),
        model: "m".into(),
        ..ModelCall::default()
    };
    ledger.reserve(&call, Money(100), 1).unwrap()
}

fn spend(ledger: &Ledger, money: u64) {
    ledger
        .settle(
            reserve(ledger),
            &CallOutcome::unknown(Money(money), "complete"),
        )
        .unwrap();
    ledger.flush().unwrap();
}

fn make_old(file: &Path) {
    let opened = fs::File::options().append(true).open(file).unwrap();
    opened.set_modified(SystemTime::UNIX_EPOCH).unwrap();
}

fn total(books: &UsageProjection) -> (u64, u64) {
    assert_eq!(books.refresh().unwrap(), []);
    let sums = books
        .totals(GroupBy::Tenant, &UsageFilter::default())
        .unwrap();
    sums.first()
        .map(|total| (total.calls, total.money))
        .unwrap_or_default()
}

#[test]
fn what_was_spent_is_exact_over_starts_and_what_died_counts_once() {
    let (scratch, today) = (Scratch::new("own-starts"), today());
    // A server before daily segments.
    spend(&scratch.ledger(OWNER_SEGMENT), 1);
    let (till, past, lost) = start(&scratch, today);
    assert_eq!((past.day_money, lost), (Money(1), 0));
    spend(&till.ledger(), 20);
    drop(till);
    let (till, past, lost) = start(&scratch, today);
    assert_eq!((past.day_money, lost), (Money(21), 0));
    spend(&till.ledger(), 300);
    // A kill: the reservation is neither settled nor is the segment closed.
    reserve(&till.ledger());
    drop(till);
    for lost_now in [1, 0, 0] {
        let (till, past, lost) = start(&scratch, today);
        assert_eq!(
            (past.day_money, past.calls, lost),
            (Money(421), 4, lost_now)
        );
        assert_eq!(till.ledger().name(), ledger::daily_segment(today));
    }
    let books = scratch.books();
    assert_eq!((total(&books), books.verify().unwrap()), ((4, 421), vec![]));
}

#[test]
fn each_day_begins_once_and_none_comes_twice() {
    let (scratch, today) = (Scratch::new("own-days"), today());
    let (till, ..) = start(&scratch, today);
    let name = |till: &BudgetManager| till.ledger().name().to_owned();
    let begin = |day| begin_day(&till, &scratch.0, Durability::Process, day).unwrap();
    begin(today);
    assert_eq!(name(&till), ledger::daily_segment(today));
    let under_way = (till.ledger(), reserve(&till.ledger()));
    begin(today.next());
    begin(today);
    assert_eq!(
        name(&till),
        ledger::daily_segment(today.next()),
        "a clock that was put back begins no day"
    );
    let books = scratch.books();
    assert_eq!(total(&books), (1, 100));
    let before = segment_lengths(&scratch.0).unwrap();
    assert_eq!(before.len(), 3);
    under_way
        .0
        .settle(under_way.1, &CallOutcome::unknown(Money(7), "complete"))
        .unwrap();
    drop(under_way);
    let now = segment_lengths(&scratch.0).unwrap();
    let longer: Vec<_> = now
        .keys()
        .filter(|name| now.get(*name) != before.get(*name))
        .collect();
    assert_eq!(longer, [&ledger::daily_segment(today)]);
    books.copy_live_segments(longer).unwrap();
    let sums = books
        .totals(GroupBy::Tenant, &UsageFilter::default())
        .unwrap();
    assert_eq!((sums[0].money, sums[0].open), (7, 0));
}

#[test]
fn a_day_that_was_cut_or_vanished_keeps_a_server_from_starting_until_it_is_put_aside() {
    let (scratch, today) = (Scratch::new("own-cut"), today());
    let (old, young) = (
        ledger::daily_segment(Day(today.0 - 9)),
        ledger::daily_segment(today),
    );
    for name in [OWNER_SEGMENT, &old, &old, &young] {
        spend(&scratch.ledger(name), 5);
    }
    let books = scratch.books();
    assert_eq!(total(&books), (4, 20));
    let told = || {
        books
            .check(today)
            .unwrap()
            .map(|problem| (problem.file, problem.what))
    };
    for name in [OWNER_SEGMENT, &old, &young] {
        let file = scratch.file(name);
        let whole = fs::read(&file).unwrap();
        let shrank = Some((file.clone(), super::super::SHRANK.to_owned()));
        fs::write(&file, cut(&whole)).unwrap();
        assert_eq!(told(), shrank, "{name}");
        fs::remove_file(&file).unwrap();
        assert_eq!(
            told().unwrap().1,
            "it is gone, but what it said is known",
            "{name}"
        );
        fs::write(&file, &whole).unwrap();
        assert_eq!(told(), None, "{name}");
    }
    // A segment of a past day: its length is checked.
    let file = scratch.file(&old);
    let whole = fs::read_to_string(&file).unwrap();
    let half = whole
        .find("\"close\"")
        .map(|at| at + whole[at..].find('\n').unwrap() + 1)
        .unwrap();
    assert!(half < whole.len());
    fs::write(&file, &whole[..half]).unwrap();
    make_old(&file);
    assert!(!ledger::may_hold_usage_of(&scratch.0.join(LEDGER), &old, today).unwrap());
    assert_eq!(told().unwrap().0, file);
    fs::remove_file(scratch.file(&young)).unwrap();
    let aside = books.set_aside(crate::now().0).unwrap();
    assert_eq!(aside.segments, [old.clone(), young], "and `owner` stays");
    assert!(aside.place.unwrap().join(format!("{old}.jsonl")).exists() && !file.exists());
    assert_eq!((told(), total(&books)), (None, (4, 20)));
    assert_eq!(
        start(&scratch, today).1.day_money,
        Money(5),
        "what is left of today"
    );
    assert!(books.set_aside(crate::now().0).unwrap().segments.is_empty());
}

#[test]
fn a_day_whose_lines_were_changed_is_put_aside_and_half_a_line_is_no_reason() {
    let (scratch, today) = (Scratch::new("own-changed"), today());
    let names = [1, 2].map(|ago| ledger::daily_segment(Day(today.0 - ago)));
    names
        .iter()
        .for_each(|name| spend(&scratch.ledger(name), 5));
    let [changed, torn] = names.clone().map(|name| scratch.file(&name));
    let text = fs::read_to_string(&changed).unwrap();
    fs::write(&changed, text.replacen("\"money\":5", "\"money\":1", 1)).unwrap();
    let text = fs::read_to_string(&torn).unwrap();
    fs::write(&torn, text + "{\"n\":5,").unwrap();
    let books = scratch.books();
    assert!(matches!(
        books.spent_today(today),
        Err(UsageError::Ledger { .. })
    ));
    assert_eq!(books.set_aside(7).unwrap().segments, names[..1]);
    assert_eq!(start(&scratch, today).1.day_money, Money(5));
}

#[test]
fn days_that_are_over_are_taken_away_and_never_what_was_spent_today() {
    let (scratch, today) = (Scratch::new("own-retired"), today());
    let state = &scratch.0;
    let old = ledger::daily_segment(Day(today.0 - 9));
    spend(&scratch.ledger(&old), 5);
    let (till, past, _) = start(&scratch, today);
    assert_eq!(past.day_money, Money(5));
    spend(&till.ledger(), 7);
    let books = scratch.books();
    assert_eq!(total(&books), (2, 12));
    let now = today.start().0;
    assert_eq!(
        books.retire(state, u64::MAX, now).unwrap(),
        0,
        "it was written to today"
    );
    assert!(scratch.file(&old).exists());
    let later = Day(today.0 + 2).start().0;
    assert_eq!(
        books.retire(state, u64::MAX, later).unwrap(),
        1,
        "neither `owner` nor what goes on"
    );
    assert!(!scratch.file(&old).exists() && scratch.file(OWNER_SEGMENT).exists());
    assert_eq!(
        (
            books.check(today).unwrap(),
            total(&books),
            books.verify().unwrap()
        ),
        (None, (2, 12), vec![])
    );
    drop(till);
    assert_eq!(
        (
            books.refresh().unwrap(),
            books.retire(state, u64::MAX, later).unwrap()
        ),
        (vec![], 1)
    );
    assert_eq!(
        (total(&books), start(&scratch, today).1.calls),
        ((2, 12), 0)
    );
}

#[test]
fn of_a_day_that_was_being_taken_away_nothing_is_missed_and_nothing_counted() {
    let (scratch, today) = (Scratch::new("own-going"), today());
    let old = ledger::daily_segment(Day(today.0 - 9));
    spend(&scratch.ledger(&old), 5);
    let books = scratch.books();
    assert_eq!(total(&books), (1, 5));
    let end = books.usage.segments().unwrap()[&old];
    assert!(
        books
            .usage
            .begin_retirement(&old, end, Timestamp(1).0)
            .unwrap()
    );
    // Of several files the last is removed first: the rest may have no end.
    let file = scratch.file(&old);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, cut(cut(&whole))).unwrap();
    let (_, past, _) = start(&scratch, today);
    assert_eq!(past.calls, 0);
    assert!(books.set_aside(7).unwrap().segments.is_empty());
}
