//! One call of a tool: its files are staged, the tool runs in a sandbox of its own, and its result
//! and files are collected.
//!
//! ```text
//! order ─ stage ─ run ─┬─ result.json ─▶ Success, with the saved files of output/
//!                      ├─ error in it, exit ≠ 0, none, too large ─▶ Refused
//!                      ├─ timeout ─▶ TimedOut
//!                      └─ cancelled ─▶ Cancelled
//! ```
//! Every call has an outcome, and its sandbox is gone soon after it.
//!
//! A Python tool is called by the runner, one file in the work folder of every sandbox:
//! - `runner.py ARGS_FILE` reads the file, calls the tool, writes `result.json` and exits with 0,
//!   whatever the tool did;
//! - `runner.py --park MODULE ATTRIBUTE` imports first, prints a line `ready`, and then reads the
//!   name of the file from standard input; it exits with another status if the import fails.
//!
//! `result.json` is `{"result": …}` or `{"error": "…"}`; an error begins with `Import error: `,
//! `Not found: `, `Call error: ` or `Execution error: `. `artifacts` beside a result describes
//! files in `output/`.
//!
//! A program that is not Python is started with `runner_args.json` as its only argument, and writes
//! the same `result.json`.

mod arguments;
mod memory_budget;
mod output;
pub mod paths;
mod prewarmed;
mod probe;
pub mod profile;
mod result;
mod run;
pub(crate) mod sandbox;
mod staging;
mod status;
mod workspace;

pub(crate) use run::READY;
pub(crate) use status::StatusPipe;

use crate::{
    artifacts::ArtifactStore,
    ipc::{ModelProxy, ModelUsage},
    log,
    tools::{Tool, ToolCode},
    warm_pool::WarmPool,
    wire::{answer::CreatedArtifact, code::CallRefusal, request::Invoke},
};
use engine::Engine;
use memory_budget::MemoryBudget;
use prewarmed::PrewarmedSandboxes;
use profile::ToolProfile;
use sandbox::{CallSandbox, SandboxFactory};
use serde_json::{Map, Value};
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

/// A call to run.
#[derive(Debug)]
pub struct CallOrder {
    /// The tool.
    pub tool: Arc<Tool>,
    /// The request.
    pub invoke: Box<Invoke>,
    /// Timeout of the call. At its end the outcome is returned; the tool gets SIGTERM, and SIGKILL
    /// a little later.
    pub time: Duration,
    /// The profile of the sandbox.
    pub profile: ToolProfile,
}

/// Outcome of a call.
#[derive(Debug)]
pub enum ToolCallOutcome {
    /// The tool returned a result.
    Success {
        /// The result.
        result: Map<String, Value>,
        /// The saved output files.
        artifacts: Vec<CreatedArtifact>,
        /// Duration of the run.
        took: Duration,
    },
    /// The tool timed out.
    TimedOut {
        /// Duration of the run.
        took: Duration,
    },
    /// The call failed.
    Refused(CallRefusal),
    /// The call was cancelled.
    Cancelled,
}

/// Outcome of a call and the details for the log.
#[derive(Debug)]
pub struct CallReport {
    /// The outcome.
    pub outcome: ToolCallOutcome,
    /// Standard output of the tool: beginning and end.
    pub stdout: Vec<u8>,
    /// Standard error of the tool: beginning and end.
    pub stderr: Vec<u8>,
    /// Limits that were hit, as far as known when the call ends; complete if it failed.
    pub limits_hit: BTreeSet<LimitName>,
    /// Remarks for the log: files that were left out, why a sandbox could not be created.
    pub notes: Vec<String>,
    /// Model usage, where a model is configured.
    pub spent: Option<ModelUsage>,
    /// Whether a warm interpreter was used.
    pub was_warm: bool,
    /// Size of the files that the tool was given, in bytes.
    pub bytes_in: u64,
    /// Statuses that were read and not passed on.
    pub dropped_statuses: u64,
}

/// Settings that all calls share.
#[derive(Debug)]
pub struct CallSettings {
    /// Path of the interpreter inside the sandbox.
    pub python: PathBuf,
    /// Maximum size of a result, in bytes.
    pub largest_result: usize,
    /// Maximum number of warm interpreters.
    pub max_warm: usize,
    /// Maximum memory of warm interpreters, in bytes.
    pub max_warm_bytes: u64,
    /// Maximum number of prewarmed sandboxes, for calls that find no warm interpreter.
    pub max_prewarmed: usize,
    /// Host paths that are removed from everything a tool says.
    pub hidden: Vec<PathBuf>,
}

