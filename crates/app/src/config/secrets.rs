//! `[secrets]` and `[vault]`, and the source of the secret store's master key: the best one that is
//! available.

use super::{
    ConfigError, ProcessEnv,
    provider::{key, server_address, vault_path},
    toml_file::Section,
};
use doors::{
    Secret,
    secrets::{KeySource, MasterKey, Secrets, Vault},
};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};
use toml::Table;

/// The sections `[secrets]` and `[vault]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SecretSettings {
    pub(super) key_file: Option<PathBuf>,
    pub(super) keyring: bool,
    pub(super) vault: Option<Vault>,
}

impl SecretSettings {
    /// Reads `[secrets]`.
    pub(super) fn read(&mut self, table: &Table, path: &Path) -> Result<(), ConfigError> {
        let section = Section {
            path,
            name: "secrets",
        };
        for (key, value) in table {
            match key.as_str() {
                "key_file" => self.key_file = Some(section.absolute(key, value)?),
                "keyring" => self.keyring = section.flag(key, value)?,
                other => return Err(section.unknown(other, &["key_file", "keyring"])),
            }
        }
        if self.keyring && self.key_file.is_some() {
            Err(section.error("keyring", "and `key_file` are both set", "keep one of them"))
        } else {
            Ok(())
        }
    }

    /// Reads `[vault]`.
    pub(super) fn read_vault(&mut self, table: &Table, path: &Path) -> Result<(), ConfigError> {
        let section = Section {
            path,
            name: "vault",
        };
        let hint = "write address = \"https://…\" and token = { file = \"/…\" }";
        section.needs(table, &["address", "token"], hint)?;
        let mut vault = Vault {
            address: http::Uri::default(),
            mount: "secret".to_owned(),
            token: KeySource::Stored(String::new()),
            namespace: None,
            allow_plain_http: false,
            ca: None,
        };
        for (word, value) in table {
            match word.as_str() {
                "address" => {
                    let address = server_address(section.text(word, value)?);
                    vault.address =
                        address.map_err(|(what, hint)| section.error(word, what, hint))?;
                }
                "mount" => vault.mount = vault_path(&section, word, value)?,
                "token" => vault.token = key(&section, word, value)?,
                "namespace" => vault.namespace = Some(vault_path(&section, word, value)?),
                "allow_plain_http" => vault.allow_plain_http = section.flag(word, value)?,
                "ca" => vault.ca = Some(section.absolute(word, value)?),
                other => {
                    let known = [
                        "address",
                        "mount",
                        "token",
                        "namespace",
                        "allow_plain_http",
                        "ca",
                    ];
                    return Err(section.unknown(other, &known));
                }
            }
        }
        check(&vault, &section)?;
        self.vault = Some(vault);
        Ok(())
    }
}

fn check(vault: &Vault, section: &Section<'_>) -> Result<(), ConfigError> {
    if vault.address.path() != "/" {
        return Err(section.error(
            "address",
            "has a path",
            "write https://HOST[:PORT], and the path as `mount`",
        ));
    }
    if vault.address.scheme_str() == Some("http") && !vault.allow_plain_http {
        let hint =
            "use https, or set allow_plain_http = true: the token can then be read on the network";
        return Err(section.error("address", "is not encrypted", hint));
    }
    match vault.token {
        KeySource::Vault { .. } => Err(section.error(
            "token",
            "cannot be in the Vault itself",
            "name a secret, a file or a variable",
        )),
        KeySource::Stored(_) | KeySource::File(_) | KeySource::Variable(_) => Ok(()),
    }
}

/// Builds the reader of credentials. It gets only those environment variables that the
/// configuration names.
pub(super) fn assemble<'k>(
    settings: SecretSettings,
    keys: impl Iterator<Item = &'k KeySource>,
    state: &Path,
    env: &ProcessEnv,
) -> Result<Secrets, ConfigError> {
    let token = settings.vault.as_ref().map(|vault| &vault.token).cloned();
    let named = keys.cloned().chain(token).filter_map(|key| match key {
        KeySource::Variable(name) => Some(name),
        KeySource::Stored(_) | KeySource::File(_) | KeySource::Vault { .. } => None,
    });
    let value = |name: String| {
        let bytes = env.variable(&name)?.as_bytes().to_vec();
        // An invalid value counts as missing; the reader reports it.
        Secret::new(bytes).ok().map(|secret| (name, secret))
    };
    let variables = named.filter_map(value).collect();
    let folder = state.join("secrets");
    let master = master_key(&settings, env)?;
    Ok(Secrets {
        folder,
        master,
        variables,
        vault: settings.vault,
    })
}

