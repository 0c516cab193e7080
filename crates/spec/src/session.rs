//! A session: a box that outlives its programs. What a front asks for, and what has been checked.

use crate::{
    ErrorCode, Policy, RunRequest, RunSpec, SpecError, TerminalSize,
    paths::folder_inside,
    run::{check_command, environment},
};
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

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
    /// So much of the beginning of each stream is kept beside the newest, until it is taken.
    pub beginning: usize,
}

/// The most and least of a terminal's rows and columns.
const TERMINAL: std::ops::RangeInclusive<u16> = 1..=4096;

fn wrong(message: impl ToString, hint: &str) -> SpecError {
    SpecError {
        code: ErrorCode::InvalidSpec,
        message: message.to_string(),
        hint: hint.to_owned(),
    }
}

impl ExecRequest {
    /// Checks everything about it that can be checked without looking at the machine. Its folder comes out absolute.
    pub fn checked(self) -> Result<ExecRequest, SpecError> {
        let command = check_command(self.command, false).map_err(|bad| SpecError {
            hint: "give the program and its arguments as a list of words".to_owned(),
            ..bad
        })?;
        environment(&self.env, &BTreeMap::new(), &[])?;
        let directory = self.directory.as_deref().map(folder_inside).transpose();
        let directory = directory
            .map_err(|bad| wrong(bad, "give a folder inside, as in /workspace/src or src"))?;
        if self
            .tty
            .is_some_and(|size| !TERMINAL.contains(&size.rows) || !TERMINAL.contains(&size.columns))
        {
            return Err(wrong(
                "a terminal has from 1 to 4096 rows and columns",
                "choose another size",
            ));
        }
        if self.timeout.is_some_and(|time| time.is_zero()) {
            return Err(wrong(
                "a program without any time cannot run",
                "choose another time limit",
            ));
        }
        if self.background && self.timeout.is_some() {
            let message = "a program in the background runs for as long as its session";
            return Err(wrong(
                message,
                "leave the time limit away, or do not put it into the background",
            ));
        }
        // What is typed goes to the terminal anyway.
        let stdin = self.stdin || self.tty.is_some();
        Ok(ExecRequest {
            command,
            directory,
            stdin,
            ..self
        })
    }
}

impl Policy {
    /// Checks everything about a session that can be checked without looking at the machine.
    pub fn admit_session(&self, request: SessionRequest) -> Result<SessionSpec, SpecError> {
        let SessionRequest {
            mut run,
            idle,
            lifetime,
        } = request;
        let of_one_program = !run.command.is_empty()
            || run.stdin
            || run.tty.is_some()
            || !run.artifacts.is_empty()
            || run.entrypoint.is_some();
        if of_one_program {
            let message =
                "a session has no command, standard input, terminal or artifacts of its own";
            return Err(wrong(
                message,
                "give them to the programs that you start in it",
            ));
        }
        let lifetime = lifetime.unwrap_or(DEFAULT_LIFETIME);
        if lifetime.is_zero() || lifetime > LONGEST_LIFETIME {
            return Err(wrong(
                "a session lives from a moment to seven days",
                "choose another lifetime",
            ));
        }
        let idle = idle.unwrap_or(DEFAULT_IDLE).min(lifetime);
        if idle.is_zero() {
            return Err(wrong(
                "a session that may never be idle cannot be used",
                "choose another idle time",
            ));
        }
        // What is checked is a command; which one does not matter.
        run.command = vec!["session".into()];
        let mut run = self.admit(run)?;
        run.command.clear();
        run.sandbox.stays = true;
        Ok(SessionSpec {
            run,
            idle,
            lifetime,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn program() -> ExecRequest {
        ExecRequest {
            command: vec!["make".into()],
            ..ExecRequest::default()
        }
    }

    #[test]
    fn a_plain_program_is_fine_and_its_folder_becomes_absolute() {
        for (given, becomes) in [
            ("src/./a/", "/workspace/src/a"),
            ("/workspace", "/workspace"),
            ("/tmp/x", "/tmp/x"),
            (".", "/workspace"),
        ] {
            let request = ExecRequest {
                directory: Some(given.into()),
                ..program()
            };
            let directory = request.checked().unwrap().directory.unwrap();
            assert_eq!(directory.components().as_path(), Path::new(becomes));
        }
        assert!(program().checked().unwrap().directory.is_none());
    }

    #[test]
    fn what_no_run_may_have_no_program_of_a_session_may_have() {
        let size = |rows| Some(TerminalSize { rows, columns: 80 });
        let second = Some(Duration::from_secs(1));
        let bad = [
            ExecRequest::default(),
            ExecRequest {
                command: vec!["".into()],
                ..program()
            },
            ExecRequest {
                command: vec!["a\0b".into()],
                ..program()
            },
            ExecRequest {
                command: vec!["x".into(); 5000],
                ..program()
            },
            ExecRequest {
                env: vec![("PATH".into(), "/evil".into())],
                ..program()
            },
            ExecRequest {
                env: vec![("HOME".into(), "/evil".into())],
                ..program()
            },
            ExecRequest {
                env: vec![("A=B".into(), "c".into())],
                ..program()
            },
            ExecRequest {
                env: vec![("A".into(), "b\0c".into())],
                ..program()
            },
            ExecRequest {
                directory: Some("../etc".into()),
                ..program()
            },
            ExecRequest {
                directory: Some("/workspace/../etc".into()),
                ..program()
            },
            ExecRequest {
                directory: Some("a\0b".into()),
                ..program()
            },
            ExecRequest {
                tty: size(0),
                ..program()
            },
            ExecRequest {
                tty: size(5000),
                ..program()
            },
            ExecRequest {
                timeout: Some(Duration::ZERO),
                ..program()
            },
            ExecRequest {
                timeout: second,
                background: true,
                ..program()
            },
        ];
        for request in bad {
            let refused = request.clone().checked();
            assert!(
                refused.is_err_and(|error| error.code == ErrorCode::InvalidSpec),
                "{request:?}"
            );
        }
        let env = vec![("A".into(), "b".into())];
        assert!(
            ExecRequest {
                env,
                tty: size(24),
                timeout: second,
                ..program()
            }
            .checked()
            .is_ok()
        );
    }

    #[test]
    fn a_session_has_a_box_and_no_program() {
        let policy = Policy::default();
        let spec = policy.admit_session(SessionRequest::default()).unwrap();
        assert!(spec.run.command.is_empty() && spec.run.sandbox.stays);
        assert_eq!((spec.idle, spec.lifetime), (DEFAULT_IDLE, DEFAULT_LIFETIME));
        let run = RunRequest {
            command: vec!["true".into()],
            ..RunRequest::default()
        };
        assert!(
            policy
                .admit_session(SessionRequest {
                    run,
                    ..SessionRequest::default()
                })
                .is_err()
        );
        for lifetime in [Duration::ZERO, LONGEST_LIFETIME + Duration::from_secs(1)] {
            let request = SessionRequest {
                lifetime: Some(lifetime),
                ..SessionRequest::default()
            };
            assert!(policy.admit_session(request).is_err());
        }
        let short = Duration::from_secs(5);
        let request = SessionRequest {
            lifetime: Some(short),
            ..SessionRequest::default()
        };
        assert_eq!(policy.admit_session(request).unwrap().idle, short);
    }
}
