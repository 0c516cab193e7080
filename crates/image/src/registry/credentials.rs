//! Credentials in the files of Docker and Podman: `auths` in JSON, or credential helper programs
//! (`credHelpers`, `credsStore`). The caller names the files.

use super::{credential_helper, secret, secret::RegistrySecret};
use serde::Deserialize;
use spec::{DEFAULT_REGISTRY, ImageRef};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Maximum bytes of a credentials file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Docker's key for its default registry.
const DOCKER_HUB_HOST: &str = "https://index.docker.io/v1/";

/// Credentials for a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Name and password.
    Password {
        /// The name.
        user: String,
        /// The password, or a token in its place.
        password: RegistrySecret,
    },
    /// A refresh token, which a token server exchanges for access tokens.
    Identity(RegistrySecret),
}

/// Sources of credentials.
#[derive(Clone, Debug, Default)]
pub struct CredentialSources<'s> {
    /// Files; the first that knows the registry wins. Missing files are skipped.
    pub files: Vec<PathBuf>,
    /// Folders to search for `docker-credential-NAME`, as in `PATH`.
    pub search_path: Option<&'s OsStr>,
}

/// Why credentials could not be read. Contains no secrets.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A credentials file cannot be read.
    #[error("cannot read `{}`: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A credential helper failed.
    #[error("`docker-credential-{program}` gave no credentials for `{registry}`: {why}")]
    Helper {
        /// Name of the helper.
        program: String,
        /// The registry.
        registry: String,
        /// The reason.
        why: String,
    },
}

/// A credentials file of Docker or Podman; other keys are ignored.
#[derive(Deserialize)]
struct CredentialsFile {
    #[serde(default)]
    auths: BTreeMap<String, AuthEntry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// Where a file says that the credentials are.
enum CredentialLookup {
    Here(Credentials),
    /// A helper program; `certain` if it was named for this registry alone.
    Helper {
        program: String,
        certain: bool,
    },
    Nowhere,
}

impl CredentialSources<'_> {
    /// The credentials for the registry of an image, if any.
    pub async fn find(&self, name: &ImageRef) -> Result<Option<Credentials>, CredentialsError> {
        for path in &self.files {
            let Some(kept) = read(path)? else { continue };
            match kept.find(name) {
                CredentialLookup::Here(credentials) => return Ok(Some(credentials)),
                CredentialLookup::Helper { program, certain } => {
                    let asked =
                        credential_helper::ask(&program, server(name.registry()), self.search_path)
                            .await;
                    match asked {
                        Ok(Some(credentials)) => return Ok(Some(credentials)),
                        Ok(None) => {}
                        // A general store that is not installed here has no credentials for this
                        // registry.
                        Err(credential_helper::HelperError::Absent) if !certain => {}
                        Err(trouble) => {
                            let registry = name.registry().to_owned();
                            let why = trouble.to_string();
                            return Err(CredentialsError::Helper {
                                program,
                                registry,
                                why,
                            });
                        }
                    }
                }
                CredentialLookup::Nowhere => {}
            }
        }
        Ok(None)
    }
}

/// Reads a credentials file; `None` if it is absent.
fn read(path: &Path) -> Result<Option<CredentialsFile>, CredentialsError> {
    let failed = |why: String| CredentialsError::File {
        path: path.to_owned(),
        why,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return Err(failed("it is not a regular file".to_owned()));
    }
    let mut text = Vec::new();
    let size = file
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| failed(error.to_string()))?;
    if size as u64 > MAX_FILE_BYTES {
        return Err(failed("it is larger than 1 MiB".to_owned()));
    }
    // Reports the position of a syntax error, not its text: that could be a password.
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| {
        failed(format!(
            "line {} column {} is invalid",
            error.line(),
            error.column()
        ))
    })
}

impl CredentialsFile {
    fn find(&self, name: &ImageRef) -> CredentialLookup {
        let registry = name.registry();
        let named = self
            .helpers
            .iter()
            .find(|(key, _)| host(key) == registry)
            .map(|(_, program)| program);
        if let Some(program) = named {
            return CredentialLookup::Helper {
                program: program.clone(),
                certain: true,
            };
        }
        if let Some(program) = self.store.as_deref().filter(|program| !program.is_empty()) {
            return CredentialLookup::Helper {
                program: program.to_owned(),
                certain: false,
            };
        }
        self.entry(name)
            .and_then(AuthEntry::credentials)
            .map_or(CredentialLookup::Nowhere, CredentialLookup::Here)
    }

    /// The entry for the longest matching prefix of the name: Podman stores some for `HOST/FOLDER`.
    fn entry(&self, name: &ImageRef) -> Option<&AuthEntry> {
        let full = format!("{}/{}", name.registry(), name.repository());
        let within = |key: &str| {
            full.strip_prefix(key)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let fitting = self.auths.iter().map(|(key, entry)| (scope(key), entry));
        fitting
            .filter(|(key, _)| within(key))
            .max_by_key(|(key, _)| key.len())
            .map(|(_, entry)| entry)
    }
}

impl AuthEntry {
    fn credentials(&self) -> Option<Credentials> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = filled(&self.identitytoken) {
            return Some(Credentials::Identity(RegistrySecret::new(token)));
        }
        let (user, password) = match filled(&self.auth) {
            Some(coded) => {
                let plain = String::from_utf8(secret::decode(&coded)?).ok()?;
                let (user, password) = plain.split_once(':')?;
                // Docker pads some passwords with NUL.
                (user.to_owned(), password.trim_end_matches('\0').to_owned())
            }
            None => (filled(&self.username)?, self.password.clone()?),
        };
        Some(Credentials::Password {
            user,
            password: RegistrySecret::new(password),
        })
    }
}

