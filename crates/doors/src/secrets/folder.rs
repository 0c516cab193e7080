//! The folder of the store, by its handle: names are single and checked, links are never followed, and what is written is
//! there whole or not at all.

use super::{
    Guard, SecretsError, exposed,
    master::{Key, raw_or_text},
    read_whole, seal,
};
use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags},
    io::Errno,
    process::geteuid,
};
use spec::Id;
use std::{
    fs::{DirBuilder, File, Metadata},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

/// A secret that is kept: all that can be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub name: Id,
    /// When it was set.
    pub set_at: SystemTime,
}

/// Behind a name; so that no secret is in the way of the key.
const END: &str = ".secret";
const KEY: &str = "key";
/// More than anybody has.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(super) struct Folder {
    handle: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens the folder, if it is there.
    pub(super) fn open(path: &Path) -> Result<Option<Folder>, SecretsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let handle = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(unusable(path, &error.into())),
        };
        let found = rustix::fs::fstat(&handle).map_err(|error| unusable(path, &error.into()))?;
        if found.st_uid != geteuid().as_raw() && !geteuid().is_root() {
            return Err(unusable(
                path,
                &io::Error::other("it belongs to somebody else"),
            ));
        }
        if found.st_mode & 0o077 != 0 {
            let shown = path.display();
            let message = format!("the folder of secrets `{shown}` is open to others");
            return Err(SecretsError::new(message, format!("chmod 700 {shown}")));
        }
        Ok(Some(Folder {
            handle,
            path: path.to_owned(),
        }))
    }

    /// The same, and made if it is not there.
    pub(super) fn make(path: &Path) -> Result<Folder, SecretsError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| unusable(path, &error))?;
        Folder::open(path)?.ok_or_else(|| unusable(path, &Errno::NOENT.into()))
    }

    pub(super) fn read(&self, name: &Id) -> Result<Option<Vec<u8>>, SecretsError> {
        let Some((mut file, about)) = self.file(&record(name))? else {
            return Ok(None);
        };
        let bytes =
            read_whole(&mut file, about.len()).map_err(|error| self.failed("read", &error))?;
        Ok(Some(bytes.to_vec()))
    }

    pub(super) fn write(&self, name: &Id, sealed: &[u8]) -> Result<(), SecretsError> {
        self.put(&record(name), sealed, RenameFlags::empty())
            .map_err(|error| self.failed("write", &error))
    }

    pub(super) fn list(&self) -> Result<Vec<Stored>, SecretsError> {
        let failed = |error: Errno| self.failed("list", &error.into());
        let mut stored = Vec::new();
        for entry in Dir::read_from(&self.handle).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.strip_suffix(END));
            let Some(name) = name.and_then(|name| Id::new(name).ok()) else {
                continue;
            };
            // Removed in between: it is not there.
            let Some((_, about)) = self.file(&record(&name))? else {
                continue;
            };
            let set_at = about
                .modified()
                .map_err(|error| self.failed("list", &error))?;
            stored.push(Stored { name, set_at });
            if stored.len() > MOST {
                return Err(self.failed(
                    "list",
                    &io::Error::other(format!("there are more than {MOST}")),
                ));
            }
        }
        stored.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(stored)
    }

    pub(super) fn remove(&self, name: &Id) -> Result<bool, SecretsError> {
        match rustix::fs::unlinkat(&self.handle, record(name), AtFlags::empty()) {
            Ok(()) => self
                .sync()
                .map(|()| true)
                .map_err(|error| self.failed("remove", &error)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.failed("remove", &error.into())),
        }
    }

    /// The master key that lies here, if one does.
    pub(super) fn key(&self) -> Result<Option<Key>, SecretsError> {
        let Some((mut file, about)) = self.file(KEY)? else {
            return Ok(None);
        };
        let shown = self.path.join(KEY);
        let shown = shown.display();
        if let Some(why) = exposed(about.uid(), about.mode(), Guard::Owner, false) {
            return Err(SecretsError::new(
                format!("the master key `{shown}` {why}"),
                format!("chmod 600 {shown}"),
            ));
        }
        let bytes =
            read_whole(&mut file, about.len()).map_err(|error| self.failed("read", &error))?;
        raw_or_text(&bytes).map(Some).ok_or_else(|| {
            let hint = "bring the file back, or remove it and all secrets, and set them anew";
            SecretsError::new(
                format!("`{shown}` is no master key: it must have 32 bytes"),
                hint,
            )
        })
    }

    /// Keeps a new master key here, unless somebody was faster: then theirs counts.
    pub(super) fn keep_key(&self, key: &Key) -> Result<Key, SecretsError> {
        match self.put(KEY, key.as_slice(), RenameFlags::NOREPLACE) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.failed("write", &error))
            }
            Ok(()) | Err(_) => self.key()?.ok_or_else(|| {
                self.failed("read", &io::Error::other("the master key is gone again"))
            }),
        }
    }

    fn file(&self, name: &str) -> Result<Option<(File, Metadata)>, SecretsError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Ok(handle) => File::from(handle),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.failed("open", &error.into())),
        };
        let about = file
            .metadata()
            .map_err(|error| self.failed("open", &error))?;
        match about.is_file() && about.len() <= seal::LONGEST {
            true => Ok(Some((file, about))),
            false => Err(self.failed(
                "open",
                &io::Error::other(format!("`{name}` is not a file of this store")),
            )),
        }
    }

    /// Written beside, made to last, then moved into its place in one step.
    fn put(&self, name: &str, bytes: &[u8], how: RenameFlags) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let fresh = format!(".new-{}-{count}", std::process::id());
        // Left by a process of the same number that was killed.
        match rustix::fs::unlinkat(&self.handle, &fresh, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(
            &self.handle,
            &fresh,
            flags,
            Mode::RUSR | Mode::WUSR,
        )?);
        let moved = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| {
                Ok(rustix::fs::renameat_with(
                    &self.handle,
                    &fresh,
                    &self.handle,
                    name,
                    how,
                )?)
            });
        if moved.is_err() {
            // The reason for that is told; that the rest stays behind would hide it.
            let _ = rustix::fs::unlinkat(&self.handle, &fresh, AtFlags::empty());
        }
        moved?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.handle)?)
    }

    fn failed(&self, what: &str, error: &io::Error) -> SecretsError {
        let shown = self.path.display();
        SecretsError::new(
            format!("cannot {what} in `{shown}`: {error}"),
            format!("look at it: ls -la {shown}"),
        )
    }
}

fn record(name: &Id) -> String {
    format!("{name}{END}")
}

fn unusable(path: &Path, error: &io::Error) -> SecretsError {
    let message = format!(
        "cannot use the folder of secrets `{}`: {error}",
        path.display()
    );
    SecretsError::new(
        message,
        "choose a state folder of your own with --state DIR",
    )
}
