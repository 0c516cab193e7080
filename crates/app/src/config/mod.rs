//! Settings, read once and only here: options over environment over file over default.
//!
//! Two kinds of files: the operator's may set everything; `airlock.toml` in the current folder may
//! come from a hostile clone, so that it can only narrow.

mod artifacts;
mod audit;
mod credential;
mod doors;
mod egress;
mod images;
mod jobs;
mod local_file;
pub(crate) mod node_file;
mod operator_file;
mod prices;
mod provider;
mod secrets;
mod serve;
mod telemetry;
mod toml_file;
mod webhooks;
mod workspace;

pub(crate) use self::{
    artifacts::{ArtifactBackend, ArtifactsConfig, CloudBucket},
    audit::AuditConfig,
    doors::DoorsConfig,
    serve::{ListenAddress, ServeConfig},
    telemetry::{TelemetryConfig, log_file},
    webhooks::WebhooksConfig,
};

use ::doors::{
    BadSecret, Secret,
    secrets::{KeySource, MasterKey, Secrets},
};
use rustix::process::geteuid;
use spec::{Policy, PoolSettings};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// The variable that holds the master key of the encrypted store.
const MASTER_KEY: &str = "AIRLOCK_MASTER_KEY";
/// The variable that holds the key for a server.
const SERVER_KEY: &str = "AIRLOCK_KEY";

/// The process environment. Nothing else reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessEnv {
    /// Environment variables without the two keys, so that no option, profile or recipe can pass
    /// them on.
    pub(crate) variables: BTreeMap<OsString, OsString>,
    /// The master key of the secret store, if the environment had it.
    pub(crate) master_key: Option<Result<Secret, BadSecret>>,
    /// The key for a server, if the environment had it.
    pub(crate) server_key: Option<Result<Secret, BadSecret>>,
    /// The working directory, for relative paths.
    pub(crate) current_folder: PathBuf,
    /// Whether the process runs as root and uses the system's folders.
    pub(crate) root: bool,
}

/// Settings from the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    pub(crate) state: Option<PathBuf>,
}

/// The settings of this process.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Profiles and the operator's maximum.
    pub(crate) policy: Policy,
    /// What servers create ahead of runs; a single run creates nothing ahead.
    pub(crate) pool: PoolSettings,
    /// The server's settings.
    pub(crate) serve: ServeConfig,
    /// The settings of webhooks.
    pub(crate) webhooks: webhooks::WebhooksConfig,
    /// The limits of jobs.
    pub(crate) jobs: spec::JobQueueLimits,
    /// The folder for run records and artifacts; absolute.
    pub(crate) state: PathBuf,
    /// Possible addresses of Docker, best first.
    pub(crate) docker: Vec<String>,
    /// Possible addresses of Podman, best first.
    pub(crate) podman: Vec<String>,
    /// The settings of the doors.
    pub(crate) doors: DoorsConfig,
    /// The artifact store, its limits and retention.
    pub(crate) artifacts: ArtifactsConfig,
    /// The settings of the audit log.
    pub(crate) audit: AuditConfig,
    /// Log, traces and node name of a server.
    pub(crate) telemetry: TelemetryConfig,
    /// Reads credentials.
    pub(crate) secrets: Secrets,
    /// The operator's file, if there was one.
    file: Option<PathBuf>,
}

/// An error in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// The message, with the file's name, on one line.
    pub(crate) message: String,
    /// The remedy, on one line.
    pub(crate) hint: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        ConfigError {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

impl Config {
    /// Files that no sandbox may be shown: the operator's file, and those with keys.
    pub(crate) fn guarded(&self) -> Vec<PathBuf> {
        let master = match &self.secrets.master {
            MasterKey::Credential(path) | MasterKey::File(path) => Some(path),
            // This key file is in the state folder, which is never shown.
            MasterKey::Given(_) | MasterKey::Keyring | MasterKey::Beside => None,
        };
        let token = self.secrets.vault.as_ref().map(|vault| &vault.token);
        let keys = self
            .doors
            .keys()
            .chain(self.artifacts.keys())
            .chain(self.telemetry.keys());
        let keys = keys.chain(token).filter_map(|key| match key {
            KeySource::File(path) => Some(path),
            KeySource::Stored(_) | KeySource::Variable(_) | KeySource::Vault { .. } => None,
        });
        // Who can change the CA file decides which servers the egress door trusts.
        let authority = &self.doors.egress.ca;
        self.file
            .iter()
            .chain(master)
            .chain(keys)
            .chain(authority)
            .cloned()
            .collect()
    }
}

impl ProcessEnv {
    /// Reads the environment of this process.
    pub(crate) fn from_process() -> Self {
        let mut variables: BTreeMap<_, _> = std::env::vars_os().collect();
        let master_key = variables.remove(OsStr::new(MASTER_KEY));
        let server_key = variables
            .remove(OsStr::new(SERVER_KEY))
            .filter(|key| !key.is_empty());
        ProcessEnv {
            variables,
            master_key: master_key.map(|text| Secret::new(text.into_vec())),
            server_key: server_key.map(|text| Secret::new(text.into_vec())),
            // Without a working directory, opening a relative path fails later.
            current_folder: std::env::current_dir().unwrap_or_default(),
            root: geteuid().is_root(),
        }
    }

    /// A variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// The socket from the variable, otherwise the default sockets.
    fn sockets(&self, variable: &str, usual: &[(Option<&str>, &str)]) -> Vec<String> {
        if let Some(named) = self.variable(variable) {
            return vec![named.to_string_lossy().into_owned()];
        }
        let path = |(folder, below): &(Option<&str>, &str)| match folder {
            Some(folder) => Some(format!("{}/{below}", self.variable(folder)?.to_str()?)),
            None => Some((*below).to_owned()),
        };
        usual.iter().filter_map(path).collect()
    }

    fn docker(&self) -> Vec<String> {
        let own = [
            (Some("XDG_RUNTIME_DIR"), "docker.sock"),
            (Some("HOME"), ".docker/run/docker.sock"),
        ];
        let systems = (None, "/var/run/docker.sock");
        self.sockets("DOCKER_HOST", &[systems, own[0], own[1]])
    }

    /// A user's own Podman comes first, because it runs with that user's rights.
    fn podman(&self) -> Vec<String> {
        let own = (Some("XDG_RUNTIME_DIR"), "podman/podman.sock");
        let systems = (None, "/run/podman/podman.sock");
        let all = [own, systems];
        self.sockets("CONTAINER_HOST", if self.root { &all[1..] } else { &all })
    }

    /// The home of the user.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.variable("HOME")
            .map(Path::new)
            .filter(|home| home.is_absolute())
    }
}

