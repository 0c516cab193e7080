//! Which server a command is sent to, and with which key: options over environment. A key is never
//! an argument, where every process of the machine could read it.

use super::{Cli, Command, Global, message::Failure};
use crate::{
    config::ProcessEnv,
    remote::{CertificateVerifier, Client, IDLE_TIMEOUT, Problem, RemoteError, ServerAddress},
};
use doors::{BadSecret, Secret};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use spec::ErrorCode;
use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

const URL_VARIABLE: &str = "AIRLOCK_URL";
const KEY_FILE_VARIABLE: &str = "AIRLOCK_KEY_FILE";
const CA_VARIABLE: &str = "AIRLOCK_CA";
const ALLOW_PLAIN_VARIABLE: &str = "AIRLOCK_ALLOW_PLAIN_HTTP";
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

impl Cli {
    /// Sets the command's name, which messages about `--server` mention.
    pub(super) fn with_command_name(self) -> Cli {
        let command = match &self.command {
            Command::Run(_) => "run",
            Command::Steps(_) => "steps",
            Command::Grant(_) => "grant",
            Command::Doctor(_) => "doctor",
            Command::Sweep(_) => "sweep",
            Command::Artifact(_) => "artifact",
            Command::Usage(_) => "usage",
            Command::Image(_) => "image",
            Command::Secrets(_) => "secrets",
            Command::Serve(_) => "serve",
            Command::Service(_) => "service",
            Command::Backup(_) => "backup",
            Command::Restore(_) => "restore",
            Command::State(_) => "state",
            Command::Sandbox(_) => "sandbox",
            Command::Workspace(_) => "workspace",
            Command::Jobs(_) => "jobs",
            Command::Key(_) => "key",
            Command::Proxy(_) => "proxy",
            Command::Bench(_) => "bench",
            Command::Audit(_) => "audit",
            Command::Quota(_) => "quota",
            Command::Worker(_) => "worker",
            Command::EscapeTest(_) => "escape-test",
        };
        Cli {
            global: Global {
                command,
                ..self.global
            },
            ..self
        }
    }
}

impl Global {
    /// The client for the selected server, or `None` for this machine.
    pub(super) fn server(&self, env: &ProcessEnv) -> Result<Option<Client>, Failure> {
        let Some(text) = self.server.as_deref().or(env.variable(URL_VARIABLE)) else {
            return Ok(None);
        };
        let hint = "write http://HOST:PORT, https://HOST or unix:/PATH";
        let shown = text.to_string_lossy();
        let address = ServerAddress::parse(&shown).map_err(|why| {
            Failure::invalid(format!("`{shown}` is not a server address: {why}"), hint)
        })?;
        let key = self.key(env)?;
        if !address.is_private() && env.variable(ALLOW_PLAIN_VARIABLE) != Some(OsStr::new("1")) {
            let message = format!("the key would be sent to {address} unencrypted");
            let hint =
                format!("use https://, or set {ALLOW_PLAIN_VARIABLE}=1 if you trust the network");
            return Err(Failure {
                code: ErrorCode::PolicyDenied,
                message,
                hint,
            });
        }
        let tls = matches!(address, ServerAddress::Encrypted(_))
            .then(|| self.tls(env))
            .transpose()?;
        super::leave_no_dump()?;
        Ok(Some(Client {
            address,
            key: Some(key),
            tls,
            idle_timeout: IDLE_TIMEOUT,
        }))
    }

    /// The client, for commands that only a server can carry out.
    pub(super) fn require_server(&self, env: &ProcessEnv) -> Result<Client, Failure> {
        let hint = "start one with `airlock serve`, then give --server URL or AIRLOCK_URL";
        let message = "this command needs a server, and none is given";
        self.server(env)?
            .ok_or_else(|| Failure::invalid(message, hint))
    }

