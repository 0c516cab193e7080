//! What the environment says: every variable of the workers that this one replaces, of all their generations, and few of our
//! own. Reads nothing but variables. What cannot be kept is refused with what to do instead; what has no meaning here is
//! accepted, and told.

mod address;
mod broker;
mod parts;
mod reader;
mod store;
mod table;

pub use broker::{Broker, Credentials, Pool, Transport};
pub use store::{Artifacts, Keys, Role, S3, ScopeOf, Store, Sync, SyncFrom};
pub use table::{Described, described};

use crate::{call::profile::Profile, wire::topic::Base};
use reader::{Found, Reader, shown};
use spec::{LogFormat, Money};
use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The namespace where none is said.
const NAMESPACE: &str = "solace-agent-mesh";
/// The longest name of a pool: it is part of names of queues, sessions and subscriptions.
const LONGEST_ID: usize = 64;
/// What parked interpreters may take together, in bytes.
const PARKED_BYTES: u64 = 512 << 20;
/// What calls that wait may take together, in bytes: twelve of the largest.
const WAITING_BYTES: usize = 128 << 20;
/// The longest time that anything may be told to take.
const LONGEST_SECONDS: u64 = 24 * 60 * 60;

/// All settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The broker.
    pub broker: Broker,
    /// What all topics begin with; its namespace.
    pub base: Base,
    /// The pool that this worker belongs to.
    pub worker_id: String,
    /// Where tools come from.
    pub tools: Tools,
    /// How they are called.
    pub calls: Calls,
    /// Where artifacts are.
    pub artifacts: Artifacts,
    /// Where the worker tells how it is; none is nowhere.
    pub health_port: Option<u16>,
    /// How its log looks.
    pub log: LogFormat,
}

impl Settings {
    /// With whole paths: those that were not are from this folder, where the worker was started.
    pub fn from_folder(mut self, folder: &Path) -> Settings {
        let tools = &mut self.tools;
        let mut paths: Vec<&mut PathBuf> = tools.site_packages.iter_mut().collect();
        paths.extend([&mut tools.folder, &mut tools.manifest, &mut tools.python]);
        if let Store::Files(artifacts) = &mut self.artifacts.store {
            paths.push(artifacts);
        }
        // What is whole stays as it is.
        paths
            .into_iter()
            .for_each(|path| *path = folder.join(&path));
        self
    }
}

/// Where tools come from.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The folder of all of it.
    pub folder: PathBuf,
    /// What there is.
    pub manifest: PathBuf,
    /// Where modules are.
    pub python: PathBuf,
    /// Installed packages that are mounted.
    pub site_packages: Option<PathBuf>,
    /// Where packages come from, if not from the public index.
    pub index: Option<String>,
    /// A host whose packages are taken without TLS.
    pub trusted_host: Option<String>,
    /// Where they are fetched from, if so.
    pub sync: Option<Sync>,
}

/// How tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// The interpreter; see [`Calls::interpreter`].
    pub python: Option<PathBuf>,
    /// A tool's time where nobody says one.
    pub default_timeout: Duration,
    /// Its profile where nobody says one.
    pub default_profile: Profile,
    /// Calls at once.
    pub slots: usize,
    /// Calls that wait, and what they take.
    pub waiting: usize,
    /// See `waiting`.
    pub waiting_bytes: usize,
    /// Interpreters that are kept ready, and what they take.
    pub parked: usize,
    /// See `parked`.
    pub parked_bytes: u64,
    /// How long calls may go on when the worker is told to end.
    pub drain: Duration,
    /// The model that tools may ask.
    pub model: Option<Model>,
}

/// A model of a provider of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Model {
    pub provider: String,
    pub model: String,
    /// What one call may spend on it.
    pub budget: Money,
    /// What all may spend in a day (UTC), if that is said.
    pub day: Option<Money>,
}

impl Calls {
    /// The interpreter: the one that was named, else the first that is there. Images of Python have theirs in `/usr/local`.
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

/// Something about a variable that its owner should know. Says nothing secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which.
    pub variable: String,
    /// What.
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.variable, self.message)
    }
}

