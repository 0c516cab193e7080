//! Settings from environment variables: every variable of the workers that this one replaces, in
//! all their generations, and a few of our own. Only variables are read. A setting that cannot be
//! honoured is an error with an alternative; one without meaning here is accepted with a notice.

mod broker;
mod broker_address;
mod components;
mod env;
mod storage;
mod variables;

pub use broker::{BrokerLogin, BrokerSettings, PoolMode, TransportKind};
pub use storage::{
    ArtifactBackend, ArtifactSharing, ArtifactsConfig, S3Access, S3Keys, S3Role, ToolOrigin,
    ToolSyncConfig,
};
pub use variables::{VariableDescription, descriptions};

use crate::{call::profile::ToolProfile, wire::topic::TopicBase};
use env::{EnvReader, Variable, shown};
use spec::{LogFormat, Money};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Default namespace.
const DEFAULT_NAMESPACE: &str = "solace-agent-mesh";
/// Maximum length of a pool id: it is part of the names of queues, sessions and subscriptions.
const MAX_ID_BYTES: usize = 64;
/// Maximum memory of all warm interpreters, in bytes.
const MAX_WARM_BYTES: u64 = 512 << 20;
/// Maximum memory of queued calls, in bytes: twelve of the largest.
const MAX_WAITING_BYTES: usize = 128 << 20;
/// Upper bound of all durations.
const MAX_SECONDS: u64 = 24 * 60 * 60;

/// All settings.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The broker.
    pub broker: BrokerSettings,
    /// Base of all topics, with the namespace.
    pub base: TopicBase,
    /// Id of the pool that this worker belongs to.
    pub worker_id: String,
    /// Sources of tools.
    pub tools: ToolSources,
    /// Settings of calls.
    pub calls: CallLimits,
    /// Artifact settings.
    pub artifacts: ArtifactsConfig,
    /// Port of the health endpoint; none if it is disabled.
    pub health_port: Option<u16>,
    /// Log format.
    pub log: LogFormat,
}

impl WorkerSettings {
    /// Makes relative paths absolute, relative to the working directory.
    pub fn from_folder(mut self, folder: &Path) -> WorkerSettings {
        let tools = &mut self.tools;
        let mut paths: Vec<&mut PathBuf> = tools.site_packages.iter_mut().collect();
        paths.extend([&mut tools.folder, &mut tools.manifest, &mut tools.python]);
        if let ArtifactBackend::Files(artifacts) = &mut self.artifacts.store {
            paths.push(artifacts);
        }
        // Joining an absolute path keeps it.
        paths
            .into_iter()
            .for_each(|path| *path = folder.join(&path));
        self
    }
}

/// Sources of tools.
#[derive(Clone, Debug)]
pub struct ToolSources {
    /// Root folder of tools.
    pub folder: PathBuf,
    /// Path of the manifest.
    pub manifest: PathBuf,
    /// Folder of Python modules.
    pub python: PathBuf,
    /// Mounted folder of installed packages.
    pub site_packages: Option<PathBuf>,
    /// Package index, if it is not the public one.
    pub index: Option<String>,
    /// Host whose packages are taken without TLS.
    pub trusted_host: Option<String>,
    /// Object storage from which tools are synced, if any.
    pub sync: Option<ToolSyncConfig>,
}

/// Settings of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// The interpreter that was configured; see [`CallLimits::interpreter`].
    pub python: Option<PathBuf>,
    /// Default timeout of a tool.
    pub default_timeout: Duration,
    /// Default profile of a tool.
    pub default_profile: ToolProfile,
    /// Number of concurrent calls.
    pub slots: usize,
    /// Maximum number of queued calls.
    pub waiting: usize,
    /// Maximum memory of queued calls, in bytes.
    pub waiting_bytes: usize,
    /// Maximum number of warm interpreters.
    pub max_warm: usize,
    /// Maximum memory of warm interpreters, in bytes.
    pub max_warm_bytes: u64,
    /// Grace period of running calls at a shutdown.
    pub drain: Duration,
    /// Model that tools may use.
    pub model: Option<ToolModel>,
}

/// A model of a provider in the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolModel {
    /// Name of the provider.
    pub provider: String,
    /// Name of the model.
    pub model: String,
    /// Budget of one call.
    pub budget: Money,
    /// Daily budget of all calls (UTC), if there is one.
    pub day: Option<Money>,
}

impl CallLimits {
    /// The configured interpreter, otherwise the first that exists. Python images have theirs in
    /// `/usr/local`.
    pub fn interpreter(&self, is_there: impl Fn(&Path) -> bool) -> PathBuf {
        let usual = ["/usr/local/bin/python3", "/usr/bin/python3"].map(PathBuf::from);
        let [first, last] = usual;
        match &self.python {
            Some(named) => named.clone(),
            None if is_there(&first) => first,
            None => last,
        }
    }
}