    /// Refuses `--server` for commands that act on this machine only.
    pub(super) fn refuse_server(&self, env: &ProcessEnv) -> Result<(), Failure> {
        let message = format!(
            "`{}` acts on this machine only, and cannot be used with a server",
            self.command
        );
        match (&self.server, env.variable(URL_VARIABLE)) {
            (Some(_), _) => Err(Failure::invalid(
                message,
                "omit --server to act on this machine",
            )),
            (None, Some(_)) => Err(Failure::invalid(
                message,
                format!("unset {URL_VARIABLE} to act on this machine"),
            )),
            (None, None) => Ok(()),
        }
    }

    fn key(&self, env: &ProcessEnv) -> Result<Secret, Failure> {
        let bad = |from: &str, why: BadSecret| {
            Failure::invalid(
                format!("the key in {from} cannot be used: {why}"),
                "store the key exactly as it was shown",
            )
        };
        let file = self.key_file.clone().map(|path| ("--key-file", path));
        let variable = || {
            env.variable(KEY_FILE_VARIABLE)
                .map(|path| (KEY_FILE_VARIABLE, PathBuf::from(path)))
        };
        match (file, &env.server_key) {
            (Some((_, path)), _) => read_key(&path)?.map_err(|why| bad("--key-file", why)),
            (None, Some(key)) => key.clone().map_err(|why| bad("AIRLOCK_KEY", why)),
            (None, None) => match variable() {
                Some((name, path)) => read_key(&path)?.map_err(|why| bad(name, why)),
                None => Err(Failure::invalid(
                    "no key for the server is given",
                    "set AIRLOCK_KEY, or name a file with the key by --key-file or AIRLOCK_KEY_FILE",
                )),
            },
        }
    }

    /// TLS with the machine's certificate authorities and the one from `--server-ca`.
    pub(super) fn tls(&self, env: &ProcessEnv) -> Result<Arc<ClientConfig>, Failure> {
        let file = self
            .server_ca
            .clone()
            .or_else(|| env.variable(CA_VARIABLE).map(PathBuf::from));
        let failed =
            |why: String| Failure::invalid(why, "give --server-ca a file with certificates in PEM");
        let extra = file.map_or(Ok(Vec::new()), |path| {
            let read = CertificateDer::pem_file_iter(&path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>);
            match read {
                Ok(none) if none.is_empty() => {
                    Err(failed(format!("`{}` has no certificate", path.display())))
                }
                Ok(some) => Ok(some),
                Err(error) => Err(failed(format!("cannot read `{}`: {error}", path.display()))),
            }
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = Verifier::new_with_extra_roots(extra.clone(), provider.clone());
        let authorities = authorities
            .map_err(|error| failed(format!("no certificate can be checked: {error}")))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::internal(format!("cannot use TLS: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(CertificateVerifier::new(
                authorities,
                extra,
            )))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read_key(path: &Path) -> Result<Result<Secret, BadSecret>, Failure> {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_KEY_FILE_BYTES).read_to_end(&mut bytes));
    read.map_err(|error| {
        let message = format!("cannot read the key file `{}`: {error}", path.display());
        Failure::invalid(message, "name a file that contains only the key")
    })?;
    Ok(Secret::new(bytes).and_then(|key| key.check_header().map(|()| key)))
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let message = error.to_string();
        match error {
            RemoteError::Unreachable { .. } => Failure {
                code: ErrorCode::BackendUnavailable,
                message,
                hint: "start it with `airlock serve`, or choose another with --server or AIRLOCK_URL"
                    .to_owned(),
            },
            RemoteError::Untrusted { .. } => Failure {
                code: ErrorCode::BackendUnavailable,
                message,
                hint: "give its certificate, or that of its authority, with --server-ca or AIRLOCK_CA; \
                       check the address and its port"
                    .to_owned(),
            },
            RemoteError::Broken { .. } | RemoteError::TimedOut { .. } => {
                let hint = "check whether the server is running: its /healthz needs no key"
                    .to_owned();
                Failure {
                    code: ErrorCode::Lost,
                    message,
                    hint,
                }
            }
            RemoteError::NotAirlock { .. } => Failure::invalid(
                message,
                "check the address and its port, and that no proxy is in between",
            ),
            RemoteError::Local(_) => Failure::invalid(message, "correct it, and try again"),
            RemoteError::Refused(problem) => refused(*problem),
        }
    }
}

