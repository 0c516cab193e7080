//! Builds the root file system of an image: applies layers on top of each other, with Docker's
//! semantics. Paths are resolved one component at a time by handle; symbolic links resolve as if
//! this folder were `/`, and never outside.

use crate::{
    limits::{MAX_COMPONENT_BYTES, MAX_DEPTH, MAX_PATH_BYTES},
    permissions::{PermissionTable, TreeTotals},
    tar::{TarEntryKind, TarError, TarHeader, TarInput, TarReader},
    user::ResolvedUser,
};
use ::fs::{Dir, RemoveOptions};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps},
    io::Errno,
};
use std::{
    collections::HashSet,
    ffi::{CStr, CString, OsStr},
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    rc::Rc,
};

const WHITEOUT: &[u8] = b".wh.";
/// Prefix of the metadata of AUFS, which is ignored; and the marker of an opaque folder.
const WHITEOUT_META: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Maximum symbolic links in one path, as in the kernel.
const MAX_LINKS: usize = 40;
const OWNER_ONLY: Mode = Mode::RWXU;
const PATH_FLAGS: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Why an entry was not unpacked.
#[derive(Debug)]
pub(crate) enum UnpackError {
    /// No legitimate layer has such an entry.
    Refused(&'static str),
    /// Writing failed.
    Write(io::Error),
    /// The layer cannot be read.
    Read(TarError),
}

impl From<Errno> for UnpackError {
    fn from(errno: Errno) -> Self {
        UnpackError::Write(errno.into())
    }
}

impl From<io::Error> for UnpackError {
    fn from(source: io::Error) -> Self {
        UnpackError::Write(source)
    }
}

impl From<TarError> for UnpackError {
    fn from(source: TarError) -> Self {
        UnpackError::Read(source)
    }
}

#[derive(Debug)]
pub(crate) struct RootfsBuilder {
    root: Rc<Dir>,
    permissions: PermissionTable,
    /// Inodes that this layer created: its own whiteouts do not apply to them. `None` for the
    /// lowest layer, which has nothing to hide.
    touched: Option<HashSet<u64>>,
    /// The parent folder of the previous entry: entries of a folder follow one another.
    last: Option<CachedFolder>,
    /// Number of devices and pipes that were skipped.
    pub(crate) left_out: u64,
    /// Folders created without an entry since the last call of `take_implied`.
    implied: u64,
}

/// An open folder of the tree with its path.
#[derive(Clone, Debug)]
struct CachedFolder {
    path: Vec<u8>,
    handle: Rc<Dir>,
}

/// What to do if a parent folder is missing.
#[derive(Clone, Copy, PartialEq)]
enum IfMissing {
    Create,
    Refuse,
}

impl RootfsBuilder {
    pub(crate) fn new(root: Dir) -> RootfsBuilder {
        let root = Rc::new(root);
        let permissions = PermissionTable::default();
        RootfsBuilder {
            root,
            permissions,
            touched: None,
            last: None,
            left_out: 0,
            implied: 0,
        }
    }

    pub(crate) fn root(&self) -> &Dir {
        &self.root
    }

    /// Sets the final permissions of the whole tree.
    pub(crate) fn apply_permissions(self, resolved_user: &ResolvedUser) -> io::Result<TreeTotals> {
        self.permissions.apply(&self.root, resolved_user)
    }

    /// The following entries belong to the next layer.
    pub(crate) fn next_layer(&mut self, number: usize) {
        self.touched = (number > 0).then(HashSet::new);
    }

    /// Number of folders created, since the last call, only because a path leads through them.
    pub(crate) fn take_implied(&mut self) -> u64 {
        std::mem::take(&mut self.implied)
    }

