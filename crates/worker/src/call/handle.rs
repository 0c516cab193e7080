//! The work folder of a box, by handle: made, written and read from outside while whoever is inside may do what he likes with
//! it. Nothing leads through a link or out of it, nothing that is no regular file is read, and nothing waits.

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
    /// Who is to own what is put there; we ourselves if none.
    owner: Option<(u32, u32)>,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    #[error("it is not there")]
    Missing,
    #[error("it is {0}, and no regular file")]
    Kind(&'static str),
    #[error("it has {size} bytes, and may have {most}")]
    TooLarge { size: u64, most: u64 },
    #[error("it cannot be read: {0}")]
    Other(#[source] io::Error),
}

impl Unread {
    fn of(error: impl Into<io::Error>) -> Unread {
        let error = error.into();
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => Unread::Missing,
            Some(Errno::LOOP) => Unread::Kind("a symbolic link"),
            Some(Errno::XDEV) => Unread::Kind("a mount"),
            _ => Unread::Other(error),
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

    /// The folder itself.
    pub(crate) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Who is to own what is put there.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        self.owner
    }

    /// A new folder in one that is open.
    pub(crate) fn make_folder(&self, parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
        let made = open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        self.give(&made)?;
        Ok(made)
    }

    /// The same, or the one that is there.
    pub(crate) fn enter_folder(&self, parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        match self.make_folder(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, 0)?)
            }
            made => made,
        }
    }

    /// A new file: if anything of that name is there, it fails.
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
        // Before there is something in it.
        self.give(&made)?;
        File::from(made).write_all(bytes)
    }

    /// A new FIFO, and the end of it that is read. It has no end while we have it: it is open for writing, too.
    pub(crate) fn make_pipe(&self, name: &str) -> io::Result<OwnedFd> {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(self.folder(), name, FileType::Fifo, mode, 0)?;
        let pipe = open(self.folder(), name, OFlags::RDWR | OFlags::NONBLOCK, 0)?;
        match kind(&rustix::fs::fstat(&pipe)?) {
            FileType::Fifo => self.give(&pipe).map(|()| pipe),
            _ => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Only what is ours and new is given away: it may have been replaced by now.
    fn give(&self, made: &OwnedFd) -> io::Result<()> {
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

    /// A folder in it, to be listed.
    pub(crate) fn open_folder(&self, name: &str) -> Result<OwnedFd, Unread> {
        open(self.folder(), name, OFlags::RDONLY | OFlags::DIRECTORY, 0).map_err(Unread::of)
    }

    /// All of a regular file of at most so many bytes. Of one that is written meanwhile, what was there.
    pub(crate) fn read(
        &self,
        folder: BorrowedFd<'_>,
        name: &str,
        most: u64,
    ) -> Result<Vec<u8>, Unread> {
        // Decided on a handle that opens nothing: a FIFO would wait, a device could do anything.
        let seen = open(folder, name, OFlags::PATH, 0).map_err(Unread::of)?;
        let found = rustix::fs::fstat(&seen).map_err(Unread::of)?;
        self.check(&found, most)?;
        let file = open(
            folder,
            name,
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            0,
        )
        .map_err(Unread::of)?;
        let opened = rustix::fs::fstat(&file).map_err(Unread::of)?;
        if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino) {
            return Err(Unread::Other(io::Error::other(
                "it was replaced while it was read",
            )));
        }
        let size = u64::try_from(opened.st_size).unwrap_or(u64::MAX);
        let mut bytes =
            Vec::with_capacity(usize::try_from(size.min(most)).unwrap_or(0).min(1 << 20));
        File::from(file)
            .take(most.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(Unread::Other)?;
        match bytes.len() as u64 {
            size if size > most => Err(Unread::TooLarge { size, most }),
            _ => Ok(bytes),
        }
    }

    /// How many links there are to it says nothing: whoever is inside can only link what is his.
    fn check(&self, found: &Stat, most: u64) -> Result<(), Unread> {
        if kind(found) != FileType::RegularFile {
            return Err(Unread::Kind(called(kind(found))));
        }
        let owner = self
            .owner
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
        if found.st_uid != owner {
            return Err(Unread::Kind("a stranger's"));
        }
        match u64::try_from(found.st_size).unwrap_or(u64::MAX) {
            size if size > most => Err(Unread::TooLarge { size, most }),
            _ => Ok(()),
        }
    }
}

/// What a name in a folder stands for, without following it.
pub(crate) fn look(folder: BorrowedFd<'_>, name: &str) -> Result<FileType, Unread> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(Unread::of)?;
    Ok(kind(&found))
}

/// How many bytes are there by that name, as far as anybody can tell.
pub(crate) fn size(folder: BorrowedFd<'_>, name: &str) -> Result<u64, Unread> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(Unread::of)?;
    Ok(u64::try_from(found.st_size).unwrap_or(u64::MAX))
}

fn open(folder: BorrowedFd<'_>, name: &str, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
    Dir::from_fd(folder).open_at(name, flags, mode, Lookup::NoLinksOneMount)
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// In words.
pub(crate) fn called(kind: FileType) -> &'static str {
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
            Err(Unread::TooLarge { size: 5, most: 4 })
        ));
        assert!(matches!(
            workspace.read(folder, "absent", 9),
            Err(Unread::Missing)
        ));
        symlink("../secret", top.join("work/link")).unwrap();
        assert!(matches!(
            workspace.read(folder, "link", 9),
            Err(Unread::Kind("a symbolic link"))
        ));
        assert!(workspace.read(folder, "../secret", 9).is_err());
        let pipe = workspace.make_pipe("pipe").unwrap();
        assert!(matches!(
            workspace.read(folder, "pipe", 9),
            Err(Unread::Kind("a FIFO"))
        ));
        assert!(matches!(
            workspace.read(folder, ".", 9),
            Err(Unread::Kind("a folder"))
        ));
        for name in ["plain", "link", "pipe"] {
            assert!(
                workspace.make_file(folder, name, 0o600, b"other").is_err(),
                "{name}"
            );
            assert!(workspace.make_folder(folder, name).is_err(), "{name}");
            assert!(workspace.enter_folder(folder, name).is_err(), "{name}");
            assert!(workspace.make_pipe(name).is_err(), "{name}");
        }
        assert_eq!(fs::read(top.join("secret")).unwrap(), b"secret");
        drop(pipe);
        fs::remove_dir_all(top).unwrap();
    }
}
