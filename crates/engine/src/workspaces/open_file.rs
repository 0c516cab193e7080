//! Opens one file as the program left it, or has it now.

use super::{
    LayerError, OpenLayer, failed,
    review::Review,
    tree::{self, FileKind, Version},
};
use rustix::fs::OFlags;
use spec::Id;
use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Component, Path},
};

/// A file of a workspace.
#[derive(Debug)]
pub enum ProgramFile {
    /// The contents and the current size. The program may still be writing it.
    Contents(File, u64),
    /// The target of a link, which is never followed.
    Link(OsString),
}

/// Opens a file as the program sees it, as the owner of the folder; no link on the way is followed.
pub fn open_file(state: &Path, id: &Id, path: &Path) -> Result<ProgramFile, LayerError> {
    let refused = |reason: &str| LayerError::NoFile {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    let mut parts = path.components();
    if path.as_os_str().is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
        return Err(refused("give a path below the workspace"));
    }
    let opened = OpenLayer::open(state, id)?;
    let Some(review) = Review::open(state, opened)? else {
        return Err(LayerError::Absent { id: id.clone() });
    };
    let (side, place) = review.locate(path).map_err(refused)?;
    let found = review.rights.act(|| open(side, place));
    match found.map_err(failed("read what the program left"))? {
        OpenResult::Nothing => Err(refused("there is no such file")),
        OpenResult::Other => Err(refused("it is a folder, a pipe, a socket or a device")),
        OpenResult::File(file) => Ok(file),
    }
}

enum OpenResult {
    Nothing,
    Other,
    File(ProgramFile),
}

fn open(side: BorrowedFd<'_>, path: &Path) -> io::Result<OpenResult> {
    let Some(seen) = tree::try_stat(side, path)? else {
        return Ok(OpenResult::Nothing);
    };
    if let Some(target) = seen.target {
        return Ok(OpenResult::File(ProgramFile::Link(target)));
    }
    if seen.kind != FileKind::File {
        return Ok(OpenResult::Other);
    }
    let file = tree::open(side, path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let found = rustix::fs::fstat(&file)?;
    Ok(match tree::kind(&found) {
        FileKind::File => OpenResult::File(ProgramFile::Contents(
            File::from(file),
            found.st_size as u64,
        )),
        _ => OpenResult::Other,
    })
}

impl Review {
    /// Which side has the path as the program sees it, and the path there; otherwise why the
    /// program does not see it.
    fn locate<'a>(&'a self, path: &'a Path) -> Result<(BorrowedFd<'a>, &'a Path), &'static str> {
        const HIDDEN: &str = "the program does not see it";
        let folder = || {
            let folder = self.folder.as_ref().map(AsFd::as_fd);
            folder.ok_or("the folder is not there any more")
        };
        let was = self.known.base.get(path);
        let Some(upper) = &self.upper else {
            let is_stand_in = was.is_some_and(|was| {
                was.kind == FileKind::Other && was.copy != Version::default() && {
                    let now = tree::try_stat(&self.tree, path).ok().flatten();
                    now.is_some_and(|now| now.version == was.copy)
                }
            });
            if is_stand_in {
                return Err(HIDDEN);
            }
            return match was.is_some_and(|was| was.moved) {
                true => Ok((folder()?, path)),
                false => Ok((self.tree.as_fd(), path)),
            };
        };
        if let Some(old) = upper.moved.get(path) {
            return Ok((folder()?, old));
        }
        if upper.walked.entries.contains_key(path) {
            return Ok((self.tree.as_fd(), path));
        }
        if upper.removed.contains(path) {
            return Err("the program removed it");
        }
        match was.map(|was| was.kind) {
            None => Err("there is no such file"),
            Some(FileKind::Other) => Err(HIDDEN),
            Some(_) => Ok((folder()?, path)),
        }
    }
}