/// The name of a registry for credential helpers.
fn server(registry: &str) -> &str {
    match registry {
        DEFAULT_REGISTRY => DOCKER_HUB_HOST,
        other => other,
    }
}

/// The registry of a key.
fn host(key: &str) -> &str {
    scope(key).split('/').next().unwrap_or_default()
}

/// `HOST[/FOLDER]` of a key, without scheme and version suffix of older formats.
fn scope(key: &str) -> &str {
    let plain = key
        .strip_prefix("https://")
        .or(key.strip_prefix("http://"))
        .unwrap_or(key);
    let plain = plain.trim_end_matches('/');
    let plain = plain
        .strip_suffix("/v1")
        .or(plain.strip_suffix("/v2"))
        .unwrap_or(plain);
    match plain {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(file: &str, name: &str) -> CredentialLookup {
        serde_json::from_str::<CredentialsFile>(file)
            .unwrap()
            .find(&name.parse().unwrap())
    }

    fn here(file: &str, name: &str) -> Option<(String, String)> {
        match find(file, name) {
            CredentialLookup::Here(Credentials::Password { user, password }) => {
                Some((user, password.expose().to_owned()))
            }
            CredentialLookup::Here(Credentials::Identity(token)) => {
                Some(("<token>".into(), token.expose().to_owned()))
            }
            CredentialLookup::Helper { .. } | CredentialLookup::Nowhere => None,
        }
    }

    #[test]
    fn each_registry_gets_its_own_credentials_and_no_others() {
        let file = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOmE6Yg=="},
            "quay.io": {"username": "quay", "password": "q"},
            "quay.io/team": {"auth": "dGVhbTp0"},
            "127.0.0.1:5000": {"auth": "", "identitytoken": "idt"},
            "broken.example": {"auth": "!"}, "empty.example": {}}, "HttpHeaders": {"x": "y"}}"#;
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(here(file, "debian"), pair("hub", "a:b"));
        assert_eq!(here(file, "quay.io/other/x"), pair("quay", "q"));
        assert_eq!(here(file, "quay.io/team/x"), pair("team", "t"));
        assert_eq!(here(file, "quay.io/teams/x"), pair("quay", "q"));
        assert_eq!(here(file, "127.0.0.1:5000/x"), pair("<token>", "idt"));
        for stranger in [
            "127.0.0.1:5001/x",
            "evil.quay.io/x",
            "broken.example/x",
            "empty.example/x",
        ] {
            assert_eq!(here(file, stranger), None, "{stranger}");
        }
    }

    #[test]
    fn a_helper_for_the_registry_is_asked_before_the_store_and_that_before_the_file() {
        let file = r#"{"auths": {"a.example": {"auth": "dGVhbTp0"}}, "credHelpers": {"b.example": "ecr"}, "credsStore": "pass"}"#;
        let helper = |name| match find(file, name) {
            CredentialLookup::Helper { program, certain } => Some((program, certain)),
            CredentialLookup::Here(_) | CredentialLookup::Nowhere => None,
        };
        assert_eq!(helper("b.example/x"), Some(("ecr".into(), true)));
        assert_eq!(helper("a.example/x"), Some(("pass".into(), false)));
    }

    #[test]
    fn a_broken_file_is_told_by_its_place_and_never_by_its_text() {
        let path = std::env::temp_dir().join(format!("airlock-credentials-{}", std::process::id()));
        std::fs::write(&path, "{\"auths\": {\"x\": {\"password\": hunter2}}}").unwrap();
        let told = read(&path).err().unwrap().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(
            told.contains("line 1 column") && !told.contains("hunter2"),
            "{told}"
        );
        assert!(read(&path).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn no_key_reaches_another_host(
            key in "(https?://)?(own\\.example|[a-z.:/0-9]{0,20})",
            folder in "[a-z/]{0,8}",
        ) {
            let key = format!("{key}{folder}");
            let file = serde_json::json!({ "auths": { &key: { "auth": "dGVhbTp0" } } });
            if here(&file.to_string(), "own.example/a/b").is_some() {
                prop_assert_eq!(host(&key), "own.example");
            }
        }

        #[test]
        fn a_password_comes_out_as_it_went_in(user in "[^:\\x00-\\x1f]{1,10}", password in "[^\\x00-\\x1f]{0,20}") {
            let auth = secret::encode(format!("{user}:{password}").as_bytes());
            let file = serde_json::json!({ "auths": { "h.example": { "auth": auth } } });
            prop_assert_eq!(here(&file.to_string(), "h.example/x"), Some((user, password)));
        }
    }
}
