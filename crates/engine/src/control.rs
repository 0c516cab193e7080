//! Rules of a running run, changed from outside: a socket in the state folder, one JSON object a line each way.
//!
//! ```text
//! {"op":"grant","host":"pypi.org","seconds":900}      ▶
//!                                                     ◀  {"ok":true,"rules":[{"name":…,"host":…,"ports":…,"mode":…,"expires_in":…}]}
//! ```
//!
//! Whoever started the run may ask, and root. What the run's lists of hosts exclude cannot be granted.

mod client;

pub use client::{ControlError, ask};

use crate::doors::{Shown, called, internal};
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

/// How its sockets are called, behind the run.
pub(crate) const EXTENSION: &str = "control";
/// The longest time that a grant lasts.
pub const LONGEST_GRANT: Duration = Duration::from_secs(24 * 60 * 60);
const LONGEST_LINE: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Who ask at the same time; others wait in the socket's queue.
const MOST_ASKING: usize = 4;
/// Changes that the result tells of.
const MOST_TOLD: usize = 64;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Ask {
    /// That a host may be reached, for so long.
    Grant {
        /// `HOST` or `HOST:PORT`.
        host: String,
        /// How long.
        seconds: u64,
    },
    /// That a host may not be reached, whatever else is said of it.
    Deny {
        /// `HOST` or `HOST:PORT`; without a port at none.
        host: String,
    },
    /// That all rules for a host are taken away.
    Revoke {
        /// The host, or the pattern as it stands in the rule.
        host: String,
    },
    /// What the rules are.
    List {},
}

/// A rule as it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Told {
    pub name: String,
    pub host: String,
    /// Every one if there is no list.
    pub ports: Option<Vec<u16>>,
    pub mode: String,
    /// In seconds; for as long as the run lasts if nothing is said.
    pub expires_in: Option<u64>,
}

/// What is answered.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    ok: bool,
    rules: Vec<Told>,
    code: Option<String>,
    message: Option<String>,
    hint: Option<String>,
}

impl Answer {
    fn refusing(
        ErrorInfo {
            code,
            message,
            hint,
        }: ErrorInfo,
    ) -> Answer {
        let code = serde_json::to_value(code)
            .ok()
            .and_then(|code| code.as_str().map(str::to_owned));
        Answer {
            code,
            message: Some(message),
            hint,
            ..Answer::default()
        }
    }
}

/// The socket of one run. Dropped, nobody answers there any more.
#[derive(Debug)]
pub(crate) struct Control {
    _socket: Shown,
    /// Dropping them ends them.
    tasks: JoinSet<()>,
    changes: Changes,
}

type Changes = Arc<Mutex<Vec<String>>>;

/// Whom the questions are about.
struct Subject {
    door: Arc<Egress>,
    within: Vec<Vec<HostPattern>>,
    changes: Changes,
}

/// Begins to answer for a run's door.
pub(crate) fn open(
    state: &Path,
    id: &Id,
    door: Arc<Egress>,
    within: Vec<Vec<HostPattern>>,
) -> Result<Control, ErrorInfo> {
    let folder = state.join("doors");
    let name = called(id, EXTENSION);
    let listener = bind(&folder, &name).map_err(|error| {
        internal(
            "cannot make the socket by which a run's rules are changed",
            &error,
        )
    })?;
    let changes = Changes::default();
    let subject = Arc::new(Subject {
        door,
        within,
        changes: changes.clone(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, subject));
    Ok(Control {
        _socket: Shown(folder.join(name)),
        tasks,
        changes,
    })
}

impl Control {
    /// Ends it; what was changed, in words.
    pub(crate) async fn close(mut self) -> Vec<String> {
        self.tasks.shutdown().await;
        std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A folder by its handle: a path may be longer than a socket's address.
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
            // Of a run of the same name: one that was killed, unless somebody answers.
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

async fn serve(listener: UnixListener, subject: Arc<Subject>) {
    let (places, mut asking) = (Arc::new(Semaphore::new(MOST_ASKING)), JoinSet::new());
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let subject = subject.clone();
                asking.spawn(async move {
                    attend(stream, &subject).await;
                    drop(place);
                });
            }
            // Out of descriptors, most likely: others need them first.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        while asking.try_join_next().is_some() {}
    }
}

/// One line after the other, until whoever asks goes, falls silent or says too much.
async fn attend(stream: UnixStream, subject: &Subject) {
    let may_ask = stream.peer_cred().is_ok_and(|peer| may_ask(peer.uid()));
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut reading).take(LONGEST_LINE);
        match timeout(PATIENCE, bounded.read_until(b'\n', &mut line)).await {
            Ok(Ok(count)) if count > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let answer = if may_ask {
            subject.answer(&line)
        } else {
            Answer::refusing(not_yours())
        };
        let Ok(mut answer) = serde_json::to_vec(&answer) else {
            return;
        };
        answer.push(b'\n');
        let written = timeout(PATIENCE, writing.write_all(&answer)).await;
        if !may_ask || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// The folder and the socket's mode keep others out already; this holds whatever became of those.
fn may_ask(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn not_yours() -> ErrorInfo {
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

impl Subject {
    fn answer(&self, line: &[u8]) -> Answer {
        let asked = serde_json::from_slice(line).map_err(|error| {
            invalid(
                format!("this is no question: {error}"),
                "see `airlock grant --help`",
            )
        });
        match asked.and_then(|ask| self.change(&ask)) {
            Ok(()) => Answer {
                ok: true,
                rules: self.door.rules().iter().map(told).collect(),
                ..Answer::default()
            },
            Err(refused) => Answer::refusing(refused),
        }
    }

    fn change(&self, ask: &Ask) -> Result<(), ErrorInfo> {
        match ask {
            Ask::Grant { host, seconds } => self.grant(host, *seconds),
            Ask::Deny { host } => self.deny(host),
            Ask::Revoke { host } => self.revoke(host),
            Ask::List {} => Ok(()),
        }
    }

    fn grant(&self, text: &str, seconds: u64) -> Result<(), ErrorInfo> {
        let (host, ports) = parsed(text)?;
        let time = Duration::from_secs(seconds);
        if time.is_zero() || time > LONGEST_GRANT {
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
        let (host, ports) = parsed(text)?;
        // Without a port it is denied at all of them.
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
            MOST_TOLD.. => {}
            count if count + 1 == MOST_TOLD => {
                changes.push("rules were changed more often".to_owned())
            }
            _ => changes.push(change),
        }
    }
}

fn parsed(text: &str) -> Result<(HostPattern, Ports), ErrorInfo> {
    let hint = "write pypi.org, '*.pythonhosted.org' or db.example.com:5432";
    host_and_ports(text).map_err(|bad| invalid(bad.to_string(), hint))
}

fn told(view: &RuleView) -> Told {
    let RuleView { rule, until } = view;
    Told {
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
