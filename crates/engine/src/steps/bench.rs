//! Direct steps: one after the other, within one time and one amount of output.

use super::{
    BETWEEN_LOOKS, Said, Wishes, command,
    denied::{self, Denied},
    files::{self, Wrong},
    patch, search,
};
use crate::{Session, SessionEnd, SessionState, tree::Tree, verdict::COUNTED_EVERY};
use rustix::time::ClockId;
use spec::{
    Denial, LimitName, MOST_STEP_OUTPUT, Step, StepAction, StepJob, StepResult, StepStatus,
    StepsResult,
};
use std::{
    cell::Cell,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// Why something was left out that there was no time for.
pub(super) const OVER: &str = "the time of the job is over";

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
    /// Steps were left because of that.
    pub(super) is_cut: bool,
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
        Done {
            output: Some(output.into()),
            ..Done::default()
        }
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
            Err(wrong) => Done {
                failure: Some(Failure::Failed(wrong)),
                ..Done::default()
            },
        }
    }
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        session: Session,
        job: &'a StepJob,
        result: StepsResult,
        wishes: Wishes,
    ) -> Bench<'a> {
        let granted = session.spec().run.sandbox.limits.wall_time.0;
        let deadline = Instant::now() + job.constraints.max_runtime.min(granted);
        let room = job.constraints.max_output_bytes.min(MOST_STEP_OUTPUT) as usize;
        let (said, denied) = Default::default();
        Bench {
            session,
            job,
            result,
            said,
            denied,
            deadline,
            room,
            wishes,
            is_cut: false,
        }
    }

    fn is_to_end(&self) -> bool {
        *self.wishes.cancelled.borrow() || self.wishes.terminated.borrow().is_some()
    }

    /// That its time is over, and which.
    pub(super) fn out_of_time_told(&self) -> String {
        let (asked, granted) = (
            self.job.constraints.max_runtime,
            self.session.spec().run.sandbox.limits.wall_time.0,
        );
        match asked <= granted {
            true => format!("{OVER} (max_runtime_seconds {})", asked.as_secs()),
            false => format!("{OVER} (it was given {} seconds)", granted.as_secs_f64()),
        }
    }

    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Carries the steps out. The job has failed if one of them has, also where others followed.
    pub(super) async fn carry_out(&mut self) {
        for (index, step) in self.job.steps.iter().enumerate() {
            if self.is_to_end() {
                self.is_cut = true;
                return;
            }
            let done = match self.time_left().is_zero() {
                true => Done {
                    failure: Some(Failure::TimedOut),
                    ..Done::default()
                },
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
                self.on_files(move |tree, _| files::write(tree, &path, &content))
                    .await
            }
            StepAction::ReadFile {
                path,
                start_line,
                end_line,
            } => {
                let (path, lines) = (
                    path.clone(),
                    (start_line.unwrap_or(1), end_line.unwrap_or(u64::MAX)),
                );
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
                let (pattern, path, include) = (
                    pattern.clone(),
                    path.clone().unwrap_or_default(),
                    include.clone(),
                );
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
        work: impl FnOnce(&Tree, &Until) -> Result<String, Wrong> + Send + 'static,
    ) -> Done {
        let tree = match self.session.tree() {
            Ok(tree) => tree,
            Err(error) => {
                return Done {
                    failure: Some(Failure::Lost(error.message)),
                    ..Done::default()
                };
            }
        };
        self.session.touch();
        let (deadline, room) = (self.deadline.into_std(), self.room);
        let late = || Done {
            failure: Some(Failure::TimedOut),
            ..Done::default()
        };
        let Ok(place) = tokio::time::timeout_at(self.deadline, self.place()).await else {
            return late();
        };
        let (wanted, session) = (Arc::new(()), self.session.clone());
        let still_wanted = Arc::downgrade(&wanted);
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            let spend = move |cpu| session.worked_for(cpu);
            within(
                &tree,
                &Until::new(deadline, room, still_wanted, Box::new(spend)),
                work,
            )
        });
        tokio::select! {
            done = done => done.unwrap_or_else(|broken| {
                let why = format!("the step failed in Airlock itself: {broken}");
                Done { failure: Some(Failure::failed(why)), ..Done::default() }
            }),
            () = tokio::time::sleep_until(self.deadline) => late(),
            ended = self.session.ended() => Done { failure: Some(Failure::Lost(why(&ended))), ..Done::default() },
        }
    }

    /// A place among what is done with files at a time.
    async fn place(&self) -> Box<dyn Send> {
        loop {
            match (self.wishes.places)() {
                Some(place) => return place,
                None => tokio::time::sleep(BETWEEN_LOOKS).await,
            }
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
                    self.result =
                        std::mem::replace(&mut self.result, StepsResult::of("")).failed(code, told);
                }
                (status, Some(message), hard || !step.goes_on)
            }
        };
        let Done {
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

    fn told(&self, failure: &Failure) -> (StepStatus, &'static str, String) {
        match failure {
            Failure::Failed(wrong) => (StepStatus::Failure, "step_failed", wrong.why.clone()),
            Failure::Lost(why) => (StepStatus::Failure, "lost", why.clone()),
            Failure::TimedOut => (StepStatus::Timeout, "timeout", self.out_of_time_told()),
            Failure::TooMuch => {
                let most = self.job.constraints.max_output_bytes.min(MOST_STEP_OUTPUT);
                let message =
                    format!("the steps wrote more than the {most} bytes of max_output_bytes");
                (StepStatus::Failure, "constraint_violation", message)
            }
        }
    }
}