/// Loads the operator's settings. Nothing is created.
pub(crate) fn load(flags: &Flags, env: &ProcessEnv) -> Result<Config, ConfigError> {
    let (file, settings) = match operator_file(flags, env)? {
        Some((path, text)) => (
            Some(path.clone()),
            operator_file::read(&toml_file::parse(&text, &path)?, &path)?,
        ),
        None => (None, operator_file::OperatorSettings::default()),
    };
    let operator_file::OperatorSettings {
        policy,
        pool,
        serve,
        jobs,
        webhooks,
        doors,
        secrets,
        artifacts,
        audit,
        telemetry,
    } = settings;
    let docker = env.docker();
    let podman = env.podman();
    let state = state_folder(flags, env)?;
    let keys = doors.keys().chain(artifacts.keys()).chain(telemetry.keys());
    let secrets = secrets::assemble(secrets, keys, &state, env)?;
    Ok(Config {
        policy,
        pool,
        serve,
        jobs,
        webhooks,
        state,
        docker,
        podman,
        doors,
        artifacts,
        audit,
        telemetry,
        secrets,
        file,
    })
}

/// Applies `airlock.toml` of the current folder, if there is one, to the profile of this run.
pub(crate) fn narrow(
    config: &mut Config,
    profile: Option<&str>,
    env: &ProcessEnv,
) -> Result<(), ConfigError> {
    let path = env.current_folder.join("airlock.toml");
    // With `--config airlock.toml`, the file was already read as the operator's.
    if config.file.as_deref() == Some(path.as_path()) {
        return Ok(());
    }
    match toml_file::read(&path, toml_file::Links::Refuse)? {
        Some(text) => local_file::narrow(
            &mut config.policy,
            profile,
            &toml_file::parse(&text, &path)?,
            &path,
        ),
        None => Ok(()),
    }
}

/// Finds the operator's file. A file named by option or variable must exist; the default ones need
/// not.
fn operator_file(
    flags: &Flags,
    env: &ProcessEnv,
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let named = flags
        .config
        .as_deref()
        .or(env.variable("AIRLOCK_CONFIG").map(Path::new));
    if let Some(named) = named {
        let path = env.current_folder.join(named);
        return match toml_file::read(&path, toml_file::Links::Follow)? {
            Some(text) => Ok(Some((path, text))),
            None => Err(ConfigError::new(
                format!("the configuration file `{}` does not exist", path.display()),
                "correct --config or AIRLOCK_CONFIG, or omit it to use the defaults",
            )),
        };
    }
    let home = env
        .home()
        .map(|home| home.join(".config/airlock/config.toml"));
    let system = env.root.then(|| PathBuf::from("/etc/airlock/config.toml"));
    for path in home.into_iter().chain(system) {
        if let Some(text) = toml_file::read(&path, toml_file::Links::Follow)? {
            return Ok(Some((path, text)));
        }
    }
    Ok(None)
}