/// Chooses the master key. The variable has precedence; an empty one is an error, not a request for
/// a weaker key.
fn master_key(settings: &SecretSettings, env: &ProcessEnv) -> Result<MasterKey, ConfigError> {
    if let Some(given) = &env.master_key {
        let given = given.clone().map_err(|bad| {
            let hint = "unset it, or create one: head -c 32 /dev/urandom | base64";
            ConfigError::new(
                format!("`{}` is no master key: {bad}", super::MASTER_KEY),
                hint,
            )
        })?;
        return Ok(MasterKey::Given(given));
    }
    Ok(
        match (credential(env)?, &settings.key_file, settings.keyring) {
            (Some(path), ..) => MasterKey::Credential(path),
            (None, Some(path), _) => MasterKey::File(path.clone()),
            (None, None, true) => MasterKey::Keyring,
            (None, None, false) => MasterKey::Beside,
        },
    )
}

/// The master key from systemd's credentials. If it may exist but cannot be reached, a weaker key
/// must not be used instead.
fn credential(env: &ProcessEnv) -> Result<Option<PathBuf>, ConfigError> {
    let folder = env.variable("CREDENTIALS_DIRECTORY").map(Path::new);
    let Some(path) = folder.map(|folder| folder.join("airlock-master-key")) else {
        return Ok(None);
    };
    match path.try_exists() {
        Ok(there) => Ok(there.then_some(path)),
        Err(error) => Err(ConfigError::new(
            format!("cannot read the master key `{}`: {error}", path.display()),
            "correct the credentials of the service, or unset CREDENTIALS_DIRECTORY",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<SecretSettings, ConfigError> {
        let table: Table = text.parse().unwrap();
        let mut settings = SecretSettings::default();
        for (key, value) in &table {
            match key.as_str() {
                "secrets" => settings.read(value.as_table().unwrap(), Path::new("/c.toml"))?,
                _ => settings.read_vault(value.as_table().unwrap(), Path::new("/c.toml"))?,
            }
        }
        Ok(settings)
    }

    fn place(text: &str, env: &ProcessEnv) -> String {
        format!("{:?}", master_key(&settings(text).unwrap(), env).unwrap())
    }

    #[test]
    fn the_master_key_comes_from_the_best_place_there_is() {
        let folder =
            std::env::temp_dir().join(format!("airlock-credentials-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut env = ProcessEnv::default();
        assert_eq!(place("", &env), "Beside");
        assert_eq!(place("[secrets]\nkeyring = true", &env), "Keyring");
        assert_eq!(place("[secrets]\nkey_file = \"/k\"", &env), "File(\"/k\")");
        env.variables
            .insert("CREDENTIALS_DIRECTORY".into(), folder.clone().into());
        assert_eq!(
            place("[secrets]\nkey_file = \"/k\"", &env),
            "File(\"/k\")",
            "a service may have others"
        );
        std::fs::write(folder.join("airlock-master-key"), "x").unwrap();
        assert!(place("[secrets]\nkey_file = \"/k\"", &env).starts_with("Credential("));
        env.master_key = Some(Secret::new(b"sk-canary".to_vec()));
        assert_eq!(
            place("[secrets]\nkey_file = \"/k\"", &env),
            "Given(Secret(..))"
        );
        env.master_key = Some(Secret::new(Vec::new()));
        let refused = master_key(&SecretSettings::default(), &env).unwrap_err();
        assert_eq!(
            refused.message,
            "`AIRLOCK_MASTER_KEY` is no master key: the secret is empty"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_credential_that_cannot_be_reached_is_no_reason_to_take_a_weaker_key() {
        let file =
            std::env::temp_dir().join(format!("airlock-no-credentials-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let variables = [("CREDENTIALS_DIRECTORY".into(), file.clone().into())].into();
        let env = ProcessEnv {
            variables,
            ..ProcessEnv::default()
        };
        // Not by mode: root may look everywhere.
        let refused = master_key(&SecretSettings::default(), &env).unwrap_err();
        assert!(
            refused.message.starts_with("cannot read the master key `"),
            "{}",
            refused.message
        );
        std::fs::remove_file(&file).unwrap();
        assert_eq!(
            place("", &env),
            "Beside",
            "what is not there was not passed on"
        );
    }

    #[test]
    fn only_variables_that_are_named_are_taken_along() {
        let variables = [("A", "sk-a"), ("B", "sk-b"), ("T", "sk-t"), ("EMPTY", "")];
        let variables = variables
            .map(|(name, value)| (name.into(), value.into()))
            .into();
        let env = ProcessEnv {
            variables,
            ..ProcessEnv::default()
        };
        let vault =
            settings("[vault]\naddress = \"https://v.example:8200\"\ntoken = { env = \"T\" }")
                .unwrap();
        let keys = ["A", "EMPTY", "ABSENT"].map(|name| KeySource::Variable(name.to_owned()));
        let secrets = assemble(vault, keys.iter(), Path::new("/state"), &env).unwrap();
        assert_eq!(secrets.variables.keys().collect::<Vec<_>>(), ["A", "T"]);
        assert_eq!(secrets.folder, Path::new("/state/secrets"));
        assert!(
            !format!("{secrets:?}").contains("sk-"),
            "nothing of it prints"
        );
    }

    #[test]
    fn mistakes_name_the_key_the_file_and_the_remedy() {
        let vault = "[vault]\naddress = \"https://v.example\"\ntoken = { file = \"/t\" }\n";
        assert!(
            settings(vault).is_ok() && settings("[secrets]").is_ok(),
            "the positive control"
        );
        for (text, message, hint) in [
            (
                "[secrets]\nkey_fil = \"/k\"",
                "`secrets.key_fil` in `/c.toml` is not a known key",
                "did you mean `key_file`?",
            ),
            (
                "[secrets]\nkey_file = \"k\"",
                "`secrets.key_file` in `/c.toml` must be an absolute path",
                "begin it with /",
            ),
            (
                "[secrets]\nkeyring = \"yes\"",
                "`secrets.keyring` in `/c.toml` must be true or false",
                "write it without quotes",
            ),
            (
                "[secrets]\nkeyring = true\nkey_file = \"/k\"",
                "`secrets.keyring` in `/c.toml` and `key_file` are both",
                "keep one",
            ),
            (
                "[vault]\naddress = \"https://v\"",
                "`vault.token` in `/c.toml` is missing",
                "write address",
            ),
            (
                "[vault]\naddress = \"http://v\"\ntoken = { file = \"/t\" }",
                "`vault.address` in `/c.toml` is not encrypted",
                "use https",
            ),
            (
                "[vault]\naddress = \"https://v/x\"\ntoken = { file = \"/t\" }",
                "`vault.address` in `/c.toml` has a path",
                "write https",
            ),
            (
                "[vault]\naddress = \"https://0xa9fea9fe\"\ntoken = { file = \"/t\" }",
                "`vault.address` in `/c.toml` is the address of a metadata",
                "write",
            ),
            (
                "[vault]\naddress = \"https://v\"\ntoken = { vault = \"x\" }",
                "`vault.token` in `/c.toml` cannot be in the Vault",
                "name a secret",
            ),
            (
                "[vault]\naddress = \"https://v\"\ntoken = \"hvs.x\"",
                "`vault.token` in `/c.toml` must name the source of the key",
                "write { secret",
            ),
            (
                &format!("{vault}mount = \"a/../b\""),
                "`vault.mount` in `/c.toml` is not a path",
                "such as",
            ),
            (
                &format!("{vault}mont = \"a\""),
                "`vault.mont` in `/c.toml` is not a known key",
                "did you mean `mount`?",
            ),
        ] {
            let refused = settings(text).expect_err(text);
            assert!(refused.message.starts_with(message), "{}", refused.message);
            assert!(refused.hint.starts_with(hint), "{text}: {}", refused.hint);
        }
    }
}