/// Why nothing can follow in a box that has ended.
fn why(ended: &SessionState) -> String {
    match ended.ended {
        Some(SessionEnd::Limit) if ended.limits_hit.contains(&LimitName::CpuTime) => {
            "the CPU time of its box is used up (`cpu_time`)".to_owned()
        }
        _ => "its box has ended".to_owned(),
    }
}

/// Does something with files. What stopped because its time was over is not done, whatever it has found until then.
fn within(
    tree: &Tree,
    until: &Until,
    work: impl FnOnce(&Tree, &Until) -> Result<String, Wrong>,
) -> Done {
    let done = Done::from(work(tree, until));
    until.count();
    match until.cut.get() {
        true => Done {
            failure: Some(Failure::TimedOut),
            ..done
        },
        false => done,
    }
}

/// How long and how much something may go on. Made on the thread that does it: its CPU time is the session's.
pub(super) struct Until {
    deadline: std::time::Instant,
    /// Bytes; what is longer by one is too much.
    pub(super) room: usize,
    /// Whether anybody waits for it.
    wanted: Weak<()>,
    /// Whether something stopped because it was over.
    cut: Cell<bool>,
    spend: Box<dyn Fn(Duration)>,
    spent: Cell<Duration>,
    next_count: Cell<std::time::Instant>,
}

/// What this thread has used.
fn thread_cpu() -> Duration {
    let used = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

impl Until {
    fn new(
        deadline: std::time::Instant,
        room: usize,
        wanted: Weak<()>,
        spend: Box<dyn Fn(Duration)>,
    ) -> Until {
        let (spent, next_count) = (
            Cell::new(thread_cpu()),
            Cell::new(std::time::Instant::now() + COUNTED_EVERY),
        );
        Until {
            deadline,
            room,
            wanted,
            cut: Cell::new(false),
            spend,
            spent,
            next_count,
        }
    }

    /// Whether to stop now; whoever is told so has not finished.
    pub(super) fn is_over(&self) -> bool {
        let now = std::time::Instant::now();
        if now >= self.next_count.get() {
            self.next_count.set(now + COUNTED_EVERY);
            self.count();
        }
        let over = now >= self.deadline || self.wanted.strong_count() == 0;
        self.cut.set(self.cut.get() || over);
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

    type Work = fn(&Tree, &Until) -> Result<String, Wrong>;

    #[test]
    fn what_its_time_cuts_is_timed_out_and_says_why() {
        let folder =
            std::env::temp_dir().join(format!("airlock-steps-until-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.txt"), "one\n").unwrap();
        let tree = || Tree::new(fs::File::open(&folder).unwrap().into(), None, 1 << 20);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let cut = format!("[truncated: {OVER}]\n");
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
                let until = Until::new(deadline, 1000, Arc::downgrade(&wanted), Box::new(drop));
                let done = within(&tree(), &until, work);
                (done.output.unwrap(), done.failure)
            };
            assert_eq!(done(later), (whole.to_owned(), None), "{index}");
            assert_eq!(
                done(now),
                (cut.to_owned(), Some(Failure::TimedOut)),
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
        let until = Until::new(later, 1000, Arc::downgrade(&wanted), spend);
        let (begun, least) = (thread_cpu(), Duration::from_millis(20));
        let done = within(&tree, &until, |_, until| {
            while thread_cpu() - begun < least {
                assert!(!until.is_over());
            }
            drop(wanted);
            assert!(until.is_over());
            Ok(String::new())
        });
        assert_eq!(done.failure, Some(Failure::TimedOut));
        assert!(
            counted.get() >= least - Duration::from_millis(1),
            "{counted:?}"
        );
    }
}
