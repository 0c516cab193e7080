//! The one place that knows how the engine is opened, how its pool is asked for and waited for.

use super::Reason;
use engine::{Engine, Settings};
use spec::RunSpec;
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
    let settings = Settings { state };
    match ahead {
        Ahead::Nothing => Engine::open(settings).map_err(|error| error.to_string()),
        Ahead::Parked(_) => Err("the engine of this build has no pool".to_owned()),
    }
}

/// Returns when nothing goes on behind finished runs any more, and the pool is full for runs of this kind.
pub(crate) async fn settle(_engine: &Engine, _spec: &RunSpec, _ahead: Ahead) {}

/// Gives back everything that was made ahead.
pub(crate) async fn close(engine: Engine) {
    drop(engine);
}
