//! Where credentials come from: the encrypted store, a variable, a file, a vault. Read when a door opens, never shown.
//!
//! ```text
//! STATE/secrets/            0700
//!     NAME.secret           0600   version, nonce, AES-256-GCM of the value; bound to NAME
//!     key                   0600   the master key, only where no better place is configured
//! ```

mod folder;
mod master;
mod seal;
mod vault;

pub use folder::Stored;
pub use master::MasterKey;
pub use vault::Vault;

use crate::secret::Secret;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use folder::Folder;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::{
    fs::{CWD, Mode, OFlags},
    process::geteuid,
};
use spec::Id;
use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// Where a credential comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The encrypted store, by name.
    Stored(String),
    /// A variable of Airlock's own environment.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// A field of a secret of the configured Vault (KV version 2).
    Vault {
        /// The path below the mount.
        path: String,
        /// The field, `value` if not said.
        field: String,
    },
}

/// Why there is no credential. Never says what it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SecretsError {
    /// What happened.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl SecretsError {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> SecretsError {
        SecretsError {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// Finds credentials, and keeps those of the encrypted store.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The folder of the store; made when the first secret is kept.
    pub folder: PathBuf,
    /// What the store is encrypted with.
    pub master: MasterKey,
    /// The variables that the configuration names, as far as they are set.
    pub variables: BTreeMap<String, Secret>,
    /// The Vault, if one is configured.
    pub vault: Option<Vault>,
}

impl Secrets {
    /// The credential, read now, and fit to be sent in a header.
    pub async fn find(&self, source: &KeySource) -> Result<Secret, SecretsError> {
        let found = self.read(source).await?;
        check_header(&found, source)?;
        Ok(found)
    }

    /// The credential, read now, whatever it is for: it may have several lines.
    pub async fn read(&self, source: &KeySource) -> Result<Secret, SecretsError> {
        match source {
            KeySource::Vault { path, field } => {
                let vault = self.vault.as_ref().ok_or_else(|| {
                    SecretsError::new(
                        "no Vault is configured",
                        "say where it is: [vault] address = \"https://…\"",
                    )
                })?;
                let token = self.local(&vault.token)?;
                check_header(&token, &vault.token)?;
                vault.fetch(&token, path, field).await
            }
            source => self.local(source),
        }
    }

    /// What lies on this machine.
    fn local(&self, source: &KeySource) -> Result<Secret, SecretsError> {
        match source {
            KeySource::Stored(name) => self.stored(name),
            KeySource::Variable(name) => self.variable(name),
            KeySource::File(path) => file(path),
            KeySource::Vault { .. } => Err(SecretsError::new(
                "the token of the Vault cannot come from the Vault",
                "name a stored secret, a file or a variable as its token",
            )),
        }
    }

    /// A secret of the store.
    pub fn stored(&self, name: &str) -> Result<Secret, SecretsError> {
        let id = check(name)?;
        let absent = || {
            SecretsError::new(
                format!("no secret is called `{id}`"),
                format!("keep it first: airlock secrets set {id}"),
            )
        };
        let folder = Folder::open(&self.folder)?.ok_or_else(absent)?;
        let sealed = folder.read(&id)?.ok_or_else(absent)?;
        let key = self.master.read(&folder)?.ok_or_else(|| {
            SecretsError::new(
                format!("the secret `{id}` cannot be decrypted: its master key is gone"),
                format!("bring the key back, or set the secret anew: airlock secrets set {id}"),
            )
        })?;
        seal::open(&key, &id, sealed)
    }

    /// Keeps a secret under a name, in place of any that was there.
    pub fn set(&self, name: &str, value: &Secret) -> Result<(), SecretsError> {
        let id = check(name)?;
        let folder = Folder::make(&self.folder)?;
        let key = self.master.read_or_make(&folder)?;
        folder.write(&id, &seal::seal(&key, &id, value)?)
    }

    /// A key of Airlock's own, made by random numbers when it is first asked for. One that is there and cannot be read is
    /// not replaced: what was made with it would fit nothing any more.
    pub fn own_key(&self, name: &str) -> Result<Zeroizing<[u8; 32]>, SecretsError> {
        let id = check(name)?;
        if !self.list()?.iter().any(|stored| stored.name == id) {
            let mut fresh = Zeroizing::new([0; 32]);
            SystemRandom::new().fill(&mut fresh[..]).map_err(|_| {
                SecretsError::new(
                    "no key could be made",
                    "try again; the kernel gave no random numbers",
                )
            })?;
            let text = STANDARD.encode(&fresh[..]).into_bytes();
            let text =
                Secret::new(text).map_err(|bad| SecretsError::new(bad.to_string(), "try again"))?;
            self.set(name, &text)?;
        }
        let kept = self.stored(name)?;
        let bytes = STANDARD.decode(kept.expose()).ok().map(Zeroizing::new);
        let key = bytes
            .and_then(|bytes| <[u8; 32]>::try_from(&bytes[..]).ok())
            .map(Zeroizing::new);
        key.ok_or_else(|| {
            let hint = format!("remove it, to have another one made: airlock secrets rm {id}");
            SecretsError::new(
                format!("the secret `{id}` is Airlock's own, and was changed"),
                hint,
            )
        })
    }

