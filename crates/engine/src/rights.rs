//! What may be done from outside in a workspace that is a folder of the host's: what its program may do there, and no more.
//! Names that are protected from the program are protected from whoever sends files.

use rustix::fs::{Dir, OFlags};
use sandbox::native::protect;
use spec::{SandboxSpec, WorkspacePath};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

/// What holds in a workspace; nothing in one of the box's own.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// Of a folder of the host's: protected names that may be written after all.
    mounted: Option<Vec<WorkspacePath>>,
}

impl Rights {
    /// Those in the workspace of a box.
    pub(crate) fn of(spec: &SandboxSpec) -> Rights {
        Rights { mounted: spec.workspace.as_ref().map(|_| spec.allow_protected.clone()) }
    }

    /// Why what lies at a path must stay as it is, if it must.
    pub(crate) fn protects(&self, workspace: BorrowedFd<'_>, path: &Path) -> Option<String> {
        let allowed = self.mounted.as_ref()?;
        let held = protect::held(path, allowed, has_repository(workspace))?;
        Some(format!("`{}` is protected: {}", held.name, held.reason))
    }
}

/// Whether there is a folder `.git` with something in it. One that cannot be looked at is none: then all of it is protected.
fn has_repository(workspace: BorrowedFd<'_>) -> bool {
    let listed = || -> io::Result<bool> {
        let folder = crate::files::open(workspace.as_fd(), ".git", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let names = Dir::new(folder)?.take(3).collect::<Result<Vec<_>, _>>()?;
        Ok(names.iter().any(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")))
    };
    listed().unwrap_or(false)
}
