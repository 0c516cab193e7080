use super::*;
use crate::{
    ledger::{self, Durability},
    usage::TokenUsage,
};
use proptest::prelude::*;
use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A temporary folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("airlock-till-{}-{number}", std::process::id())))
    }

    fn budgets(&self) -> BudgetManager {
        BudgetManager::new(Arc::new(
            Ledger::open(&self.0, "owner", Durability::Process).unwrap(),
        ))
    }

    /// A budget manager whose clock the test sets, in seconds.
    fn till_at(&self, wall: u64, seconds: &Arc<AtomicU64>) -> BudgetManager {
        let seconds = Arc::clone(seconds);
        let clock = Clock::new(Duration::from_secs(wall), move || {
            Duration::from_secs(seconds.load(Ordering::Relaxed))
        });
        BudgetManager::with_clock(
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

fn account_limits(level: AccountLevel, name: &str, money: Option<u64>) -> AccountLimits {
    let budget = Budget {
        money: money.map(Money),
        ..Budget::default()
    };
    AccountLimits {
        level,
        name: name.to_owned(),
        budget,
        ..AccountLimits::default()
    }
}

fn amount(money: u64, tokens: u64) -> Amount {
    Amount {
        money: Money(money),
        tokens,
    }
}

fn take(
    budgets: &BudgetManager,
    account: &BudgetAccount,
    money: u64,
    tokens: u64,
) -> Result<Reservation, BudgetRefusal> {
    let call = ModelCall {
        tenant: "t".into(),
        session: "s".into(),
        ..ModelCall::default()
    };
    now(budgets.reserve(account, call, |_| Some(amount(money, tokens))))
}

fn bill(money: u64, tokens: u64) -> CallOutcome {
    let usage = TokenUsage {
        output: tokens,
        ..TokenUsage::default()
    };
    CallOutcome {
        usage,
        source: UsageSource::Final,
        ..CallOutcome::unknown(Money(money), "complete")
    }
}

fn spent(limit: &'static str, left: Option<u64>, resets_in: Option<u64>) -> Option<BudgetRefusal> {
    Some(BudgetRefusal::Spent {
        limit,
        left: left.map(Money),
        resets_in,
    })
}

fn busy(limit: &'static str, wait: u64) -> Option<BudgetRefusal> {
    Some(BudgetRefusal::Busy { limit, wait })
}

#[test]
fn the_room_is_that_of_the_tightest_level_and_what_is_held_is_not_there() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let tenant = budgets.open_account(account_limits(AccountLevel::Tenant, "t", Some(100)), None);
    let session = budgets.open_account(
        account_limits(AccountLevel::Session, "s", Some(60)),
        Some(&tenant),
    );
    let other = budgets.open_account(
        account_limits(AccountLevel::Session, "o", None),
        Some(&tenant),
    );
    let room = |account: &BudgetAccount| {
        let mut seen = None;
        let _ = now(budgets.reserve(account, ModelCall::default(), |room| {
            seen = Some(room);
            None
        }));
        seen.unwrap().money.unwrap().0
    };
    assert_eq!((room(&session), room(&other)), (60, 100));
    let held = take(&budgets, &session, 50, 0).unwrap();
    assert_eq!((room(&session), room(&other)), (10, 50));
    held.settle(bill(20, 0));
    assert_eq!((room(&session), room(&other)), (40, 80));
    assert_eq!(
        (budgets.usage(&tenant).money, budgets.usage(&tenant).held),
        (Money(20), Money(0))
    );
    assert_eq!(
        take(&budgets, &session, 41, 0).err(),
        spent("session_usd", Some(40), None)
    );
    assert_eq!(
        take(&budgets, &other, 81, 0).err(),
        spent("tenant_usd", Some(80), None)
    );
    assert!(take(&budgets, &session, 40, 0).is_ok());
}

#[test]
fn a_reservation_can_be_waited_for_on_any_thread() {
    fn anywhere<T: Send + 'static>(_: &T) {}
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let run = budgets.open_account(account_limits(AccountLevel::Run, "r", None), None);
    let work = async move {
        budgets
            .reserve(&run, ModelCall::default(), |_| Some(amount(1, 1)))
            .await
    };
    anywhere(&work);
    anywhere(&now(work).unwrap());
}

#[test]
fn what_calls_under_way_hold_may_come_back_so_trying_again_is_no_mistake() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let run = budgets.open_account(account_limits(AccountLevel::Run, "r", Some(100)), None);
    let held = take(&budgets, &run, 100, 0).unwrap();
    assert_eq!(take(&budgets, &run, 1, 0).err(), busy("run_usd", 1));
    held.settle(bill(100, 0));
    assert_eq!(
        take(&budgets, &run, 1, 0).err(),
        spent("run_usd", Some(0), None)
    );
    assert!(
        take(&budgets, &run, 0, 0).is_ok(),
        "what costs nothing can be had for nothing"
    );
}