    /// The names that are kept, and since when. No values.
    pub fn list(&self) -> Result<Vec<Stored>, SecretsError> {
        Folder::open(&self.folder)?.map_or_else(|| Ok(Vec::new()), |folder| folder.list())
    }

    /// Forgets a secret; false if there was none.
    pub fn remove(&self, name: &str) -> Result<bool, SecretsError> {
        let id = check(name)?;
        Folder::open(&self.folder)?.map_or(Ok(false), |folder| folder.remove(&id))
    }

    fn variable(&self, name: &str) -> Result<Secret, SecretsError> {
        self.variables.get(name).cloned().ok_or_else(|| {
            SecretsError::new(
                format!("the variable `{}` is not set, or empty", name.escape_debug()),
                "set it before Airlock starts, or keep the key in the store: airlock secrets set NAME",
            )
        })
    }
}

/// What could end a header and begin another is no credential.
fn check_header(secret: &Secret, source: &KeySource) -> Result<(), SecretsError> {
    secret.check_header().map_err(|bad| {
        let place = match source {
            KeySource::Stored(name) => format!("the stored secret `{}`", name.escape_debug()),
            KeySource::Variable(name) => format!("the variable `{}`", name.escape_debug()),
            KeySource::File(path) => format!("the file `{}`", path.display()),
            KeySource::Vault { path, .. } => format!("`{}` of the Vault", path.escape_debug()),
        };
        SecretsError::new(
            format!("{place} is no key: {bad}"),
            "put the key, and nothing else, there",
        )
    })
}

fn check(name: &str) -> Result<Id, SecretsError> {
    Id::new(name).map_err(|bad| SecretsError::new(bad.to_string(), "give the secret another name"))
}

/// Who may read and write a file with a secret in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// Nobody but its owner.
    Owner,
    /// Also whoever is let in by root, as services get their credentials.
    Service,
}

/// Where Docker, Podman and Kubernetes put secrets, readable by everyone in a container that is all ours.
const SERVICE_SECRETS: &str = "/run/secrets";
/// More than any secret; a larger file is not one.
const LONGEST_FILE: u64 = 64 << 10;

fn file(path: &Path) -> Result<Secret, SecretsError> {
    let bytes = guarded(path, Guard::Service)?;
    Secret::new(bytes.to_vec()).map_err(|bad| {
        SecretsError::new(
            format!("`{}`: {bad}", path.display()),
            "put the secret, and nothing else, into the file",
        )
    })
}

/// The bytes of a file that only those read who should. Symbolic links are followed: the operator named it, and
/// services put them there.
fn guarded(path: &Path, guard: Guard) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
    let shown = path.display();
    let failed = |error: &dyn fmt::Display| {
        SecretsError::new(
            format!("cannot read `{shown}`: {error}"),
            "name a file that holds the secret alone",
        )
    };
    // Not to be held up by a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let mut file = File::from(opened.map_err(|error| failed(&io::Error::from(error)))?);
    let about = file.metadata().map_err(|error| failed(&error))?;
    if !about.is_file() {
        return Err(failed(&"it is not a regular file"));
    }
    if about.len() > LONGEST_FILE {
        return Err(failed(&"it is longer than 64 KiB"));
    }
    if let Some(why) = exposed(
        about.uid(),
        about.mode(),
        guard,
        path.starts_with(SERVICE_SECRETS),
    ) {
        return Err(SecretsError::new(
            format!("`{shown}` {why}"),
            format!("chmod 600 {shown}"),
        ));
    }
    read_whole(&mut file, about.len()).map_err(|error| failed(&error))
}

/// Why a file is no place for a secret.
fn exposed(owner: u32, mode: u32, guard: Guard, of_service: bool) -> Option<&'static str> {
    let by_root = owner == 0;
    if !by_root && owner != geteuid().as_raw() {
        return Some("belongs to somebody else");
    }
    match (mode & 0o777, guard) {
        (mode, _) if mode & 0o022 != 0 => Some("can be changed by others"),
        (mode, Guard::Owner) if mode & 0o077 != 0 => Some("can be read by others"),
        (mode, Guard::Service) if mode & 0o007 != 0 && !of_service => {
            Some("can be read by everyone")
        }
        (mode, Guard::Service) if mode & 0o070 != 0 && !by_root => Some("can be read by its group"),
        _ => None,
    }
}

/// Into a buffer that never moves, so that no copy is left behind.
fn read_whole(file: &mut File, size: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; size as usize]);
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
