//! Why a sandbox could not be created, with hints.

use super::{cgroup::CgroupError, protect::ProtectError};
use init::{
    plan::WORKSPACE_OVERLAY,
    step::{Step, StepFailure},
};
use spec::{Barrier, ErrorCode, ErrorInfo};
use std::{io, path::PathBuf};

/// A required barrier that this host cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingBarrier {
    /// Its name.
    pub barrier: &'static str,
    /// The reason.
    pub why: String,
}

impl MissingBarrier {
    /// From its fields.
    pub fn new(barrier: &'static str, why: impl Into<String>) -> MissingBarrier {
        MissingBarrier {
            barrier,
            why: why.into(),
        }
    }
}

/// Why there is no sandbox, or no program in it.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A required barrier is not available here.
    #[error("this host cannot enforce `{}`: {}", .0.barrier, .0.why)]
    Missing(MissingBarrier),
    /// A host path cannot be used.
    #[error("cannot use `{}`", path.display())]
    Look {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A host path leads elsewhere than when it was admitted.
    #[error("`{}` is no longer what it was when it was admitted", path.display())]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// A mount point that is not UTF-8.
    #[error("the mount point `{}` is not valid UTF-8", path.display())]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// A text with a NUL byte.
    #[error("a path or variable contains a NUL byte")]
    Nul,
    /// A single file mounted into a fresh workspace.
    #[error("`{}` is a file, and a fresh workspace has nothing to mount it on", path.display())]
    FileInWorkspace {
        /// The file.
        path: PathBuf,
    },
    /// The image cannot be used.
    #[error("{message}")]
    Image {
        /// Missing or refused.
        code: ErrorCode,
        /// The message for the caller.
        message: String,
        /// The hint.
        hint: String,
    },
    /// A container engine failed or refused.
    #[error("{message}")]
    Engine {
        /// The kind of failure.
        code: ErrorCode,
        /// The message for the caller.
        message: String,
        /// The hint.
        hint: String,
    },
    /// The workspace belongs to the host's root, and its file system cannot be idmapped.
    #[error("`{}` belongs to the host's root, and its file system cannot show it to another user", path.display())]
    RootsWorkspace {
        /// The workspace.
        path: PathBuf,
    },
    /// A writable mount of a name that is protected in the workspace.
    #[error("the writable mount of `{}` leads around the protected names of the workspace", path.display())]
    AroundProtection {
        /// The host path of the mount.
        path: PathBuf,
    },
    /// The names of the workspace cannot be protected.
    #[error(transparent)]
    Protect(#[from] ProtectError),
    /// The cgroups could not be created or removed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The launcher could not be started or reached.
    #[error("cannot {what} the launcher")]
    Launcher {
        /// The operation.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The sandbox is frozen.
    #[error("the sandbox is frozen")]
    Frozen,
    /// It has no cgroup that can freeze it.
    #[error("cannot freeze the sandbox: {why}")]
    CannotFreeze {
        /// The reason.
        why: String,
        /// What would help.
        remedy: &'static str,
    },
    /// Freezing timed out; another attempt may succeed.
    #[error("cannot freeze the sandbox: {why}")]
    NotFrozen {
        /// The cause.
        why: io::Error,
    },
    /// The session has as many running execs as it may.
    #[error("the sandbox has {most} programs under way, as many as it may")]
    TooManyPrograms {
        /// The limit.
        most: usize,
    },
    /// The working directory of an exec cannot be entered.
    #[error("the program cannot start in its `directory`")]
    Directory {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The sandbox has reached its process limit.
    #[error("the sandbox has as many processes as it may, and no program can be started")]
    NoProcess,
    /// A prepared child did not execute its program in time.
    #[error("the program did not come to run in time: something in the sandbox holds it up")]
    HeldUp,
    /// A step of containment failed; no line of the program ran.
    #[error("the step `{}` failed at {}: {}", .0.step.name(), .0.detail, io::Error::from_raw_os_error(.0.errno))]
    Step(StepFailure),
    /// The launcher or the sandbox died during setup.
    #[error("the sandbox died while it was being made")]
    Died,
}

impl From<MissingBarrier> for SandboxError {
    fn from(missing: MissingBarrier) -> Self {
        SandboxError::Missing(missing)
    }
}

/// The errnos of a program that is missing.
const NOT_FOUND: i32 = 2;
const NOT_A_DIRECTORY: i32 = 20;

impl SandboxError {
    /// The exit status of `airlock run`: 127 and 126 for the program itself, else 125.
    pub fn exit_status(&self) -> u8 {
        match self {
            SandboxError::Step(StepFailure {
                step: Step::Exec,
                errno,
                ..
            }) => match *errno {
                NOT_FOUND | NOT_A_DIRECTORY => 127,
                _ => 126,
            },
            _ => 125,
        }
    }

    /// The error for the caller.
    pub fn info(&self) -> ErrorInfo {
        let cause = std::error::Error::source(self)
            .map(|source| format!(": {source}"))
            .unwrap_or_default();
        let message = match self {
            SandboxError::Step(failure) if failure.step == Step::Exec => self.program_plan(failure),
            _ => format!("{self}{cause}"),
        };
        ErrorInfo {
            code: self.code(),
            message,
            hint: Some(self.hint()),
        }
    }

    fn program_plan(&self, failure: &StepFailure) -> String {
        let name = failure.detail.escape_debug();
        match self.exit_status() {
            127 => format!("there is no command `{name}` inside"),
            _ => format!(
                "`{name}` cannot be run: {}",
                io::Error::from_raw_os_error(failure.errno)
            ),
        }
    }

    fn code(&self) -> ErrorCode {
        match self {
            SandboxError::Missing(_) => ErrorCode::BarrierMissing,
            SandboxError::Replaced { .. } => ErrorCode::PolicyDenied,
            SandboxError::CannotFreeze { .. } => ErrorCode::BackendUnavailable,
            SandboxError::Frozen | SandboxError::Directory { .. } => ErrorCode::InvalidSpec,
            SandboxError::NoProcess | SandboxError::HeldUp | SandboxError::NotFrozen { .. } => {
                ErrorCode::Conflict
            }
            SandboxError::Look { .. }
            | SandboxError::Name { .. }
            | SandboxError::Nul
            | SandboxError::FileInWorkspace { .. }
            | SandboxError::Protect(_)
            | SandboxError::AroundProtection { .. }
            | SandboxError::RootsWorkspace { .. } => ErrorCode::InvalidSpec,
            SandboxError::Image { code, .. } | SandboxError::Engine { code, .. } => *code,
            SandboxError::Step(failure) if failure.step == Step::LauncherNamespaces => {
                ErrorCode::BackendUnavailable
            }
            SandboxError::Launcher { .. } => ErrorCode::BackendUnavailable,
            SandboxError::Cgroup(_)
            | SandboxError::TooManyPrograms { .. }
            | SandboxError::Step(_)
            | SandboxError::Died => ErrorCode::StartFailed,
        }
    }

    fn hint(&self) -> String {
        let text = match self {
            SandboxError::Missing(missing) if missing.barrier == Barrier::NotHostRoot.name() => {
                "start Airlock as an ordinary user, or give this root CAP_SYS_ADMIN"
            }
            SandboxError::Missing(_) => {
                "`airlock doctor` shows what this host can enforce and how to mend it"
            }
            SandboxError::Look { source, .. } if source.kind() == io::ErrorKind::NotADirectory => {
                "name a folder; a single file goes in with --mount or --input"
            }
            SandboxError::Look { .. } => "check that the path exists and that you may read it",
            SandboxError::Replaced { .. } => {
                "ask again once nobody moves or replaces anything on the way to it"
            }
            SandboxError::Name { .. } | SandboxError::Nul => "choose another path",
            SandboxError::FileInWorkspace { .. } => {
                "use --input to put a single file into the workspace"
            }
            SandboxError::Image { hint, .. } | SandboxError::Engine { hint, .. } => hint,
            SandboxError::RootsWorkspace { .. } => {
                "give the folder to an ordinary user (chown), or use a file system that can be idmapped, such as ext4"
            }
            SandboxError::AroundProtection { .. } => {
                "mount it read-only, or lift the protection with --allow-protected NAME"
            }
            SandboxError::Protect(error) => return error.hint(),
            SandboxError::Cgroup(_) => "`airlock sweep` removes what an earlier run left behind",
            SandboxError::Launcher { .. } | SandboxError::Died => {
                "`airlock doctor` tries one out and says more"
            }
            SandboxError::Frozen => "let it go on first",
            SandboxError::Directory { .. } => {
                "name a folder that exists inside and that the program may enter"
            }
            SandboxError::NoProcess => "end some of them, or make a sandbox with more `pids`",
            SandboxError::HeldUp => {
                "a program inside may have stopped it (SIGSTOP), or the machine is busy: end that program, or try again"
            }
            SandboxError::CannotFreeze { remedy, .. } => remedy,
            SandboxError::NotFrozen { .. } => {
                "something in it cannot be stopped just now: try again"
            }
            SandboxError::TooManyPrograms { .. } => "wait until one has ended, or end one",
            SandboxError::Step(failure) => return step_hint(failure),
        };
        text.to_owned()
    }
}

fn step_hint(failure: &StepFailure) -> String {
    match failure.step {
        Step::LauncherNamespaces | Step::Template => "`airlock doctor` says what keeps this host from making namespaces",
        Step::Mounts => "mount at a place that exists inside and is no link, or at a new one outside /usr and /etc",
        Step::OpenPaths => "check that the path exists and is not being replaced while the run starts",
        Step::TransparentProxy => "look whether the kernel lets a sandbox have routes and listeners of its own; a proxy door alone needs none",
        Step::Workspace if failure.detail == WORKSPACE_OVERLAY => {
            "this kernel does not lay a layer over that folder: share it at once with --workspace DIR:live, show it \
             read-only with DIR:ro, or have it copied (`copy_names` and `copy_size` under [workspace])"
        }
        Step::Workspace => "check what lies at this place in the workspace",
        Step::JoinNamespaces if failure.errno == NOT_FOUND => "the folder to start in does not exist inside: look at the image's WORKDIR",
        Step::Terminal => "close a terminal first: a sandbox may have a few at once",
        Step::Exec => {
            "inside, PATH is /usr/local/bin:/usr/bin:/bin of the host (or of --image); paths of your home are not there"
        }
        _ => "`airlock doctor` shows what this host can enforce",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_the_kernel_refuses_has_the_remedies_of_one_that_cannot_be_made() {
        let hint = |detail: &str| {
            let step = Step::Workspace;
            let (errno, detail) = (22, detail.to_owned());
            step_hint(&StepFailure {
                step,
                errno,
                detail,
            })
        };
        let told = hint(WORKSPACE_OVERLAY);
        assert!(
            told.contains("DIR:live") && told.contains("DIR:ro"),
            "{told}"
        );
        assert!(!hint("/workspace").contains("DIR:live"));
    }

    #[test]
    fn who_cannot_freeze_now_may_another_time_and_who_has_no_freezer_may_not() {
        let now = SandboxError::NotFrozen {
            why: io::ErrorKind::ResourceBusy.into(),
        };
        let never = SandboxError::CannotFreeze {
            why: "it has no cgroup".to_owned(),
            remedy: "",
        };
        assert_eq!(
            (now.code(), never.code()),
            (ErrorCode::Conflict, ErrorCode::BackendUnavailable)
        );
        assert!(now.info().message.contains("cannot freeze the sandbox"));
    }
}
