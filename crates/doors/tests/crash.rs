//! Crash test of the budget: a spending process is killed at random moments, and the recovered ledger
//! never counts less than the process announced. `AIRLOCK_FULL=1` kills it 500 times instead of 50, and
//! times the recovery of a million records.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use doors::{
    TokenUsage, UsageSource,
    budget::{AccountLevel, AccountLimits, Amount, BudgetManager},
    ledger::{self, CallOutcome, Durability, Ledger, ModelCall, RecordKind},
};
use spec::Money;
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

const WORKERS: u64 = 4;

fn full() -> bool {
    std::env::var_os("AIRLOCK_FULL").is_some_and(|value| value == "1")
}

#[test]
fn whenever_a_spender_is_killed_no_less_is_counted_than_it_said() {
    // Each time with a new ledger, because all of it is replayed after every kill.
    for _ in 0..if full() { 10 } else { 1 } {
        kill_again_and_again(25, 1);
        kill_again_and_again(25, WORKERS);
    }
}

/// A temporary folder, removed even if the test fails.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn scratch(name: &str) -> Scratch {
    Scratch(std::env::temp_dir().join(format!("airlock-crash-{name}-{}", std::process::id())))
}

/// A pseudo-random generator; not cryptographic.
struct Dice(u64);

impl Dice {
    fn new(salt: u64) -> Dice {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .subsec_nanos();
        Dice((u64::from(since) ^ (salt << 32) ^ u64::from(std::process::id())) | 1)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn call(tenant: &str) -> ModelCall {
    ModelCall {
        run: "01JCRASH".into(),
        session: "s1".into(),
        tenant: tenant.into(),
        door: "llm".into(),
        provider: "openai".into(),
        model: "gpt-4o".into(),
        operation: "chat".into(),
        attempt: 1,
        price_book: "2026-10-000000000000".into(),
    }
}

fn served(money: u64) -> CallOutcome {
    let usage = TokenUsage {
        input: 100,
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

/// The process that is killed: prints each amount after it is reserved and before it is settled.
#[test]
#[ignore = "a child of another test"]
fn child_spends_until_it_is_killed() {
    let workers = std::env::var("AIRLOCK_TEST_WORKERS")
        .unwrap()
        .parse()
        .unwrap();
    let folder = PathBuf::from(std::env::var_os("AIRLOCK_TEST_FOLDER").unwrap());
    let budgets = BudgetManager::new(Arc::new(
        Ledger::open(&folder, "owner", Durability::Process).unwrap(),
    ));
    let tenant = budgets.open_account(
        AccountLimits {
            level: AccountLevel::Tenant,
            name: "t".into(),
            ..AccountLimits::default()
        },
        None,
    );
    std::thread::scope(|threads| {
        for number in 0..workers {
            let (budgets, tenant) = (&budgets, &tenant);
            threads.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                let mut dice = Dice::new(number);
                loop {
                    let money = Money(1000 + dice.roll(1000));
                    let worst = Amount { money, tokens: 500 };
                    let hold = runtime
                        .block_on(budgets.reserve(tenant, call("t"), |_| Some(worst)))
                        .unwrap();
                    let real = dice.roll(money.0 + 1);
                    // One write per line, so that no line is torn.
                    let said = format!("spends {real}\n");
                    if std::io::stdout().lock().write_all(said.as_bytes()).is_err() {
                        return;
                    }
                    match dice.roll(10) {
                        0 => drop(hold),
                        _ => hold.settle(served(real)),
                    }
                }
            });
        }
    });
}

fn kill_again_and_again(times: u64, workers: u64) {
    let folder = scratch(&format!("kill{workers}"));
    let (mut said, mut torn, mut lost, mut dice) = (0_u64, 0, 0, Dice::new(99));
    for time in 0..times {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--nocapture",
                "child_spends_until_it_is_killed",
            ])
            .env("AIRLOCK_TEST_FOLDER", &folder.0)
            .env("AIRLOCK_TEST_WORKERS", workers.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        for _ in 0..dice.roll(60) {
            line.clear();
            lines.read_line(&mut line).unwrap();
            said += line
                .strip_prefix("spends ")
                .map_or(0, |amount| amount.trim().parse::<u64>().unwrap());
        }
        for _ in 0..dice.roll(100_000) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        let amounts = rest.lines().filter_map(|line| line.strip_prefix("spends "));
        said += amounts
            .map(|amount| amount.parse::<u64>().unwrap())
            .sum::<u64>();
        torn += ledger::verify(&folder.0).unwrap().len();
        let recovered = ledger::recover(&folder.0).unwrap();
        assert_eq!(
            (recovered.live, &recovered.problems[..]),
            (0, &[][..]),
            "after kill {time}"
        );
        lost += recovered.lost;
        assert_eq!(ledger::verify(&folder.0).unwrap(), [], "after kill {time}");
        let counted = counted(&folder.0);
        assert!(
            counted >= said,
            "after kill {time}: {counted} counted, {said} said"
        );
    }
    let tenant = Ledger::open(&folder.0, "owner", Durability::Process)
        .unwrap()
        .recovered_usage()
        .tenants["t"];
    assert_eq!(
        tenant.money,
        Money(counted(&folder.0)),
        "the till goes on from the same sum"
    );
    println!(
        "{times} kills, {workers} at once: {said} said, {} counted, {lost} lost, {torn} torn",
        tenant.money.0
    );
}

/// The usage after recovery; nothing may be open.
fn counted(folder: &Path) -> u64 {
    let (mut open, mut sum) = (HashMap::new(), 0);
    // A child that was killed early never created one.
    for path in ledger::segments(folder)
        .unwrap()
        .remove("owner")
        .unwrap_or_default()
    {
        let file = BufReader::new(File::open(path).unwrap());
        let mut reader = ledger::LedgerReader::new(file, ledger::ChainHead::default());
        while let Some(record) = reader.next_record().unwrap() {
            match record.kind {
                RecordKind::Reserve => assert!(open.insert(record.n, record.money).is_none()),
                RecordKind::Settle => {
                    open.remove(&record.of).unwrap();
                    sum += record.money;
                }
                RecordKind::Open
                | RecordKind::Inject
                | RecordKind::Egress
                | RecordKind::Revoke
                | RecordKind::Close => {}
            }
        }
    }
    assert_eq!(open, HashMap::new(), "a reservation stayed open");
    sum
}

/// CPU time of this thread in nanoseconds, which excludes other work on the machine.
fn busy() -> u64 {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Timings, shown with `--nocapture`; they decide nothing.
#[test]
fn a_long_ledger_is_read_again() {
    let calls: u64 = if full() { 500_000 } else { 5_000 };
    let folder = scratch("measure");
    let budgets = BudgetManager::new(Arc::new(
        Ledger::open(&folder.0, "owner", Durability::Process).unwrap(),
    ));
    let tenant = budgets.open_account(
        AccountLimits {
            level: AccountLevel::Tenant,
            name: "t".into(),
            ..AccountLimits::default()
        },
        None,
    );
    let session = budgets.open_account(
        AccountLimits {
            level: AccountLevel::Session,
            name: "s".into(),
            ..AccountLimits::default()
        },
        Some(&tenant),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (start, began) = (Instant::now(), busy());
    runtime.block_on(async {
        for _ in 0..calls {
            let worst = Amount {
                money: Money(1000),
                tokens: 500,
            };
            let hold = budgets
                .reserve(&session, call("t"), |_| Some(worst))
                .await
                .unwrap();
            hold.settle(served(700));
        }
    });
    let (whole, a_call) = (start.elapsed().as_millis(), (busy() - began) / calls);
    // Without a close record, as after a crash.
    std::mem::forget(
        runtime.block_on(budgets.reserve(&session, call("t"), |_| Some(Amount::default()))),
    );
    drop((session, tenant, budgets));
    println!("reserve and settle: {a_call} ns of CPU a call; {calls} took {whole} ms");
    let size: u64 = fs::read_dir(&folder.0)
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    let (start, began) = (Instant::now(), busy());
    // The leaked account keeps the ledger and its lock: this reads what another process would read.
    assert_eq!(ledger::verify(&folder.0).unwrap(), []);
    let (whole, cpu) = (start.elapsed().as_millis(), (busy() - began) / 1_000_000);
    println!(
        "{} lines, {} MiB, read again in {whole} ms ({cpu} ms of CPU)",
        2 * calls,
        size >> 20
    );
}
