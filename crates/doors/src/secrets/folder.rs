//! The folder of the store, by its handle: names are single and checked, links are never followed, and what is written is
//! there whole or not at all.

use super::{
    Guard, SecretsError, exposed,
    master::{Key, raw_or_text},
    read_whole, seal,
};
use ::fs::Dir;
use rustix::{fs::Mode, io::Errno, process::geteuid};
use spec::Id;
use std::{
    fs::{DirBuilder, File, Metadata},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
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
const OURS: Mode = Mode::RUSR.union(Mode::WUSR);
/// More than anybody has.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(super) struct Folder {
    handle: Dir,
    path: PathBuf,
}

impl Folder {
    /// Opens the folder, if it is there.
    pub(super) fn open(path: &Path) -> Result<Option<Folder>, SecretsError> {
        let handle = match Dir::open_no_follow(path) {
            Ok(handle) => handle,
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(path, &error)),
        };
        let found = handle.status().map_err(|error| unusable(path, &error))?;
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
        self.handle
            .replace(record(name), OURS, |file| file.write_all(sealed))
            .map_err(|error| self.failed("write", &error))
    }

    pub(super) fn list(&self) -> Result<Vec<Stored>, SecretsError> {
        let failed = |error: io::Error| self.failed("list", &error);
        let mut stored = Vec::new();
        for entry in self.handle.entries().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.name.to_str().and_then(|name| name.strip_suffix(END));
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
        let remove = || {
            let removed = self.handle.remove_file(record(name))?;
            if removed {
                self.handle.sync()?;
            }
            Ok(removed)
        };
        remove().map_err(|error| self.failed("remove", &error))
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
        let write = |file: &mut File| file.write_all(key.as_slice());
        match self.handle.create_whole(KEY, OURS, write) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.failed("write", &error))
            }
            Ok(()) | Err(_) => self.key()?.ok_or_else(|| {
                self.failed("read", &io::Error::other("the master key is gone again"))
            }),
        }
    }

    fn file(&self, name: &str) -> Result<Option<(File, Metadata)>, SecretsError> {
        let file = match self.handle.read_file(name) {
            Ok(file) => file,
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("open", &error)),
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
