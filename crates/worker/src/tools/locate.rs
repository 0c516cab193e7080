//! Locates a tool's code: by descriptor below the tools folder, never through a link that leads
//! out, and with a stamp that changes with the code.

use super::{
    Stamp,
    problem::{ToolProblem, word},
};
use ::fs::{Dir, Lookup};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, openat},
    io::Errno,
};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

/// Limits of a stamped folder; changes beyond them go unnoticed, which is reported.
const MAX_FILES: usize = 20_000;
const MAX_DEPTH: usize = 24;
/// Names that are not part of a tool's code.
const IGNORED_NAMES: [&str; 2] = ["__pycache__", ".git"];
/// Prefix of files that the tool sync changes in every cycle.
const RESERVED_PREFIX: &[u8] = super::sync::RESERVED_PREFIX.as_bytes();

/// Finds a program: the real path of its folder, and its path in there.
pub(crate) fn executable(
    tools: &Path,
    tool_dir: &Path,
    executable: &Path,
) -> Result<(PathBuf, PathBuf), ToolProblem> {
    let folder_of = |path: &Path| format!("the folder `{}`", word(&path.to_string_lossy()));
    let handle = openat(
        CWD,
        tools,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let handle = handle.map_err(|error| absent("the folder of the manifest", error))?;
    let folder = if tool_dir.as_os_str().is_empty() {
        handle
    } else {
        beneath(handle.as_fd(), tool_dir, OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|error| absent(&folder_of(tool_dir), error))?
    };
    let name = |path: &Path| format!("the program `{}`", word(&path.to_string_lossy()));
    let candidates = [
        executable.to_owned(),
        Path::new("python/bin").join(executable),
    ];
    let mut problem = None;
    for candidate in candidates {
        match program(folder.as_fd(), &candidate) {
            Ok(()) => {
                let real = real(&folder).map_err(|error| absent(&folder_of(tool_dir), error))?;
                return Ok((real, candidate));
            }
            Err(found) => problem = problem.or(Some(absent(&name(executable), found))),
        }
    }
    Err(problem.unwrap_or_default())
}

/// Opens a path; links must stay beneath the folder.
fn beneath(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    Dir::from_fd(folder)
        .open_at(path, flags, Mode::empty(), Lookup::LinksBeneath)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn program(folder: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<()> {
    let found = rustix::fs::fstat(beneath(folder, path, OFlags::PATH)?)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile if found.st_mode & 0o111 != 0 => Ok(()),
        FileType::RegularFile => Err(Errno::ACCESS),
        _ => Err(Errno::ISDIR),
    }
}

/// The real path of a descriptor.
fn real(handle: &OwnedFd) -> rustix::io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    fs::read_link(link).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn absent(what: &str, error: Errno) -> ToolProblem {
    match error {
        Errno::NOENT => ToolProblem::new(
            format!("{what} is not there"),
            "it is looked for again until it is",
        ),
        Errno::XDEV => {
            let hint = "put it below, and let links point to what lies below";
            ToolProblem::new(format!("{what} leads out of the folder of the tools"), hint)
        }
        Errno::ACCESS => ToolProblem::new(format!("{what} may not be run"), "chmod a+rx"),
        Errno::ISDIR => ToolProblem::new(format!("{what} is no file"), "name a program"),
        other => ToolProblem::new(
            format!("{what} cannot be used: {}", io::Error::from(other)),
            "mend it",
        ),
    }
}

/// Whether `import` would find a module in one of these folders.
pub(crate) fn has_module(folders: &[&Path], module: &str) -> bool {
    folders.iter().any(|folder| {
        let mut place = folder.to_path_buf();
        let mut parts = module.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return place.join(part).is_dir() || has_file(&place, part);
            }
            place.push(part);
        }
        false
    })
}

/// `part.py`, or `part.cpython-311-x86_64-linux-gnu.so`.
fn has_file(folder: &Path, part: &str) -> bool {
    if folder.join(format!("{part}.py")).is_file() {
        return true;
    }
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let begins = format!("{part}.");
    let is_it = |name: &str| name.starts_with(&begins) && name.ends_with(".so");
    entries
        .take(MAX_FILES)
        .flatten()
        .any(|entry| entry.file_name().to_str().is_some_and(is_it))
}

/// Depth of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StampDepth {
    /// The whole tree.
    Whole,
    /// The folder and its direct entries: this detects installed, replaced and removed packages;
    /// after another change the folder can be touched.
    Names,
}

/// Stamp of a folder, and whether it covers all files.
pub(crate) fn stamp(folder: &Path, depth: StampDepth) -> (Stamp, bool) {
    let mut digest = Sha256::new();
    let mut left = MAX_FILES;
    let deepest = match depth {
        StampDepth::Whole => MAX_DEPTH,
        StampDepth::Names => {
            digest_metadata(&mut digest, folder);
            0
        }
    };
    let is_whole = walk(folder, deepest, &mut left, &mut digest);
    (Stamp(truncate_digest(digest)), is_whole)
}

/// Adds the metadata of a file to a digest.
pub(crate) fn digest_metadata(digest: &mut Sha256, path: &Path) {
    let Ok(found) = fs::symlink_metadata(path) else {
        return;
    };
    let mut add = |found: &fs::Metadata| {
        // A change of content changes at least one of these, even if the mtime is reset.
        let numbers = [
            found.dev(),
            found.ino(),
            found.len(),
            u64::from(found.mode()),
        ];
        let times = [
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        ];
        numbers
            .iter()
            .for_each(|number| digest.update(number.to_le_bytes()));
        times
            .iter()
            .for_each(|time| digest.update(time.to_le_bytes()));
    };
    add(&found);
    if found.is_symlink()
        && let Ok(target) = fs::metadata(path)
    {
        add(&target);
    }
}

pub(crate) fn truncate_digest(digest: Sha256) -> u64 {
    let bytes = digest.finalize();
    bytes
        .iter()
        .take(8)
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn walk(folder: &Path, deepest: usize, left: &mut usize, digest: &mut Sha256) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        digest.update([0]);
        return true;
    };
    // Sorted, because the order of a file system may change.
    let mut names: Vec<_> = entries
        .take(*left + 1)
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    let mut is_whole = true;
    for name in names {
        if IGNORED_NAMES.iter().any(|other| name == *other)
            || name.as_bytes().starts_with(RESERVED_PREFIX)
        {
            continue;
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let path = folder.join(&name);
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        digest_metadata(digest, &path);
        if is_folder && deepest > 0 {
            is_whole &= walk(&path, deepest - 1, left, digest);
        }
    }
    is_whole
}

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;
