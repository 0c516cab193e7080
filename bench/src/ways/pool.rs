//! The one place that knows how the engine is opened, how its pool is asked for and waited for.

use super::Reason;
use engine::{Engine, Pool, Settings};
use spec::{RunSpec, Size};
use std::path::PathBuf;

/// What is made ahead of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Nothing but the launcher, which the engine starts once.
    Nothing,
    /// So many sandboxes, or what a run with mounts can have of one.
    Parked(usize),
}

/// An engine that makes so much ahead.
pub(crate) fn open(state: PathBuf, ahead: Ahead) -> Result<Engine, Reason> {
    let pool = match ahead {
        Ahead::Nothing => Pool::OFF,
        Ahead::Parked(parked) => {
            let memory = Size(Pool::PARKED_BYTES.0 * parked as u64);
            Pool { parked, berths: parked, memory }
        }
    };
    Engine::open(Settings { pool, ..Settings::new(state) }).map_err(|error| error.to_string())
}

/// Returns when nothing goes on behind finished runs any more, and the pool is full for runs of this kind.
pub(crate) async fn settle(engine: &Engine, spec: &RunSpec, ahead: Ahead) {
    match ahead {
        // Without a pool, closing only waits.
        Ahead::Nothing => engine.clone().close().await,
        Ahead::Parked(_) => engine.warm(spec).await,
    }
}

/// Gives back everything that was made ahead.
pub(crate) async fn close(engine: Engine) {
    engine.close().await;
}