#[test]
fn every_limit_refuses_under_its_own_name() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let run = |name: &str, budget: Budget| {
        budgets.open_account(
            AccountLimits {
                budget,
                ..account_limits(AccountLevel::Run, name, None)
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
        take(&budgets, &call, 11, 0).err(),
        spent("call_usd", Some(10), None)
    );
    take(&budgets, &call, 10, 0).unwrap().settle(bill(10, 0));
    assert!(
        take(&budgets, &call, 10, 0).is_ok(),
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
        take(&budgets, &tokens, 0, 11).err(),
        spent("tokens", None, None)
    );
    take(&budgets, &tokens, 0, 10).unwrap().settle(bill(0, 4));
    assert_eq!(
        take(&budgets, &tokens, 0, 7).err(),
        spent("tokens", None, None)
    );
    assert!(take(&budgets, &tokens, 0, 6).is_ok());

    let requests = run(
        "requests",
        Budget {
            requests: Some(2),
            ..Budget::default()
        },
    );
    take(&budgets, &requests, 0, 0).unwrap().settle(bill(0, 0));
    drop(take(&budgets, &requests, 0, 0).unwrap());
    assert_eq!(
        take(&budgets, &requests, 0, 0).err(),
        spent("requests", None, None)
    );

    let concurrent = run(
        "concurrent",
        Budget {
            concurrent: Some(1),
            ..Budget::default()
        },
    );
    let held = take(&budgets, &concurrent, 0, 0).unwrap();
    assert_eq!(
        take(&budgets, &concurrent, 0, 0).err(),
        busy("concurrent", 1)
    );
    drop(held);
    assert!(take(&budgets, &concurrent, 0, 0).is_ok());

    let free = run("free", Budget::default());
    let nothing = now(budgets.reserve(&free, ModelCall::default(), |room| {
        assert_eq!(room, RemainingBudget::default());
        None
    }));
    assert_eq!(nothing.err(), spent("call", None, None));
}

#[test]
fn rates_recover_with_time_and_say_when() {
    let (scratch, seconds) = (Scratch::new(), Arc::new(AtomicU64::new(0)));
    let budgets = scratch.till_at(0, &seconds);
    let rates = AccountLimits {
        requests_per_minute: Some(2),
        tokens_per_minute: Some(60),
        ..account_limits(AccountLevel::Run, "r", None)
    };
    let run = budgets.open_account(rates.clone(), None);
    take(&budgets, &run, 0, 40).unwrap().settle(bill(0, 40));
    assert_eq!(
        take(&budgets, &run, 0, 25).err(),
        busy("tokens_per_minute", 5)
    );
    assert_eq!(
        take(&budgets, &run, 0, 61).err(),
        spent("tokens_per_minute", None, None),
        "it never fits"
    );
    seconds.store(5, Ordering::Relaxed);
    let held = take(&budgets, &run, 0, 25).unwrap();
    assert_eq!(
        take(&budgets, &run, 0, 0).err(),
        busy("requests_per_minute", 25)
    );
    held.settle(bill(0, 5));
    budgets.open_account(rates, None);
    seconds.store(30, Ordering::Relaxed);
    assert_eq!(
        take(&budgets, &run, 0, 46).err(),
        busy("tokens_per_minute", 1),
        "20 came back, 25 were filled"
    );
    assert!(take(&budgets, &run, 0, 45).is_ok());
}

#[test]
fn a_day_ends_at_midnight_by_a_clock_that_nobody_can_turn() {
    const DAY: u64 = 86_400;
    let (scratch, seconds) = (Scratch::new(), Arc::new(AtomicU64::new(0)));
    let budgets = scratch.till_at(20_000 * DAY + DAY - 100, &seconds);
    let account = |budgets: &BudgetManager| {
        budgets.open_account(
            AccountLimits {
                day: Some(Money(50)),
                ..account_limits(AccountLevel::Tenant, "t", None)
            },
            None,
        )
    };
    let tenant = account(&budgets);
    take(&budgets, &tenant, 50, 0).unwrap().settle(bill(50, 0));
    assert_eq!(
        take(&budgets, &tenant, 1, 0).err(),
        spent("tenant_day_usd", Some(0), Some(100))
    );
    seconds.store(99, Ordering::Relaxed);
    assert_eq!(
        take(&budgets, &tenant, 1, 0).err(),
        spent("tenant_day_usd", Some(0), Some(1))
    );
    seconds.store(100, Ordering::Relaxed);
    let over_midnight = take(&budgets, &tenant, 30, 0).unwrap();
    assert_eq!(
        budgets.usage(&tenant).money,
        Money(50),
        "the total knows no days"
    );
    seconds.store(0, Ordering::Relaxed);
    assert_eq!(
        take(&budgets, &tenant, 21, 0).err(),
        busy("tenant_day_usd", 1),
        "no day comes twice"
    );
    seconds.store(100 + DAY, Ordering::Relaxed);
    over_midnight.settle(bill(30, 0));
    assert_eq!(
        take(&budgets, &tenant, 51 - 30, 0).err(),
        spent("tenant_day_usd", Some(20), Some(DAY))
    );
}

#[test]
fn what_was_spent_before_a_restart_is_spent_on_its_day_and_in_all() {
    let scratch = Scratch::new();
    let day = |money| AccountLimits {
        day: Some(Money(money)),
        ..account_limits(AccountLevel::Tenant, "t", Some(100))
    };
    let budgets = scratch.budgets();
    let tenant = budgets.open_account(day(60), None);
    take(&budgets, &tenant, 40, 0).unwrap().settle(bill(30, 0));
    let lost = take(&budgets, &tenant, 25, 0).unwrap();
    // Simulates the end of this process.
    std::mem::forget(lost);
    let ledger = budgets.ledger();
    drop((tenant, budgets));
    ledger.give_up();
    let budgets = scratch.budgets();
    let tenant = budgets.open_account(day(60), None);
    assert_eq!(budgets.usage(&tenant).money, Money(55));
    assert!(matches!(
        take(&budgets, &tenant, 6, 0).err(),
        Some(BudgetRefusal::Spent {
            limit: "tenant_day_usd",
            left: Some(Money(5)),
            ..
        })
    ));
    let tenant = budgets.open_account(day(1000), None);
    assert_eq!(
        take(&budgets, &tenant, 46, 0).err(),
        spent("tenant_usd", Some(45), None)
    );
    assert!(take(&budgets, &tenant, 45, 0).is_ok());
}

#[test]
fn a_hold_that_is_dropped_counts_in_full_and_an_overrun_is_not_hidden() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let run = budgets.open_account(account_limits(AccountLevel::Run, "r", Some(100)), None);
    drop(take(&budgets, &run, 30, 9).unwrap());
    assert_eq!(
        (budgets.usage(&run).money, budgets.usage(&run).calls),
        (Money(30), 1)
    );
    take(&budgets, &run, 30, 9)
        .unwrap()
        .settle(CallOutcome::unknown(Money::ZERO, "upstream_failed"));
    assert_eq!(
        budgets.usage(&run).money,
        Money(60),
        "nothing is known, so all of it counts"
    );
    take(&budgets, &run, 40, 9).unwrap().settle(bill(45, 9));
    let used = budgets.usage(&run);
    assert_eq!(
        (used.money, used.overrun, used.held),
        (Money(105), Money(5), Money(0))
    );
    assert_eq!(
        take(&budgets, &run, 1, 0).err(),
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
    let budgets = scratch.budgets();
    let run = budgets.open_account(account_limits(AccountLevel::Run, "r", Some(100)), None);
    take(&budgets, &run, 10, 0).unwrap().settle(bill(10, 0));
    budgets.ledger().cannot_write();
    assert!(matches!(
        take(&budgets, &run, 10, 0),
        Err(BudgetRefusal::Ledger(_))
    ));
    let used = budgets.usage(&run);
    assert_eq!(
        (used.money, used.held, used.calls),
        (Money(10), Money(0), 1)
    );
}

#[test]
fn on_a_full_disk_nothing_new_is_spent_and_what_is_under_way_is_settled() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let is_full = Arc::new(AtomicBool::new(false));
    budgets.spend_nothing_while(is_full.clone());
    let run = budgets.open_account(account_limits(AccountLevel::Run, "r", Some(100)), None);
    let under_way = take(&budgets, &run, 10, 0).unwrap();
    is_full.store(true, Ordering::Relaxed);
    assert_eq!(
        take(&budgets, &run, 10, 0).unwrap_err(),
        BudgetRefusal::Ledger(FULL.to_owned())
    );
    under_way.settle(bill(10, 0));
    let used = budgets.usage(&run);
    assert_eq!(
        (used.money, used.held, used.calls),
        (Money(10), Money(0), 1)
    );
    is_full.store(false, Ordering::Relaxed);
    take(&budgets, &run, 10, 0).unwrap().settle(bill(10, 0));
}

