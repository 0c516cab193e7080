//! An exec: a program of a session, with a channel of its own to the engine.
//!
//! ```text
//! StartExec ─▶ a prepared child drops its privileges, and reports its steps
//!           ─▶ every step that the sandbox promises is among them ─▶ exec arguments ─▶ exec ─▶ ExecProcess
//! ```

use crate::native::{
    DenialEvent, MissingBarrier, ProcessExit, Program, SandboxError, launcher::Channel,
    start_prepared_child,
};
use init::{
    plan::ProgramPlan,
    protocol::{self, Report, SandboxCommand},
    step::{Step, StepFailure, Steps},
};
use rustix::io::Errno;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};
use tokio::sync::mpsc;

/// The time in which a program must start: programs that run in its sandbox already could delay it.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// A running exec. Dropped, it is killed with its process group; the sandbox goes on.
#[derive(Debug)]
pub struct ExecProcess {
    channel: Channel,
    steps: Steps,
    denials: Option<mpsc::Receiver<DenialEvent>>,
}

impl ExecProcess {
    /// The steps that were taken before its first line ran.
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// Its denials; none where they cannot be observed.
    pub fn take_denials(&mut self) -> Option<mpsc::Receiver<DenialEvent>> {
        self.denials.take()
    }

    /// Waits for its exit; `None` if the sandbox ended. A dropped call can be repeated.
    pub async fn ended(&mut self) -> Option<ProcessExit> {
        loop {
            match self.channel.report().await {
                Ok(Some((Report::Ended(ended), _))) => return Some(ended),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Signals its process group.
    pub fn signal(&self, number: i32) {
        // A launcher that is gone took the program with it.
        _ = self.channel.command(SandboxCommand::Signal(number));
    }
}

/// A process that has dropped its privileges and waits for its exec arguments. Dropped, it ends.
pub(crate) struct PreparedChild {
    channel: Channel,
    prepared_child: Channel,
    /// The steps that it took.
    pub(crate) steps: Steps,
    /// The listener of its seccomp filter.
    pub(crate) listener: Option<OwnedFd>,
}

fn failed(source: io::Error) -> SandboxError {
    SandboxError::Launcher {
        what: "ask",
        source,
    }
}

fn timed_out<T>(_: T) -> SandboxError {
    SandboxError::HeldUp
}

impl PreparedChild {
    /// Asks the process at the other end of the sandbox's channel for one.
    pub(crate) async fn ask(
        of: &Channel,
        plan: &ProgramPlan,
    ) -> Result<PreparedChild, SandboxError> {
        let (ours, theirs) = protocol::pair().map_err(failed)?;
        let (prepared_child, its) = protocol::pair().map_err(failed)?;
        of.send_plan(
            SandboxCommand::StartExec,
            plan,
            &[theirs.as_fd(), its.as_fd()],
        )
        .map_err(failed)?;
        drop((theirs, its));
        let channel = Channel::new(ours).map_err(failed)?;
        let prepared_child = Channel::new(prepared_child).map_err(failed)?;
        let report = tokio::time::timeout(START_TIMEOUT, prepared_child.report())
            .await
            .map_err(timed_out)?;
        match report.map_err(failed)? {
            Some((Report::Started(steps), handles)) => {
                complete(steps, plan)?;
                Ok(PreparedChild {
                    channel,
                    prepared_child,
                    steps,
                    listener: handles.into_iter().next(),
                })
            }
            Some((Report::Failed(failure), _)) => Err(SandboxError::exec_failure(failure)),
            Some(_) | None => Err(SandboxError::Died),
        }
    }

    /// Sends it the exec arguments.
    pub(crate) async fn run(
        self,
        program: &Program,
        streams: [OwnedFd; 3],
        denials: Option<mpsc::Receiver<DenialEvent>>,
    ) -> Result<ExecProcess, SandboxError> {
        let PreparedChild {
            channel,
            prepared_child,
            steps,
            ..
        } = self;
        let sent = start_prepared_child(prepared_child, program, streams);
        tokio::time::timeout(START_TIMEOUT, sent)
            .await
            .map_err(timed_out)??;
        Ok(ExecProcess {
            channel,
            steps,
            denials,
        })
    }
}

/// Checks that a process took every step that its plan names: the sandbox has reported its
/// barriers, and no exec may make that untrue.
fn complete(taken: Steps, plan: &ProgramPlan) -> Result<(), SandboxError> {
    let landlock = init::landlock_version() > 0;
    let due = |step: &Step| match step {
        Step::PathRules => landlock,
        Step::Affinity => plan.cpus.is_some(),
        Step::Exec => false,
        step => *step >= Step::JoinNamespaces,
    };
    let mut due = Step::ALL
        .into_iter()
        .filter(|step| plan.steps.has(*step))
        .filter(due);
    match due.find(|step| !taken.has(*step)) {
        None => Ok(()),
        Some(step) => {
            Err(MissingBarrier::new(step.name(), "a further program did not take this step").into())
        }
    }
}

impl SandboxError {
    /// An exec joins a running sandbox: a failure there concerns its working directory, or limits.
    fn exec_failure(failure: StepFailure) -> SandboxError {
        if failure.step != Step::JoinNamespaces {
            return SandboxError::Step(failure);
        }
        match Errno::from_raw_os_error(failure.errno) {
            Errno::USERS => SandboxError::TooManyPrograms {
                most: protocol::MAX_EXECS,
            },
            Errno::AGAIN => SandboxError::NoProcess,
            errno @ (Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::ACCESS
            | Errno::NAMETOOLONG) => SandboxError::Directory {
                source: errno.into(),
            },
            _ => SandboxError::Step(failure),
        }
    }
}

/// Opens a terminal in the sandbox at the other end of a channel.
pub(crate) async fn open_terminal(of: &Channel) -> Result<OwnedFd, SandboxError> {
    let (ours, theirs) = protocol::pair().map_err(failed)?;
    of.send(&SandboxCommand::Terminal, &[theirs.as_fd()])
        .map_err(failed)?;
    drop(theirs);
    let answer = Channel::new(ours).map_err(failed)?;
    let report = tokio::time::timeout(START_TIMEOUT, answer.report())
        .await
        .map_err(timed_out)?;
    match report.map_err(failed)? {
        Some((Report::Terminal, handles)) => handles.into_iter().next().ok_or(SandboxError::Died),
        Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
        Some(_) | None => Err(SandboxError::Died),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use init::plan::{Ids, LandlockScope};

    fn plan(steps: Steps) -> ProgramPlan {
        ProgramPlan {
            steps,
            ids: Ids {
                uid: 1000,
                gid: 1000,
                outer_uid: 1,
                outer_gid: 1,
                drop_groups: true,
            },
            exec_args: None,
            last: false,
            directory: c"/".to_owned(),
            rlimits: Vec::new(),
            writable: Vec::new(),
            landlock_scope: LandlockScope::SignalsAndSockets,
            cpus: None,
            nice: None,
            terminal: false,
        }
    }

    #[test]
    fn a_program_that_left_a_step_out_is_not_started() {
        let due = Step::ALL
            .into_iter()
            .filter(|step| *step >= Step::JoinNamespaces);
        let due: Vec<_> = due
            .filter(|step| ![Step::Affinity, Step::Exec].contains(step))
            .collect();
        let mut taken = Steps::default();
        due.iter().for_each(|step| taken.add(*step));
        assert!(complete(taken, &plan(Steps::ALL)).is_ok());
        for step in due
            .into_iter()
            .filter(|step| *step != Step::PathRules || init::landlock_version() > 0)
        {
            let error = complete(taken.without(step), &plan(Steps::ALL)).unwrap_err();
            assert!(error.to_string().contains(step.name()), "{error}");
            // A control that leaves it out on purpose has to run.
            assert!(complete(taken.without(step), &plan(Steps::ALL.without(step))).is_ok());
        }
        let with_cpus = ProgramPlan {
            cpus: Some(1),
            ..plan(Steps::ALL)
        };
        assert!(complete(taken, &with_cpus).is_err());
    }
}