fn state_folder(flags: &Flags, env: &ProcessEnv) -> Result<PathBuf, ConfigError> {
    let named = flags
        .state
        .as_deref()
        .or(env.variable("AIRLOCK_STATE").map(Path::new));
    match (named, env.root, env.home()) {
        (Some(named), _, _) => Ok(env.current_folder.join(named)),
        (None, true, _) => Ok(PathBuf::from("/var/lib/airlock")),
        (None, false, Some(home)) => Ok(home.join(".local/state/airlock")),
        (None, false, None) => Err(ConfigError::new(
            "the state folder has no default: HOME is not set",
            "set HOME or AIRLOCK_STATE, or give --state DIR",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::Network;
    use std::fs;

    /// A fresh folder, gone afterwards.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("airlock-config-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("home/.config/airlock")).unwrap();
            fs::create_dir_all(path.join("here")).unwrap();
            Folder(path)
        }

        fn env(&self) -> ProcessEnv {
            ProcessEnv {
                variables: [("HOME".into(), self.0.join("home").into_os_string())].into(),
                current_folder: self.0.join("here"),
                ..ProcessEnv::default()
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn pids(config: &Config) -> u32 {
        config.policy.profile("restrictive").unwrap().limits.pids
    }

    #[test]
    fn a_flag_is_over_a_variable_is_over_the_usual_place_is_over_the_default() {
        let folder = Folder::new("order");
        let mut env = folder.env();
        let profile = |count| format!("[profile.restrictive]\npids = {count}\n");
        assert_eq!(pids(&load(&Flags::default(), &env).unwrap()), 32);
        fs::write(
            folder.0.join("home/.config/airlock/config.toml"),
            profile(11),
        )
        .unwrap();
        assert_eq!(pids(&load(&Flags::default(), &env).unwrap()), 11);
        fs::write(folder.0.join("variable.toml"), profile(12)).unwrap();
        env.variables.insert(
            "AIRLOCK_CONFIG".into(),
            folder.0.join("variable.toml").into(),
        );
        assert_eq!(pids(&load(&Flags::default(), &env).unwrap()), 12);
        fs::write(folder.0.join("here/flag.toml"), profile(13)).unwrap();
        let flags = Flags {
            config: Some("flag.toml".into()),
            ..Flags::default()
        };
        assert_eq!(pids(&load(&flags, &env).unwrap()), 13);
    }

    #[test]
    fn the_state_folder_follows_the_same_order() {
        let folder = Folder::new("state");
        let mut env = folder.env();
        let state = |flags: &Flags, env: &ProcessEnv| state_folder(flags, env).unwrap();
        assert_eq!(
            state(&Flags::default(), &env),
            folder.0.join("home/.local/state/airlock")
        );
        let root = ProcessEnv {
            root: true,
            ..env.clone()
        };
        assert_eq!(
            state(&Flags::default(), &root),
            Path::new("/var/lib/airlock")
        );
        env.variables
            .insert("AIRLOCK_STATE".into(), "/variable".into());
        assert_eq!(state(&Flags::default(), &env), Path::new("/variable"));
        let flags = Flags {
            state: Some("flag".into()),
            ..Flags::default()
        };
        assert_eq!(state(&flags, &env), folder.0.join("here/flag"));
        assert!(state_folder(&Flags::default(), &ProcessEnv::default()).is_err());
    }

    #[test]
    fn no_program_is_shown_what_the_egress_door_believes() {
        let folder = Folder::new("guarded");
        let file = folder.0.join("home/.config/airlock/config.toml");
        fs::write(&file, "[egress]\nca = \"/etc/ours.pem\"\n").unwrap();
        let config = load(&Flags::default(), &folder.env()).unwrap();
        assert_eq!(config.guarded(), [file, PathBuf::from("/etc/ours.pem")]);
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let folder = Folder::new("named");
        let flags = Flags {
            config: Some("absent.toml".into()),
            ..Flags::default()
        };
        let refused = load(&flags, &folder.env()).unwrap_err();
        assert!(
            refused.message.starts_with("the configuration file `"),
            "{}",
            refused.message
        );
        assert!(load(&Flags::default(), &folder.env()).is_ok());
    }

    #[test]
    fn the_local_file_narrows_the_profile_in_use_and_no_other() {
        let folder = Folder::new("local");
        let env = folder.env();
        fs::write(
            folder.0.join("here/airlock.toml"),
            "pids = 7\nnetwork = \"none\"\n",
        )
        .unwrap();
        let mut config = load(&Flags::default(), &env).unwrap();
        narrow(&mut config, Some("agent"), &env).unwrap();
        let agent = config.policy.profile("agent").unwrap();
        assert_eq!((agent.limits.pids, agent.network), (7, Network::None));
        assert_eq!(pids(&config), 32);
    }

    #[test]
    fn a_local_file_that_is_named_as_configuration_is_the_operators_word() {
        let folder = Folder::new("same");
        let env = folder.env();
        fs::write(folder.0.join("here/airlock.toml"), "[maximum]\npids = 7\n").unwrap();
        let flags = Flags {
            config: Some("airlock.toml".into()),
            ..Flags::default()
        };
        let mut config = load(&flags, &env).unwrap();
        narrow(&mut config, None, &env).unwrap();
        assert_eq!(config.policy.maximum.pids, Some(7));
        let mut other = load(&Flags::default(), &env).unwrap();
        assert!(narrow(&mut other, None, &env).is_err());
    }
}