#[test]
fn ten_thousand_sessions_leave_nothing_but_what_their_tenant_spent() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    for number in 0..10_000 {
        let tenant = budgets.open_account(account_limits(AccountLevel::Tenant, "t", None), None);
        let session = budgets.open_account(
            account_limits(AccountLevel::Session, &format!("s{number}"), None),
            Some(&tenant),
        );
        let held = take(&budgets, &session, 2, 0).unwrap();
        drop((session, tenant));
        held.settle(bill(1, 0));
    }
    let accounts = budgets.inner.accounts();
    assert_eq!(
        (accounts.accounts.len(), accounts.ids_by_name.len()),
        (1, 1)
    );
    drop(accounts);
    let tenant = budgets.open_account(account_limits(AccountLevel::Tenant, "t", None), None);
    assert_eq!(
        (budgets.usage(&tenant).money, budgets.usage(&tenant).calls),
        (Money(10_000), 10_000)
    );
}

#[test]
fn of_a_thousand_at_once_with_money_for_ten_ten_are_served() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let tenant = budgets.open_account(account_limits(AccountLevel::Tenant, "t", Some(70)), None);
    let barrier = std::sync::Barrier::new(1000);
    let (served, together) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for number in 0..1000 {
            let (budgets, tenant, barrier, served, together) =
                (&budgets, &tenant, &barrier, &served, &together);
            let start = move || {
                let session = budgets.open_account(
                    account_limits(AccountLevel::Session, &format!("s{number}"), None),
                    Some(tenant),
                );
                barrier.wait();
                if let Ok(reservation) = take(budgets, &session, 7, 0) {
                    together.fetch_add(7, Ordering::Relaxed);
                    served.fetch_add(1, Ordering::Relaxed);
                    reservation.settle(bill(7, 0));
                }
            };
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(threads, start)
                .unwrap();
        }
    });
    assert_eq!((served.into_inner(), together.into_inner()), (10, 70));
    assert_eq!(budgets.usage(&tenant).money, Money(70));
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
    /// Compared with a simple additive model: no level ever holds and spends more than its limit.
    #[test]
    fn no_order_of_calls_exceeds_a_limit(
        limits in proptest::array::uniform4(0..150_u64),
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let scratch = Scratch::new();
        let budgets = scratch.budgets();
        let tokens = |budget: u64, most: u64| Budget { money: Some(Money(budget)), tokens: Some(most), ..Budget::default() };
        let tenant = budgets.open_account(
            AccountLimits { budget: tokens(limits[3], 200), ..account_limits(AccountLevel::Tenant, "t", None) }, None);
        let sessions: Vec<BudgetAccount> = (0..3).map(|number| {
            let name = format!("s{number}");
            budgets.open_account(AccountLimits { budget: tokens(limits[number], 100), ..account_limits(AccountLevel::Session, &name, None) }, Some(&tenant))
        }).collect();
        let mut holds: Vec<(usize, Reservation)> = Vec::new();
        // Reserved plus spent money and tokens, by session.
        let mut total = [(0_u64, 0_u64); 3];
        for step in steps {
            match step {
                Step::Take { session, money, tokens } => {
                    let sum = |pick: fn(&(u64, u64)) -> u64| total.iter().map(pick).sum::<u64>();
                    let fits = total[session].0 + money <= limits[session] && sum(|one| one.0) + money <= limits[3]
                        && total[session].1 + tokens <= 100 && sum(|one| one.1) + tokens <= 200;
                    let reservation = take(&budgets, &sessions[session], money, tokens);
                    prop_assert_eq!(reservation.is_ok(), fits);
                    if let Ok(reservation) = reservation {
                        total[session].0 += money;
                        total[session].1 += tokens;
                        holds.push((session, reservation));
                    }
                }
                Step::Settle { which, share } if which < holds.len() => {
                    let (session, reservation) = holds.swap_remove(which);
                    let real = (reservation.amount.money.0 * share / 100, reservation.amount.tokens * share / 100);
                    total[session].0 -= reservation.amount.money.0 - real.0;
                    total[session].1 -= reservation.amount.tokens - real.1;
                    reservation.settle(bill(real.0, real.1));
                }
                Step::Drop { which } if which < holds.len() => drop(holds.swap_remove(which)),
                Step::Settle { .. } | Step::Drop { .. } => {}
            }
            for (session, limit) in sessions.iter().zip(limits) {
                let used = budgets.usage(session);
                prop_assert!(used.money.plus(used.held) <= Money(limit));
            }
            let used = budgets.usage(&tenant);
            prop_assert_eq!(used.money.plus(used.held).0, total.iter().map(|one| one.0).sum::<u64>());
            prop_assert!(used.money.plus(used.held) <= Money(limits[3]));
        }
        drop(holds);
        let left = budgets.usage(&tenant).money;
        drop((sessions, tenant, budgets));
        prop_assert_eq!(ledger::verify(&scratch.0).unwrap(), Vec::new());
        let found = Ledger::open(&scratch.0, "owner", Durability::Process).unwrap();
        let past = found.recovered_usage().tenants.get("t").copied().unwrap_or_default();
        prop_assert_eq!((past.money, found.recovered_usage().lost), (left, 0));
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
                &ledger::daily_segment(spec::Day(number)),
                Durability::Process,
            )
            .unwrap(),
        )
    };
    let kinds = |number| {
        let text = fs::read_to_string(scratch.0.join(format!(
            "{}.jsonl",
            ledger::daily_segment(spec::Day(number))
        )))
        .unwrap();
        let kind = |line: &str| line.split('"').nth(7).unwrap().to_owned();
        text.lines().map(kind).collect::<Vec<_>>()
    };
    let budgets = scratch.till_at(20_001 * DAY - 10, &seconds);
    budgets.switch_ledger(day(20_000));
    let tenant = budgets.open_account(
        AccountLimits {
            day: Some(Money(50)),
            ..account_limits(AccountLevel::Tenant, "t", None)
        },
        None,
    );
    let (first, second) = (
        take(&budgets, &tenant, 20, 0).unwrap(),
        take(&budgets, &tenant, 30, 0).unwrap(),
    );
    let flushing = Arc::downgrade(&first.ledger);
    seconds.store(10, Ordering::Relaxed);
    budgets.switch_ledger(day(20_001));
    assert_eq!(budgets.ledger().name(), "owner-2024-10-05");
    first.settle(bill(20, 0));
    assert_eq!(
        kinds(20_000),
        ["open", "reserve", "reserve", "settle"],
        "a call of it goes on"
    );
    let third = take(&budgets, &tenant, 0, 0).unwrap();
    second.settle(bill(25, 0));
    assert_eq!(
        kinds(20_000),
        ["open", "reserve", "reserve", "settle", "settle", "close"]
    );
    assert!(flushing.upgrade().is_none());
    third.settle(bill(0, 0));
    assert_eq!(kinds(20_001), ["open", "reserve", "settle"]);
    assert_eq!(
        budgets.daily_budget(&tenant).spent,
        Money(45),
        "both ended on the new day"
    );
    drop((tenant, budgets));
    assert_eq!(kinds(20_001).pop().unwrap(), "close");
    assert_eq!(ledger::verify(&scratch.0).unwrap(), []);
    assert_eq!(
        ledger::recover(&scratch.0).unwrap(),
        ledger::RecoveryReport::default(),
        "each was closed"
    );
}

