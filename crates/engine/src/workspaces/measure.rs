//! What a layer, or a folder that is shown to a box, takes on the disk, measured with our own rights: a program that closes its folders to itself, or digs deep,
//! hides nothing. Nothing is read but names and sizes; what cannot be looked at counts as all that it may have.

use super::{TREE, owned::MOST_OWNED_BYTES, tree};
use ::fs::{Dir, WalkBounds, WalkError};
use rustix::io::Errno;
use std::{io, os::fd::AsFd, path::Path};

/// Names that are counted. None is kept, so there can be more than are ever compared.
const MOST_NAMES: usize = 4_000_000;

/// What the tree of a layer takes.
pub(super) fn layer(layer: impl AsFd) -> u64 {
    let top = Dir::from_fd(layer).open_dir(TREE);
    let measured = top.and_then(|top| less_than(MOST_OWNED_BYTES, top));
    measured.ok().flatten().unwrap_or(MOST_OWNED_BYTES)
}

/// Whether a folder takes as much as this, or cannot be looked at. A program may be writing there.
pub(crate) fn takes(path: &Path, bytes: u64) -> bool {
    let top = Dir::open_no_follow(path);
    !matches!(top.and_then(|top| less_than(bytes, top)), Ok(Some(_)))
}

/// None if it is as much as this, or too deep or too many names to be looked at.
fn less_than(most: u64, top: Dir) -> io::Result<Option<u64>> {
    let mut room = tree::room(&top.status()?);
    let bounds = WalkBounds {
        entries: MOST_NAMES,
        depth: tree::MOST_DEPTH,
        ..WalkBounds::default()
    };
    for found in top.walk(bounds)? {
        match found {
            Ok(entry) => room = room.saturating_add(tree::room(&entry.stat)),
            Err(WalkError::TooMany { .. } | WalkError::TooDeep { .. }) => return Ok(None),
            // A living program took it away.
            Err(WalkError::Read { source, .. }) if is_gone(&source) => {}
            Err(WalkError::Read { source, .. }) => return Err(source),
        }
        if room >= most {
            return Ok(None);
        }
    }
    Ok(Some(room))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}
