//! A session: a box that outlives its programs. What a front asks for, and what has been checked.

use crate::{ErrorCode, Policy, RunRequest, RunSpec, SpecError, TerminalSize};
use std::{ffi::OsString, path::PathBuf, time::Duration};

/// What is waited for without anybody using a session, unless it says otherwise.
pub const DEFAULT_IDLE: Duration = Duration::from_secs(15 * 60);
/// How long a session lives, unless it says otherwise.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);
/// How long one can live at most.
pub const LONGEST_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a front asks for, as it came.
#[derive(Clone, Debug, Default)]
pub struct SessionRequest {
    /// The box, as for a run, without a command.
    pub run: RunRequest,
    /// It ends when nobody has used it for so long.
    pub idle: Option<Duration>,
    /// It ends after so long in any case.
    pub lifetime: Option<Duration>,
}

/// A checked session. Made only by [`Policy::admit_session`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionSpec {
    /// The box. Its command is empty; its limit of time on the clock is that of each program.
    pub run: RunSpec,
    /// It ends when nobody has used it for so long.
    pub idle: Duration,
    /// It ends after so long in any case.
    pub lifetime: Duration,
}

/// A program to be run in a session.
#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    /// Exact arguments.
    pub command: Vec<OsString>,
    /// Variables beyond those of the session.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts, inside; the session's own place if none.
    pub directory: Option<PathBuf>,
    /// Whether something will be typed; otherwise standard input is empty, or the terminal.
    pub stdin: bool,
    /// A terminal of this size on all three streams.
    pub tty: Option<TerminalSize>,
    /// Its time on the clock; the session's own limit if none. Never more than that.
    pub timeout: Option<Duration>,
    /// Runs for as long as the session does, and does not keep it from being idle.
    pub background: bool,
}

impl Policy {
    /// Checks everything about a session that can be checked without looking at the machine.
    pub fn admit_session(&self, request: SessionRequest) -> Result<SessionSpec, SpecError> {
        let SessionRequest { mut run, idle, lifetime } = request;
        let wrong = |message: &str, hint: &str| SpecError {
            code: ErrorCode::InvalidSpec,
            message: message.to_owned(),
            hint: hint.to_owned(),
        };
        let of_one_program = !run.command.is_empty()
            || run.stdin
            || run.tty.is_some()
            || !run.artifacts.is_empty()
            || run.entrypoint.is_some();
        if of_one_program {
            let message = "a session has no command, standard input, terminal or artifacts of its own";
            return Err(wrong(message, "give them to the programs that you start in it"));
        }
        let lifetime = lifetime.unwrap_or(DEFAULT_LIFETIME);
        if lifetime.is_zero() || lifetime > LONGEST_LIFETIME {
            return Err(wrong("a session lives from a moment to seven days", "choose another lifetime"));
        }
        let idle = idle.unwrap_or(DEFAULT_IDLE).min(lifetime);
        if idle.is_zero() {
            return Err(wrong("a session that may never be idle cannot be used", "choose another idle time"));
        }
        // What is checked is a command; which one does not matter.
        run.command = vec!["session".into()];
        let mut run = self.admit(run)?;
        run.command.clear();
        run.sandbox.stays = true;
        Ok(SessionSpec { run, idle, lifetime })
    }
}