#[test]
fn absurd_usage_counts_the_same_here_and_in_the_ledger() {
    let scratch = Scratch::new();
    let budgets = scratch.budgets();
    let account = budgets.open_account(account_limits(AccountLevel::Run, "r", None), None);
    let reservation = take(&budgets, &account, 10, 5).unwrap();
    reservation.settle(CallOutcome {
        usage: TokenUsage {
            input: u64::MAX,
            output: u64::MAX,
            ..TokenUsage::default()
        },
        ..bill(u64::MAX, 0)
    });
    let used = budgets.usage(&account);
    assert_eq!(
        (
            used.money,
            used.overrun,
            used.input_tokens,
            used.output_tokens
        ),
        (
            Money::MAX_PER_CALL,
            Money::MAX_PER_CALL.minus(Money(10)),
            spec::MAX_TOKENS_PER_CALL,
            spec::MAX_TOKENS_PER_CALL
        )
    );
    drop((account, budgets));
    let segment = fs::read_to_string(scratch.0.join("owner.jsonl")).unwrap();
    let settled = segment
        .lines()
        .find(|line| line.contains("\"settle\""))
        .expect("it is written");
    for written in [
        format!("\"money\":{}", used.money.0),
        format!("\"overrun\":{}", used.overrun.0),
        format!("\"input\":{}", used.input_tokens),
        format!("\"output\":{}", used.output_tokens),
    ] {
        assert!(settled.contains(&written), "{written} {settled}");
    }
}
