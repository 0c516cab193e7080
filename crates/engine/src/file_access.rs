//! File access of the engine to a workspace that is a folder of the host: the same as the
//! program's, and no more. Protected names are protected from callers that upload files as well. An
//! engine that runs as root acts with the credentials of the folder's owner, so that a file that
//! the owner may not read is read for nobody.

use crate::files::{self, CollectLimits, CollectReport, CollectedFile};
use sandbox::native::protect;
use spec::{ProtectedNames, SandboxSpec, WorkspacePath};
use std::{io, os::fd::BorrowedFd, path::Path, sync::mpsc, thread};

/// The access rules of a workspace. A workspace of the sandbox's own has none.
#[derive(Clone, Debug, Default)]
pub struct FileAccess {
    /// The protected names of a mounted folder.
    mounted: Option<ProtectedNames>,
    /// Whether the program writes to the folder itself and not to a copy.
    keeps: bool,
    /// Whether the folder is read-only.
    read_only: bool,
    /// The user and group with whose credentials files are accessed, if not the engine's own.
    user: Option<(u32, u32)>,
}

impl FileAccess {
    /// The access to the workspace of a sandbox.
    pub(crate) fn of(spec: &SandboxSpec, workspace: BorrowedFd<'_>) -> io::Result<FileAccess> {
        match spec.workspace {
            None => Ok(FileAccess::default()),
            Some(_) => Ok(FileAccess {
                mounted: Some(spec.protected.clone()),
                keeps: !spec.copy_on_write,
                read_only: spec.read_only_workspace,
                ..FileAccess::of_owner(workspace)?
            }),
        }
    }

    /// The access to a layer whose changes reach the folder: existing files must not be replaced
    /// either.
    pub(crate) fn keeping(self, keeps: bool) -> FileAccess {
        FileAccess {
            keeps: self.keeps || keeps,
            ..self
        }
    }

    /// The access of the owner of a folder.
    pub(crate) fn of_owner(folder: BorrowedFd<'_>) -> io::Result<FileAccess> {
        let found = rustix::fs::fstat(folder)?;
        // Without root's capabilities a program is a stranger to files in root's folder that are
        // not root's.
        let user = rustix::process::geteuid()
            .is_root()
            .then_some((found.st_uid, found.st_gid));
        Ok(FileAccess {
            user,
            ..FileAccess::default()
        })
    }

    /// The user and group, if they are not the engine's own.
    pub(crate) fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    /// Runs a closure with these credentials, in a thread of its own: credentials that a thread
    /// drops need not be restored.
    pub(crate) fn act<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let Some((uid, gid)) = self.user else {
            return work();
        };
        let work = move || {
            sandbox::use_file_rights_of(uid, gid)?;
            work()
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, work)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        })
    }

    /// Collects files with these credentials; `keep` runs with the engine's own.
    pub(crate) fn collect(
        &self,
        workspace: BorrowedFd<'_>,
        wanted: &[WorkspacePath],
        bounds: CollectLimits,
        is_cancelled: &(dyn Fn() -> bool + Sync),
        keep: &mut dyn FnMut(CollectedFile) -> Result<(), String>,
    ) -> io::Result<CollectReport> {
        if self.user.is_none() {
            return Ok(files::collect(
                workspace,
                wanted,
                bounds,
                is_cancelled,
                keep,
            ));
        }
        let (found, all) = mpsc::sync_channel(0);
        let (answer, answers) = mpsc::channel();
        let gone = || "nobody keeps it".to_owned();
        let collect = move || {
            let mut hand_over = |one| {
                found.send(one).map_err(|_| gone())?;
                answers.recv().unwrap_or_else(|_| Err(gone()))
            };
            Ok(files::collect(
                workspace,
                wanted,
                bounds,
                is_cancelled,
                &mut hand_over,
            ))
        };
        thread::scope(|scope| {
            let collecting = scope.spawn(|| self.act(collect));
            for one in all {
                // The collecting thread waits for the answer, or has failed, which is reported
                // below.
                _ = answer.send(keep(one));
            }
            collecting
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        })
    }

    /// Whether uploads must not replace existing files: nobody could restore them.
    pub(crate) fn keeps_existing(&self) -> bool {
        self.keeps
    }

    /// Why a path may not be changed, if it may not.
    pub(crate) fn protects(&self, path: &Path) -> Option<String> {
        let mounted = self.mounted.as_ref()?;
        if self.read_only {
            return Some("the workspace is read-only".to_owned());
        }
        let held = protect::protects(path, mounted)?;
        Some(format!("`{}` is protected: {}", held.name, held.reason))
    }
}
