//! Credential helpers: `docker-credential-NAME get`, the registry on stdin, JSON on stdout. The
//! output is bounded, read with a timeout, and never shown.

use super::{credentials::Credentials, secret::RegistrySecret};
use serde::Deserialize;
use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::timeout,
};

const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// Timeout: a keychain may ask a human first.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
/// The message of all helpers for an unknown registry.
const NOT_FOUND: &[u8] = b"credentials not found in native keychain";

/// Why a helper gave no credentials.
#[derive(Debug, thiserror::Error)]
pub(super) enum HelperError {
    #[error("there is no such program in PATH")]
    Absent,
    #[error("its name is not a plain word")]
    BadName,
    #[error("it took longer than {} s", HELPER_TIMEOUT.as_secs())]
    TooLong,
    #[error("it wrote more than {} KiB", MAX_OUTPUT_BYTES >> 10)]
    TooMuch,
    #[error("it ended with {0}")]
    Failed(String),
    #[error("its output is not that of a credential helper")]
    Malformed,
    #[error("it cannot be run: {0}")]
    Start(#[from] io::Error),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperResponse {
    username: String,
    secret: String,
}

/// Asks a helper about a registry; `None` if it has no credentials for it.
pub(super) async fn ask(
    name: &str,
    server: &str,
    search_path: Option<&OsStr>,
) -> Result<Option<Credentials>, HelperError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=64).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(HelperError::BadName);
    }
    let program =
        find(&format!("docker-credential-{name}"), search_path).ok_or(HelperError::Absent)?;
    let mut command = Command::new(program);
    // The helper may need the user's environment, but not our own master key.
    command.env_remove("AIRLOCK_MASTER_KEY");
    command
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    timeout(HELPER_TIMEOUT, converse(&mut child, server))
        .await
        .map_err(|_| HelperError::TooLong)?
}

async fn converse(child: &mut Child, server: &str) -> Result<Option<Credentials>, HelperError> {
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that does not read its input is judged by its output.
        _ = stdin.write_all(format!("{server}\n").as_bytes()).await;
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout
            .take(MAX_OUTPUT_BYTES + 1)
            .read_to_end(&mut answer)
            .await?;
    }
    if answer.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(HelperError::TooMuch);
    }
    let status = child.wait().await?;
    if status.success() {
        return read(&answer).map(Some).ok_or(HelperError::Malformed);
    }
    if answer.trim_ascii() == NOT_FOUND {
        return Ok(None);
    }
    Err(HelperError::Failed(status.to_string()))
}

fn read(answer: &[u8]) -> Option<Credentials> {
    let HelperResponse { username, secret } = serde_json::from_slice(answer).ok()?;
    Some(match username.as_str() {
        "<token>" => Credentials::Identity(RegistrySecret::new(secret)),
        _ => Credentials::Password {
            user: username,
            password: RegistrySecret::new(secret),
        },
    })
}

/// Only absolute folders: a file in the current folder may come from a hostile clone.
fn find(program: &str, search_path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = std::env::split_paths(search_path?).filter(|folder| folder.is_absolute());
    folders
        .map(|folder| folder.join(program))
        .find(|path| Path::new(path).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    /// The result of a helper with this script.
    async fn answer(label: &str, script: &str) -> Result<Option<Credentials>, HelperError> {
        let folder =
            std::env::temp_dir().join(format!("airlock-helper-{}-{label}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("docker-credential-test");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let answer = ask("test", "r.example", Some(folder.as_os_str())).await;
        fs::remove_dir_all(&folder).unwrap();
        answer
    }

    #[tokio::test]
    async fn a_helper_is_given_the_registry_and_gives_the_credentials() {
        let script = r#"read host; printf '{"ServerURL":"%s","Username":"u-%s","Secret":"s"}' "$host" "$1-$host""#;
        let password = Credentials::Password {
            user: "u-get-r.example".into(),
            password: RegistrySecret::new("s"),
        };
        assert_eq!(answer("password", script).await.unwrap(), Some(password));
        let token = r#"echo '{"ServerURL":"x","Username":"<token>","Secret":"t"}'"#;
        assert_eq!(
            answer("token", token).await.unwrap(),
            Some(Credentials::Identity(RegistrySecret::new("t")))
        );
        let unknown = "echo credentials not found in native keychain; exit 1";
        assert_eq!(answer("unknown", unknown).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_helper_that_misbehaves_is_named_and_its_words_are_not_repeated() {
        let failed = answer("failed", "echo hunter2; exit 3").await.unwrap_err();
        assert!(
            matches!(&failed, HelperError::Failed(why) if why.contains('3') && !why.contains("hunter2"))
        );
        assert!(matches!(
            answer("endless", "exec yes").await,
            Err(HelperError::TooMuch)
        ));
        assert!(matches!(
            answer("words", "echo hello").await,
            Err(HelperError::Malformed)
        ));
    }

    #[tokio::test]
    async fn only_a_plain_word_in_an_absolute_folder_is_run() {
        for name in ["", "../x", "a/b", "a b", "$(x)"] {
            assert!(
                matches!(
                    ask(name, "r", Some(OsStr::new("/bin"))).await,
                    Err(HelperError::BadName)
                ),
                "{name}"
            );
        }
        for path in [
            None,
            Some(OsStr::new(".")),
            Some(OsStr::new("/nonexistent")),
        ] {
            assert!(
                matches!(ask("test", "r", path).await, Err(HelperError::Absent)),
                "{path:?}"
            );
        }
    }
}