    /// Applies one entry to the tree.
    pub(crate) fn add<R: TarInput>(
        &mut self,
        header: &TarHeader,
        tar: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let names = names(&header.path)?;
        let Some((last, parents)) = names.split_last() else {
            return match header.kind {
                TarEntryKind::Folder => Ok(self
                    .permissions
                    .note(rustix::fs::fstat(&*self.root)?.st_ino, header)?),
                _ => Err(UnpackError::Refused("it replaces the root")),
            };
        };
        if names
            .iter()
            .any(|name| name.starts_with(WHITEOUT_META) && *name != OPAQUE)
        {
            return Ok(());
        }
        if parents.iter().any(|name| name.starts_with(WHITEOUT)) {
            return Err(UnpackError::Refused("a folder has the name of a whiteout"));
        }
        if let Some(hidden) = last.strip_prefix(WHITEOUT) {
            return self.hide(parents, hidden, *last == OPAQUE);
        }
        let folder = self.folder(parents, IfMissing::Create)?;
        let name = c_name(last)?;
        match header.kind {
            TarEntryKind::Folder => self.add_folder(&folder, &name, header),
            TarEntryKind::File => self.add_file(&folder, &name, header, tar),
            TarEntryKind::SymbolicLink => self.add_symbolic_link(&folder, &name, header),
            TarEntryKind::HardLink => self.add_hard_link(&folder, &name, header),
            TarEntryKind::Special => {
                self.left_out += 1;
                self.clear(&folder, &name)
            }
        }
    }

    fn add_folder(
        &mut self,
        folder: &Dir,
        name: &CString,
        header: &TarHeader,
    ) -> Result<(), UnpackError> {
        if let Err(Errno::EXIST) = rustix::fs::mkdirat(folder, name, OWNER_ONLY) {
            let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if !FileType::from_raw_mode(found.st_mode).is_dir() {
                self.clear(folder, name)?;
                rustix::fs::mkdirat(folder, name, OWNER_ONLY)?;
            }
        }
        let inode = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
        self.record_inode(inode, Some(header))
    }

