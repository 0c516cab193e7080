//! Carries out runs: one run from a checked [`spec::RunSpec`] to a [`spec::RunResult`].

use spec::{Event, Id, RunResult, RunSpec};
use std::path::PathBuf;

/// What an engine is given; it reads neither environment nor home.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder for run records and artifacts. Made if absent, mode 0700.
    pub state: PathBuf,
}

/// Why an engine cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// What failed.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The cause.
    #[source]
    pub source: Option<std::io::Error>,
}

/// Carries out runs.
#[derive(Clone, Debug)]
pub struct Engine {}

/// One run under way.
#[derive(Debug)]
pub struct Run {}

/// One line of the plan, for `--explain`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlanLine {
    /// The step, e.g. `read-only root`.
    pub step: String,
    /// What exactly it will do.
    pub detail: String,
}

/// One thing that `doctor` looked at.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Check {
    /// What was looked at, e.g. `user namespaces`.
    pub name: String,
    /// Whether it is there.
    pub state: CheckState,
    /// What was found.
    pub detail: String,
    /// The names of the barriers that rest on it.
    pub barriers: Vec<&'static str>,
    /// The one command that mends it, if anything is to mend.
    pub remedy: Option<String>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As it should be.
    Good,
    /// Runs work, but without these barriers or with a weaker form of them.
    Weaker,
    /// No run can be made.
    Missing,
}

/// What a sweep removed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Swept {
    /// Runs whose owner was gone.
    pub runs: Vec<String>,
    /// Runs left alone because their owner lives.
    pub live: usize,
    /// What could not be removed, and why.
    pub problems: Vec<String>,
}

impl Engine {
    /// Opens the state folder and sweeps what dead owners left there.
    pub fn open(settings: Settings) -> Result<Engine, EngineError> {
        unimplemented!("{settings:?}")
    }

    /// Starts a run; must be called within a tokio runtime.
    pub fn start(&self, spec: RunSpec) -> Run {
        unimplemented!("{spec:?}")
    }

    /// Starts a run and waits for its result. A run that could not start has a result, too.
    pub async fn run(&self, spec: RunSpec) -> RunResult {
        self.start(spec).finish().await
    }

    /// What a run would do, step by step, without doing it.
    pub fn explain(&self, spec: &RunSpec) -> Vec<PlanLine> {
        unimplemented!("{spec:?}")
    }

    /// What this host can enforce.
    pub async fn doctor(&self) -> Vec<Check> {
        unimplemented!()
    }

    /// Removes what dead owners left.
    pub fn sweep(&self) -> Swept {
        unimplemented!()
    }

    /// The artifacts kept on this machine.
    pub fn artifacts(&self) -> &store::Artifacts {
        unimplemented!()
    }
}

impl Run {
    /// Its identifier.
    pub fn id(&self) -> &Id {
        unimplemented!()
    }

    /// The next event, or none after the last.
    pub async fn next_event(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// The program's standard input, once, if the spec asked for it. Dropping it closes it.
    pub fn take_stdin(&mut self) -> Option<tokio::net::unix::pipe::Sender> {
        unimplemented!()
    }

    /// Asks for the end: the whole tree is gone within a second.
    pub fn cancel(&self) {
        unimplemented!()
    }

    /// Waits for the result; events not yet taken are dropped.
    pub async fn finish(self) -> RunResult {
        unimplemented!()
    }
}
