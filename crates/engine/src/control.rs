//! The control socket of a run, by which its egress rules change while it runs: a Unix socket in
//! the state folder, one JSON object per line in each direction.
//!
//! ```text
//! {"op":"grant","host":"pypi.org","seconds":900}      ▶
//!                                                     ◀  {"ok":true,"rules":[{"name":…,"host":…,"ports":…,"mode":…,"expires_in":…}]}
//! ```
//!
//! Only the user who started the run and root are served. Hosts outside of the run's limits cannot
//! be granted.

mod client;

pub use client::{ControlError, send_request};

use crate::doors::{RemoveOnDrop, door_file_name, internal};
use doors::egress::{Egress, RuleView};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use spec::{
    EgressMode, EgressRule, ErrorCode, ErrorInfo, HostPattern, Id, Ports, Time, host_and_ports,
};
use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, PermissionsExt},
            net::UnixStream as StdStream,
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

/// The file extension of control sockets.
pub(crate) const EXTENSION: &str = "control";
/// The longest duration of a grant.
pub const MAX_GRANT: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_LINE_BYTES: u64 = 64 << 10;
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// The clients that are served at the same time; others wait in the listen queue.
const MAX_CLIENTS: usize = 4;
/// The changes that the result lists.
const MAX_LISTED_CHANGES: usize = 64;

/// A request on the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum ControlRequest {
    /// Allows a host for some time.
    Grant {
        /// `HOST` or `HOST:PORT`.
        host: String,
        /// The duration in seconds.
        seconds: u64,
    },
    /// Denies a host, which overrides every other rule.
    Deny {
        /// `HOST` or `HOST:PORT`; without a port all ports.
        host: String,
    },
    /// Removes all rules for a host.
    Revoke {
        /// The host, or the pattern as in the rule.
        host: String,
    },
    /// Lists the rules.
    List {},
}

/// A rule, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInfo {
    /// What the rule was named by.
    pub name: String,
    /// The host pattern.
    pub host: String,
    /// The ports; all if there is no list.
    pub ports: Option<Vec<u16>>,
    /// `deny`, `tunnel`, `inspect` or `git`.
    pub mode: String,
    /// The remaining seconds; none if the rule lasts as long as the run.
    pub expires_in: Option<u64>,
}

/// The response to a request.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ControlResponse {
    ok: bool,
    rules: Vec<RuleInfo>,
    code: Option<String>,
    message: Option<String>,
    hint: Option<String>,
}

impl ControlResponse {
    fn refusing(
        ErrorInfo {
            code,
            message,
            hint,
        }: ErrorInfo,
    ) -> ControlResponse {
        let code = serde_json::to_value(code)
            .ok()
            .and_then(|code| code.as_str().map(str::to_owned));
        ControlResponse {
            code,
            message: Some(message),
            hint,
            ..ControlResponse::default()
        }
    }
}

/// The control socket of one run. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Control {
    _socket: RemoveOnDrop,
    /// Dropping the set aborts the tasks.
    tasks: JoinSet<()>,
    changes: Changes,
}

type Changes = Arc<Mutex<Vec<String>>>;

/// The door whose rules the clients change, and the limits of grants.
struct ControlServer {
    door: Arc<Egress>,
    within: Vec<Vec<HostPattern>>,
    changes: Changes,
}

/// Starts serving the control socket of a run's egress door.
pub(crate) fn open(
    state: &Path,
    id: &Id,
    door: Arc<Egress>,
    within: Vec<Vec<HostPattern>>,
) -> Result<Control, ErrorInfo> {
    let folder = state.join("doors");
    let name = door_file_name(id, EXTENSION);
    let listener = bind(&folder, &name).map_err(|error| {
        internal(
            "cannot make the socket by which a run's rules are changed",
            &error,
        )
    })?;
    let changes = Changes::default();
    let server = Arc::new(ControlServer {
        door,
        within,
        changes: changes.clone(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, server));
    Ok(Control {
        _socket: RemoveOnDrop(folder.join(name)),
        tasks,
        changes,
    })
}

impl Control {
    /// Stops serving; returns notes on the changes.
    pub(crate) async fn close(mut self) -> Vec<String> {
        self.tasks.shutdown().await;
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A path through the folder's handle: the folder's own path may be longer than a socket address.
fn by_handle(folder: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string())
}

fn bind(folder: &Path, name: &str) -> io::Result<UnixListener> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    let handle = File::open(folder)?;
    let path = by_handle(&handle).join(name);
    let listener = match UnixListener::bind(&path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // The socket of a run of the same id: of a killed one, unless it answers.
            if StdStream::connect(&path).is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a run with this id is under way",
                ));
            }
            fs::remove_file(&path)?;
            UnixListener::bind(&path)?
        }
        bound => bound?,
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn serve(listener: UnixListener, server: Arc<ControlServer>) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut asking = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = server.clone();
                asking.spawn(async move {
                    serve_client(stream, &server).await;
                    drop(place);
                });
            }
            // Most likely out of descriptors: they are needed elsewhere first.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        while asking.try_join_next().is_some() {}
    }
}