    fn add_file<R: TarInput>(
        &mut self,
        folder: &Dir,
        name: &CString,
        header: &TarHeader,
        tar: &mut TarReader<R>,
    ) -> Result<(), UnpackError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR);
        let file = match make() {
            // Always a new file: the old one may have other hard links, and must not be written to.
            Err(Errno::EXIST) => self.clear(folder, name).and_then(|()| Ok(make()?))?,
            made => made?,
        };
        let file = File::from(file);
        match &header.segments {
            None => write(&file, 0, header.size, tar)?,
            Some(segments) => {
                for segment in segments {
                    write(&file, segment.offset, segment.size, tar)?;
                }
                file.set_len(header.size)?;
            }
        }
        rustix::fs::futimens(&file, &times(header.mtime))?;
        self.record_inode(rustix::fs::fstat(&file)?.st_ino, Some(header))
    }

    fn add_symbolic_link(
        &mut self,
        folder: &Dir,
        name: &CString,
        header: &TarHeader,
    ) -> Result<(), UnpackError> {
        if header.link.is_empty() || header.link.len() >= MAX_PATH_BYTES {
            return Err(UnpackError::Refused("its target is empty or too long"));
        }
        if let Err(Errno::EXIST) = rustix::fs::symlinkat(&*header.link, folder, name) {
            self.clear(folder, name)?;
            rustix::fs::symlinkat(&*header.link, folder, name)?;
        }
        let inode = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
        self.record_inode(inode, None)
    }

    /// Creates a hard link to a file of the tree. Its target is resolved like a path of an entry,
    /// and the last component is not followed.
    fn add_hard_link(
        &mut self,
        folder: &Dir,
        name: &CString,
        header: &TarHeader,
    ) -> Result<(), UnpackError> {
        let names = names(&header.link)?;
        let Some((last, parents)) = names.split_last() else {
            return Err(UnpackError::Refused("a hard link leads to the root"));
        };
        let there = self.folder(parents, IfMissing::Refuse)?;
        let last = c_name(last)?;
        let found = match rustix::fs::statat(&*there, &last, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(UnpackError::Refused("a hard link leads to nothing")),
            found => found?,
        };
        // Tar also writes hard links to symbolic links; the link itself is linked, not its target.
        if !matches!(
            FileType::from_raw_mode(found.st_mode),
            FileType::RegularFile | FileType::Symlink
        ) {
            return Err(UnpackError::Refused(
                "a hard link leads to something that is no file",
            ));
        }
        let link = || rustix::fs::linkat(&*there, &last, folder, name, AtFlags::empty());
        match link() {
            Err(Errno::EXIST) => {
                let old = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                if old.st_ino != found.st_ino {
                    self.clear(folder, name)?;
                    link()?;
                }
            }
            linked => linked?,
        }
        let is_file = FileType::from_raw_mode(found.st_mode).is_file();
        self.record_inode(found.st_ino, is_file.then_some(header))
    }

    /// Applies a whiteout: removes what lower layers have at a name, or in the whole folder if
    /// opaque.
    fn hide(&mut self, parents: &[&[u8]], hidden: &[u8], opaque: bool) -> Result<(), UnpackError> {
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(UnpackError::Refused("a whiteout hides no name"));
        }
        let folder = match self.folder(parents, IfMissing::Refuse) {
            // A missing folder has nothing to hide.
            Err(UnpackError::Refused(_)) => return Ok(()),
            folder => folder?,
        };
        let Some(touched) = &self.touched else {
            return Ok(());
        };
        self.last = None;
        if opaque {
            empty_except(&folder, touched)?
        } else {
            remove_except(&folder, OsStr::from_bytes(hidden), touched)?
        };
        Ok(())
    }

    fn clear(&mut self, folder: &Dir, name: &CString) -> Result<(), UnpackError> {
        self.last = None;
        let removed = folder.remove_tree(os_name(name), RemoveOptions::default());
        match removed.map_err(io::Error::from) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Records an inode created by this layer. Symbolic links have no permissions.
    fn record_inode(&mut self, inode: u64, header: Option<&TarHeader>) -> Result<(), UnpackError> {
        if let Some(touched) = &mut self.touched {
            touched.insert(inode);
        }
        match header {
            Some(header) => self.permissions.note(inode, header),
            None => Ok(()),
        }
    }

    /// The folder at this path from the root.
    fn folder(&mut self, names: &[&[u8]], absent: IfMissing) -> Result<Rc<Dir>, UnpackError> {
        let path = names.join(&b'/');
        if let Some(last) = &self.last
            && last.path == path
        {
            return Ok(last.handle.clone());
        }
        let handle = self.walk(names, absent)?;
        self.last = Some(CachedFolder {
            path,
            handle: handle.clone(),
        });
        Ok(handle)
    }

    fn walk(&mut self, names: &[&[u8]], absent: IfMissing) -> Result<Rc<Dir>, UnpackError> {
        let mut resolved = vec![self.root.clone()];
        let mut left: Vec<Vec<u8>> = names.iter().rev().map(|name| name.to_vec()).collect();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == b".." {
                resolved.truncate(resolved.len().saturating_sub(1).max(1));
                continue;
            }
            let at = resolved[resolved.len() - 1].clone();
            let name = c_name(&name)?;
            match rustix::fs::openat(&*at, &name, PATH_FLAGS, Mode::empty()) {
                Ok(next) => resolved.push(Rc::new(next.into())),
                Err(Errno::NOENT) if absent == IfMissing::Create => {
                    resolved.push(Rc::new(self.make_parent(&at, &name)?))
                }
                Err(Errno::NOENT) => {
                    return Err(UnpackError::Refused(
                        "it leads through a folder that is not there",
                    ));
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(UnpackError::Refused(
                            "it leads through too many symbolic links",
                        ));
                    }
                    follow(&at, &name, &mut resolved, &mut left)?;
                }
                Err(errno) => return Err(errno.into()),
            }
            if resolved.len() > MAX_DEPTH {
                return Err(UnpackError::Refused("it lies deeper than 255 folders"));
            }
        }
        Ok(resolved.pop().unwrap_or_else(|| self.root.clone()))
    }

    /// A folder without an entry is owned by root with mode 0755.
    fn make_parent(&mut self, at: &Dir, name: &CString) -> Result<Dir, UnpackError> {
        rustix::fs::mkdirat(at, name, OWNER_ONLY)?;
        self.implied += 1;
        let made = rustix::fs::openat(at, name, PATH_FLAGS, Mode::empty())?;
        let header = TarHeader {
            path: Vec::new(),
            link: Vec::new(),
            kind: TarEntryKind::Folder,
            size: 0,
            uid: 0,
            gid: 0,
            mode: 0o755,
            mtime: 0,
            segments: None,
        };
        self.record_inode(rustix::fs::fstat(&made)?.st_ino, Some(&header))?;
        Ok(made.into())
    }
}

