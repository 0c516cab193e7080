//! What may be done from outside in a workspace that is a folder of the host's: what its program may do there, and no more.
//! Names that are protected from the program are protected from whoever sends files, and where the engine is root, it acts
//! there with the rights of the folder's owner, be it root's own: a file that he may not read is read for nobody.

use crate::files::{self, Bounds, Collected, Found};
use sandbox::native::protect;
use spec::{ProtectedNames, SandboxSpec, WorkspacePath};
use std::{io, os::fd::BorrowedFd, path::Path, sync::mpsc, thread};

/// What holds in a workspace; nothing in one of the box's own.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Of a folder of the host's: which names are protected.
    mounted: Option<ProtectedNames>,
    /// Whether the program writes to that folder itself, and not to a copy.
    keeps: bool,
    /// Whether that folder may only be read.
    read_only: bool,
    /// Whose rights in files count there, if not our own.
    user: Option<(u32, u32)>,
}

impl Rights {
    /// Those in the workspace of a box.
    pub(crate) fn of(spec: &SandboxSpec, workspace: BorrowedFd<'_>) -> io::Result<Rights> {
        match spec.workspace {
            None => Ok(Rights::default()),
            Some(_) => Ok(Rights {
                mounted: Some(spec.protected.clone()),
                keeps: !spec.copy_on_write,
                read_only: spec.read_only_workspace,
                ..Rights::of_owner(workspace)?
            }),
        }
    }

    /// Those that the owner of a folder has in files.
    pub(crate) fn of_owner(folder: BorrowedFd<'_>) -> io::Result<Rights> {
        let found = rustix::fs::fstat(folder)?;
        // A program without root's powers is no more than a stranger to what lies in root's folder and is not root's.
        let user = rustix::process::geteuid()
            .is_root()
            .then_some((found.st_uid, found.st_gid));
        Ok(Rights {
            user,
            ..Rights::default()
        })
    }

    /// Who that is, if it is not whoever we are.
    pub(crate) fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    /// Does something with these rights. In a thread of its own: what that gives up need not be got back.
    pub(crate) fn act<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let Some((uid, gid)) = self.user else {
            return work();
        };
        let work = move || {
            sandbox::act_in_files_as(uid, gid)?;
            work()
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, work)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        })
    }

    /// Collects files with these rights; they are kept with our own.
    pub(crate) fn collect(
        &self,
        workspace: BorrowedFd<'_>,
        wanted: &[WorkspacePath],
        bounds: Bounds,
        keep: &mut dyn FnMut(Found) -> Result<(), String>,
    ) -> io::Result<Collected> {
        if self.user.is_none() {
            return Ok(files::collect(workspace, wanted, bounds, keep));
        }
        let (found, all) = mpsc::sync_channel(0);
        let (answer, answers) = mpsc::channel();
        let gone = || "nobody keeps it".to_owned();
        let collect = move || {
            Ok(files::collect(workspace, wanted, bounds, &mut |one| {
                found.send(one).map_err(|_| gone())?;
                answers.recv().unwrap_or_else(|_| Err(gone()))
            }))
        };
        thread::scope(|scope| {
            let collecting = scope.spawn(|| self.act(collect));
            for one in all {
                // Whoever collects waits for it, or has failed and is told of below.
                _ = answer.send(keep(one));
            }
            collecting
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        })
    }

    /// Whether what is there must not be replaced by what is put in: nobody could get it back.
    pub(crate) fn keeps_what_is_there(&self) -> bool {
        self.keeps
    }

    /// Why what lies at a path must stay as it is, if it must.
    pub(crate) fn protects(&self, path: &Path) -> Option<String> {
        let mounted = self.mounted.as_ref()?;
        if self.read_only {
            return Some("the workspace is read-only".to_owned());
        }
        let held = protect::protects(path, mounted)?;
        Some(format!("`{}` is protected: {}", held.name, held.reason))
    }
}
