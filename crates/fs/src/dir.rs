//! An open folder, and the operations on the names in it.

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
};

/// Attempts of a lookup that a concurrent rename disturbs: `openat2` returns `EAGAIN`.
const MAX_LOOKUPS: usize = 64;
const READ_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
const PATH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// An open folder. `Dir` owns its handle; `Dir<BorrowedFd>` and `Dir<&OwnedFd>` borrow one.
///
/// Methods that take a `path` accept several components, none of which may be a symbolic link;
/// methods that take a `name` accept exactly one component.
#[derive(Clone, Copy, Debug)]
pub struct Dir<H = OwnedFd>(H);

/// The links and mount points that a lookup may follow. No variant leaves the folder, and none
/// follows the magic links of `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// No symbolic link, not even as the last component. With `OFlags::PATH` alone such a link is
    /// opened itself.
    NoLinks,
    /// The same, and no mount point.
    NoLinksOneMount,
    /// Symbolic links whose targets lie beneath the folder.
    LinksBeneath,
    /// Symbolic links, as a program follows them whose root is the folder.
    LinksInRoot,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and NUL.
    pub name: OsString,
    /// Its type by the directory entry; `FileType::Unknown` on file systems without it.
    pub kind: FileType,
}

/// The entries of a folder without `.` and `..`, in the order of the file system.
#[derive(Debug)]
pub struct DirEntries(rustix::fs::Dir);

impl Dir {
    /// Opens a folder by its path. Symbolic links are followed: the path comes from the operator or
    /// from Airlock itself.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Dir> {
        let flags = READ_DIR | OFlags::CLOEXEC;
        Ok(Dir(rustix::fs::open(path.as_ref(), flags, Mode::empty())?))
    }

    /// The same, but the last component may not be a symbolic link.
    pub fn open_no_follow(path: impl AsRef<Path>) -> io::Result<Dir> {
        let flags = READ_DIR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Dir(rustix::fs::open(path.as_ref(), flags, Mode::empty())?))
    }

    /// Lists the folder on its own handle, which must have been opened for reading.
    pub fn into_entries(self) -> io::Result<DirEntries> {
        Ok(DirEntries(rustix::fs::Dir::new(self.0)?))
    }

    /// Another handle of the same folder.
    pub fn try_clone(&self) -> io::Result<Dir> {
        self.0.try_clone().map(Dir)
    }
}

impl<H: AsFd> AsFd for Dir<H> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Dir {
    fn from(handle: OwnedFd) -> Dir {
        Dir(handle)
    }
}

impl From<Dir> for OwnedFd {
    fn from(dir: Dir) -> OwnedFd {
        dir.0
    }
}

impl<H: AsFd> Dir<H> {
    /// Takes a handle of a folder, owned or borrowed.
    pub fn from_fd(handle: H) -> Dir<H> {
        Dir(handle)
    }

