//! The ledger of a worker: one for all of its calls, a segment a day, and none that is older than it should be. Without it every
//! box with a network would leave one of its own, for ever.

use super::super::{message::Failure, own_ledger, settings as engine_settings};
use crate::config::Config;
use doors::till::{Terms, Till};
use engine::{Engine, usage::Books};
use std::time::Duration;
use worker::{
    ipc,
    log::{Level, Line, Log},
    settings::Settings,
};

/// How long what was let out is kept unless `keep_for` under `[ledger]` says it.
const USUAL_KEEPING: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How often it is looked whether another day has begun.
const BETWEEN_LOOKS: Duration = Duration::from_secs(60);
/// Every so many looks what is old is taken away: once an hour.
const LOOKS_TO_A_TIDYING: u32 = 60;

/// Opens an engine whose boxes write to one ledger, which is ours as long as the till is there.
pub(super) fn open(config: &Config, settings: &Settings) -> Result<(Engine, Till), Failure> {
    let till = own_ledger::till(config)?;
    let mut opened = engine_settings(config)?;
    opened.doors.till = Some(till.clone());
    let day = settings.calls.model.as_ref().and_then(|model| model.day);
    opened.doors.tenants.insert(ipc::TENANT.to_owned(), Terms { day, ..Terms::default() });
    Ok((Engine::open(opened)?, till))
}

/// Begins days, and takes old ones away, from now on.
pub(super) fn keep(config: &Config, engine: Engine, log: Log) {
    let keep_for = config.doors.keep_ledger.unwrap_or(USUAL_KEEPING);
    let state = config.state.clone();
    let tell = move |what: &str, why: String| {
        log.tell(Line::new(Level::Error, "ledger").message(format!("{what}: {why}")));
    };
    tokio::spawn(async move {
        for look in (0..LOOKS_TO_A_TIDYING).cycle() {
            let (engine, state) = (engine.clone(), state.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let begun = engine.begin_day(spec::Day::of(engine::now()));
                (begun, (look == 0).then(|| retire(&state, keep_for)))
            });
            if let Ok((begun, retired)) = looked.await {
                if let Err(error) = begun {
                    tell("that of today cannot be begun, that of the day before goes on", error.to_string());
                }
                if let Some(Err(error)) = retired {
                    tell("old ones cannot be taken away", error.to_string());
                }
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    });
}

fn retire(state: &std::path::Path, keep_for: Duration) -> Result<u64, engine::usage::UsageError> {
    let now = engine::now().0;
    let before = now.saturating_sub(u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX));
    let books = Books::open(state)?;
    // What cannot be believed is named by whoever asks for usage, and stays.
    books.refresh()?;
    books.retire(state, before, now)
}