/// Removes `name` recursively, except for the inodes to keep and their parent folders. Returns
/// whether all of it is gone. Depth is limited to fewer folders than a process may open.
fn remove_except(folder: &Dir, name: &OsStr, keep: &HashSet<u64>) -> io::Result<bool> {
    let Some(found) = folder.stat(name)? else {
        return Ok(true);
    };
    let kept = keep.contains(&found.st_ino);
    if !FileType::from_raw_mode(found.st_mode).is_dir() {
        if !kept {
            folder.remove_file(name)?;
        }
        return Ok(!kept);
    }
    let emptied = empty_except(&folder.open_dir(name)?, keep)?;
    if emptied && !kept {
        folder.remove_dir(name)?;
    }
    Ok(emptied && !kept)
}

/// The same for all entries of a folder. Returns whether it is empty now.
fn empty_except(folder: &Dir, keep: &HashSet<u64>) -> io::Result<bool> {
    let mut all = true;
    // The handle is an O_PATH descriptor; a listing needs a readable one.
    for entry in folder.open_dir(".")?.entries()? {
        all &= remove_except(folder, &entry?.name, keep)?;
    }
    Ok(all)
}

fn os_name(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

/// Prepends the target of a symbolic link to the remaining path.
fn follow(
    at: &Dir,
    name: &CString,
    resolved: &mut Vec<Rc<Dir>>,
    left: &mut Vec<Vec<u8>>,
) -> Result<(), UnpackError> {
    let target = match rustix::fs::readlinkat(at, name, Vec::new()) {
        Err(Errno::INVAL) => {
            return Err(UnpackError::Refused(
                "it leads through something that is no folder",
            ));
        }
        target => target?.into_bytes(),
    };
    if target.starts_with(b"/") {
        resolved.truncate(1);
    }
    let files = target
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."));
    left.extend(files.rev().map(<[u8]>::to_vec));
    Ok(())
}

/// Splits a path into components. An absolute path starts at the image's root.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, UnpackError> {
    if path.len() > MAX_PATH_BYTES {
        return Err(UnpackError::Refused("its name is longer than 4096 bytes"));
    }
    let names: Vec<_> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .collect();
    if names.iter().any(|name| *name == b"..") {
        return Err(UnpackError::Refused(
            "its name leads out of its folder by `..`",
        ));
    }
    if names.iter().any(|name| name.len() > MAX_COMPONENT_BYTES) {
        return Err(UnpackError::Refused(
            "a part of its name is longer than 255 bytes",
        ));
    }
    if names.len() > MAX_DEPTH {
        return Err(UnpackError::Refused("it lies deeper than 255 folders"));
    }
    Ok(names)
}

fn c_name(name: &[u8]) -> Result<CString, UnpackError> {
    CString::new(name).map_err(|_| UnpackError::Refused("its name has a NUL in it"))
}

fn write<R: TarInput>(
    file: &File,
    at: u64,
    size: u64,
    tar: &mut TarReader<R>,
) -> Result<(), UnpackError> {
    let mut written = 0;
    while written < size {
        let there = tar.contents()?;
        let part = there
            .len()
            .min(usize::try_from(size - written).unwrap_or(usize::MAX));
        if part == 0 {
            return Err(TarError::Truncated.into());
        }
        file.write_all_at(&there[..part], at + written)?;
        tar.consume(part);
        written += part as u64;
    }
    Ok(())
}

pub(crate) fn times(seconds: u64) -> Timestamps {
    // Some file systems end at 2106; larger times are clamped to that.
    let time = Timespec {
        tv_sec: i64::from(u32::try_from(seconds).unwrap_or(u32::MAX)),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