/// Why the worker cannot start so. Says nothing secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Mistake {
    /// The variable to look at.
    pub variable: String,
    /// What is wrong with it.
    pub message: String,
    /// What to do instead.
    pub hint: String,
}

impl Mistake {
    fn new(variable: &str, message: impl Into<String>, hint: impl Into<String>) -> Mistake {
        Mistake {
            variable: variable.to_owned(),
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// Reads the settings by a function that knows the variables.
pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<(Settings, Vec<Notice>), Mistake> {
    let mut reader = Reader::new(&lookup);
    refuse_weaker_modes(&reader)?;
    let settings = Settings {
        base: base(&mut reader)?,
        worker_id: worker_id(&reader)?,
        broker: broker::read(&mut reader)?,
        tools: tools(&mut reader)?,
        calls: calls(&mut reader)?,
        artifacts: store::artifacts(&mut reader)?,
        health_port: health_port(&mut reader)?,
        log: log_format(&reader)?,
    };
    for (name, why) in table::WITHOUT_MEANING {
        if reader.is_set(name) {
            reader.tell(name, format!("it has no meaning here: {why}"));
        }
    }
    Ok((settings, reader.notices()))
}

/// Variables that look like ours and that nobody knows; most likely one of them was meant.
pub fn strangers<N: AsRef<OsStr>>(names: impl IntoIterator<Item = N>) -> Vec<Notice> {
    let ours = [
        "SAM_",
        "SANDBOX_",
        "SOLACE_",
        "STR_",
        "ARTIFACT_",
        "TOOL_SYNC_",
        "OBJECT_STORAGE_",
    ];
    let known: Vec<&str> = described().iter().map(|(name, ..)| *name).collect();
    let is_strange =
        |name: &&str| ours.iter().any(|ours| name.starts_with(ours)) && !known.contains(name);
    let mut notices = Vec::new();
    for name in names {
        let Some(name) = name.as_ref().to_str().filter(is_strange) else {
            continue;
        };
        let message = match spec::nearest(name, &known) {
            Some(near) => format!("nobody knows it; was `{near}` meant?"),
            None => "nobody knows it".to_owned(),
        };
        notices.push(Notice {
            variable: shown(name),
            message,
        });
    }
    notices.sort_by(|one, other| one.variable.cmp(&other.variable));
    notices
}

/// There is one way to run tools, and nothing switches it off.
fn refuse_weaker_modes(reader: &Reader<'_>) -> Result<(), Mistake> {
    for name in ["SANDBOX_MODE", "STR_SANDBOX_MODE"] {
        match reader.text(&[name])?.as_deref() {
            None | Some("bwrap" | "native") => {}
            Some(mode) => {
                return Err(Mistake::new(
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

fn base(reader: &mut Reader<'_>) -> Result<Base, Mistake> {
    let found = reader.found(&["SAM_NAMESPACE", "NAMESPACE"])?;
    let (name, value) = found.map_or(("SAM_NAMESPACE", String::new()), |found| {
        (found.name, found.value)
    });
    if value.is_empty() {
        reader.tell(
            name,
            format!("it is not set: the mesh `{NAMESPACE}` is served"),
        );
    }
    Base::new(&value, NAMESPACE).map_err(|flaw| {
        Mistake::new(
            name,
            format!("`{name}`: {flaw}"),
            "write it as the agents have it",
        )
    })
}

fn worker_id(reader: &Reader<'_>) -> Result<String, Mistake> {
    let id = reader
        .text(&["SAM_WORKER_ID"])?
        .unwrap_or_else(|| "sandbox-worker-001".to_owned());
    let is_plain = id
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
    match is_plain && id.len() <= LONGEST_ID {
        true => Ok(id),
        false => Err(Mistake::new(
            "SAM_WORKER_ID",
            format!(
                "`SAM_WORKER_ID`: `{}` cannot be the id of a worker",
                shown(&id)
            ),
            format!(
                "at most {LONGEST_ID} letters, digits and . _ -: it is part of names at the broker"
            ),
        )),
    }
}

fn tools(reader: &mut Reader<'_>) -> Result<Tools, Mistake> {
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
    let (index, trusted_host) = (index(reader)?, reader.text(&["PIP_TRUSTED_HOST"])?);
    let sync = store::sync(reader)?;
    Ok(Tools {
        folder,
        manifest,
        python,
        site_packages,
        index,
        trusted_host,
        sync,
    })
}

/// Where packages come from. Whoever installs them sees the address: what may be secret in it is refused, and not repeated.
fn index(reader: &Reader<'_>) -> Result<Option<String>, Mistake> {
    let Some(Found { name, value }) = reader.found(&["PIP_INDEX_URL"])? else {
        return Ok(None);
    };
    match value.contains(['@', '?', '#']) {
        false => Ok(Some(value)),
        true => Err(Mistake::new(
            name,
            format!("`{name}` has a name, a password or a query in it, which no sandbox is given"),
            "write https://HOST/simple; an index that asks who you are needs a mirror that does not, or wheels beside the manifest",
        )),
    }
}

fn calls(reader: &mut Reader<'_>) -> Result<Calls, Mistake> {
    let seconds = reader.number(&["DEFAULT_TIMEOUT_SECONDS"], 300, 1..=LONGEST_SECONDS)?;
    let slots = whole(reader.number(&["SANDBOX_MAX_CONCURRENT"], 4, 1..=512)?);
    Ok(Calls {
        python: reader.absolute(&["SANDBOX_PYTHON_BIN", "SAM_STR_PYTHON"])?,
        default_timeout: Duration::from_secs(seconds),
        default_profile: default_profile(reader)?,
        slots,
        waiting: whole(reader.number(&["SAM_MAX_WAITING"], 256, 0..=65_536)?),
        waiting_bytes: WAITING_BYTES,
        parked: whole(reader.number(&["SAM_WARM"], 2 * slots as u64, 0..=1024)?),
        parked_bytes: PARKED_BYTES,
        drain: Duration::from_secs(reader.number(
            &["SAM_DRAIN_SECONDS"],
            25,
            0..=LONGEST_SECONDS,
        )?),
        model: model(reader)?,
    })
}

/// A name that nobody knows is a mistake: the one that was meant may be the stricter.
fn default_profile(reader: &Reader<'_>) -> Result<Profile, Mistake> {
    let Some(Found { name, value }) = reader.found(&["SANDBOX_DEFAULT_PROFILE"])? else {
        return Ok(Profile::Standard);
    };
    Profile::named(&value).ok_or_else(|| {
        Mistake::new(
            name,
            format!("`{name}`: there is no profile `{}`", shown(&value)),
            "one of restrictive, standard, permissive",
        )
    })
}

fn model(reader: &Reader<'_>) -> Result<Option<Model>, Mistake> {
    let usual = crate::ipc::USUAL_BUDGET.parse().unwrap_or_default();
    let budget = reader.money("SAM_LLM_BUDGET_USD")?.unwrap_or(usual);
    let day = reader.money("SAM_LLM_BUDGET_DAY_USD")?;
    match (
        reader.text(&["SAM_LLM_PROVIDER"])?,
        reader.text(&["SAM_LLM_MODEL"])?,
    ) {
        (Some(provider), Some(model)) => Ok(Some(Model {
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

/// Two that are of use only together.
fn half(there: &str, missing: &str) -> Mistake {
    Mistake::new(
        missing,
        format!("`{there}` is set, and `{missing}` is not"),
        "set both, or none",
    )
}

fn health_port(reader: &mut Reader<'_>) -> Result<Option<u16>, Mistake> {
    let port = reader.number(&["HEALTH_PORT"], 8081, 0..=u64::from(u16::MAX))?;
    Ok(u16::try_from(port).ok().filter(|port| *port != 0))
}

fn log_format(reader: &Reader<'_>) -> Result<LogFormat, Mistake> {
    match reader.text(&["LOG_FORMAT"])?.as_deref() {
        None | Some("json" | "JSON") => Ok(LogFormat::Json),
        Some("text" | "TEXT" | "console") => Ok(LogFormat::Text),
        Some(other) => Err(Mistake::new(
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
