//! The work folder of a sandbox, accessed by descriptor from outside while processes inside may
//! change it at will. No access follows a link or leaves the folder, only regular files are read,
//! and nothing blocks.

use ::fs::{Dir, Lookup};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// A work folder. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    folder: Arc<OwnedFd>,
    /// Owner of new files; our own user if none.
    owner: Option<(u32, u32)>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("it is not there")]
    Missing,
    #[error("it is {0}, and no regular file")]
    Kind(&'static str),
    #[error("it has {size} bytes, and may have {limit}")]
    TooLarge { size: u64, limit: u64 },
    #[error("it cannot be read: {0}")]
    Other(#[source] io::Error),
}

impl ReadError {
    fn of(error: impl Into<io::Error>) -> ReadError {
        let error = error.into();
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => ReadError::Missing,
            Some(Errno::LOOP) => ReadError::Kind("a symbolic link"),
            Some(Errno::XDEV) => ReadError::Kind("a mount"),
            _ => ReadError::Other(error),
        }
    }
}

impl Workspace {
    pub(crate) fn new(folder: OwnedFd, owner: Option<(u32, u32)>) -> Workspace {
        Workspace {
            folder: Arc::new(folder),
            owner,
        }
    }

    /// Descriptor of the folder.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Owner of new files.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        self.owner
    }

    /// Creates a folder in an open one.
    pub(crate) fn make_folder(&self, parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
        let made = open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        self.chown_to_owner(&made)?;
        Ok(made)
    }

    /// Creates a folder or opens the existing one.
    pub(crate) fn enter_folder(&self, parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        match self.make_folder(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)
            }
            made => made,
        }
    }

    /// Creates a new file; fails if the name exists.
    pub(crate) fn make_file(
        &self,
        folder: BorrowedFd<'_>,
        name: &str,
        mode: u32,
        bytes: &[u8],
    ) -> io::Result<()> {
        let made = open(
            folder,
            name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            mode,
        )?;
        // Before it has content.
        self.chown_to_owner(&made)?;
        File::from(made).write_all(bytes)
    }

    /// Creates a FIFO and opens it for reading and writing, so that it never reports end of file.
    pub(crate) fn make_fifo(&self, name: &str) -> io::Result<OwnedFd> {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(self.folder(), name, FileType::Fifo, mode, 0)?;
        let pipe = open(self.folder(), name, OFlags::RDWR | OFlags::NONBLOCK, 0)?;
        match type_of(&rustix::fs::fstat(&pipe)?) {
            FileType::Fifo => self.chown_to_owner(&pipe).map(|()| pipe),
            _ => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Changes the owner only of what we own: the entry may have been replaced.
    fn chown_to_owner(&self, made: &OwnedFd) -> io::Result<()> {
        let Some((user, group)) = self.owner else {
            return Ok(());
        };
        if rustix::fs::fstat(made)?.st_uid != rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Ok(rustix::fs::fchown(
            made,
            Some(Uid::from_raw(user)),
            Some(Gid::from_raw(group)),
        )?)
    }

    /// Opens a folder to list it.
    pub(crate) fn open_folder(&self, name: &str) -> Result<OwnedFd, ReadError> {
        open(self.folder(), name, OFlags::RDONLY | OFlags::DIRECTORY, 0).map_err(ReadError::of)
    }

    /// Reads a regular file up to a maximum size. A file that is being written is read as it is.
    pub(crate) fn read(
        &self,
        folder: BorrowedFd<'_>,
        name: &str,
        limit: u64,
    ) -> Result<Vec<u8>, ReadError> {
        // Checked on an O_PATH descriptor: opening a FIFO would block, a device could do anything.
        let seen = open(folder, name, OFlags::PATH, 0).map_err(ReadError::of)?;
        let found = rustix::fs::fstat(&seen).map_err(ReadError::of)?;
        self.check(&found, limit)?;
        let file = open(
            folder,
            name,
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            0,
        )
        .map_err(ReadError::of)?;
        let opened = rustix::fs::fstat(&file).map_err(ReadError::of)?;
        if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino) {
            return Err(ReadError::Other(io::Error::other(
                "it was replaced while it was read",
            )));
        }
        let size = u64::try_from(opened.st_size).unwrap_or(u64::MAX);
        let mut bytes =
            Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or(0).min(1 << 20));
        File::from(file)
            .take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(ReadError::Other)?;
        match bytes.len() as u64 {
            size if size > limit => Err(ReadError::TooLarge { size, limit }),
            _ => Ok(bytes),
        }
    }

    /// The link count is irrelevant: processes inside can only link their own files.
    fn check(&self, found: &Stat, limit: u64) -> Result<(), ReadError> {
        if type_of(found) != FileType::RegularFile {
            return Err(ReadError::Kind(describe(type_of(found))));
        }
        let owner = self
            .owner
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
        if found.st_uid != owner {
            return Err(ReadError::Kind("a stranger's"));
        }
        match u64::try_from(found.st_size).unwrap_or(u64::MAX) {
            size if size > limit => Err(ReadError::TooLarge { size, limit }),
            _ => Ok(()),
        }
    }
}

