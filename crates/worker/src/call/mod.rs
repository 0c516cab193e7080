//! One call of a tool: its files staged, the tool run in a box of its own, its result and files taken out by handle.
//!
//! ```text
//! order ─ stage ─ run ─┬─ result.json ─▶ Success, with what lay in output/ kept
//!                      ├─ error in it, exit ≠ 0, none, too large ─▶ Refused
//!                      ├─ its time is up ─▶ TimedOut
//!                      └─ cancelled ─▶ Cancelled
//! ```
//! Whatever happens, there is an outcome, and the box is gone soon after it.
//!
//! What a Python tool is called by is our runner, one file that every box has in its work folder:
//! - `runner.py ARGS_FILE` reads the file, calls the tool, writes `result.json` and ends with 0, whatever the tool did;
//! - `runner.py --park MODULE ATTRIBUTE` imports first, writes a line `ready` to standard output, and then takes one line from
//!   standard input, which is the name of the file; if it cannot import, it ends with another status than 0.
//!
//! `result.json` is `{"result": …}` or `{"error": "…"}`, which begins with `Import error: `, `Not found: `, `Call error: ` or
//! `Execution error: `; `artifacts` beside a result says what is known of files in `output/`.
//!
//! A program that is no Python is started with `runner_args.json` as its only argument, and writes the same `result.json`.

mod arguments;
mod ask;
mod budget;
mod handle;
mod output;
pub mod places;
pub mod profile;
mod result;
pub(crate) mod room;
mod run;
mod spare;
mod stage;
mod status;

pub(crate) use run::READY;
pub(crate) use status::Statuses;

use crate::{
    artifacts::Shelf,
    ipc::{Models, Spent},
    log,
    tools::{Code, Tool},
    warm::Warm,
    wire::{answer::CreatedArtifact, code::Refusal, request::Invoke},
};
use budget::Budget;
use engine::Engine;
use profile::Profile;
use room::{Room, Rooms};
use serde_json::{Map, Value};
use spare::Spares;
use spec::LimitName;
use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, watch};

/// What is to be done.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Order {
    pub tool: Arc<Tool>,
    pub invoke: Box<Invoke>,
    /// The time that it has. At its end there is the outcome; the tool gets SIGTERM, and SIGKILL a little later.
    pub time: Duration,
    pub profile: Profile,
}

/// What came of it.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Outcome {
    Success {
        result: Map<String, Value>,
        artifacts: Vec<CreatedArtifact>,
        took: Duration,
    },
    TimedOut {
        took: Duration,
    },
    Refused(Refusal),
    Cancelled,
}

/// The outcome, and what only the log is told.
#[derive(Debug)]
pub struct Done {
    /// What came of it.
    pub outcome: Outcome,
    /// What the tool wrote: the beginning and the end.
    pub stdout: Vec<u8>,
    /// See `stdout`.
    pub stderr: Vec<u8>,
    /// Limits that it ran into, as far as they are known by now: all of them if it failed.
    pub limits_hit: BTreeSet<LimitName>,
    /// What else there is to say: files that were left out, why a box could not be made.
    pub notes: Vec<String>,
    /// What it spent on models, where there are any.
    pub spent: Option<Spent>,
    /// Whether an interpreter was ready for it.
    pub was_warm: bool,
    /// Files that it was given, in bytes.
    pub bytes_in: u64,
    /// Statuses that were read of it and that nobody was told.
    pub unsaid: u64,
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
    /// Boxes that are made ahead of calls that find no interpreter ready, at most.
    pub spares: usize,
    /// Paths of this machine that nobody is told, whatever a tool says.
    pub hidden: Vec<PathBuf>,
}

