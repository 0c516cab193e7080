//! Secrets: reads credentials from the encrypted store, environment variables, files or a Vault. Read
//! when a door opens, never shown.
//!
//! ```text
//! STATE/secrets/            0700
//!     NAME.secret           0600   version, nonce, AES-256-GCM of the value; bound to NAME
//!     key                   0600   the master key, only if no better source is configured
//! ```

mod encryption;
mod master_key;
mod store_dir;
mod vault;

pub use master_key::MasterKey;
pub use store_dir::StoredSecret;
pub use vault::Vault;

use crate::secret::Secret;
use base64::{Engine as _, engine::general_purpose::STANDARD};
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
use store_dir::StoreDir;
use zeroize::Zeroizing;

/// Source of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The encrypted store, by name.
    Stored(String),
    /// An environment variable of Airlock's own process.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// A field of a secret in the configured Vault (KV version 2).
    Vault {
        /// The path below the mount.
        path: String,
        /// The field, by default `value`.
        field: String,
    },
}

/// Why a credential is not available. Never contains the credential.
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

/// Reads credentials from their sources, and manages the encrypted store.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The store's directory; created with the first secret.
    pub folder: PathBuf,
    /// Source of the encryption key.
    pub master: MasterKey,
    /// The environment variables that the configuration names, if set.
    pub variables: BTreeMap<String, Secret>,
    /// The Vault, if one is configured.
    pub vault: Option<Vault>,
}

impl Secrets {
    /// Reads a credential and checks that it can be sent in a header.
    pub async fn find(&self, source: &KeySource) -> Result<Secret, SecretsError> {
        let found = self.read(source).await?;
        check_header(&found, source)?;
        Ok(found)
    }

    /// Reads a secret for any use: it may have several lines.
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

    /// Reads a local source.
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

    /// Reads a secret of the store.
    pub fn stored(&self, name: &str) -> Result<Secret, SecretsError> {
        let id = check(name)?;
        let absent = || {
            SecretsError::new(
                format!("no secret is called `{id}`"),
                format!("keep it first: airlock secrets set {id}"),
            )
        };
        let folder = StoreDir::open(&self.folder)?.ok_or_else(absent)?;
        let sealed = folder.read(&id)?.ok_or_else(absent)?;
        let key = self.master.read(&folder)?.ok_or_else(|| {
            SecretsError::new(
                format!("the secret `{id}` cannot be decrypted: its master key is gone"),
                format!("bring the key back, or set the secret anew: airlock secrets set {id}"),
            )
        })?;
        encryption::open(&key, &id, sealed)
    }

    /// Stores a secret under a name, replacing any existing one.
    pub fn set(&self, name: &str, value: &Secret) -> Result<(), SecretsError> {
        let id = check(name)?;
        let folder = StoreDir::make(&self.folder)?;
        let key = self.master.read_or_make(&folder)?;
        folder.write(&id, &encryption::seal(&key, &id, value)?)
    }

    /// One of Airlock's own keys, generated on first use. An existing key that cannot be read is
    /// not replaced: whatever was made with it would become unusable.
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
        let stored_key = self.stored(name)?;
        let bytes = STANDARD
            .decode(stored_key.expose())
            .ok()
            .map(Zeroizing::new);
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

    /// Names and dates of the stored secrets; no values.
    pub fn list(&self) -> Result<Vec<StoredSecret>, SecretsError> {
        StoreDir::open(&self.folder)?.map_or_else(|| Ok(Vec::new()), |folder| folder.list())
    }

    /// Removes a secret; false if there was none.
    pub fn remove(&self, name: &str) -> Result<bool, SecretsError> {
        let id = check(name)?;
        StoreDir::open(&self.folder)?.map_or(Ok(false), |folder| folder.remove(&id))
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

/// A value that could end a header and start another is not a credential.
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

/// Who may read a file with a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedReaders {
    /// Only its owner.
    Owner,
    /// Also a group that root allows, as for service credentials.
    Service,
}

/// Where Docker, Podman and Kubernetes mount secrets, world-readable in a container that is all
/// ours.
const SERVICE_SECRETS: &str = "/run/secrets";
/// Larger than any secret.
const MAX_FILE_BYTES: u64 = 64 << 10;

fn file(path: &Path) -> Result<Secret, SecretsError> {
    let bytes = read_guarded_file(path, AllowedReaders::Service)?;
    Secret::new(bytes.to_vec()).map_err(|bad| {
        SecretsError::new(
            format!("`{}`: {bad}", path.display()),
            "put the secret, and nothing else, into the file",
        )
    })
}

/// Reads a file after checking its permissions. Symbolic links are followed: the operator named the
/// file, and services put them there.
fn read_guarded_file(
    path: &Path,
    guard: AllowedReaders,
) -> Result<Zeroizing<Vec<u8>>, SecretsError> {
    let display_path = path.display();
    let failed = |error: &dyn fmt::Display| {
        SecretsError::new(
            format!("cannot read `{display_path}`: {error}"),
            "name a file that holds the secret alone",
        )
    };
    // O_NONBLOCK, so that opening a FIFO does not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let mut file = File::from(opened.map_err(|error| failed(&io::Error::from(error)))?);
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err(failed(&"it is not a regular file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(failed(&"it is longer than 64 KiB"));
    }
    if let Some(why) = permission_problem(
        metadata.uid(),
        metadata.mode(),
        guard,
        path.starts_with(SERVICE_SECRETS),
    ) {
        return Err(SecretsError::new(
            format!("`{display_path}` {why}"),
            format!("chmod 600 {display_path}"),
        ));
    }
    read_whole(&mut file, metadata.len()).map_err(|error| failed(&error))
}

/// What is wrong with the permissions of a secret file.
fn permission_problem(
    owner: u32,
    mode: u32,
    guard: AllowedReaders,
    of_service: bool,
) -> Option<&'static str> {
    let by_root = owner == 0;
    if !by_root && owner != geteuid().as_raw() {
        return Some("belongs to somebody else");
    }
    match (mode & 0o777, guard) {
        (mode, _) if mode & 0o022 != 0 => Some("can be changed by others"),
        (mode, AllowedReaders::Owner) if mode & 0o077 != 0 => Some("can be read by others"),
        (mode, AllowedReaders::Service) if mode & 0o007 != 0 && !of_service => {
            Some("can be read by everyone")
        }
        (mode, AllowedReaders::Service) if mode & 0o070 != 0 && !by_root => {
            Some("can be read by its group")
        }
        _ => None,
    }
}

/// Reads into a buffer that never moves, so that no copy is left behind.
fn read_whole(file: &mut File, size: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(vec![0; size as usize]);
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
