//! What a layer takes on the disk, measured with our own rights: a program that closes its folders to itself, or digs deep,
//! hides nothing. Nothing is read but names and sizes; what cannot be looked at counts as all that its owner may have.

use super::{TREE, owned::MOST_OWNED_BYTES, tree};
use rustix::{
    fs::{AtFlags, Dir, OFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

/// Names that are counted. None is kept, so there can be more than are ever compared.
const MOST_NAMES: u64 = 4_000_000;

/// What the tree of a layer takes.
pub(super) fn layer(layer: impl AsFd) -> u64 {
    let measured = tree::open(layer, TREE, OFlags::RDONLY | OFlags::DIRECTORY).and_then(all);
    measured.ok().flatten().unwrap_or(MOST_OWNED_BYTES)
}

/// None if it is too deep or too much to be looked at.
fn all(top: OwnedFd) -> io::Result<Option<u64>> {
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
        if names > MOST_NAMES || room >= MOST_OWNED_BYTES {
            return Ok(None);
        }
        if tree::kind(&found) == tree::Kind::Folder {
            let name = OsStr::from_bytes(name.to_bytes());
            let below = Dir::new(tree::open(folder, name, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
            levels.push(below);
            if levels.len() > tree::MOST_DEPTH {
                return Ok(None);
            }
        }
    }
    Ok(Some(room))
}
