//! Whether a change of files in a sandbox would be denied because they are read-only or protected
//! there.
//!
//! Each function follows the kernel's own order of checks, and reports a denial only where that
//! ends with the mount: a file that is missing, exists already or cannot be entered is for the
//! kernel to report. Paths are resolved from the root of the sandbox, through nothing but its
//! mounts.

use super::overlay_layer::OverlayLayer;
use rustix::{
    fs::{
        Access, AtFlags, CWD, FileType, FsWord, Mode, OFlags, RenameFlags, ResolveFlags,
        StatVfsMountFlags, StatxAttributes, StatxFlags,
    },
    io::Errno,
};
use spec::WORKSPACE;
use std::{
    ffi::{CString, OsStr, OsString},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

/// The magic number of procfs.
const PROC: FsWord = rustix::fs::PROC_SUPER_MAGIC;

/// A change that would be denied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeniedChange {
    /// The errno.
    pub(super) errno: Errno,
    /// The file that would have been changed.
    pub(super) target: PathBuf,
    /// The read-only path: the file itself, or its folder.
    pub(super) place: PathBuf,
    /// Whether only the overlay's layer prevents it.
    pub(super) by_layer: bool,
}

/// The files of one sandbox.
#[derive(Debug, Default)]
pub(super) struct SandboxFiles {
    root: Option<OwnedFd>,
}

/// A name in a folder.
struct FolderEntry<'a> {
    folder: OwnedFd,
    last: &'a OsStr,
}

/// A path from the root of the sandbox. A relative one starts at a folder of that thread.
pub(super) fn absolute(pid: u32, folder: Option<i32>, path: CString) -> Option<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    // The meaning of an empty path is in the flags; no name is changed by it.
    if path.is_absolute() || path.as_os_str().is_empty() {
        return (!path.as_os_str().is_empty()).then_some(path);
    }
    let start = match folder {
        Some(folder) if folder != CWD.as_raw_fd() => format!("/proc/{pid}/fd/{folder}"),
        _ => format!("/proc/{pid}/cwd"),
    };
    // The path in the mount namespace of the sandbox.
    let start = rustix::fs::readlinkat(CWD, start, Vec::new())
        .ok()?
        .into_bytes();
    let there = start.starts_with(b"/") && !start.ends_with(b" (deleted)");
    there.then(|| Path::new(OsStr::from_bytes(&start)).join(path))
}

