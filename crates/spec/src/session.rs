//! A session: a sandbox that outlives its programs. The request, its checks, and what has passed
//! them.

use crate::{
    Policy, RunRequest, RunSpec, SpecError, TerminalSize,
    paths::folder_inside,
    run::{check_command, environment, invalid},
};
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

/// The idle timeout of a session that names none.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The lifetime of a session that names none.
pub const DEFAULT_SESSION_LIFETIME: Duration = Duration::from_secs(3600);
/// The longest lifetime of a session.
pub const MAX_SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// A session as a caller asks for it, unchecked.
#[derive(Clone, Debug, Default)]
pub struct SessionRequest {
    /// The sandbox, as for a run, without a command.
    pub run: RunRequest,
    /// The idle timeout: the session ends when it was unused for so long.
    pub idle: Option<Duration>,
    /// The lifetime, after which the session ends in any case.
    pub lifetime: Option<Duration>,
}

/// A checked session. Only [`Policy::admit_session`] makes one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionSpec {
    /// The sandbox. Its command is empty; its limit of time on the clock applies to each program.
    pub run: RunSpec,
    /// The idle timeout: the session ends when it was unused for so long.
    pub idle: Duration,
    /// The lifetime, after which the session ends in any case.
    pub lifetime: Duration,
}

/// A program that is started in a session.
#[derive(Clone, Debug, Default)]
pub struct ExecRequest {
    /// The argument list.
    pub command: Vec<OsString>,
    /// Variables beyond those of the session.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory inside; that of the session without one.
    pub directory: Option<PathBuf>,
    /// Whether standard input is sent; otherwise it is empty, or the terminal.
    pub stdin: bool,
    /// The size of a terminal on all three streams.
    pub tty: Option<TerminalSize>,
    /// The limit of time on the clock, at most that of the session, which also is the default.
    pub timeout: Option<Duration>,
    /// Whether it runs as long as the session, and does not count as its use.
    pub background: bool,
    /// Bytes from the start of each stream that are kept beside the newest output, until they are
    /// taken.
    pub beginning: usize,
}

/// Rows and columns of a terminal.
const TERMINAL_RANGE: std::ops::RangeInclusive<u16> = 1..=4096;

impl ExecRequest {
    /// Checks everything that needs no access to the machine. The working directory becomes
    /// absolute.
    pub fn checked(self) -> Result<ExecRequest, SpecError> {
        let command = check_command(self.command, false).map_err(|bad| SpecError {
            hint: "give the program and its arguments as a list of words".to_owned(),
            ..bad
        })?;
        environment(&self.env, &BTreeMap::new(), &[])?;
        let directory = self.directory.as_deref().map(folder_inside).transpose();
        let directory = directory
            .map_err(|bad| invalid(bad, "give a folder inside, as in /workspace/src or src"))?;
        if self.tty.is_some_and(|size| {
            !TERMINAL_RANGE.contains(&size.rows) || !TERMINAL_RANGE.contains(&size.columns)
        }) {
            return Err(invalid(
                "a terminal has from 1 to 4096 rows and columns",
                "choose another size",
            ));
        }
        if self.timeout.is_some_and(|time| time.is_zero()) {
            return Err(invalid(
                "a program without any time cannot run",
                "choose another time limit",
            ));
        }
        if self.background && self.timeout.is_some() {
            let message = "a program in the background runs for as long as its session";
            return Err(invalid(
                message,
                "leave the time limit away, or do not put it into the background",
            ));
        }
        // Input for a terminal is standard input.
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
    /// Checks everything about a session that needs no access to the machine.
    pub fn admit_session(&self, request: SessionRequest) -> Result<SessionSpec, SpecError> {
        let SessionRequest {
            mut run,
            idle,
            lifetime,
        } = request;
        let has_program = !run.command.is_empty()
            || run.stdin
            || run.tty.is_some()
            || !run.artifacts.is_empty()
            || run.entrypoint.is_some();
        if has_program {
            let message =
                "a session has no command, standard input, terminal or artifacts of its own";
            return Err(invalid(
                message,
                "give them to the programs that you start in it",
            ));
        }
        let lifetime = lifetime.unwrap_or(DEFAULT_SESSION_LIFETIME);
        if lifetime.is_zero() || lifetime > MAX_SESSION_LIFETIME {
            return Err(invalid(
                "a session lives from a moment to seven days",
                "choose another lifetime",
            ));
        }
        let idle = idle.unwrap_or(DEFAULT_IDLE_TIMEOUT).min(lifetime);
        if idle.is_zero() {
            return Err(invalid(
                "a session that may never be idle cannot be used",
                "choose another idle time",
            ));
        }
        // The checks of a run need a command; which one does not matter.
        run.command = vec!["session".into()];
        let mut run = self.admit(run)?;
        run.command.clear();
        run.sandbox.outlives_programs = true;
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
    use crate::ErrorCode;
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
    fn a_session_has_a_sandbox_and_no_program() {
        let policy = Policy::default();
        let spec = policy.admit_session(SessionRequest::default()).unwrap();
        assert!(spec.run.command.is_empty() && spec.run.sandbox.outlives_programs);
        assert_eq!(
            (spec.idle, spec.lifetime),
            (DEFAULT_IDLE_TIMEOUT, DEFAULT_SESSION_LIFETIME)
        );
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
        for lifetime in [
            Duration::ZERO,
            MAX_SESSION_LIFETIME + Duration::from_secs(1),
        ] {
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