/// A notice about a variable. Contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingNotice {
    /// Name of the variable.
    pub variable: String,
    /// The notice.
    pub message: String,
}

impl fmt::Display for SettingNotice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.variable, self.message)
    }
}

/// Why the worker cannot start with these settings. Contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SettingError {
    /// Name of the variable.
    pub variable: String,
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub hint: String,
}

impl SettingError {
    fn new(variable: &str, message: impl Into<String>, hint: impl Into<String>) -> SettingError {
        SettingError {
            variable: variable.to_owned(),
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// Reads the settings with a function that looks variables up.
pub fn read(
    lookup: impl Fn(&str) -> Option<OsString>,
) -> Result<(WorkerSettings, Vec<SettingNotice>), SettingError> {
    let mut reader = EnvReader::new(&lookup);
    refuse_weaker_modes(&reader)?;
    let settings = WorkerSettings {
        base: base(&mut reader)?,
        worker_id: worker_id(&reader)?,
        broker: broker::read(&mut reader)?,
        tools: tools(&mut reader)?,
        calls: calls(&mut reader)?,
        artifacts: storage::artifacts(&mut reader)?,
        health_port: health_port(&mut reader)?,
        log: log_format(&reader)?,
    };
    for (name, why) in variables::WITHOUT_MEANING {
        if reader.is_set(name) {
            reader.notice(name, format!("it has no meaning here: {why}"));
        }
    }
    Ok((settings, reader.notices()))
}

/// Notices about unknown variables with our prefixes, with the name that was probably meant.
pub fn unknown_variables<N: AsRef<OsStr>>(
    names: impl IntoIterator<Item = N>,
) -> Vec<SettingNotice> {
    let prefixes = [
        "SAM_",
        "SANDBOX_",
        "SOLACE_",
        "STR_",
        "ARTIFACT_",
        "TOOL_SYNC_",
        "OBJECT_STORAGE_",
    ];
    let known: Vec<&str> = descriptions().iter().map(|(name, ..)| *name).collect();
    let is_strange = |name: &&str| {
        prefixes.iter().any(|prefixes| name.starts_with(prefixes)) && !known.contains(name)
    };
    let mut notices = Vec::new();
    for name in names {
        let Some(name) = name.as_ref().to_str().filter(is_strange) else {
            continue;
        };
        let message = match spec::closest_name(name, &known) {
            Some(near) => format!("nobody knows it; was `{near}` meant?"),
            None => "nobody knows it".to_owned(),
        };
        notices.push(SettingNotice {
            variable: shown(name),
            message,
        });
    }
    notices.sort_by(|one, other| one.variable.cmp(&other.variable));
    notices
}

/// Tools always run in a sandbox; no setting disables it.
fn refuse_weaker_modes(reader: &EnvReader<'_>) -> Result<(), SettingError> {
    for name in ["SANDBOX_MODE", "STR_SANDBOX_MODE"] {
        match reader.text(&[name])?.as_deref() {
            None | Some("bwrap" | "native") => {}
            Some(mode) => {
                return Err(SettingError::new(
                    name,
                    format!(
                        "`{name}={}` would run tools outside a sandbox, which is never done",
                        shown(mode)
                    ),
                    format!(
                        "leave `{name}` unset; `airlock doctor` says what this machine lacks, if anything"
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn base(reader: &mut EnvReader<'_>) -> Result<TopicBase, SettingError> {
    let found = reader.found(&["SAM_NAMESPACE", "NAMESPACE"])?;
    let (name, value) = found.map_or(("SAM_NAMESPACE", String::new()), |found| {
        (found.name, found.value)
    });
    if value.is_empty() {
        reader.notice(
            name,
            format!("it is not set: the mesh `{DEFAULT_NAMESPACE}` is served"),
        );
    }
    TopicBase::new(&value, DEFAULT_NAMESPACE).map_err(|flaw| {
        SettingError::new(
            name,
            format!("`{name}`: {flaw}"),
            "write it as the agents have it",
        )
    })
}

fn worker_id(reader: &EnvReader<'_>) -> Result<String, SettingError> {
    let id = reader
        .text(&["SAM_WORKER_ID"])?
        .unwrap_or_else(|| "sandbox-worker-001".to_owned());
    let is_plain = id
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
    if is_plain && id.len() <= MAX_ID_BYTES {
        Ok(id)
    } else {
        Err(SettingError::new(
            "SAM_WORKER_ID",
            format!(
                "`SAM_WORKER_ID`: `{}` cannot be the id of a worker",
                shown(&id)
            ),
            format!(
                "at most {MAX_ID_BYTES} letters, digits and . _ -: it is part of names at the broker"
            ),
        ))
    }
}

fn tools(reader: &mut EnvReader<'_>) -> Result<ToolSources, SettingError> {
    let folder = reader
        .path(&["SAM_TOOLS_DIR"])?
        .unwrap_or_else(|| PathBuf::from("/tools"));
    let manifest = reader
        .path(&["MANIFEST_PATH"])?
        .unwrap_or_else(|| folder.join("manifest.yaml"));
    let python = reader
        .path(&["TOOLS_PYTHON_DIR"])?
        .unwrap_or_else(|| folder.join("python"));
    let site_packages = reader.path(&["SAM_SITE_PACKAGES"])?;
    let index = index(reader)?;
    let trusted_host = reader.text(&["PIP_TRUSTED_HOST"])?;
    let sync = storage::sync(reader)?;
    Ok(ToolSources {
        folder,
        manifest,
        python,
        site_packages,
        index,
        trusted_host,
        sync,
    })
}

/// The package index. Its URL is visible to package builds, so that one with credentials is refused
/// and not repeated.
fn index(reader: &EnvReader<'_>) -> Result<Option<String>, SettingError> {
    let Some(Variable { name, value }) = reader.found(&["PIP_INDEX_URL"])? else {
        return Ok(None);
    };
    if value.contains(['@', '?', '#']) {
        Err(SettingError::new(
            name,
            format!("`{name}` has a name, a password or a query in it, which no sandbox is given"),
            "write https://HOST/simple; an index that asks who you are needs a mirror that does not, or wheels beside the manifest",
        ))
    } else {
        Ok(Some(value))
    }
}

fn calls(reader: &mut EnvReader<'_>) -> Result<CallLimits, SettingError> {
    let seconds = reader.number(&["DEFAULT_TIMEOUT_SECONDS"], 300, 1..=MAX_SECONDS)?;
    let slots = whole(reader.number(&["SANDBOX_MAX_CONCURRENT"], 4, 1..=512)?);
    Ok(CallLimits {
        python: reader.absolute(&["SANDBOX_PYTHON_BIN", "SAM_STR_PYTHON"])?,
        default_timeout: Duration::from_secs(seconds),
        default_profile: default_profile(reader)?,
        slots,
        waiting: whole(reader.number(&["SAM_MAX_WAITING"], 256, 0..=65_536)?),
        waiting_bytes: MAX_WAITING_BYTES,
        max_warm: whole(reader.number(&["SAM_WARM"], 2 * slots as u64, 0..=1024)?),
        max_warm_bytes: MAX_WARM_BYTES,
        drain: Duration::from_secs(reader.number(&["SAM_DRAIN_SECONDS"], 25, 0..=MAX_SECONDS)?),
        model: model(reader)?,
    })
}

/// An unknown name is an error: the profile that was meant may be stricter.
fn default_profile(reader: &EnvReader<'_>) -> Result<ToolProfile, SettingError> {
    let Some(Variable { name, value }) = reader.found(&["SANDBOX_DEFAULT_PROFILE"])? else {
        return Ok(ToolProfile::Standard);
    };
    ToolProfile::named(&value).ok_or_else(|| {
        SettingError::new(
            name,
            format!("`{name}`: there is no profile `{}`", shown(&value)),
            "one of restrictive, standard, permissive",
        )
    })
}

fn model(reader: &EnvReader<'_>) -> Result<Option<ToolModel>, SettingError> {
    let usual = crate::ipc::DEFAULT_BUDGET.parse().unwrap_or_default();
    let budget = reader.money("SAM_LLM_BUDGET_USD")?.unwrap_or(usual);
    let day = reader.money("SAM_LLM_BUDGET_DAY_USD")?;
    match (
        reader.text(&["SAM_LLM_PROVIDER"])?,
        reader.text(&["SAM_LLM_MODEL"])?,
    ) {
        (Some(provider), Some(model)) => Ok(Some(ToolModel {
            provider,
            model,
            budget,
            day,
        })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(half("SAM_LLM_PROVIDER", "SAM_LLM_MODEL")),
        (None, Some(_)) => Err(half("SAM_LLM_MODEL", "SAM_LLM_PROVIDER")),
    }
}

/// An error for two variables of which only one is set.
fn half(there: &str, missing: &str) -> SettingError {
    SettingError::new(
        missing,
        format!("`{there}` is set, and `{missing}` is not"),
        "set both, or none",
    )
}

fn health_port(reader: &mut EnvReader<'_>) -> Result<Option<u16>, SettingError> {
    let port = reader.number(&["HEALTH_PORT"], 8081, 0..=u64::from(u16::MAX))?;
    Ok(u16::try_from(port).ok().filter(|port| *port != 0))
}

fn log_format(reader: &EnvReader<'_>) -> Result<LogFormat, SettingError> {
    match reader.text(&["LOG_FORMAT"])?.as_deref() {
        None | Some("json" | "JSON") => Ok(LogFormat::Json),
        Some("text" | "TEXT" | "console") => Ok(LogFormat::Text),
        Some(other) => Err(SettingError::new(
            "LOG_FORMAT",
            format!("`LOG_FORMAT`: there is no format `{}`", shown(other)),
            "json or text",
        )),
    }
}

fn whole(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
