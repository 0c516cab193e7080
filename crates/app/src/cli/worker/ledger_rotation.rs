//! The ledger of a worker: one segment a day for all calls, and removal of old segments. Without
//! it, every sandbox with a network would leave a ledger of its own for ever.

use super::super::{ledger_owner, message::Failure, settings as engine_settings};
use crate::config::Config;
use doors::budget::{AccountLimits, BudgetManager};
use engine::{
    Engine,
    usage::{UsageError, UsageProjection},
};
use spec::{Day, Timestamp};
use std::{path::PathBuf, time::Duration};
use worker::{
    ipc,
    log::{Log, LogEntry, LogSeverity},
    settings::WorkerSettings,
};

/// How long segments are kept unless `keep_for` under `[ledger]` says otherwise.
const DEFAULT_KEEP_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How often the rotation checks for a new day.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Old segments are removed at every 60th check: once an hour.
const CHECKS_PER_CLEANUP: u32 = 60;

/// Opens an engine whose sandboxes share one ledger, owned as long as the budgets live.
pub(super) fn open(
    config: &Config,
    settings: &WorkerSettings,
) -> Result<(Engine, BudgetManager), Failure> {
    let budgets = ledger_owner::open_budgets(config)?;
    let mut opened = engine_settings(config)?;
    opened.doors.till = Some(budgets.clone());
    let day = settings.calls.model.as_ref().and_then(|model| model.day);
    opened.doors.tenants.insert(
        ipc::TENANT.to_owned(),
        AccountLimits {
            day,
            ..AccountLimits::default()
        },
    );
    Ok((Engine::open(opened)?, budgets))
}

/// Starts the task that begins new days and removes old ones.
pub(super) fn start(config: &Config, engine: Engine, log: Log) {
    let keep_for = config.doors.keep_ledger.unwrap_or(DEFAULT_KEEP_FOR);
    let rotation = LedgerRotation {
        engine,
        state: config.state.clone(),
        keep_for,
        now: engine::now,
    };
    tokio::spawn(rotation.run(log, CHECK_INTERVAL));
}

#[derive(Clone)]
struct LedgerRotation<Clock> {
    engine: Engine,
    state: PathBuf,
    keep_for: Duration,
    now: Clock,
}

impl<Clock: Fn() -> Timestamp + Clone + Send + 'static> LedgerRotation<Clock> {
    async fn run(self, log: Log, between: Duration) {
        let log_error = move |what: &str, why: String| {
            log.write(
                LogEntry::new(LogSeverity::Error, "ledger").message(format!("{what}: {why}")),
            );
        };
        for check in (0..CHECKS_PER_CLEANUP).cycle() {
            let rotation = self.clone();
            let checked = tokio::task::spawn_blocking(move || {
                let now = (rotation.now)();
                let begun = rotation.engine.begin_day(Day::of(now));
                (begun, (check == 0).then(|| rotation.retire(now)))
            });
            if let Ok((begun, retired)) = checked.await {
                if let Err(error) = begun {
                    log_error(
                        "cannot begin today's segment, yesterday's continues",
                        error.to_string(),
                    );
                }
                if let Some(Err(error)) = retired {
                    log_error("cannot remove old segments", error.to_string());
                }
            }
            tokio::time::sleep(between).await;
        }
    }

    fn retire(&self, Timestamp(now): Timestamp) -> Result<u64, UsageError> {
        let before =
            now.saturating_sub(u64::try_from(self.keep_for.as_millis()).unwrap_or(u64::MAX));
        let usage = UsageProjection::open(&self.state)?;
        // A damaged segment stays; `airlock usage` reports it.
        usage.refresh()?;
        usage.retire(&self.state, before, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doors::ledger::{Durability, Ledger, OWNER_SEGMENT, daily_segment};
    use engine::usage::{LEDGER, begin_day, segment_lengths};
    use spec::LogFormat;
    use std::sync::{Arc, Mutex, mpsc};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_day_begins_when_it_comes_and_old_ones_go_once_an_hour() {
        let state =
            std::env::temp_dir().join(format!("airlock-worker-ledger-{}", std::process::id()));
        std::fs::create_dir_all(state.join(LEDGER)).unwrap();
        let today = Day::of(engine::now());
        let owner = Ledger::open(&state.join(LEDGER), OWNER_SEGMENT, Durability::Process).unwrap();
        let budgets = BudgetManager::new(Arc::new(owner));
        begin_day(&budgets, &state, Durability::Process, today).unwrap();
        let mut settings = engine::Settings::new(&state);
        settings.doors.till = Some(budgets.clone());
        let engine = Engine::open(settings).unwrap();
        // A clock that stands still until it is set: what is set is taken when all that came before it is done.
        let (set, clock) = mpsc::sync_channel(0);
        let clock = Arc::new(Mutex::new(clock));
        let now = move || clock.lock().unwrap().recv().unwrap_or(Timestamp(0));
        let rotation = LedgerRotation {
            engine: engine.clone(),
            state: state.clone(),
            keep_for: DEFAULT_KEEP_FOR,
            now,
        };
        let log = Log::new(LogFormat::Json, std::io::sink()).unwrap();
        let keeping = tokio::spawn(rotation.run(log, Duration::ZERO));
        let looks = |count: u32, day: Day| (0..count).for_each(|_| set.send(day.start()).unwrap());

        looks(2, today);
        assert_eq!(budgets.ledger().name(), daily_segment(today));
        looks(2, today.next());
        assert_eq!(budgets.ledger().name(), daily_segment(today.next()));
        let later = Day(today.0 + 100);
        looks(CHECKS_PER_CLEANUP - 4, later);
        let days = || {
            segment_lengths(&state)
                .unwrap()
                .into_keys()
                .filter(|name| name != OWNER_SEGMENT)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            days(),
            [today, today.next(), later].map(daily_segment),
            "the hour is not over"
        );
        looks(2, later);
        assert_eq!(days(), [daily_segment(later)]);

        drop(set);
        keeping.abort();
        drop(budgets);
        engine.close().await;
        std::fs::remove_dir_all(state).unwrap();
    }
}
