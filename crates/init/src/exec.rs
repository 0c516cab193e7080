//! A further program of a box that outlives it: its process, and its own channel to whoever asked for it.
//!
//! It leads a session and a process group of its own, and is not reaped before we let go of it: while we have it, its
//! number is nobody else's.

use crate::{
    protocol::{self, Command, MAX_EXECS, ProcessExit, Report},
    step::{Step, StepFailure},
    sys::WaitResult,
};
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};
use std::os::fd::OwnedFd;

/// One that is under way.
pub(crate) struct ExecChild {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    /// Gone once nobody listens any more.
    pub(crate) channel: Option<OwnedFd>,
}

impl ExecChild {
    /// Refuses one more than there may be, by an error that no step of a program gives.
    pub(crate) fn check_limit(under_way: &[ExecChild]) -> Result<(), StepFailure> {
        match under_way.len() < MAX_EXECS {
            true => Ok(()),
            false => {
                let detail = format!("{MAX_EXECS} running programs");
                Err(StepFailure {
                    step: Step::JoinNamespaces,
                    errno: libc::EUSERS,
                    detail,
                })
            }
        }
    }

    /// Does what its channel says; the channel, if that was its last word.
    pub(crate) fn on_command(&mut self) -> Option<OwnedFd> {
        match self.channel.as_ref().map(protocol::receive::<Command>) {
            Some(Ok(Some((Command::Signal(number), _)))) => {
                self.signal(number);
                None
            }
            // Whoever asked for it is gone, and so shall it be.
            _ => {
                self.kill();
                self.channel.take()
            }
        }
    }

    /// To its process group. Already ended is as good.
    fn signal(&self, number: i32) {
        if let (Some(signal), Some(group)) =
            (Signal::from_named_raw(number), Pid::from_raw(self.pid))
        {
            _ = kill_process_group(group, signal);
        }
    }

    /// Ends it with its process group, or alone if it has not come as far as to have one.
    pub(crate) fn kill(&self) {
        self.signal(libc::SIGKILL);
        _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Tells of its end. What it left in its process group goes on.
    pub(crate) fn report_end(&self, reaped: WaitResult) {
        if let Some(channel) = &self.channel {
            // An engine that has hung up does not want to know.
            _ = protocol::send(channel, &Report::Ended(ProcessExit::from(reaped)), &[]);
        }
    }
}
