//! Measures the disk usage of a layer or of a folder that a sandbox writes to, with the engine's
//! own credentials: a program cannot hide files by permissions or depth. Only names and sizes are
//! read; what cannot be read counts as the maximum.

use super::{quota::MAX_OWNER_BYTES, tree, tree_of};
use ::fs::{Dir, WalkBounds, WalkError};
use rustix::{fs::Mode, io::Errno};
use spec::LayerKind;
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

/// The most names that are counted. They are not stored, so this exceeds the limit of comparisons.
const MAX_NAMES: usize = 4_000_000;

/// The most closed folders of a layer that are opened for measuring. More of them count as the maximum.
const MAX_CLOSED: usize = 10_000;

/// The size of a layer. For an overlay only the upper folder: the kernel keeps its work folder
/// closed and empty.
pub(super) fn layer(layer: impl AsFd, kind: LayerKind) -> u64 {
    let top = Dir::from_fd(layer).open_dir(tree_of(kind));
    let measured = top.and_then(|top| with_closed_folders(MAX_OWNER_BYTES, &top));
    measured.ok().flatten().unwrap_or(MAX_OWNER_BYTES)
}

/// Whether a folder takes at least so many bytes, or cannot be measured. A program may be writing
/// to it.
pub(crate) fn takes(path: &Path, bytes: u64) -> bool {
    let top = Dir::open_no_follow(path);
    let measured = top.and_then(|top| less_than(bytes, &top, &mut Vec::new(), 0));
    !matches!(measured, Ok(Some(_)))
}

/// Like [`less_than`]; folders that a program closed to its own user, which is ours, are opened while
/// they are measured. Otherwise one such folder would count as so much that its owner gets no other
/// layer.
fn with_closed_folders(most: u64, top: &Dir) -> io::Result<Option<u64>> {
    let mut closed = Vec::new();
    let Some(mut room) = less_than(most, top, &mut closed, MAX_CLOSED)? else {
        return Ok(None);
    };
    for path in closed {
        let opened = OpenedFolder::open(top, &path)?;
        // The walk is bounded in depth, and so is this recursion.
        let inside = with_closed_folders(most.saturating_sub(room), &opened.dir()?)?;
        let Some(inside) = inside else {
            return Ok(None);
        };
        room = room.saturating_add(inside);
    }
    Ok(Some(room))
}

/// A closed folder that is readable for its user until this is dropped.
struct OpenedFolder {
    handle: Dir,
    mode: Mode,
}

impl OpenedFolder {
    fn open(top: &Dir, path: &Path) -> io::Result<OpenedFolder> {
        let handle = top.locate_dir(path)?;
        let mode = Mode::from_raw_mode(handle.status()?.st_mode);
        let opened = OpenedFolder { handle, mode };
        opened.set_mode(mode | Mode::RWXU)?;
        Ok(opened)
    }

    fn dir(&self) -> io::Result<Dir> {
        self.handle.open_dir(".")
    }

    /// By the handle: the name may refer to another file by now.
    fn set_mode(&self, mode: Mode) -> io::Result<()> {
        let handle = format!("/proc/self/fd/{}", self.handle.as_fd().as_raw_fd());
        Ok(rustix::fs::chmod(handle, mode)?)
    }
}

impl Drop for OpenedFolder {
    fn drop(&mut self) {
        // A folder that stays open only has another mode for its owner.
        if let Err(error) = self.set_mode(self.mode) {
            debug_assert!(is_gone(&error), "{error}");
        }
    }
}

/// The size; none if it is at least `most`, or if the tree exceeds a limit. Up to `most_closed`
/// unreadable folders are listed and left out.
fn less_than(
    most: u64,
    top: &Dir,
    closed: &mut Vec<PathBuf>,
    most_closed: usize,
) -> io::Result<Option<u64>> {
    let mut room = tree::disk_bytes(&top.status()?);
    let bounds = WalkBounds {
        entries: MAX_NAMES,
        depth: tree::MAX_DEPTH,
        ..WalkBounds::default()
    };
    for found in top.walk(bounds)? {
        match found {
            Ok(entry) => room = room.saturating_add(tree::disk_bytes(&entry.stat)),
            Err(WalkError::TooMany { .. } | WalkError::TooDeep { .. }) => return Ok(None),
            // A running program removed it.
            Err(WalkError::Read { source, .. }) if is_gone(&source) => {}
            Err(WalkError::Read { path, source })
                if is_closed(&source) && closed.len() < most_closed =>
            {
                closed.push(path);
            }
            Err(WalkError::Read { source, .. }) => return Err(source),
        }
        if room >= most {
            return Ok(None);
        }
    }
    Ok(Some(room))
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}
