//! Executes the direct steps of a job, one after the other, within the job's timeout and output
//! limit.

use super::{
    JobControl, POLL_INTERVAL, ProgramOutput, command,
    denials::{self, DenialList},
    files::{self, FileStepError},
    patch, search,
};
use crate::{Session, SessionEnd, SessionState, outcome::ACCOUNTING_INTERVAL, tree::Tree};
use rustix::time::ClockId;
use spec::{
    Denial, LimitName, MAX_STEP_OUTPUT, Step, StepAction, StepJob, StepJobResult, StepResult,
    StepStatus,
};
use std::{
    cell::Cell,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// The reason for work that was left out for lack of time.
pub(super) const TIME_IS_OVER: &str = "the time of the job is over";

/// The state of a job's execution.
pub(super) struct JobExecution<'a> {
    pub(super) session: Session,
    pub(super) job: &'a StepJob,
    pub(super) result: StepJobResult,
    /// The output of the program that carries out the job, if there is one.
    pub(super) program_output: ProgramOutput,
    pub(super) denial_list: DenialList,
    pub(super) deadline: Instant,
    /// The bytes of output that are left.
    pub(super) room: usize,
    /// Cancellation and termination requests, after which no step begins.
    control: JobControl,
    /// Whether steps were left out because of such a request.
    pub(super) is_cut_short: bool,
}

/// The outcome of a step.
#[derive(Debug, Default)]
pub(super) struct StepOutcome {
    pub(super) exit_code: Option<i32>,
    pub(super) output: Option<String>,
    pub(super) failure: Option<StepFailure>,
    /// The denials of its program.
    pub(super) denials: Vec<Denial>,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepFailure {
    /// It cannot be done.
    Failed(FileStepError),
    /// The timeout of the step or of the job.
    TimedOut,
    /// The output limit of the job.
    TooMuch,
    /// The sandbox is gone, so that no step can follow.
    Lost(String),
}

impl StepOutcome {
    pub(super) fn with_output(output: impl Into<String>) -> StepOutcome {
        StepOutcome {
            output: Some(output.into()),
            ..StepOutcome::default()
        }
    }
}

impl StepFailure {
    pub(super) fn failed(why: impl Into<String>) -> StepFailure {
        StepFailure::Failed(FileStepError::from(why.into()))
    }
}

impl From<Result<String, FileStepError>> for StepOutcome {
    fn from(result: Result<String, FileStepError>) -> StepOutcome {
        match result {
            Ok(output) => StepOutcome::with_output(output),
            Err(wrong) => StepOutcome {
                failure: Some(StepFailure::Failed(wrong)),
                ..StepOutcome::default()
            },
        }
    }
}

impl<'a> JobExecution<'a> {
    pub(super) fn new(
        session: Session,
        job: &'a StepJob,
        result: StepJobResult,
        control: JobControl,
    ) -> JobExecution<'a> {
        let granted = session.spec().run.sandbox.limits.wall_time.0;
        let deadline = Instant::now() + job.constraints.max_runtime.min(granted);
        let room = job.constraints.max_output_bytes.min(MAX_STEP_OUTPUT) as usize;
        let (program_output, denial_list) = Default::default();
        JobExecution {
            session,
            job,
            result,
            program_output,
            denial_list,
            deadline,
            room,
            control,
            is_cut_short: false,
        }
    }

    fn is_to_end(&self) -> bool {
        *self.control.cancelled.borrow() || self.control.terminated.borrow().is_some()
    }

    /// The message of a timeout, with the limit that applied.
    pub(super) fn timeout_message(&self) -> String {
        let asked = self.job.constraints.max_runtime;
        let granted = self.session.spec().run.sandbox.limits.wall_time.0;
        if asked <= granted {
            format!("{TIME_IS_OVER} (max_runtime_seconds {})", asked.as_secs())
        } else {
            format!(
                "{TIME_IS_OVER} (it was given {} seconds)",
                granted.as_secs_f64()
            )
        }
    }

    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Executes the steps. The job fails if one of them fails, even if others follow.
    pub(super) async fn run_steps(&mut self) {
        for (index, step) in self.job.steps.iter().enumerate() {
            if self.is_to_end() {
                self.is_cut_short = true;
                return;
            }
            let done = if self.time_left().is_zero() {
                StepOutcome {
                    failure: Some(StepFailure::TimedOut),
                    ..StepOutcome::default()
                }
            } else {
                self.run_step(step).await
            };
            if self.record(index, step, done) {
                return;
            }
        }
    }