impl SandboxFiles {
    /// Opens the root of the sandbox, by one of its threads. All have the same one: the filter
    /// refuses to change it.
    pub(super) fn enter(&mut self, pid: u32) -> Option<()> {
        if self.root.is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            self.root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty()).ok();
        }
        self.root.is_some().then_some(())
    }

    fn look(&self, path: &Path, follow: bool) -> Result<OwnedFd, Errno> {
        let root = self.root.as_ref().ok_or(Errno::NOENT)?;
        let links = if follow {
            OFlags::empty()
        } else {
            OFlags::NOFOLLOW
        };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(
            root,
            path,
            OFlags::PATH | OFlags::CLOEXEC | links,
            Mode::empty(),
            resolve,
        )
    }

    fn name<'a>(&self, path: &'a Path) -> Option<FolderEntry<'a>> {
        let (folder, last) = split(path)?;
        Some(FolderEntry {
            folder: self.look(folder, true).ok()?,
            last,
        })
    }

    /// Opens a file to write, or creates it.
    pub(super) fn open(&self, path: &Path, flags: OFlags) -> Option<DeniedChange> {
        let unnamed = flags.contains(OFlags::TMPFILE);
        // Neither opens a file: one is a mere handle, the other wants a folder. Or only a part of a
        // flag is set.
        if flags.contains(OFlags::PATH) || flags.intersects(OFlags::TMPFILE) && !unnamed {
            return None;
        }
        if unnamed
            && (flags.contains(OFlags::CREATE) || !flags.intersects(OFlags::WRONLY | OFlags::RDWR))
        {
            return None;
        }
        let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        match self.look(path, !exclusive && !flags.contains(OFlags::NOFOLLOW)) {
            Ok(found) if unnamed => match kind(&found)? {
                FileType::Directory => in_folder(found, OsStr::new("")),
                _ => None,
            },
            Ok(found) if exclusive => stand_in(&found, Errno::EXIST),
            Ok(found) if writes && kind(&found)? == FileType::Directory => {
                stand_in(&found, Errno::ISDIR)
            }
            Ok(file) if writes && kind(&file)? == FileType::RegularFile => {
                // Truncation is checked before permissions.
                if flags.contains(OFlags::TRUNC) && read_only(&file) {
                    at(Errno::ROFS, path_of(&file))
                } else {
                    write_to(&file)
                }
            }
            Err(Errno::NOENT) if flags.contains(OFlags::CREATE) && !ends_with_slash(path) => {
                let name = self.name(path).filter(|name| takes_names(&name.folder))?;
                // A dangling link is an existing name, too: its target would be created.
                self.look(path, false)
                    .is_err()
                    .then(|| in_folder(name.folder, name.last))?
            }
            _ => None,
        }
    }

    /// Creates a folder. An existing one is no denial: many programs ignore that error.
    pub(super) fn make_folder(&self, path: &Path) -> Option<DeniedChange> {
        let name = self.name(path).filter(|name| takes_names(&name.folder))?;
        // By its name alone: a dangling link exists, too.
        let absent = self.look(without_slashes(path), false).err() == Some(Errno::NOENT);
        absent.then(|| in_folder(name.folder, name.last))?
    }

    /// Creates a file of another type.
    pub(super) fn make(&self, path: &Path) -> Option<DeniedChange> {
        match self.look(path, false) {
            _ if ends_with_slash(path) => None,
            Ok(found) => stand_in(&found, Errno::EXIST),
            Err(_) => self.make_folder(path),
        }
    }

    /// Creates a hard link.
    pub(super) fn link(&self, from: &Path, to: &Path, flags: AtFlags) -> Option<DeniedChange> {
        known(flags, AtFlags::SYMLINK_FOLLOW)?;
        self.look(from, flags.contains(AtFlags::SYMLINK_FOLLOW))
            .ok()?;
        self.make(to)
    }

    /// Removes a name.
    pub(super) fn remove(&self, path: &Path, flags: AtFlags) -> Option<DeniedChange> {
        known(flags, AtFlags::REMOVEDIR)?;
        let name = self.name(path)?;
        let found = self.look(without_slashes(path), false).ok()?;
        if read_only(&name.folder) {
            return in_folder(name.folder, name.last);
        }
        let folder = kind(&found)? == FileType::Directory;
        let right_kind =
            folder == flags.contains(AtFlags::REMOVEDIR) && (folder || !ends_with_slash(path));
        if right_kind { busy(&found) } else { None }
    }

    /// Renames a file.
    pub(super) fn rename(
        &self,
        from: &Path,
        to: &Path,
        flags: RenameFlags,
        layer: Option<&OverlayLayer>,
    ) -> Option<DeniedChange> {
        // Exchanging two files is rare.
        if !RenameFlags::NOREPLACE.contains(flags) {
            return None;
        }
        let source = self.look(without_slashes(from), false).ok()?;
        let old = self.name(from)?;
        let new = self.name(to)?;
        let crosses = mount(&old.folder)? != mount(&new.folder)?;
        if crosses {
            // Programs that move a file copy it then, if the new name is possible.
            return Some(DeniedChange {
                errno: Errno::XDEV,
                ..in_folder(new.folder, new.last)?
            });
        }
        let target = self.look(without_slashes(to), false).ok();
        let slash = ends_with_slash(from) || ends_with_slash(to);
        let folders = [&old.folder, &new.folder];
        let in_layer = layer.filter(|_| target.is_none());
        let in_layer = in_layer.and_then(|layer| self.rename_in(layer, &source, folders));
        if in_layer.is_some() {
            return in_layer;
        }
        in_folder(new.folder, new.last).or_else(|| match target {
            _ if slash => None,
            None => busy(&source),
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => None,
            Some(target) => replace(&source, &target),
        })
    }

    /// Renames a folder of the workspace that shows one of the lower folder, where the program
    /// could rename others.
    fn rename_in(
        &self,
        layer: &OverlayLayer,
        source: &OwnedFd,
        folders: [&OwnedFd; 2],
    ) -> Option<DeniedChange> {
        if kind(source)? != FileType::Directory {
            return None;
        }
        let top = self.look(Path::new(WORKSPACE), false).ok()?;
        let target = path_of(source)?;
        let into = path_of(folders[1])?;
        let path = target.strip_prefix(WORKSPACE).ok()?;
        let is_there = !path.as_os_str().is_empty() && mount(source)? == mount(&top)?;
        let may = [source, folders[0], folders[1]]
            .into_iter()
            .all(may_change_names);
        let is_below_itself = into.starts_with(&target);
        if is_there && may && !is_below_itself && layer.shows_lower(path)? {
            return Some(DeniedChange {
                errno: Errno::XDEV,
                place: target.clone(),
                target,
                by_layer: true,
            });
        }
        None
    }

    /// Changes mode or owner.
    pub(super) fn change(&self, path: &Path, flags: AtFlags) -> Option<DeniedChange> {
        known(flags, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?;
        let found = self
            .look(path, !flags.contains(AtFlags::SYMLINK_NOFOLLOW))
            .ok()?;
        read_only(&found).then(|| at(Errno::ROFS, path_of(&found)))?
    }
}

fn at(errno: Errno, path: Option<PathBuf>) -> Option<DeniedChange> {
    path.map(|path| DeniedChange {
        errno,
        target: path.clone(),
        place: path,
        by_layer: false,
    })
}

