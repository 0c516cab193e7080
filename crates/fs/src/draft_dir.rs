//! A folder that is being created or removed, protected by a lock that the kernel releases when its
//! owner ends.
//!
//! ```text
//! PARENT/PREFIX…/{LOCK, …}  ──publish──▶  FOLDER/NAME/{LOCK, …}  ──retire──▶  PARENT/PREFIX…/{LOCK, …}
//! ```
//! The file that carries the lock is created first and removed last: a draft without it, or whose
//! lock is free, has no living owner, and [`DraftDir::sweep`] removes it.

use crate::{Dir, RemoveOptions};
use rustix::{
    fs::{FlockOperation, Mode},
    io::Errno,
};
use std::{
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// Attempts to lock a draft: a sweep can remove a folder that is not locked yet.
const MAX_TRIES: usize = 100;

/// A folder under a temporary name, with a locked file in it. If it is dropped without being
/// published, it is removed as far as possible, and the next sweep removes the rest.
#[derive(Debug)]
pub struct DraftDir {
    parent: Arc<Dir>,
    name: String,
    dir: Dir,
    lock: File,
    lock_name: &'static str,
    published: bool,
}

impl DraftDir {
    /// Creates the folder, under a name that begins with `prefix`, and in it the file that carries
    /// the lock.
    pub fn create(
        parent: &Arc<Dir>,
        prefix: &str,
        lock_name: &'static str,
    ) -> io::Result<DraftDir> {
        for _ in 0..MAX_TRIES {
            let name = temporary_name(prefix);
            parent.create_dir(&name, Mode::RWXU)?;
            match create_locked(parent, &name, lock_name) {
                Ok(Some((dir, lock))) => {
                    return Ok(DraftDir {
                        parent: parent.clone(),
                        name,
                        dir,
                        lock,
                        lock_name,
                        published: false,
                    });
                }
                Ok(None) => {}
                Err(swept) if swept.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(source),
            }
        }
        Err(io::Error::other("a sweep took every draft away"))
    }

    /// Its temporary name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The file that carries the lock. It can be written and read like any other file of the
    /// folder.
    pub fn lock_file(&self) -> &File {
        &self.lock
    }

    /// Renames the folder to its name, atomically; `AlreadyExists` if the name is taken.
    pub fn publish(&mut self, to: &Dir, name: impl AsRef<Path>) -> io::Result<()> {
        self.parent.rename_new(&self.name, to, name)?;
        self.published = true;
        Ok(())
    }

    /// Renames a published folder to a temporary name in `parent`, and returns that name.
    pub fn retire(
        from: &Dir,
        name: impl AsRef<Path>,
        parent: &Dir,
        prefix: &str,
    ) -> io::Result<String> {
        let temporary = temporary_name(prefix);
        from.rename_new(name, parent, &temporary)?;
        Ok(temporary)
    }

    /// Removes a draft or a retired folder. The caller holds its lock, or no process can hold it.
    pub fn remove(parent: &Dir, dir: &Dir, name: &str, lock_name: &str) -> io::Result<()> {
        remove_contents(dir, lock_name)?;
        parent.remove_dir(name).map(drop)
    }

    /// Removes a draft whose owner has ended, and returns whether it did.
    pub fn sweep(parent: &Dir, name: impl AsRef<Path>, lock_name: &str) -> io::Result<bool> {
        let name = name.as_ref();
        let dir = match parent.open_dir(name) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(false),
            dir => dir?,
        };
        match dir.read_file(lock_name) {
            Ok(lock) => {
                // The draft may have been published between opening and locking.
                if !try_lock(&lock)? || !parent.is_entry(name, &dir)? {
                    return Ok(false);
                }
                remove_contents(&dir, lock_name)?;
            }
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(source),
        }
        match parent.remove_dir(name) {
            // Its owner is still creating it.
            Err(begun) if is_not_empty(&begun) => Ok(false),
            removed => removed.map(|_| true),
        }
    }
}

impl Drop for DraftDir {
    fn drop(&mut self) {
        if !self.published {
            // A destructor cannot report an error; the next sweep removes the rest.
            _ = DraftDir::remove(&self.parent, &self.dir, &self.name, self.lock_name);
        }
    }
}

/// Takes an exclusive lock without waiting, and returns whether it did. The lock is released with
/// the last handle.
pub fn try_lock(file: impl AsFd) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Creates and locks the lock file; none if a sweep removed it meanwhile.
fn create_locked(parent: &Dir, name: &str, lock_name: &str) -> io::Result<Option<(Dir, File)>> {
    let dir = parent.open_dir(name)?;
    let lock = dir.create_file(lock_name, Mode::RUSR | Mode::WUSR)?;
    if !try_lock(&lock)? {
        return Ok(None);
    }
    let removed = rustix::fs::fstat(&lock)?.st_nlink == 0;
    Ok((!removed).then_some((dir, lock)))
}

fn remove_contents(dir: &Dir, lock_name: &str) -> io::Result<()> {
    for entry in dir.entries()? {
        let name = entry?.name;
        if name == lock_name {
            continue;
        }
        match dir
            .remove_tree(&name, RemoveOptions::default())
            .map_err(io::Error::from)
        {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    dir.remove_file(lock_name).map(drop)
}

fn is_not_empty(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOTEMPTY | Errno::EXIST)
    )
}

fn temporary_name(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{prefix}{}-{count}-{nanos}", std::process::id())
}