    async fn run_step(&self, step: &Step) -> StepOutcome {
        match &step.action {
            StepAction::RunCommand { argv, cwd } => command::run(self, argv, cwd.as_deref()).await,
            StepAction::WriteFile { path, content } => {
                let path = path.clone();
                let content = content.clone();
                self.on_files(move |tree, _| files::write(tree, &path, &content))
                    .await
            }
            StepAction::ReadFile {
                path,
                start_line,
                end_line,
            } => {
                let path = path.clone();
                let lines = (start_line.unwrap_or(1), end_line.unwrap_or(u64::MAX));
                self.on_files(move |tree, until| files::read(tree, &path, lines, until))
                    .await
            }
            StepAction::ApplyUnifiedDiff { diff } => {
                let diff = diff.clone();
                self.on_files(move |tree, _| patch::apply(tree, &diff))
                    .await
            }
            StepAction::ListTree { path } => {
                let path = path.clone().unwrap_or_default();
                self.on_files(move |tree, until| files::list(tree, &path, until))
                    .await
            }
            StepAction::SearchFiles {
                pattern,
                path,
                include,
            } => {
                let pattern = pattern.clone();
                let path = path.clone().unwrap_or_default();
                let include = include.clone();
                self.on_files(move |tree, until| {
                    search::search(tree, &pattern, &path, include.as_deref(), until)
                })
                .await
            }
        }
    }

