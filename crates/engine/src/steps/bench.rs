//! Direct steps: one after the other, within one time and one amount of output.

use super::{
    Said, Wishes, command,
    denied::{self, Denied},
    files::{self, Wrong},
    patch, search,
};
use crate::Session;
use spec::{Denial, MOST_STEP_OUTPUT, Step, StepAction, StepJob, StepResult, StepStatus, StepsResult};
use std::time::Duration;
use tokio::time::Instant;

/// Where a job is carried out, and how far it is.
pub(super) struct Bench<'a> {
    pub(super) session: Session,
    pub(super) job: &'a StepJob,
    pub(super) result: StepsResult,
    /// What a program that carries it out said.
    pub(super) said: Said,
    pub(super) denied: Denied,
    pub(super) deadline: Instant,
    /// What may still be written, in bytes.
    pub(super) room: usize,
    /// Nothing more is begun once somebody wants its end.
    wishes: Wishes,
}

/// What came of a step.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) exit_code: Option<i32>,
    pub(super) output: Option<String>,
    pub(super) failure: Option<Failure>,
    /// What its program was denied.
    pub(super) denials: Vec<Denial>,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// What it was to do cannot be done.
    Failed(Wrong),
    /// Its time, or that of the job, is over.
    TimedOut,
    /// It wrote more than the job may.
    TooMuch,
    /// The box is gone: nothing can follow.
    Lost(String),
}

impl Done {
    pub(super) fn wrote(output: impl Into<String>) -> Done {
        Done { output: Some(output.into()), ..Done::default() }
    }
}

impl Failure {
    pub(super) fn failed(why: impl Into<String>) -> Failure {
        Failure::Failed(Wrong::from(why.into()))
    }
}

impl From<Result<String, Wrong>> for Done {
    fn from(result: Result<String, Wrong>) -> Done {
        match result {
            Ok(output) => Done::wrote(output),
            Err(wrong) => Done { failure: Some(Failure::Failed(wrong)), ..Done::default() },
        }
    }
}

