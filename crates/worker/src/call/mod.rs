//! One call of a tool: its files staged, the tool run in a box of its own, its result and files taken out by handle.
//!
//! ```text
//! order ─ stage ─ run ─┬─ result.json ─▶ Success, with what lay in output/ kept
//!                      ├─ error in it, exit ≠ 0, none, too large ─▶ Refused
//!                      ├─ its time is up ─▶ TimedOut
//!                      └─ cancelled ─▶ Cancelled
//! ```
//! Whatever happens, there is an outcome, and the box is gone soon after it.

pub mod places;
pub mod profile;

use crate::{
    artifacts::Shelf,
    ipc::Models,
    tools::Tool,
    wire::{answer::CreatedArtifact, code::Refusal, request::Invoke},
};
use engine::Engine;
use profile::Profile;
use serde_json::{Map, Value};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// What is to be done.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Order {
    pub tool: Arc<Tool>,
    pub invoke: Box<Invoke>,
    /// The time that it has: SIGTERM at its end, SIGKILL a little later.
    pub time: Duration,
    pub profile: Profile,
}

/// What came of it.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Outcome {
    Success { result: Map<String, Value>, artifacts: Vec<CreatedArtifact>, took: Duration },
    TimedOut { took: Duration },
    Refused(Refusal),
    Cancelled,
}

/// What all calls have in common.
#[derive(Debug)]
pub struct Settings {
    /// The interpreter, as programs inside see it.
    pub python: PathBuf,
    /// The largest result, in bytes.
    pub largest_result: usize,
    /// Interpreters that are kept ready, at most; their memory, at most.
    pub parked: usize,
    /// See `parked`.
    pub parked_bytes: u64,
}

/// Makes calls.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Inner>);

#[derive(Debug)]
#[expect(dead_code, reason = "comes with the calls")]
struct Inner {
    engine: Engine,
    shelf: Shelf,
    models: Option<Models>,
    settings: Settings,
}

impl Caller {
    /// One that uses these.
    pub fn new(engine: Engine, shelf: Shelf, models: Option<Models>, settings: Settings) -> Caller {
        Caller(Arc::new(Inner { engine, shelf, models, settings }))
    }

    /// Carries an order out. Statuses go out as they come; whoever does not listen misses them. Dropped, the box ends.
    pub async fn call(
        &self,
        _order: Order,
        _cancelled: watch::Receiver<bool>,
        _statuses: mpsc::Sender<String>,
    ) -> Outcome {
        Outcome::Cancelled
    }

    /// Runs a program of a tool's code in a box without network and gives what it printed: how schemas are asked for
    /// (`--schema`), in at most `time`.
    pub async fn ask(
        &self,
        _code: &crate::tools::Code,
        _command: Vec<std::ffi::OsString>,
        _time: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        Ok(Vec::new())
    }

    /// The same, with files in its work folder: their names there, and their bytes.
    pub async fn ask_with(
        &self,
        _code: &crate::tools::Code,
        _command: Vec<std::ffi::OsString>,
        _files: &[(&str, &[u8])],
        _time: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        Ok(Vec::new())
    }

    /// Ends what is parked and waits until every box is gone.
    pub async fn close(&self) {}
}