    /// Runs an operation on the files of the workspace on a blocking thread, with the session's
    /// access.
    async fn on_files(
        &self,
        work: impl FnOnce(&Tree, &StepBudget) -> Result<String, FileStepError> + Send + 'static,
    ) -> StepOutcome {
        let tree = match self.session.tree() {
            Ok(tree) => tree,
            Err(error) => {
                return StepOutcome {
                    failure: Some(StepFailure::Lost(error.message)),
                    ..StepOutcome::default()
                };
            }
        };
        self.session.touch();
        let deadline = self.deadline.into_std();
        let room = self.room;
        let late = || StepOutcome {
            failure: Some(StepFailure::TimedOut),
            ..StepOutcome::default()
        };
        let Ok(place) = tokio::time::timeout_at(self.deadline, self.file_slot()).await else {
            return late();
        };
        let wanted = Arc::new(());
        let session = self.session.clone();
        let still_wanted = Arc::downgrade(&wanted);
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            let spend = move |cpu| session.add_own_cpu(cpu);
            run_until(
                &tree,
                &StepBudget::new(deadline, room, still_wanted, Box::new(spend)),
                work,
            )
        });
        tokio::select! {
            done = done => done.unwrap_or_else(|broken| {
                let why = format!("the step failed in Airlock itself: {broken}");
                StepOutcome { failure: Some(StepFailure::failed(why)), ..StepOutcome::default() }
            }),
            () = tokio::time::sleep_until(self.deadline) => late(),
            ended = self.session.ended() => StepOutcome { failure: Some(StepFailure::Lost(why(&ended))), ..StepOutcome::default() },
        }
    }

    /// Waits for a slot for file operations.
    async fn file_slot(&self) -> Box<dyn Send> {
        loop {
            match (self.control.file_slots)() {
                Some(place) => return place,
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Adds a step to the result; returns true if no step may follow.
    fn record(&mut self, index: usize, step: &Step, mut done: StepOutcome) -> bool {
        if let Some(output) = &mut done.output {
            if output.len() > self.room {
                output.truncate(output.floor_char_boundary(self.room));
                done.failure = Some(StepFailure::TooMuch);
            }
            self.room -= output.len();
        }
        let kind = step.action.name();
        self.denial_list.add(std::mem::take(&mut done.denials));
        if let Some(StepFailure::Failed(wrong)) = &done.failure {
            self.denial_list.add(denials::outside(kind, wrong));
        }
        let (status, error, ends) = match &done.failure {
            None => (StepStatus::Success, None, false),
            Some(failure) => {
                let (status, code, message) = self.describe_failure(failure);
                let text = format!("step {index} ({kind}): {message}");
                let first = self.result.failure_code.is_none();
                let hard = code != "step_failed";
                if first || hard {
                    self.result = std::mem::replace(&mut self.result, StepJobResult::of(""))
                        .failed(code, text);
                }
                (status, Some(message), hard || !step.continues_on_failure)
            }
        };
        let StepOutcome {
            exit_code, output, ..
        } = done;
        let kind = kind.to_owned();
        self.result.steps.push(StepResult {
            index: index as u64,
            kind,
            status,
            exit_code,
            output,
            error,
        });
        ends
    }

    fn describe_failure(&self, failure: &StepFailure) -> (StepStatus, &'static str, String) {
        match failure {
            StepFailure::Failed(wrong) => (StepStatus::Failure, "step_failed", wrong.why.clone()),
            StepFailure::Lost(why) => (StepStatus::Failure, "lost", why.clone()),
            StepFailure::TimedOut => (StepStatus::Timeout, "timeout", self.timeout_message()),
            StepFailure::TooMuch => {
                let most = self.job.constraints.max_output_bytes.min(MAX_STEP_OUTPUT);
                let message =
                    format!("the steps wrote more than the {most} bytes of max_output_bytes");
                (StepStatus::Failure, "constraint_violation", message)
            }
        }
    }
}

/// Why the sandbox has ended.
fn why(ended: &SessionState) -> String {
    match ended.ended {
        Some(SessionEnd::Limit) if ended.limits_hit.contains(&LimitName::CpuTime) => {
            "the CPU time of its box is used up (`cpu_time`)".to_owned()
        }
        _ => "its box has ended".to_owned(),
    }
}

/// Runs a file operation. One that was cut short by the timeout has timed out, whatever it returns.
fn run_until(
    tree: &Tree,
    until: &StepBudget,
    work: impl FnOnce(&Tree, &StepBudget) -> Result<String, FileStepError>,
) -> StepOutcome {
    let done = StepOutcome::from(work(tree, until));
    until.count();
    if until.is_cut_short.get() {
        StepOutcome {
            failure: Some(StepFailure::TimedOut),
            ..done
        }
    } else {
        done
    }
}

/// The time and output budget of a file operation. Created on the thread that runs it, whose CPU
/// time is charged to the session.
pub(super) struct StepBudget {
    deadline: std::time::Instant,
    /// Output bytes; a result that is longer is too much.
    pub(super) room: usize,
    /// Whether the caller still waits.
    wanted: Weak<()>,
    /// Whether the operation was cut short by the deadline.
    is_cut_short: Cell<bool>,
    spend: Box<dyn Fn(Duration)>,
    spent: Cell<Duration>,
    next_count: Cell<std::time::Instant>,
}

/// The CPU time of this thread.
fn thread_cpu() -> Duration {
    let used = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

impl StepBudget {
    fn new(
        deadline: std::time::Instant,
        room: usize,
        wanted: Weak<()>,
        spend: Box<dyn Fn(Duration)>,
    ) -> StepBudget {
        let spent = Cell::new(thread_cpu());
        let next_count = Cell::new(std::time::Instant::now() + ACCOUNTING_INTERVAL);
        StepBudget {
            deadline,
            room,
            wanted,
            is_cut_short: Cell::new(false),
            spend,
            spent,
            next_count,
        }
    }

    /// Whether to stop now; an operation that stops has not finished.
    pub(super) fn is_over(&self) -> bool {
        let now = std::time::Instant::now();
        if now >= self.next_count.get() {
            self.next_count.set(now + ACCOUNTING_INTERVAL);
            self.count();
        }
        let over = now >= self.deadline || self.wanted.strong_count() == 0;
        self.is_cut_short.set(self.is_cut_short.get() || over);
        over
    }

    fn count(&self) {
        let now = thread_cpu();
        (self.spend)(now.saturating_sub(self.spent.replace(now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, time::Instant};

    type Work = fn(&Tree, &StepBudget) -> Result<String, FileStepError>;

    #[test]
    fn what_its_time_cuts_is_timed_out_and_says_why() {
        let folder =
            std::env::temp_dir().join(format!("airlock-steps-until-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.txt"), "one\n").unwrap();
        let tree = || Tree::new(fs::File::open(&folder).unwrap().into(), None, 1 << 20);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let cut = format!("[truncated: {TIME_IS_OVER}]\n");
        let works: [(Work, &str, &str); 4] = [
            (
                |tree, until| search::search(tree, "one", "", None, until),
                "a.txt:1:one\n",
                &cut,
            ),
            (
                |tree, until| search::search(tree, "one", "a.txt", None, until),
                "a.txt:1:one\n",
                &cut,
            ),
            (|tree, until| files::list(tree, "", until), "a.txt\n", &cut),
            (
                |tree, until| files::read(tree, "a.txt", (1, u64::MAX), until),
                "one\n",
                "",
            ),
        ];
        for (index, (work, whole, cut)) in works.into_iter().enumerate() {
            let done = |deadline| {
                let wanted = Arc::new(());
                let until =
                    StepBudget::new(deadline, 1000, Arc::downgrade(&wanted), Box::new(drop));
                let done = run_until(&tree(), &until, work);
                (done.output.unwrap(), done.failure)
            };
            assert_eq!(done(later), (whole.to_owned(), None), "{index}");
            assert_eq!(
                done(now),
                (cut.to_owned(), Some(StepFailure::TimedOut)),
                "{index}"
            );
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_nobody_waits_for_ends_and_all_that_is_used_is_counted() {
        let tree = Tree::new(
            fs::File::open(std::env::temp_dir()).unwrap().into(),
            None,
            1 << 20,
        );
        let later = Instant::now() + Duration::from_secs(3600);
        let (wanted, counted) = (Arc::new(()), std::rc::Rc::new(Cell::new(Duration::ZERO)));
        let sum = counted.clone();
        let spend = Box::new(move |cpu| sum.set(sum.get() + cpu));
        let until = StepBudget::new(later, 1000, Arc::downgrade(&wanted), spend);
        let (begun, least) = (thread_cpu(), Duration::from_millis(20));
        let done = run_until(&tree, &until, |_, until| {
            while thread_cpu() - begun < least {
                assert!(!until.is_over());
            }
            drop(wanted);
            assert!(until.is_over());
            Ok(String::new())
        });
        assert_eq!(done.failure, Some(StepFailure::TimedOut));
        assert!(
            counted.get() >= least - Duration::from_millis(1),
            "{counted:?}"
        );
    }
}