impl<'a> Bench<'a> {
    pub(super) fn new(session: Session, job: &'a StepJob, result: StepsResult, wishes: Wishes) -> Bench<'a> {
        let granted = session.spec().run.sandbox.limits.wall_time.0;
        let deadline = Instant::now() + job.constraints.max_runtime.min(granted);
        let room = job.constraints.max_output_bytes.min(MOST_STEP_OUTPUT) as usize;
        let (said, denied) = Default::default();
        Bench { session, job, result, said, denied, deadline, room, wishes }
    }

    fn is_to_end(&self) -> bool {
        let (cancelled, terminated) = &self.wishes;
        *cancelled.borrow() || terminated.borrow().is_some()
    }

    /// That its time is over, and which.
    pub(super) fn out_of_time_told(&self) -> String {
        let (asked, granted) =
            (self.job.constraints.max_runtime, self.session.spec().run.sandbox.limits.wall_time.0);
        match asked <= granted {
            true => format!("the time of the job is over (max_runtime_seconds {})", asked.as_secs()),
            false => format!("the time of the job is over (it was given {} seconds)", granted.as_secs_f64()),
        }
    }

    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Carries the steps out. The job has failed if one of them has, also where others followed.
    pub(super) async fn carry_out(&mut self) {
        for (index, step) in self.job.steps.iter().enumerate() {
            if self.is_to_end() {
                return;
            }
            let done = match self.time_left().is_zero() {
                true => Done { failure: Some(Failure::TimedOut), ..Done::default() },
                false => self.take(step).await,
            };
            if self.write_down(index, step, done) {
                return;
            }
        }
    }

    async fn take(&self, step: &Step) -> Done {
        match &step.action {
            StepAction::RunCommand { argv, cwd } => command::run(self, argv, cwd.as_deref()).await,
            StepAction::WriteFile { path, content } => {
                let (path, content) = (path.clone(), content.clone());
                self.on_files(move |tree, _| files::write(tree, &path, &content)).await
            }
            StepAction::ReadFile { path, start_line, end_line } => {
                let (path, lines) = (path.clone(), (start_line.unwrap_or(1), end_line.unwrap_or(u64::MAX)));
                self.on_files(move |tree, until| files::read(tree, &path, lines, until)).await
            }
            StepAction::ApplyUnifiedDiff { diff } => {
                let diff = diff.clone();
                self.on_files(move |tree, _| patch::apply(tree, &diff)).await
            }
            StepAction::ListTree { path } => {
                let path = path.clone().unwrap_or_default();
                self.on_files(move |tree, until| files::list(tree, &path, until)).await
            }
            StepAction::SearchFiles { pattern, path, include } => {
                let (pattern, path, include) =
                    (pattern.clone(), path.clone().unwrap_or_default(), include.clone());
                self.on_files(move |tree, until| {
                    search::search(tree, &pattern, &path, include.as_deref(), until)
                })
                .await
            }
        }
    }

    /// Does something with the files of the workspace, off the event loop and with its rights.
    async fn on_files(
        &self,
        work: impl FnOnce(&crate::tree::Tree, Until) -> Result<String, Wrong> + Send + 'static,
    ) -> Done {
        let tree = match self.session.tree() {
            Ok(tree) => tree,
            Err(error) => return Done { failure: Some(Failure::Lost(error.message)), ..Done::default() },
        };
        self.session.touch();
        let until = Until { deadline: self.deadline.into_std(), room: self.room };
        let done = tokio::task::spawn_blocking(move || work(&tree, until));
        match tokio::time::timeout_at(self.deadline, done).await {
            Err(_) => Done { failure: Some(Failure::TimedOut), ..Done::default() },
            Ok(Err(broken)) => {
                let why = format!("the step failed in Airlock itself: {broken}");
                Done { failure: Some(Failure::failed(why)), ..Done::default() }
            }
            Ok(Ok(done)) => Done::from(done),
        }
    }

    /// Adds the step to the result; true if nothing follows.
    fn write_down(&mut self, index: usize, step: &Step, mut done: Done) -> bool {
        if let Some(output) = &mut done.output {
            if output.len() > self.room {
                output.truncate(output.floor_char_boundary(self.room));
                done.failure = Some(Failure::TooMuch);
            }
            self.room -= output.len();
        }
        let kind = step.action.name();
        self.denied.add(std::mem::take(&mut done.denials));
        if let Some(Failure::Failed(wrong)) = &done.failure {
            self.denied.add(denied::outside(kind, wrong));
        }
        let (status, error, ends) = match &done.failure {
            None => (StepStatus::Success, None, false),
            Some(failure) => {
                let (status, code, message) = self.told(failure);
                let told = format!("step {index} ({kind}): {message}");
                let first = self.result.failure_code.is_none();
                let hard = code != "step_failed";
                if first || hard {
                    self.result = std::mem::replace(&mut self.result, StepsResult::of("")).failed(code, told);
                }
                (status, Some(message), hard || !step.goes_on)
            }
        };
        let Done { exit_code, output, .. } = done;
        let kind = kind.to_owned();
        self.result.steps.push(StepResult { index: index as u64, kind, status, exit_code, output, error });
        ends
    }

    fn told(&self, failure: &Failure) -> (StepStatus, &'static str, String) {
        match failure {
            Failure::Failed(wrong) => (StepStatus::Failure, "step_failed", wrong.why.clone()),
            Failure::Lost(why) => (StepStatus::Failure, "lost", why.clone()),
            Failure::TimedOut => (StepStatus::Timeout, "timeout", self.out_of_time_told()),
            Failure::TooMuch => {
                let most = self.job.constraints.max_output_bytes.min(MOST_STEP_OUTPUT);
                let message = format!("the steps wrote more than the {most} bytes of max_output_bytes");
                (StepStatus::Failure, "constraint_violation", message)
            }
        }
    }
}

/// How long and how much something may go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) deadline: std::time::Instant,
    /// Bytes; what is longer by one is too much.
    pub(super) room: usize,
}

impl Until {
    pub(super) fn is_over(&self) -> bool {
        std::time::Instant::now() >= self.deadline
    }
}