/// Makes calls.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rooms: Arc<Rooms>,
    shelf: Shelf,
    models: Option<Models>,
    settings: Settings,
    warm: Arc<Warm>,
    spares: Arc<Spares>,
    /// What files of all calls may take of our memory on their way in.
    inputs: Budget,
    /// The same on their way out, apart: who waits for his files to come in holds up nobody who is done.
    outputs: Budget,
    /// Whether it was told that two writers may get one version.
    is_weakness_told: AtomicBool,
    /// Of each profile, whether it was told what its boxes lack.
    are_notes_told: [AtomicBool; 3],
}

impl Inner {
    /// What the first box of a profile does not have as it should. Of later ones it is not said again.
    fn news_of(&self, room: &Room, profile: Profile) -> Vec<String> {
        let is_told = self.are_notes_told[profile as usize].swap(true, Ordering::Relaxed);
        room.state()
            .filter(|_| !is_told)
            .map(|state| state.notes)
            .unwrap_or_default()
    }

    fn hide(&self, refusal: Refusal) -> Refusal {
        Refusal {
            message: log::hide(refusal.message, &self.settings.hidden),
            ..refusal
        }
    }
}

impl Caller {
    /// One that uses these.
    pub fn new(engine: Engine, shelf: Shelf, models: Option<Models>, settings: Settings) -> Caller {
        let rooms = Rooms::new(engine);
        let Settings {
            python,
            parked,
            parked_bytes,
            spares,
            ..
        } = &settings;
        let warm = Warm::new(
            rooms.clone(),
            python.clone(),
            models.is_some(),
            *parked,
            *parked_bytes,
        );
        let spares = Spares::new(rooms.clone(), *spares);
        Caller(Arc::new(Inner {
            rooms,
            shelf,
            models,
            settings,
            warm,
            spares,
            inputs: Budget::new(),
            outputs: Budget::new(),
            is_weakness_told: AtomicBool::new(false),
            are_notes_told: Default::default(),
        }))
    }

    /// Makes a first box, so that whatever is wrong is said at the start, and has the interpreter compile the runner in it.
    /// Tells what holds tools of this profile in, for the log. Calls do not need it.
    pub async fn prepare(&self, profile: Profile) -> Result<Vec<String>, Refusal> {
        ask::prepare(&self.0, profile).await
    }

    /// Carries an order out. Statuses go out as they come; whoever does not listen misses them. Dropped, the box ends.
    pub async fn call(
        &self,
        order: Order,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> Outcome {
        self.carry_out(order, cancelled, statuses).await.outcome
    }

    /// The same, with what the log is told.
    pub async fn carry_out(
        &self,
        order: Order,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> Done {
        run::carry_out(&self.0, order, cancelled, statuses).await
    }

    /// Runs a program of a tool's code in a box without network and gives what it printed: how schemas are asked for
    /// (`--schema`), in at most `time`. Paths in it are those inside; our runner is at [`places::RUNNER`].
    pub async fn ask(
        &self,
        code: &Code,
        command: Vec<OsString>,
        time: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        self.ask_with(code, command, &[], time).await
    }

    /// The same, with files in its work folder: their names there, and their bytes.
    pub async fn ask_with(
        &self,
        code: &Code,
        command: Vec<OsString>,
        files: &[(&str, &[u8])],
        time: Duration,
    ) -> Result<Vec<u8>, Refusal> {
        ask::ask(&self.0, code, command, files, time).await
    }

    /// A tool's code has changed: what was imported from it before is of no use any more.
    pub fn forget(&self, code: &Code) {
        self.0.warm.forget(code);
        self.0.spares.forget(code);
    }

    /// Interpreters that are ready now.
    pub fn parked(&self) -> usize {
        self.0.warm.parked()
    }

    /// Why no interpreter is kept ready, if none can be; told once.
    pub fn trouble(&self) -> Option<String> {
        self.0.warm.trouble()
    }

    /// Ends what was made ahead and waits until every box is gone.
    pub async fn close(&self) {
        self.0.warm.close();
        self.0.spares.close();
        self.0.rooms.close().await;
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
