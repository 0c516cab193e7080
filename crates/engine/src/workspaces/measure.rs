//! What a layer, or a folder that is shown to a box, takes on the disk, measured with our own rights: a program that closes its folders to itself, or digs deep,
//! hides nothing. Nothing is read but names and sizes; what cannot be looked at counts as all that it may have.

use super::{TREE, owned::MOST_OWNED_BYTES, tree};
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Names that are counted. None is kept, so there can be more than are ever compared.
const MOST_NAMES: u64 = 4_000_000;
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// What the tree of a layer takes.
pub(super) fn layer(layer: impl AsFd) -> u64 {
    let measured = tree::open(layer, TREE, FOLDER).and_then(|top| less_than(MOST_OWNED_BYTES, top));
    measured.ok().flatten().unwrap_or(MOST_OWNED_BYTES)
}

/// Whether a folder takes as much as this, or cannot be looked at. A program may be writing there.
pub(crate) fn takes(path: &Path, bytes: u64) -> bool {
    let flags = FOLDER | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
    !matches!(top.and_then(|top| less_than(bytes, top)), Ok(Some(_)))
}

/// None if it is as much as this, or too deep or too many names to be looked at.
fn less_than(most: u64, top: OwnedFd) -> io::Result<Option<u64>> {
    let mut room = tree::room(&rustix::fs::fstat(&top)?);
    let mut levels = vec![Dir::new(top)?];
    let mut names = 0;
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.read() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        names += 1;
        let folder = level.fd()?;
        let found = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            found => found?,
        };
        room = room.saturating_add(tree::room(&found));
        if names > MOST_NAMES || room >= most {
            return Ok(None);
        }
        if tree::kind(&found) == tree::Kind::Folder {
            match rustix::fs::openat(
                folder,
                name,
                FOLDER | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                Mode::empty(),
            ) {
                // A living program took it away.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                below => levels.push(Dir::new(below?)?),
            }
            if levels.len() > tree::MOST_DEPTH {
                return Ok(None);
            }
        }
    }
    Ok(Some(room))
}