/// Runs calls in sandboxes.
#[derive(Clone, Debug)]
pub struct CallRunner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    factory: Arc<SandboxFactory>,
    store: ArtifactStore,
    models: Option<ModelProxy>,
    settings: CallSettings,
    warm: Arc<WarmPool>,
    prewarmed: Arc<PrewarmedSandboxes>,
    /// Memory for the files of all calls on their way in.
    inputs: MemoryBudget,
    /// Memory for files on their way out, separate: a call that waits for its input must not delay
    /// one that is finished.
    outputs: MemoryBudget,
    /// Whether a weakness of the artifact store has been reported.
    is_weakness_reported: AtomicBool,
    /// Per profile, whether missing protections have been reported.
    are_notes_reported: [AtomicBool; 3],
}

impl Inner {
    /// Protections that the first sandbox of a profile lacks. Reported once per profile.
    fn startup_notes(&self, sandbox: &CallSandbox, profile: ToolProfile) -> Vec<String> {
        let is_told = self.are_notes_reported[profile as usize].swap(true, Ordering::Relaxed);
        sandbox
            .state()
            .filter(|_| !is_told)
            .map(|state| state.notes)
            .unwrap_or_default()
    }

    fn hide(&self, refusal: CallRefusal) -> CallRefusal {
        CallRefusal {
            message: log::hide(refusal.message, &self.settings.hidden),
            ..refusal
        }
    }
}

impl CallRunner {
    /// Uses this engine, store, model proxy and settings.
    pub fn new(
        engine: Engine,
        store: ArtifactStore,
        models: Option<ModelProxy>,
        settings: CallSettings,
    ) -> CallRunner {
        let factory = SandboxFactory::new(engine);
        let CallSettings {
            python,
            max_warm,
            max_warm_bytes,
            max_prewarmed,
            ..
        } = &settings;
        let warm = WarmPool::new(
            factory.clone(),
            python.clone(),
            models.is_some(),
            *max_warm,
            *max_warm_bytes,
        );
        let prewarmed = PrewarmedSandboxes::new(factory.clone(), *max_prewarmed);
        CallRunner(Arc::new(Inner {
            factory,
            store,
            models,
            settings,
            warm,
            prewarmed,
            inputs: MemoryBudget::new(),
            outputs: MemoryBudget::new(),
            is_weakness_reported: AtomicBool::new(false),
            are_notes_reported: Default::default(),
        }))
    }

    /// Creates a first sandbox, so that problems are reported at the start, and compiles the runner
    /// in it. Returns the barriers around tools of this profile, for the log. Calls work without
    /// it.
    pub async fn prepare(&self, profile: ToolProfile) -> Result<Vec<String>, CallRefusal> {
        probe::prepare(&self.0, profile).await
    }

    /// Runs a call. Statuses are sent as they come; an unread channel loses them. Dropping the
    /// future ends the sandbox.
    pub async fn call(
        &self,
        order: CallOrder,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> ToolCallOutcome {
        self.carry_out(order, cancelled, statuses).await.outcome
    }

    /// Runs a call and returns the details for the log, too.
    pub async fn carry_out(
        &self,
        order: CallOrder,
        cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> CallReport {
        run::carry_out(&self.0, order, cancelled, statuses).await
    }

    /// Runs a program of a tool's code in a sandbox without network and returns its output; used to
    /// ask for schemas (`--schema`). Paths in the command are those inside; the runner is at
    /// [`paths::RUNNER`].
    pub async fn ask(
        &self,
        code: &ToolCode,
        command: Vec<OsString>,
        time: Duration,
    ) -> Result<Vec<u8>, CallRefusal> {
        self.probe_with(code, command, &[], time).await
    }

    /// As above, with additional files in the work folder: names and contents.
    pub async fn probe_with(
        &self,
        code: &ToolCode,
        command: Vec<OsString>,
        files: &[(&str, &[u8])],
        time: Duration,
    ) -> Result<Vec<u8>, CallRefusal> {
        probe::probe(&self.0, code, command, files, time).await
    }

    /// Drops warm interpreters and prewarmed sandboxes of code that has changed.
    pub fn forget(&self, code: &ToolCode) {
        self.0.warm.forget(code);
        self.0.prewarmed.forget(code);
    }

    /// Number of warm interpreters.
    pub fn warm_count(&self) -> usize {
        self.0.warm.warm_count()
    }

    /// Why no interpreter can be kept warm, if so; returned once.
    pub fn warning(&self) -> Option<String> {
        self.0.warm.warning()
    }

    /// Ends warm interpreters and prewarmed sandboxes, and waits until every sandbox is gone.
    pub async fn close(&self) {
        self.0.warm.close();
        self.0.prewarmed.close();
        self.0.factory.close().await;
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
