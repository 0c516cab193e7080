//! The folder of journals: `NAME.jsonl`, then `NAME~2.jsonl`, … All files are opened from its
//! handle. A name may have dots but no tilde, so that no name equals the second file of another
//! journal.

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

/// Bytes of a journal's name.
const MAX_NAME_BYTES: usize = 200;

/// An open folder with journals.
#[derive(Debug)]
pub struct JournalDir {
    handle: OwnedFd,
    path: PathBuf,
}

impl JournalDir {
    /// Opens the folder, after creating it if it is absent.
    pub fn make(path: &Path) -> io::Result<JournalDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        JournalDir::open(path)
    }

    /// Opens the folder, which must belong to this user and be writable for nobody else.
    pub fn open(path: &Path) -> io::Result<JournalDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let handle = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&handle)?;
        let us = rustix::process::geteuid().as_raw();
        if found.st_uid != us || found.st_mode & 0o022 != 0 {
            return Err(io::Error::other(format!(
                "`{}` must be yours, and only yours to write",
                path.display()
            )));
        }
        Ok(JournalDir {
            handle,
            path: path.to_owned(),
        })
    }

    /// The path of a file, for messages.
    pub fn path(&self, name: &str, part: u32) -> PathBuf {
        self.path.join(file_name(name, part))
    }

    /// The names of the journals, with the numbers of their files.
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

    /// Opens a file for reading.
    pub fn read(&self, name: &str, part: u32) -> io::Result<File> {
        self.file(name, part, OFlags::RDONLY)
    }

    /// Opens an existing file for appending.
    pub fn append(&self, name: &str, part: u32) -> io::Result<File> {
        self.file(name, part, OFlags::RDWR | OFlags::APPEND)
    }

    /// Opens a file for appending, after creating it if it is absent.
    pub fn make_file(&self, name: &str, part: u32) -> io::Result<File> {
        self.file(name, part, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)
    }

    /// Makes the names of new files durable: `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.handle)?)
    }

    /// Opens the lock file of a journal, after creating it if it is absent. An owner who removes
    /// old files cannot lock one of those.
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
        let is_plain =
            FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1;
        let is_ours = found.st_uid == rustix::process::geteuid().as_raw();
        if !is_plain || !is_ours || found.st_mode & 0o022 != 0 {
            return Err(io::Error::other(
                "it must be a plain file of yours, and only yours to write",
            ));
        }
        Ok(file.into())
    }

    /// When a file was modified last, in milliseconds since 1970.
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

    /// Removes a file. An absent file is no error.
    pub fn remove(&self, name: &str, part: u32) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.handle, file_name(name, part), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The length of a file.
    pub fn size(&self, name: &str, part: u32) -> io::Result<u64> {
        let found = rustix::fs::statat(
            &self.handle,
            file_name(name, part),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        Ok(u64::try_from(found.st_size).unwrap_or_default())
    }
}

/// Takes the lock that an owner holds until its end; false if another process holds it.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether an open file was unlinked in the meantime.
pub fn is_unlinked(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstat(file)?.st_nlink == 0)
}

/// Whether a journal may have this name.
pub fn is_valid_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
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
    (is_valid_name(name) && file_name(name, part) == file).then_some((name, part))
}