/// Type of a directory entry, not following links.
pub(crate) fn file_type(folder: BorrowedFd<'_>, name: &str) -> Result<FileType, ReadError> {
    let found =
        rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(ReadError::of)?;
    Ok(type_of(&found))
}

/// Size of a directory entry; it may change.
pub(crate) fn size(folder: BorrowedFd<'_>, name: &str) -> Result<u64, ReadError> {
    let found =
        rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(ReadError::of)?;
    Ok(u64::try_from(found.st_size).unwrap_or(u64::MAX))
}

fn open(folder: BorrowedFd<'_>, name: &str, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
    Dir::from_fd(folder).open_at(name, flags, mode, Lookup::NoLinksOneMount)
}

fn type_of(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// File type for messages.
pub(crate) fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_regular_files_beneath_are_read_and_nothing_is_replaced() {
        let top = std::env::temp_dir().join(format!("airlock-handle-{}", std::process::id()));
        fs::create_dir_all(top.join("work")).unwrap();
        fs::write(top.join("secret"), "secret").unwrap();
        let workspace = Workspace::new(File::open(top.join("work")).unwrap().into(), None);
        let folder = workspace.folder();
        workspace
            .make_file(folder, "plain", 0o600, b"plain")
            .unwrap();
        assert_eq!(
            workspace.read(folder, "plain", 5).unwrap(),
            b"plain",
            "the control"
        );
        assert!(matches!(
            workspace.read(folder, "plain", 4),
            Err(ReadError::TooLarge { size: 5, limit: 4 })
        ));
        assert!(matches!(
            workspace.read(folder, "absent", 9),
            Err(ReadError::Missing)
        ));
        symlink("../secret", top.join("work/link")).unwrap();
        assert!(matches!(
            workspace.read(folder, "link", 9),
            Err(ReadError::Kind("a symbolic link"))
        ));
        assert!(workspace.read(folder, "../secret", 9).is_err());
        let pipe = workspace.make_fifo("pipe").unwrap();
        assert!(matches!(
            workspace.read(folder, "pipe", 9),
            Err(ReadError::Kind("a FIFO"))
        ));
        assert!(matches!(
            workspace.read(folder, ".", 9),
            Err(ReadError::Kind("a folder"))
        ));
        for name in ["plain", "link", "pipe"] {
            assert!(
                workspace.make_file(folder, name, 0o600, b"other").is_err(),
                "{name}"
            );
            assert!(workspace.make_folder(folder, name).is_err(), "{name}");
            assert!(workspace.enter_folder(folder, name).is_err(), "{name}");
            assert!(workspace.make_fifo(name).is_err(), "{name}");
        }
        assert_eq!(fs::read(top.join("secret")).unwrap(), b"secret");
        drop(pipe);
        fs::remove_dir_all(top).unwrap();
    }
}
