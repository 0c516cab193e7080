//! Copies a workspace into another one, by handles on both sides: symbolic links are copied as
//! links, special files not at all.

use super::open_here;
use crate::{
    FileAccess,
    files::{self, kind, kind_name},
    sparse,
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// The limits of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// The most entries.
    pub entries: usize,
    /// The most bytes of all files.
    pub bytes: u64,
    /// The greatest depth.
    pub depth: usize,
    /// The most skipped entries that are listed.
    pub listed: usize,
}

/// The result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// The number of entries.
    pub entries: usize,
    /// The bytes of all files.
    pub bytes: u64,
    /// The skipped entries, and why.
    pub left_out: Vec<String>,
    /// The number of further skipped entries.
    pub more_left_out: usize,
}

/// A folder that is being copied.
struct OpenFolder {
    from: OwnedFd,
    names: Dir,
    to: OwnedFd,
    seen: Stat,
    path: PathBuf,
}

struct TreeCopier<'a> {
    bounds: CopyLimits,
    /// The access rules of the original.
    rights: &'a FileAccess,
    owner: Option<(u32, u32)>,
    copied: CopyReport,
}

/// Copies a tree. Errors of the copy are returned; entries of the original that cannot be read are
/// skipped and listed.
pub(super) fn copy(
    from: &OwnedFd,
    rights: &FileAccess,
    to: &OwnedFd,
    owner: Option<(u32, u32)>,
    bounds: CopyLimits,
) -> io::Result<CopyReport> {
    let mut copier = TreeCopier {
        bounds,
        rights,
        owner,
        copied: CopyReport::default(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let from = rights.act(|| open_here(from, ".".as_ref(), flags))?;
    let to = open_here(to, ".".as_ref(), flags)?;
    let mut levels = vec![OpenFolder::new(from, to, PathBuf::new())?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.names.read() else {
            let level = levels.pop();
            // The workspace folder itself keeps its attributes.
            if let Some(level) = level.filter(|level| !level.path.as_os_str().is_empty()) {
                copier.finish(&level.to, &level.seen)?;
            }
            continue;
        };
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        if name == "." || name == ".." {
            continue;
        }
        if copier.copied.entries >= bounds.entries {
            let why = format!("{} entries are copied, and no more", bounds.entries);
            copier.leave_out(&level.path.join(&name), &why);
            return Ok(copier.copied);
        }
        let depth = levels.len();
        let Some(level) = levels.last_mut() else {
            break;
        };
        if let Some(next) = copier.copy_entry(level, &name, depth)? {
            levels.push(next);
        }
    }
    Ok(copier.copied)
}

impl OpenFolder {
    fn new(from: OwnedFd, to: OwnedFd, path: PathBuf) -> io::Result<OpenFolder> {
        let seen = rustix::fs::fstat(&from)?;
        let names = Dir::read_from(&from)?;
        Ok(OpenFolder {
            from,
            names,
            to,
            seen,
            path,
        })
    }
}

impl TreeCopier<'_> {
    fn leave_out(&mut self, path: &Path, why: &str) {
        if self.copied.left_out.len() < self.bounds.listed {
            self.copied
                .left_out
                .push(format!("`{}`: {why}", files::display_path(path)))
        } else {
            self.copied.more_left_out += 1
        }
    }

    /// Copies one entry; returns the folder if it is one.
    fn copy_entry(
        &mut self,
        level: &OpenFolder,
        name: &OsString,
        depth: usize,
    ) -> io::Result<Option<OpenFolder>> {
        let path = level.path.join(name);
        self.copied.entries += 1;
        let looked = self
            .rights
            .act(|| open_here(&level.from, name, OFlags::PATH))
            .and_then(|handle| Ok((rustix::fs::fstat(&handle)?, handle)));
        let (seen, handle) = match looked {
            Ok(found) => found,
            Err(error) => {
                let why = match Errno::from_io_error(&error) {
                    Some(Errno::XDEV) => "is mounted there".to_owned(),
                    _ => files::read_error(&error),
                };
                self.leave_out(&path, &why);
                return Ok(None);
            }
        };
        match kind(&seen) {
            FileType::RegularFile => self.file(level, name, &seen, &path).map(|()| None),
            FileType::Symlink => self.link(level, name, &handle).map(|()| None),
            FileType::Directory if depth >= self.bounds.depth => {
                self.leave_out(
                    &path,
                    &format!("lies deeper than {} folders", self.bounds.depth),
                );
                Ok(None)
            }
            FileType::Directory => self.folder(level, name, path),
            other => {
                self.leave_out(&path, &format!("is {}", kind_name(other)));
                Ok(None)
            }
        }
    }

    fn folder(
        &mut self,
        level: &OpenFolder,
        name: &OsStr,
        path: PathBuf,
    ) -> io::Result<Option<OpenFolder>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let from = match self.rights.act(|| open_here(&level.from, name, flags)) {
            Ok(from) => from,
            Err(error) => {
                self.leave_out(&path, &files::read_error(&error));
                return Ok(None);
            }
        };
        match rustix::fs::mkdirat(&level.to, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        OpenFolder::new(from, open_here(&level.to, name, flags)?, path).map(Some)
    }

    fn file(
        &mut self,
        level: &OpenFolder,
        name: &OsStr,
        seen: &Stat,
        path: &Path,
    ) -> io::Result<()> {
        let open = || files::open_seen(level.from.as_fd(), Path::new(name), seen);
        let opened = self
            .rights
            .act(open)
            .map_err(|error| files::read_error(&error));
        let (from, size) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                self.leave_out(path, &why);
                return Ok(());
            }
        };
        let fits = self
            .copied
            .bytes
            .checked_add(size)
            .is_some_and(|sum| sum <= self.bounds.bytes);
        if !fits {
            let why = format!(
                "has {size} bytes, and no more than {} are copied",
                self.bounds.bytes
            );
            self.leave_out(path, &why);
            return Ok(());
        }
        let to = File::from(self.create_anew(level, name)?);
        let holey = seen.st_blocks as u64 * 512 < size;
        self.copied.bytes += if holey {
            sparse::copy(&from, &to, size, &|| true)?
        } else {
            fill(&from, &to, size)?
        };
        self.finish(&to, seen)
    }

    /// Creates a file of this name, and replaces what has it.
    fn create_anew(&self, level: &OpenFolder, name: &OsStr) -> io::Result<OwnedFd> {
        let make = || {
            files::open(
                &level.to,
                name,
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            )
        };
        match make() {
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {
                rustix::fs::unlinkat(&level.to, name, AtFlags::empty())?;
                make()
            }
            made => made,
        }
    }

    fn link(&self, level: &OpenFolder, name: &OsStr, handle: &OwnedFd) -> io::Result<()> {
        let target = rustix::fs::readlinkat(handle, "", Vec::new())?;
        let make = || rustix::fs::symlinkat(&target, &level.to, name);
        match make() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&level.to, name, AtFlags::empty())?;
                make()?;
            }
            made => made?,
        }
        let Some((user, group)) = self.owner else {
            return Ok(());
        };
        let user = Some(Uid::from_raw(user));
        let group = Some(Gid::from_raw(group));
        Ok(rustix::fs::chownat(
            &level.to,
            name,
            user,
            group,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// Sets permissions without set-id bits, owner and times.
    fn finish(&self, file: impl AsFd, seen: &Stat) -> io::Result<()> {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(seen.st_mode & 0o777))?;
        let time = |seconds, nanoseconds: i64| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        };
        let times = Timestamps {
            last_access: time(seen.st_atime, seen.st_atime_nsec as i64),
            last_modification: time(seen.st_mtime, seen.st_mtime_nsec as i64),
        };
        rustix::fs::futimens(&file, &times)?;
        files::set_owner(file, self.owner)
    }
}

/// Copies at most the size that was seen, even if the file grows; with reflinks where supported.
fn fill(from: &File, to: &File, size: u64) -> io::Result<u64> {
    let mut done = 0;
    while done < size {
        let most = usize::try_from(size - done)
            .unwrap_or(usize::MAX)
            .min(1 << 30);
        match rustix::fs::copy_file_range(from, None, to, None, most) {
            Ok(0) => break,
            Ok(count) => done += count as u64,
            Err(Errno::INTR) => {}
            Err(_) if done == 0 => return io::copy(&mut io::Read::take(from, size), &mut { to }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}