/// Turns a problem document into a failure with a hint for the command line.
fn refused(problem: Problem) -> Failure {
    let with_command_name = serde_json::from_value(serde_json::Value::String(problem.code.clone()));
    let code = with_command_name.unwrap_or(match problem.status {
        401 | 403 => ErrorCode::PolicyDenied,
        404 | 409 | 410 => ErrorCode::InvalidSpec,
        429 => ErrorCode::QuotaExceeded,
        _ => ErrorCode::Internal,
    });
    let hint = match problem.status {
        401 => "check AIRLOCK_KEY or --key-file; an admin creates keys with `airlock key create`"
            .to_owned(),
        _ => problem.detail.unwrap_or_default(),
    };
    Failure {
        code,
        message: problem.title,
        hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(variables: &[(&str, &str)], key: Option<&str>) -> ProcessEnv {
        ProcessEnv {
            variables: variables
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            server_key: key.map(|key| Secret::new(key.as_bytes().to_vec())),
            ..ProcessEnv::default()
        }
    }

    fn with_command_name(url: &str) -> Global {
        Global {
            server: Some(url.into()),
            command: "doctor",
            ..Global::default()
        }
    }

    #[test]
    fn a_command_of_this_machine_refuses_a_server_however_it_is_named() {
        let plain = env(&[], None);
        assert!(
            Global::default().refuse_server(&plain).is_ok(),
            "the positive control"
        );
        let refused = with_command_name("http://x")
            .refuse_server(&plain)
            .unwrap_err();
        assert_eq!(
            refused.message,
            "`doctor` acts on this machine only, and cannot be used with a server"
        );
        let by_variable = env(&[("AIRLOCK_URL", "x")], None);
        let refused = Global::default().refuse_server(&by_variable).unwrap_err();
        assert_eq!(refused.hint, "unset AIRLOCK_URL to act on this machine");
    }

    #[test]
    fn without_a_server_nobody_is_asked_and_without_a_key_neither() {
        assert!(Global::default().server(&env(&[], None)).unwrap().is_none());
        let refused = with_command_name("http://localhost:1")
            .server(&env(&[], None))
            .unwrap_err();
        assert_eq!(refused.message, "no key for the server is given");
        let found = with_command_name("http://localhost:1")
            .server(&env(&[], Some("alk_x")))
            .unwrap()
            .unwrap();
        assert_eq!(found.address.to_string(), "http://localhost:1");
    }

    #[test]
    fn a_key_is_not_sent_in_the_open_unless_that_is_said() {
        let global = with_command_name("http://box.example:7070");
        let refused = global.server(&env(&[], Some("alk_x"))).unwrap_err();
        assert_eq!(refused.code, ErrorCode::PolicyDenied);
        assert!(
            global
                .server(&env(&[("AIRLOCK_ALLOW_PLAIN_HTTP", "0")], Some("alk_x")))
                .is_err()
        );
        assert!(
            global
                .server(&env(&[("AIRLOCK_ALLOW_PLAIN_HTTP", "1")], Some("alk_x")))
                .is_ok()
        );
        assert!(
            with_command_name("https://box.example")
                .server(&env(&[], Some("alk_x")))
                .is_ok()
        );
    }

    #[test]
    fn a_refusal_keeps_its_code_its_words_and_its_hint() {
        let problem = Problem {
            status: 400,
            code: "invalid_spec".into(),
            title: "no".into(),
            detail: Some("do".into()),
            instance: None,
        };
        assert_eq!(refused(problem.clone()), Failure::invalid("no", "do"));
        let of = |status, code: &str| {
            refused(Problem {
                status,
                code: code.into(),
                ..problem.clone()
            })
            .code
        };
        assert_eq!(of(403, "image_refused"), ErrorCode::ImageRefused);
        assert_eq!(of(403, "forbidden"), ErrorCode::PolicyDenied);
        assert_eq!(of(404, "not_found"), ErrorCode::InvalidSpec);
        assert_eq!(of(500, "unheard_of"), ErrorCode::Internal);
    }
}
