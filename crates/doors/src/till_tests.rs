use super::*;
use crate::{
    ledger::{self, Durability},
    usage::Usage,
};
use proptest::prelude::*;
use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("airlock-till-{}-{number}", std::process::id())))
    }

    fn till(&self) -> Till {
        Till::new(Arc::new(
            Ledger::open(&self.0, "owner", Durability::Process).unwrap(),
        ))
    }

    /// A till whose time is what the test says, in seconds.
    fn till_at(&self, wall: u64, seconds: &Arc<AtomicU64>) -> Till {
        let seconds = Arc::clone(seconds);
        let clock = Clock::new(Duration::from_secs(wall), move || {
            Duration::from_secs(seconds.load(Ordering::Relaxed))
        });
        Till::with_clock(
            Arc::new(Ledger::open(&self.0, "owner", Durability::Process).unwrap()),
            clock,
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(work)
}

fn terms(level: Level, name: &str, money: Option<u64>) -> Terms {
    let budget = Budget {
        money: money.map(Money),
        ..Budget::default()
    };
    Terms {
        level,
        name: name.to_owned(),
        budget,
        ..Terms::default()
    }
}

fn claim(money: u64, tokens: u64) -> Claim {
    Claim {
        money: Money(money),
        tokens,
    }
}

fn take(till: &Till, account: &Account, money: u64, tokens: u64) -> Result<Hold, Refused> {
    let call = Call {
        tenant: "t".into(),
        session: "s".into(),
        ..Call::default()
    };
    now(till.reserve(account, call, |_| Some(claim(money, tokens))))
}

fn bill(money: u64, tokens: u64) -> Outcome {
    let usage = Usage {
        output: tokens,
        ..Usage::default()
    };
    Outcome {
        usage,
        source: Source::Final,
        ..Outcome::unknown(Money(money), "complete")
    }
}

fn spent(limit: &'static str, left: Option<u64>, resets_in: Option<u64>) -> Option<Refused> {
    Some(Refused::Spent {
        limit,
        left: left.map(Money),
        resets_in,
    })
}

fn busy(limit: &'static str, wait: u64) -> Option<Refused> {
    Some(Refused::Busy { limit, wait })
}

#[test]
fn the_room_is_that_of_the_tightest_level_and_what_is_held_is_not_there() {
    let scratch = Scratch::new();
    let till = scratch.till();
    let tenant = till.account(terms(Level::Tenant, "t", Some(100)), None);
    let session = till.account(terms(Level::Session, "s", Some(60)), Some(&tenant));
    let other = till.account(terms(Level::Session, "o", None), Some(&tenant));
    let room = |account: &Account| {
        let mut seen = None;
        let _ = now(till.reserve(account, Call::default(), |room| {
            seen = Some(room);
            None
        }));
        seen.unwrap().money.unwrap().0
    };
    assert_eq!((room(&session), room(&other)), (60, 100));
    let held = take(&till, &session, 50, 0).unwrap();
    assert_eq!((room(&session), room(&other)), (10, 50));
    held.settle(bill(20, 0));
    assert_eq!((room(&session), room(&other)), (40, 80));
    assert_eq!(
        (till.used(&tenant).money, till.used(&tenant).held),
        (Money(20), Money(0))
    );
    assert_eq!(
        take(&till, &session, 41, 0).err(),
        spent("session_usd", Some(40), None)
    );
    assert_eq!(
        take(&till, &other, 81, 0).err(),
        spent("tenant_usd", Some(80), None)
    );
    assert!(take(&till, &session, 40, 0).is_ok());
}

#[test]
fn a_reservation_can_be_waited_for_on_any_thread() {
    fn anywhere<T: Send + 'static>(_: &T) {}
    let scratch = Scratch::new();
    let till = scratch.till();
    let run = till.account(terms(Level::Run, "r", None), None);
    let work = async move {
        till.reserve(&run, Call::default(), |_| Some(claim(1, 1)))
            .await
    };
    anywhere(&work);
    anywhere(&now(work).unwrap());
}

#[test]
fn what_calls_under_way_hold_may_come_back_so_trying_again_is_no_mistake() {
    let scratch = Scratch::new();
    let till = scratch.till();
    let run = till.account(terms(Level::Run, "r", Some(100)), None);
    let held = take(&till, &run, 100, 0).unwrap();
    assert_eq!(take(&till, &run, 1, 0).err(), busy("run_usd", 1));
    held.settle(bill(100, 0));
    assert_eq!(
        take(&till, &run, 1, 0).err(),
        spent("run_usd", Some(0), None)
    );
    assert!(
        take(&till, &run, 0, 0).is_ok(),
        "what costs nothing can be had for nothing"
    );
}

#[test]
fn every_limit_refuses_under_its_own_name() {
    let scratch = Scratch::new();
    let till = scratch.till();
    let run = |name: &str, budget: Budget| {
        till.account(
            Terms {
                budget,
                ..terms(Level::Run, name, None)
            },
            None,
        )
    };
    let call = run(
        "call",
        Budget {
            call: Some(Money(10)),
            ..Budget::default()
        },
    );
    assert_eq!(
        take(&till, &call, 11, 0).err(),
        spent("call_usd", Some(10), None)
    );
    take(&till, &call, 10, 0).unwrap().settle(bill(10, 0));
    assert!(
        take(&till, &call, 10, 0).is_ok(),
        "it is a limit of each call"
    );

    let tokens = run(
        "tokens",
        Budget {
            tokens: Some(10),
            ..Budget::default()
        },
    );
    assert_eq!(
        take(&till, &tokens, 0, 11).err(),
        spent("tokens", None, None)
    );
    take(&till, &tokens, 0, 10).unwrap().settle(bill(0, 4));
    assert_eq!(
        take(&till, &tokens, 0, 7).err(),
        spent("tokens", None, None)
    );
    assert!(take(&till, &tokens, 0, 6).is_ok());

    let requests = run(
        "requests",
        Budget {
            requests: Some(2),
            ..Budget::default()
        },
    );
    take(&till, &requests, 0, 0).unwrap().settle(bill(0, 0));
    drop(take(&till, &requests, 0, 0).unwrap());
    assert_eq!(
        take(&till, &requests, 0, 0).err(),
        spent("requests", None, None)
    );

    let concurrent = run(
        "concurrent",
        Budget {
            concurrent: Some(1),
            ..Budget::default()
        },
    );
    let held = take(&till, &concurrent, 0, 0).unwrap();
    assert_eq!(take(&till, &concurrent, 0, 0).err(), busy("concurrent", 1));
    drop(held);
    assert!(take(&till, &concurrent, 0, 0).is_ok());

    let free = run("free", Budget::default());
    let nothing = now(till.reserve(&free, Call::default(), |room| {
        assert_eq!(room, Room::default());
        None
    }));
    assert_eq!(nothing.err(), spent("call", None, None));
}

#[test]
fn rates_recover_with_time_and_say_when() {
    let (scratch, seconds) = (Scratch::new(), Arc::new(AtomicU64::new(0)));
    let till = scratch.till_at(0, &seconds);
    let rates = Terms {
        requests_per_minute: Some(2),
        tokens_per_minute: Some(60),
        ..terms(Level::Run, "r", None)
    };
    let run = till.account(rates.clone(), None);
    take(&till, &run, 0, 40).unwrap().settle(bill(0, 40));
    assert_eq!(take(&till, &run, 0, 25).err(), busy("tokens_per_minute", 5));
    assert_eq!(
        take(&till, &run, 0, 61).err(),
        spent("tokens_per_minute", None, None),
        "it never fits"
    );
    seconds.store(5, Ordering::Relaxed);
    let held = take(&till, &run, 0, 25).unwrap();
    assert_eq!(
        take(&till, &run, 0, 0).err(),
        busy("requests_per_minute", 25)
    );
    held.settle(bill(0, 5));
    till.account(rates, None);
    seconds.store(30, Ordering::Relaxed);
    assert_eq!(
        take(&till, &run, 0, 46).err(),
        busy("tokens_per_minute", 1),
        "20 came back, 25 were filled"
    );
    assert!(take(&till, &run, 0, 45).is_ok());
}

#[test]
fn a_day_ends_at_midnight_by_a_clock_that_nobody_can_turn() {
    const DAY: u64 = 86_400;
    let (scratch, seconds) = (Scratch::new(), Arc::new(AtomicU64::new(0)));
    let till = scratch.till_at(20_000 * DAY + DAY - 100, &seconds);
    let account = |till: &Till| {
        till.account(
            Terms {
                day: Some(Money(50)),
                ..terms(Level::Tenant, "t", None)
            },
            None,
        )
    };
    let tenant = account(&till);
    take(&till, &tenant, 50, 0).unwrap().settle(bill(50, 0));
    assert_eq!(
        take(&till, &tenant, 1, 0).err(),
        spent("tenant_day_usd", Some(0), Some(100))
    );
    seconds.store(99, Ordering::Relaxed);
    assert_eq!(
        take(&till, &tenant, 1, 0).err(),
        spent("tenant_day_usd", Some(0), Some(1))
    );
    seconds.store(100, Ordering::Relaxed);
    let over_midnight = take(&till, &tenant, 30, 0).unwrap();
    assert_eq!(
        till.used(&tenant).money,
        Money(50),
        "the total knows no days"
    );
    seconds.store(0, Ordering::Relaxed);
    assert_eq!(
        take(&till, &tenant, 21, 0).err(),
        busy("tenant_day_usd", 1),
        "no day comes twice"
    );
    seconds.store(100 + DAY, Ordering::Relaxed);
    over_midnight.settle(bill(30, 0));
    assert_eq!(
        take(&till, &tenant, 51 - 30, 0).err(),
        spent("tenant_day_usd", Some(20), Some(DAY))
    );
}

#[test]
fn what_was_spent_before_a_restart_is_spent_on_its_day_and_in_all() {
    let scratch = Scratch::new();
    let day = |money| Terms {
        day: Some(Money(money)),
        ..terms(Level::Tenant, "t", Some(100))
    };
    let till = scratch.till();
    let tenant = till.account(day(60), None);
    take(&till, &tenant, 40, 0).unwrap().settle(bill(30, 0));
    let lost = take(&till, &tenant, 25, 0).unwrap();
    // The end of this process, as far as the ledger can see.
    std::mem::forget(lost);
    let ledger = till.ledger();
    drop((tenant, till));
    ledger.give_up();
    let till = scratch.till();
    let tenant = till.account(day(60), None);
    assert_eq!(till.used(&tenant).money, Money(55));
    assert!(matches!(
        take(&till, &tenant, 6, 0).err(),
        Some(Refused::Spent {
            limit: "tenant_day_usd",
            left: Some(Money(5)),
            ..
        })
    ));
    let tenant = till.account(day(1000), None);
    assert_eq!(
        take(&till, &tenant, 46, 0).err(),
        spent("tenant_usd", Some(45), None)
    );
    assert!(take(&till, &tenant, 45, 0).is_ok());
}

#[test]
fn a_hold_that_is_dropped_counts_in_full_and_an_overrun_is_not_hidden() {
    let scratch = Scratch::new();
    let till = scratch.till();
    let run = till.account(terms(Level::Run, "r", Some(100)), None);
    drop(take(&till, &run, 30, 9).unwrap());
    assert_eq!(
        (till.used(&run).money, till.used(&run).calls),
        (Money(30), 1)
    );
    take(&till, &run, 30, 9)
        .unwrap()
        .settle(Outcome::unknown(Money::ZERO, "upstream_failed"));
    assert_eq!(
        till.used(&run).money,
        Money(60),
        "nothing is known, so all of it counts"
    );
    take(&till, &run, 40, 9).unwrap().settle(bill(45, 9));
    let used = till.used(&run);
    assert_eq!(
        (used.money, used.overrun, used.held),
        (Money(105), Money(5), Money(0))
    );
    assert_eq!(
        take(&till, &run, 1, 0).err(),
        spent("run_usd", Some(0), None)
    );
    let file = scratch.0.join("owner.jsonl");
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(r#""money":45,"overrun":5,"#), "{text}");
    assert!(
        text.contains(r#""source":"reserved","money":30,"ending":"dropped""#),
        "{text}"
    );
}

#[test]
fn without_a_ledger_nothing_is_spent() {
    let scratch = Scratch::new();
    let till = scratch.till();
    let run = till.account(terms(Level::Run, "r", Some(100)), None);
    take(&till, &run, 10, 0).unwrap().settle(bill(10, 0));
    till.ledger().cannot_write();
    assert!(matches!(take(&till, &run, 10, 0), Err(Refused::Ledger(_))));
    let used = till.used(&run);
    assert_eq!(
        (used.money, used.held, used.calls),
        (Money(10), Money(0), 1)
    );
}

#[test]
fn ten_thousand_sessions_leave_nothing_but_what_their_tenant_spent() {
    let scratch = Scratch::new();
    let till = scratch.till();
    for number in 0..10_000 {
        let tenant = till.account(terms(Level::Tenant, "t", None), None);
        let session = till.account(
            terms(Level::Session, &format!("s{number}"), None),
            Some(&tenant),
        );
        let held = take(&till, &session, 2, 0).unwrap();
        drop((session, tenant));
        held.settle(bill(1, 0));
    }
    let accounts = till.inner.accounts();
    assert_eq!((accounts.states.len(), accounts.names.len()), (1, 1));
    drop(accounts);
    let tenant = till.account(terms(Level::Tenant, "t", None), None);
    assert_eq!(
        (till.used(&tenant).money, till.used(&tenant).calls),
        (Money(10_000), 10_000)
    );
}

#[test]
fn of_a_thousand_at_once_with_money_for_ten_ten_are_served() {
    let scratch = Scratch::new();
    let till = scratch.till();
    let tenant = till.account(terms(Level::Tenant, "t", Some(70)), None);
    let barrier = std::sync::Barrier::new(1000);
    let (served, together) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for number in 0..1000 {
            let (till, tenant, barrier, served, together) =
                (&till, &tenant, &barrier, &served, &together);
            let start = move || {
                let session = till.account(
                    terms(Level::Session, &format!("s{number}"), None),
                    Some(tenant),
                );
                barrier.wait();
                if let Ok(hold) = take(till, &session, 7, 0) {
                    together.fetch_add(7, Ordering::Relaxed);
                    served.fetch_add(1, Ordering::Relaxed);
                    hold.settle(bill(7, 0));
                }
            };
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(threads, start)
                .unwrap();
        }
    });
    assert_eq!((served.into_inner(), together.into_inner()), (10, 70));
    assert_eq!(till.used(&tenant).money, Money(70));
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        session: usize,
        money: u64,
        tokens: u64,
    },
    Settle {
        which: usize,
        share: u64,
    },
    Drop {
        which: usize,
    },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_usize, 0..40_u64, 0..40_u64).prop_map(|(session, money, tokens)| Step::Take { session, money, tokens }),
        2 => (0..8_usize, 0..=100_u64).prop_map(|(which, share)| Step::Settle { which, share }),
        1 => (0..8_usize).prop_map(|which| Step::Drop { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A model that only adds decides the same, and no level ever has more held and spent than it may.
    #[test]
    fn no_order_of_calls_exceeds_a_limit(
        limits in proptest::array::uniform4(0..150_u64),
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let scratch = Scratch::new();
        let till = scratch.till();
        let tokens = |budget: u64, most: u64| Budget { money: Some(Money(budget)), tokens: Some(most), ..Budget::default() };
        let tenant = till.account(
            Terms { budget: tokens(limits[3], 200), ..terms(Level::Tenant, "t", None) }, None);
        let sessions: Vec<Account> = (0..3).map(|number| {
            let name = format!("s{number}");
            till.account(Terms { budget: tokens(limits[number], 100), ..terms(Level::Session, &name, None) }, Some(&tenant))
        }).collect();
        let mut holds: Vec<(usize, Hold)> = Vec::new();
        // Held and spent together, money and tokens, by session.
        let mut total = [(0_u64, 0_u64); 3];
        for step in steps {
            match step {
                Step::Take { session, money, tokens } => {
                    let sum = |pick: fn(&(u64, u64)) -> u64| total.iter().map(pick).sum::<u64>();
                    let fits = total[session].0 + money <= limits[session] && sum(|one| one.0) + money <= limits[3]
                        && total[session].1 + tokens <= 100 && sum(|one| one.1) + tokens <= 200;
                    let hold = take(&till, &sessions[session], money, tokens);
                    prop_assert_eq!(hold.is_ok(), fits);
                    if let Ok(hold) = hold {
                        total[session].0 += money;
                        total[session].1 += tokens;
                        holds.push((session, hold));
                    }
                }
                Step::Settle { which, share } if which < holds.len() => {
                    let (session, hold) = holds.swap_remove(which);
                    let real = (hold.claim.money.0 * share / 100, hold.claim.tokens * share / 100);
                    total[session].0 -= hold.claim.money.0 - real.0;
                    total[session].1 -= hold.claim.tokens - real.1;
                    hold.settle(bill(real.0, real.1));
                }
                Step::Drop { which } if which < holds.len() => drop(holds.swap_remove(which)),
                Step::Settle { .. } | Step::Drop { .. } => {}
            }
            for (session, limit) in sessions.iter().zip(limits) {
                let used = till.used(session);
                prop_assert!(used.money.plus(used.held) <= Money(limit));
            }
            let used = till.used(&tenant);
            prop_assert_eq!(used.money.plus(used.held).0, total.iter().map(|one| one.0).sum::<u64>());
            prop_assert!(used.money.plus(used.held) <= Money(limits[3]));
        }
        drop(holds);
        let left = till.used(&tenant).money;
        drop((sessions, tenant, till));
        prop_assert_eq!(ledger::verify(&scratch.0).unwrap(), Vec::new());
        let found = Ledger::open(&scratch.0, "owner", Durability::Process).unwrap();
        let past = found.found().tenants.get("t").copied().unwrap_or_default();
        prop_assert_eq!((past.money, found.found().lost), (left, 0));
    }
}

#[test]
fn what_is_under_way_when_the_day_changes_ends_where_it_began_and_the_day_before_is_closed_then() {
    const DAY: u64 = 86_400;
    let (scratch, seconds) = (Scratch::new(), Arc::new(AtomicU64::new(0)));
    let day = |number| {
        Arc::new(
            Ledger::open(
                &scratch.0,
                &ledger::of_day(spec::Day(number)),
                Durability::Process,
            )
            .unwrap(),
        )
    };
    let kinds = |number| {
        let text = fs::read_to_string(
            scratch
                .0
                .join(format!("{}.jsonl", ledger::of_day(spec::Day(number)))),
        )
        .unwrap();
        let kind = |line: &str| line.split('"').nth(7).unwrap().to_owned();
        text.lines().map(kind).collect::<Vec<_>>()
    };
    let till = scratch.till_at(20_001 * DAY - 10, &seconds);
    till.write_to(day(20_000));
    let tenant = till.account(
        Terms {
            day: Some(Money(50)),
            ..terms(Level::Tenant, "t", None)
        },
        None,
    );
    let (first, second) = (
        take(&till, &tenant, 20, 0).unwrap(),
        take(&till, &tenant, 30, 0).unwrap(),
    );
    let flushing = Arc::downgrade(&first.ledger);
    seconds.store(10, Ordering::Relaxed);
    till.write_to(day(20_001));
    assert_eq!(till.ledger().name(), "owner-2024-10-05");
    first.settle(bill(20, 0));
    assert_eq!(
        kinds(20_000),
        ["open", "reserve", "reserve", "settle"],
        "a call of it goes on"
    );
    let third = take(&till, &tenant, 0, 0).unwrap();
    second.settle(bill(25, 0));
    assert_eq!(
        kinds(20_000),
        ["open", "reserve", "reserve", "settle", "settle", "close"]
    );
    assert!(flushing.upgrade().is_none());
    third.settle(bill(0, 0));
    assert_eq!(kinds(20_001), ["open", "reserve", "settle"]);
    assert_eq!(
        till.day(&tenant).spent,
        Money(45),
        "both ended on the new day"
    );
    drop((tenant, till));
    assert_eq!(kinds(20_001).pop().unwrap(), "close");
    assert_eq!(ledger::verify(&scratch.0).unwrap(), []);
    assert_eq!(
        ledger::recover(&scratch.0).unwrap(),
        ledger::Recovered::default(),
        "each was closed"
    );
}
