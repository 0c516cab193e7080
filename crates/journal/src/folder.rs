//! The folder of a journal: `NAME.jsonl`, then `NAME~2.jsonl`, … Everything is reached from its handle. A name may
//! have dots, but no tilde, so none can be taken for the second file of another.

use rustix::{
    fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

const LONGEST_NAME: usize = 200;

/// A folder with journals, by its handle.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens it, after making it if it is absent.
    pub fn make(path: &Path) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Folder::open(path)
    }

    /// Opens it if others cannot write there.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&handle)?;
        let us = rustix::process::geteuid().as_raw();
        match (found.st_uid == us, found.st_mode & 0o022) {
            (true, 0) => Ok(Folder {
                handle,
                path: path.to_owned(),
            }),
            _ => Err(io::Error::other(format!(
                "`{}` must be yours, and only yours to write",
                path.display()
            ))),
        }
    }

    /// Where a file of it is, for messages.
    pub fn path(&self, name: &str, part: u32) -> PathBuf {
        self.path.join(file_name(name, part))
    }

    /// The journals and the numbers of their files.
    pub fn segments(&self) -> io::Result<BTreeMap<String, Vec<u32>>> {
        let mut found = BTreeMap::<String, Vec<u32>>::new();
        for entry in Dir::read_from(&self.handle)? {
            let entry = entry?;
            if let Some((name, part)) = entry.file_name().to_str().ok().and_then(name_and_part) {
                found.entry(name.to_owned()).or_default().push(part);
            }
        }
        found.values_mut().for_each(|parts| parts.sort_unstable());
        Ok(found)
    }

    /// A file to read from.
    pub fn read(&self, name: &str, part: u32) -> io::Result<File> {
        self.file(name, part, OFlags::RDONLY)
    }

    /// A file that is there, to add to.
    pub fn append(&self, name: &str, part: u32) -> io::Result<File> {
        self.file(name, part, OFlags::RDWR | OFlags::APPEND)
    }

    /// Makes it if it is absent.
    pub fn make_file(&self, name: &str, part: u32) -> io::Result<File> {
        self.file(name, part, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)
    }

    /// Makes sure of the names of new files.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.handle)?)
    }

    /// A file beside a journal, made if absent, for the lock of an owner who removes old files.
    pub fn lock_file(&self, name: &str) -> io::Result<File> {
        self.named(&format!("{name}.lock"), OFlags::RDWR | OFlags::CREATE)
    }

    fn file(&self, name: &str, part: u32, flags: OFlags) -> io::Result<File> {
        self.named(&file_name(name, part), flags)
    }

    fn named(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?;
        let found = rustix::fs::fstat(&file)?;
        let plain =
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1;
        match plain
            && found.st_uid == rustix::process::geteuid().as_raw()
            && found.st_mode & 0o022 == 0
        {
            true => Ok(file.into()),
            false => Err(io::Error::other(
                "it must be a plain file of yours, and only yours to write",
            )),
        }
    }

    /// When a file was written last.
    pub fn changed_ms(&self, name: &str, part: u32) -> io::Result<u64> {
        let found = rustix::fs::statat(
            &self.handle,
            file_name(name, part),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        Ok(u64::try_from(found.st_mtime)
            .unwrap_or_default()
            .saturating_mul(1000))
    }

    /// Removes a file. Gone already is fine.
    pub fn remove(&self, name: &str, part: u32) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.handle, file_name(name, part), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How long a file is.
    pub fn size(&self, name: &str, part: u32) -> io::Result<u64> {
        let found = rustix::fs::statat(
            &self.handle,
            file_name(name, part),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        Ok(u64::try_from(found.st_size).unwrap_or_default())
    }
}

/// Takes the lock that an owner holds for life; false if another has it.
pub fn lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a file that was opened has lost its name meanwhile.
pub fn is_gone(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstat(file)?.st_nlink == 0)
}

/// Whether a journal can have this name.
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.starts_with('.')
        && name.bytes().all(allowed)
}

fn file_name(name: &str, part: u32) -> String {
    match part {
        1 => format!("{name}.jsonl"),
        _ => format!("{name}~{part}.jsonl"),
    }
}

fn name_and_part(file: &str) -> Option<(&str, u32)> {
    let whole = file.strip_suffix(".jsonl")?;
    let (name, part) = match whole.split_once('~') {
        Some((name, part)) => (name, part.parse().ok()?),
        None => (whole, 1),
    };
    (is_name(name) && file_name(name, part) == file).then_some((name, part))
}
