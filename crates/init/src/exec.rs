//! An exec: one more program of a sandbox that is a session. Its process has a channel of its own
//! to the engine, a session and a process group. It is not reaped before this struct is dropped, so
//! its pid is not reused.

use crate::{
    protocol::{self, MAX_EXECS, ProcessExit, Report, SandboxCommand},
    step::{Step, StepFailure},
    sys::WaitResult,
};
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};
use std::os::fd::OwnedFd;

/// A running exec.
pub(crate) struct ExecChild {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    /// Dropped when the engine closes its end.
    pub(crate) channel: Option<OwnedFd>,
}

impl ExecChild {
    /// Refuses an exec beyond the limit, with an errno that no step of a program returns.
    pub(crate) fn check_limit(under_way: &[ExecChild]) -> Result<(), StepFailure> {
        if under_way.len() < MAX_EXECS {
            Ok(())
        } else {
            let detail = format!("{MAX_EXECS} running programs");
            Err(StepFailure {
                step: Step::JoinNamespaces,
                errno: libc::EUSERS,
                detail,
            })
        }
    }

    /// Handles a message on the channel. Returns the channel if it was the last one.
    pub(crate) fn on_command(&mut self) -> Option<OwnedFd> {
        match self
            .channel
            .as_ref()
            .map(protocol::receive::<SandboxCommand>)
        {
            Some(Ok(Some((SandboxCommand::Signal(number), _)))) => {
                self.signal(number);
                None
            }
            // The engine closed its end: the program is killed.
            _ => {
                self.kill();
                self.channel.take()
            }
        }
    }

    /// Signals the process group. A process that has ended is no error.
    fn signal(&self, number: i32) {
        if let (Some(signal), Some(group)) =
            (Signal::from_named_raw(number), Pid::from_raw(self.pid))
        {
            _ = kill_process_group(group, signal);
        }
    }

    /// Kills the process group, or the process alone if it has no group yet.
    pub(crate) fn kill(&self) {
        self.signal(libc::SIGKILL);
        _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Reports the exit. Processes left in the group go on.
    pub(crate) fn report_end(&self, reaped: WaitResult) {
        if let Some(channel) = &self.channel {
            // The engine may have closed its end.
            _ = protocol::send(channel, &Report::Ended(ProcessExit::from(reaped)), &[]);
        }
    }
}
