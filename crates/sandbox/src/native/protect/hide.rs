//! Files of a workspace that its program does not see: something empty is mounted over each, so that they can neither be
//! opened nor changed.

use super::{
    beneath,
    start::Start,
    walk::{self, Next, Visit},
};
use rustix::fs::{FileType, OFlags};
use spec::{Hidden, Hide};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// Files that one sandbox can have covered.
pub const MAX_HIDDEN: usize = 4096;
/// What of a file is looked through for a key.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// How a private key begins, of whatever kind.
const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";

/// What was found so far.
pub(super) struct Hiding<'a> {
    hide: &'a Hide,
    /// Relative to the workspace.
    pub(super) found: Vec<PathBuf>,
}

impl<'a> Hiding<'a> {
    pub(super) fn new(hide: &'a Hide) -> Hiding<'a> {
        Hiding {
            hide,
            found: Vec::new(),
        }
    }

    /// Looks through a workspace of which nothing else matters.
    pub(super) fn look(&mut self, workspace: BorrowedFd<'_>) -> io::Result<()> {
        match self.hide.is_nothing() {
            true => Ok(()),
            false => self.look_below(workspace, Path::new("")),
        }
    }

    /// Looks through what is protected as a whole.
    pub(super) fn look_into(&mut self, workspace: BorrowedFd<'_>, start: &Start) -> io::Result<()> {
        if self.hide.is_nothing() {
            return Ok(());
        }
        for path in start.settings_folders() {
            if let Ok(folder) = beneath::open_folder(workspace, path) {
                self.look_below(folder.as_fd(), path)?;
            }
        }
        Ok(())
    }

    fn look_below(&mut self, folder: BorrowedFd<'_>, above: &Path) -> io::Result<()> {
        walk::walk(folder, |visit| {
            let hides = self.hides(visit, &above.join(visit.path))?;
            Ok(if hides { Next::Pass } else { Next::Enter })
        })
        .map(drop)
    }

    /// Whether what is visited, which has this path in the workspace, is hidden.
    pub(super) fn hides(&mut self, visit: &Visit<'_>, path: &Path) -> io::Result<bool> {
        let hides = match self.hide.judge(path) {
            Hidden::Yes => true,
            Hidden::No => false,
            // What cannot be read may be one.
            Hidden::IfPrivateKey => {
                visit.kind == FileType::RegularFile
                    && holds_key(visit.folder, visit.name).unwrap_or(true)
            }
        };
        if hides {
            if self.found.len() >= MAX_HIDDEN {
                let message = format!(
                    "it has more than {MAX_HIDDEN} files that are to be hidden; `--hide none` hides none but your own"
                );
                return Err(io::Error::other(message));
            }
            self.found.push(path.to_owned());
        }
        Ok(hides)
    }
}

/// Whether a file begins like a private key, or has one somewhere near its beginning.
pub fn holds_key(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = beneath::open(folder, Path::new(name), flags)?;
    let mut bytes = Vec::new();
    File::from(file)
        .take(MAX_KEY_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes
        .windows(PRIVATE_KEY.len())
        .any(|window| window == PRIVATE_KEY))
}