    /// A borrowed view of the same folder.
    pub fn borrow(&self) -> Dir<BorrowedFd<'_>> {
        Dir(self.0.as_fd())
    }

    /// Opens `path` beneath the folder. `mode` counts if `flags` can create a file, and is subject
    /// to the umask.
    pub fn open_at(
        &self,
        path: impl AsRef<Path>,
        flags: OFlags,
        mode: Mode,
        lookup: Lookup,
    ) -> io::Result<OwnedFd> {
        let (resolve, no_follow) = match lookup {
            Lookup::NoLinks => (ResolveFlags::NO_SYMLINKS, OFlags::NOFOLLOW),
            Lookup::NoLinksOneMount => (
                ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
                OFlags::NOFOLLOW,
            ),
            Lookup::LinksBeneath | Lookup::LinksInRoot => (ResolveFlags::empty(), OFlags::empty()),
        };
        let resolve = resolve
            | ResolveFlags::NO_MAGICLINKS
            | match lookup {
                Lookup::LinksInRoot => ResolveFlags::IN_ROOT,
                Lookup::NoLinks | Lookup::NoLinksOneMount | Lookup::LinksBeneath => {
                    ResolveFlags::BENEATH
                }
            };
        let creates = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
        // `openat2` refuses a mode without a flag that creates.
        let mode = if creates { mode } else { Mode::empty() };
        let flags = flags | no_follow | OFlags::CLOEXEC;
        for _ in 0..MAX_LOOKUPS {
            match rustix::fs::openat2(&self.0, path.as_ref(), flags, mode, resolve) {
                // A lease on the file also makes an open with `NONBLOCK` fail with `EAGAIN`.
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return Ok(opened?),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Opens a file through no symbolic link. Add `NONBLOCK` where a FIFO could have the name.
    pub fn open_file(&self, path: impl AsRef<Path>, flags: OFlags, mode: Mode) -> io::Result<File> {
        self.open_at(path, flags, mode, Lookup::NoLinks)
            .map(File::from)
    }

    /// Opens a file for reading; a FIFO in its place does not block.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_file(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
    }

    /// Creates a file for reading and writing; an entry of that name is an error.
    pub fn create_file(&self, path: impl AsRef<Path>, mode: Mode) -> io::Result<File> {
        self.open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
    }

    /// Opens a folder, so that it can be listed.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> io::Result<Dir> {
        self.open_at(path, READ_DIR, Mode::empty(), Lookup::NoLinks)
            .map(Dir)
    }

    /// Opens a folder as the start of lookups only (`O_PATH`), which needs no right to read it.
    pub fn locate_dir(&self, path: impl AsRef<Path>) -> io::Result<Dir> {
        self.open_at(path, PATH_DIR, Mode::empty(), Lookup::NoLinks)
            .map(Dir)
    }

    /// The folder that holds the last component of `path`, as the start of lookups, and that name.
    pub fn locate_parent<'a>(&self, path: &'a Path) -> io::Result<(Dir, &'a OsStr)> {
        let (above, name) = split(path)?;
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        Ok((self.locate_dir(above)?, name))
    }

    /// Status of the folder itself.
    pub fn status(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    /// Status of a path, of a symbolic link itself; none if the path does not exist.
    pub fn stat(&self, path: impl AsRef<Path>) -> io::Result<Option<Stat>> {
        let found = self.below(path.as_ref(), |folder, name| {
            rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        });
        match found {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Whether `name` stands for the very file or folder of this handle.
    pub fn is_entry(&self, name: impl AsRef<Path>, handle: impl AsFd) -> io::Result<bool> {
        let Some(there) = self.stat(name)? else {
            return Ok(false);
        };
        let opened = rustix::fs::fstat(handle)?;
        Ok((there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino))
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let target = self.below(path.as_ref(), |folder, name| {
            rustix::fs::readlinkat(folder, name, Vec::new())
        })?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Lists the folder. Each call starts at its beginning.
    pub fn entries(&self) -> io::Result<DirEntries> {
        Ok(DirEntries(rustix::fs::Dir::read_from(&self.0)?))
    }

    /// Whether the folder holds nothing.
    pub fn is_empty(&self) -> io::Result<bool> {
        match self.entries()?.next() {
            None => Ok(true),
            Some(entry) => entry.map(|_| false),
        }
    }

    /// Creates a folder.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: Mode) -> io::Result<()> {
        self.below(path.as_ref(), |folder, name| {
            rustix::fs::mkdirat(folder, name, mode)
        })
    }

    /// Opens the folder `path`, after creating it if it is absent, and returns whether it was
    /// created.
    pub fn ensure_dir(&self, path: impl AsRef<Path>, mode: Mode) -> io::Result<(Dir, bool)> {
        let path = path.as_ref();
        let created = match self.create_dir(path, mode) {
            Ok(()) => true,
            Err(there) if there.kind() == io::ErrorKind::AlreadyExists => false,
            Err(source) => return Err(source),
        };
        Ok((self.open_dir(path)?, created))
    }

    /// Renames a file or folder, and replaces what has the new name.
    pub fn rename(
        &self,
        name: impl AsRef<Path>,
        to: &Dir<impl AsFd>,
        new: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (name, new) = (single(name.as_ref())?, single(new.as_ref())?);
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new)?)
    }

    /// Renames a file or folder to a free name; otherwise `AlreadyExists`.
    pub fn rename_new(
        &self,
        name: impl AsRef<Path>,
        to: &Dir<impl AsFd>,
        new: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (name, new) = (single(name.as_ref())?, single(new.as_ref())?);
        match rustix::fs::renameat_with(&self.0, name, &to.0, new, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => self.rename_new_without_flag(name, to, new),
            renamed => Ok(renamed?),
        }
    }

    /// The fallback for file systems without the flag, such as NFS. A hard link replaces nothing
    /// either; a rename of a folder replaces at most an empty one.
    fn rename_new_without_flag(
        &self,
        name: &OsStr,
        to: &Dir<impl AsFd>,
        new: &OsStr,
    ) -> io::Result<()> {
        let found = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode).is_dir() {
            return match rustix::fs::renameat(&self.0, name, &to.0, new) {
                Err(Errno::NOTEMPTY) => Err(Errno::EXIST.into()),
                renamed => Ok(renamed?),
            };
        }
        rustix::fs::linkat(&self.0, name, &to.0, new, AtFlags::empty())?;
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Adds a hard link under a free name. A symbolic link is linked itself.
    pub fn link(
        &self,
        name: impl AsRef<Path>,
        to: &Dir<impl AsFd>,
        new: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (name, new) = (single(name.as_ref())?, single(new.as_ref())?);
        Ok(rustix::fs::linkat(
            &self.0,
            name,
            &to.0,
            new,
            AtFlags::empty(),
        )?)
    }

    /// Removes a path that is not a folder, and returns whether it existed.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        self.unlink(path.as_ref(), AtFlags::empty())
    }

    /// Removes an empty folder, and returns whether it existed.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        self.unlink(path.as_ref(), AtFlags::REMOVEDIR)
    }

    fn unlink(&self, path: &Path, flags: AtFlags) -> io::Result<bool> {
        match self.below(path, |folder, name| {
            rustix::fs::unlinkat(folder, name, flags)
        }) {
            Ok(()) => Ok(true),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(source),
        }
    }

    /// Makes the names in the folder durable: `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    /// Calls `act` with the last name of a path and the folder that holds it.
    fn below<T>(
        &self,
        path: &Path,
        act: impl FnOnce(BorrowedFd<'_>, &OsStr) -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let (above, name) = split(path)?;
        if above.as_os_str().is_empty() {
            return Ok(act(self.0.as_fd(), name)?);
        }
        let above = self.locate_dir(above)?;
        Ok(act(above.as_fd(), name)?)
    }
}

impl DirEntries {
    /// Starts the listing again.
    pub fn rewind(&mut self) {
        self.0.rewind();
    }

    /// The folder that is listed.
    pub fn dir(&self) -> io::Result<Dir<BorrowedFd<'_>>> {
        Ok(Dir(self.0.fd()?))
    }
}

impl Iterator for DirEntries {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<io::Result<DirEntry>> {
        loop {
            match self.0.read()? {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Ok(entry) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
                    let kind = entry.file_type();
                    return Some(Ok(DirEntry { name, kind }));
                }
                Err(source) => return Some(Err(source.into())),
            }
        }
    }
}

/// The last component of a path, which must be a name, and what comes before it.
fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let mut components = path.components();
    match components.next_back() {
        Some(Component::Normal(name)) => Ok((components.as_path(), name)),
        _ => Err(Errno::INVAL.into()),
    }
}

/// Exactly one name.
pub(crate) fn single(path: &Path) -> io::Result<&OsStr> {
    match split(path)? {
        (above, name) if above.as_os_str().is_empty() => Ok(name),
        _ => Err(Errno::INVAL.into()),
    }
}