/// None with flags that the kernel would not accept.
fn known(flags: AtFlags, all: AtFlags) -> Option<()> {
    all.contains(flags).then_some(())
}

/// The denial if one name cannot replace another, both in one folder or mount.
fn replace(source: &OwnedFd, target: &OwnedFd) -> Option<DeniedChange> {
    let [one, other] = [source, target].map(|file| rustix::fs::fstat(file).ok());
    let one = one?;
    let other = other?;
    // Two hard links of one file: the call does nothing.
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return None;
    }
    match [one, other].map(|file| FileType::from_raw_mode(file.st_mode) == FileType::Directory) {
        [false, true] => stand_in(target, Errno::ISDIR),
        [true, false] => None,
        [true, true] | [false, false] => busy(target).or_else(|| busy(source)),
    }
}

/// Whether a folder is read-only and could have other names: those of `/proc` are the kernel's.
fn takes_names(folder: &OwnedFd) -> bool {
    let of_the_kernel = rustix::fs::fstatfs(folder).is_ok_and(|found| found.f_type == PROC);
    read_only(folder) && !of_the_kernel
}

/// The denial if names in that folder cannot be changed.
fn in_folder(folder: OwnedFd, last: &OsStr) -> Option<DeniedChange> {
    let place = path_of(&folder).filter(|_| read_only(&folder))?;
    let target = if last.is_empty() {
        place.clone()
    } else {
        place.join(last)
    };
    Some(DeniedChange {
        errno: Errno::ROFS,
        target,
        place,
        by_layer: false,
    })
}

/// Whether its mode allows changing names in it.
fn may_change_names(folder: &OwnedFd) -> bool {
    let itself = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(CWD, itself, wanted, AtFlags::EACCESS).is_ok()
}

/// The denial if that file cannot be written. The kernel knows the order of its permission and
/// mount checks.
fn write_to(file: &OwnedFd) -> Option<DeniedChange> {
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::accessat(CWD, itself, Access::WRITE_OK, AtFlags::EACCESS) {
        Err(errno @ (Errno::ROFS | Errno::ACCESS)) if read_only(file) => at(errno, path_of(file)),
        _ => None,
    }
}

/// The denial if it is a mount point: such a name can be neither moved nor removed.
fn busy(found: &OwnedFd) -> Option<DeniedChange> {
    let about = rustix::fs::statx(found, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE).ok()?;
    let root = about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    root.then(|| at(Errno::BUSY, path_of(found)))?
}

/// The denial if it is an empty folder that covers a name.
fn stand_in(found: &OwnedFd, errno: Errno) -> Option<DeniedChange> {
    let refusal = busy(found).filter(|_| read_only(found) && is_empty(found))?;
    Some(DeniedChange { errno, ..refusal })
}

fn is_empty(found: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(found, c".", flags, Mode::empty());
    let Ok(mut entries) = opened.and_then(rustix::fs::Dir::new) else {
        return false;
    };
    entries
        .all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

fn mount(folder: &OwnedFd) -> Option<u64> {
    let about = rustix::fs::statx(folder, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (about.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(about.stx_mnt_id)
}

fn kind(file: &OwnedFd) -> Option<FileType> {
    Some(FileType::from_raw_mode(
        rustix::fs::fstat(file).ok()?.st_mode,
    ))
}

fn read_only(at: impl AsFd) -> bool {
    rustix::fs::fstatvfs(at).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Its path in the sandbox.
fn path_of(file: &OwnedFd) -> Option<PathBuf> {
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = rustix::fs::readlinkat(CWD, itself, Vec::new())
        .ok()?
        .into_bytes();
    (path.starts_with(b"/") && !path.ends_with(b" (deleted)"))
        .then(|| OsString::from_vec(path).into())
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

fn without_slashes(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    Path::new(OsStr::from_bytes(&bytes[..end]))
}

/// The folder of a name and the name; none if the last part is none, as in `a/..`.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let bytes = without_slashes(path).as_os_str().as_bytes();
    let slash = bytes.iter().rposition(|byte| *byte == b'/')?;
    let last = &bytes[slash + 1..];
    let named = !matches!(last, b"" | b"." | b"..");
    named.then(|| {
        (
            Path::new(OsStr::from_bytes(&bytes[..=slash])),
            OsStr::from_bytes(last),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_where_the_kernel_does() {
        for (path, parts) in [
            ("/a/b", Some(("/a/", "b"))),
            ("/a/b//", Some(("/a/", "b"))),
            ("/b", Some(("/", "b"))),
            ("/a//./b", Some(("/a//./", "b"))),
            ("/a/.", None),
            ("/a/../", None),
            ("/", None),
            ("", None),
        ] {
            let expected = parts.map(|(folder, last)| (Path::new(folder), OsStr::new(last)));
            assert_eq!(split(Path::new(path)), expected, "{path}");
        }
    }
}