/// Serves one line after the other, until the client closes, times out or sends too long a line.
async fn serve_client(stream: UnixStream, server: &ControlServer) {
    let is_allowed = stream
        .peer_cred()
        .is_ok_and(|peer| is_allowed_user(peer.uid()));
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut reading).take(MAX_LINE_BYTES);
        match timeout(IO_TIMEOUT, bounded.read_until(b'\n', &mut line)).await {
            Ok(Ok(count)) if count > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let answer = if is_allowed {
            server.answer(&line)
        } else {
            ControlResponse::refusing(not_owner_error())
        };
        let Ok(mut answer) = serde_json::to_vec(&answer) else {
            return;
        };
        answer.push(b'\n');
        let written = timeout(IO_TIMEOUT, writing.write_all(&answer)).await;
        if !is_allowed || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// The modes of folder and socket keep other users out already; this check does not depend on them.
fn is_allowed_user(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn not_owner_error() -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::PolicyDenied,
        message: "the rules of a run are changed by whoever started it, and by root".to_owned(),
        hint: Some("ask its owner".to_owned()),
    }
}

fn invalid(message: impl Into<String>, hint: &str) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::InvalidSpec,
        message: message.into(),
        hint: Some(hint.to_owned()),
    }
}

impl ControlServer {
    fn answer(&self, line: &[u8]) -> ControlResponse {
        let asked = serde_json::from_slice(line).map_err(|error| {
            invalid(
                format!("this is no question: {error}"),
                "see `airlock grant --help`",
            )
        });
        match asked.and_then(|request| self.change(&request)) {
            Ok(()) => ControlResponse {
                ok: true,
                rules: self.door.rules().iter().map(rule_info).collect(),
                ..ControlResponse::default()
            },
            Err(refused) => ControlResponse::refusing(refused),
        }
    }

    fn change(&self, request: &ControlRequest) -> Result<(), ErrorInfo> {
        match request {
            ControlRequest::Grant { host, seconds } => self.grant(host, *seconds),
            ControlRequest::Deny { host } => self.deny(host),
            ControlRequest::Revoke { host } => self.revoke(host),
            ControlRequest::List {} => Ok(()),
        }
    }

    fn grant(&self, text: &str, seconds: u64) -> Result<(), ErrorInfo> {
        let (host, ports) = parse_host(text)?;
        let time = Duration::from_secs(seconds);
        if time.is_zero() || time > MAX_GRANT {
            return Err(invalid(
                "a grant lasts from one second to 24 hours",
                "give --for another value",
            ));
        }
        let is_within =
            |list: &Vec<HostPattern>| list.iter().any(|pattern| host.is_within(pattern));
        if !self.within.iter().all(is_within) {
            return Err(ErrorInfo {
                code: ErrorCode::PolicyDenied,
                message: format!("{host} is beyond the hosts that this run is limited to"),
                hint: Some(
                    "`allow_hosts` under [maximum] in the configuration, or in airlock.toml, says which"
                        .to_owned(),
                ),
            });
        }
        let rule = EgressRule::tunnel(format!("airlock grant {text}"), host, ports);
        self.add(rule, Some(Instant::now() + time))?;
        self.note(format!(
            "{text} was granted for {} while the run went on",
            Time(time)
        ));
        Ok(())
    }

    fn deny(&self, text: &str) -> Result<(), ErrorInfo> {
        let (host, ports) = parse_host(text)?;
        // Without a port all ports are denied.
        let ports = if ports == Ports::web() {
            Ports::Any
        } else {
            ports
        };
        let rule = EgressRule::tunnel(format!("airlock grant --deny {text}"), host, ports);
        self.add(
            EgressRule {
                mode: EgressMode::Deny,
                ..rule
            },
            None,
        )?;
        self.note(format!("{text} was denied while the run went on"));
        Ok(())
    }

    fn add(&self, rule: EgressRule, until: Option<Instant>) -> Result<(), ErrorInfo> {
        let hint = "take rules away (airlock grant RUN HOST --revoke), or see to the ledger";
        self.door
            .grant(rule, until)
            .map_err(|error| invalid(error.to_string(), hint))
    }

    fn revoke(&self, text: &str) -> Result<(), ErrorInfo> {
        let host: HostPattern = text.parse().map_err(|error: spec::BadHost| {
            invalid(
                error.to_string(),
                "name the host as in the rule, without a port",
            )
        })?;
        let revoked = self
            .door
            .revoke(&host)
            .map_err(|error| invalid(error.to_string(), "see to the ledger"))?;
        match revoked {
            0 => Err(invalid(
                format!("no rule is for {host}"),
                "`airlock grant RUN --list` shows the rules",
            )),
            _ => {
                self.note(format!(
                    "the rules for {host} were taken away while the run went on"
                ));
                Ok(())
            }
        }
    }

    fn note(&self, change: String) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match changes.len() {
            MAX_LISTED_CHANGES.. => {}
            count if count + 1 == MAX_LISTED_CHANGES => {
                changes.push("rules were changed more often".to_owned())
            }
            _ => changes.push(change),
        }
    }
}

fn parse_host(text: &str) -> Result<(HostPattern, Ports), ErrorInfo> {
    let hint = "write pypi.org, '*.pythonhosted.org' or db.example.com:5432";
    host_and_ports(text).map_err(|bad| invalid(bad.to_string(), hint))
}

fn rule_info(view: &RuleView) -> RuleInfo {
    let RuleView { rule, until } = view;
    RuleInfo {
        name: rule.name.clone(),
        host: rule.host.to_string(),
        ports: match &rule.ports {
            Ports::Any => None,
            Ports::These(ports) => Some(ports.clone()),
        },
        mode: match &rule.mode {
            EgressMode::Deny => "deny",
            EgressMode::Tunnel => "tunnel",
            EgressMode::Inspect { .. } => "inspect",
            EgressMode::Git { .. } => "git",
        }
        .to_owned(),
        expires_in: until.map(|until| until.saturating_duration_since(Instant::now()).as_secs()),
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
