//! The store's directory, accessed by file descriptor: names are checked, links are never followed,
//! and files are replaced atomically.

use super::{
    AllowedReaders, SecretsError, encryption,
    master_key::{MasterKeyBytes, parse_key},
    permission_problem, read_whole,
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

/// A stored secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    /// Its name.
    pub name: Id,
    /// When it was set.
    pub set_at: SystemTime,
}

/// File name suffix; keeps secrets apart from the master key.
const SUFFIX: &str = ".secret";
const MASTER_KEY_FILE: &str = "key";
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);
/// Maximum number of secrets.
const MAX_SECRETS: usize = 10_000;

#[derive(Debug)]
pub(super) struct StoreDir {
    handle: Dir,
    path: PathBuf,
}

impl StoreDir {
    /// Opens the directory, if it exists.
    pub(super) fn open(path: &Path) -> Result<Option<StoreDir>, SecretsError> {
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
            let display_path = path.display();
            let message = format!("the folder of secrets `{display_path}` is open to others");
            return Err(SecretsError::new(
                message,
                format!("chmod 700 {display_path}"),
            ));
        }
        Ok(Some(StoreDir {
            handle,
            path: path.to_owned(),
        }))
    }

    /// Opens the directory; creates it if necessary.
    pub(super) fn make(path: &Path) -> Result<StoreDir, SecretsError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| unusable(path, &error))?;
        StoreDir::open(path)?.ok_or_else(|| unusable(path, &Errno::NOENT.into()))
    }

    pub(super) fn read(&self, name: &Id) -> Result<Option<Vec<u8>>, SecretsError> {
        let Some((mut file, metadata)) = self.file(&file_name(name))? else {
            return Ok(None);
        };
        let bytes =
            read_whole(&mut file, metadata.len()).map_err(|error| self.failed("read", &error))?;
        Ok(Some(bytes.to_vec()))
    }

    pub(super) fn write(&self, name: &Id, sealed: &[u8]) -> Result<(), SecretsError> {
        self.handle
            .replace(file_name(name), OWNER_ONLY, |file| file.write_all(sealed))
            .map_err(|error| self.failed("write", &error))
    }

    pub(super) fn list(&self) -> Result<Vec<StoredSecret>, SecretsError> {
        let failed = |error: io::Error| self.failed("list", &error);
        let mut stored = Vec::new();
        for entry in self.handle.entries().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry
                .name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX));
            let Some(name) = name.and_then(|name| Id::new(name).ok()) else {
                continue;
            };
            // Removed meanwhile.
            let Some((_, metadata)) = self.file(&file_name(&name))? else {
                continue;
            };
            let set_at = metadata
                .modified()
                .map_err(|error| self.failed("list", &error))?;
            stored.push(StoredSecret { name, set_at });
            if stored.len() > MAX_SECRETS {
                return Err(self.failed(
                    "list",
                    &io::Error::other(format!("there are more than {MAX_SECRETS}")),
                ));
            }
        }
        stored.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(stored)
    }

    pub(super) fn remove(&self, name: &Id) -> Result<bool, SecretsError> {
        let remove = || {
            let removed = self.handle.remove_file(file_name(name))?;
            if removed {
                self.handle.sync()?;
            }
            Ok(removed)
        };
        remove().map_err(|error| self.failed("remove", &error))
    }

    /// The master key in this directory, if there is one.
    pub(super) fn key(&self) -> Result<Option<MasterKeyBytes>, SecretsError> {
        let Some((mut file, metadata)) = self.file(MASTER_KEY_FILE)? else {
            return Ok(None);
        };
        let display_path = self.path.join(MASTER_KEY_FILE);
        let display_path = display_path.display();
        if let Some(why) = permission_problem(
            metadata.uid(),
            metadata.mode(),
            AllowedReaders::Owner,
            false,
        ) {
            return Err(SecretsError::new(
                format!("the master key `{display_path}` {why}"),
                format!("chmod 600 {display_path}"),
            ));
        }
        let bytes =
            read_whole(&mut file, metadata.len()).map_err(|error| self.failed("read", &error))?;
        parse_key(&bytes).map(Some).ok_or_else(|| {
            let hint = "bring the file back, or remove it and all secrets, and set them anew";
            SecretsError::new(
                format!("`{display_path}` is no master key: it must have 32 bytes"),
                hint,
            )
        })
    }

    /// Stores a new master key, unless another process was faster: then that one counts.
    pub(super) fn store_key(&self, key: &MasterKeyBytes) -> Result<MasterKeyBytes, SecretsError> {
        let write = |file: &mut File| file.write_all(key.as_slice());
        match self.handle.create_whole(MASTER_KEY_FILE, OWNER_ONLY, write) {
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
        let metadata = file
            .metadata()
            .map_err(|error| self.failed("open", &error))?;
        if metadata.is_file() && metadata.len() <= encryption::MAX_RECORD_BYTES {
            Ok(Some((file, metadata)))
        } else {
            Err(self.failed(
                "open",
                &io::Error::other(format!("`{name}` is not a file of this store")),
            ))
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> SecretsError {
        let display_path = self.path.display();
        SecretsError::new(
            format!("cannot {what} in `{display_path}`: {error}"),
            format!("look at it: ls -la {display_path}"),
        )
    }
}

fn file_name(name: &Id) -> String {
    format!("{name}{SUFFIX}")
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
