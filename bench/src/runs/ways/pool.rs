//! The one place that knows how the engine is opened, how its pool is asked for and waited for.

use super::Reason;
use engine::{Engine, EngineSockets, PoolSettings, Settings};
use spec::{RunSpec, Size};
use std::path::PathBuf;

/// What is made ahead of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Nothing but the launcher, which the engine starts once.
    Nothing,
    /// So many cgroups with namespaces: what any run can have of its sandbox.
    Berths(usize),
    /// So many whole sandboxes.
    Parked(usize),
}

/// An engine that makes so much ahead.
pub(crate) fn open(state: PathBuf, ahead: Ahead) -> Result<Engine, Reason> {
    open_with(state, ahead, EngineSockets::default())
}

/// The same, with container engines that it may ask.
pub(crate) fn open_with(
    state: PathBuf,
    ahead: Ahead,
    containers: EngineSockets,
) -> Result<Engine, Reason> {
    let pool = match ahead {
        Ahead::Nothing => PoolSettings::OFF,
        Ahead::Berths(berths) => PoolSettings {
            warm_sandboxes: 0,
            prepared_namespaces: berths,
            memory: memory(berths),
        },
        Ahead::Parked(parked) => PoolSettings {
            warm_sandboxes: parked,
            prepared_namespaces: 0,
            memory: memory(parked),
        },
    };
    Engine::open(Settings {
        pool,
        containers,
        ..Settings::new(state)
    })
    .map_err(|error| error.to_string())
}

fn memory(count: usize) -> Size {
    Size(PoolSettings::WARM_SANDBOX_BYTES.0 * count as u64)
}

/// Returns when nothing goes on behind finished runs any more, and the pool is full for runs of this kind.
pub(crate) async fn settle(engine: &Engine, spec: &RunSpec, ahead: Ahead) {
    match ahead {
        // Without a pool, closing only waits.
        Ahead::Nothing => engine.clone().close().await,
        Ahead::Berths(_) | Ahead::Parked(_) => engine.warm(spec).await,
    }
}

/// Gives back everything that was made ahead.
pub(crate) async fn close(engine: Engine) {
    engine.close().await;
}
