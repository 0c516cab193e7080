//! A session: a box that outlives its programs, with a task that owns it.

use crate::{Engine, feed::Feed};
use spec::{
    Barrier, ErrorCode, ErrorInfo, ExecRequest, Id, SessionSpec, Status, TerminalSize, Timestamp, Usage,
};
use std::{os::fd::OwnedFd, time::Duration};

/// A session. Cheap to clone; all clones are the same. Its box ends when it is ended, when its time is up, or with
/// the engine; not with the last clone.
#[derive(Clone, Debug)]
pub struct Session {}

/// How a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// Programs can be started.
    Ready,
    /// All its processes are stopped where they are.
    Paused,
    /// Its box is gone.
    Ended,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Somebody asked for it.
    Asked,
    /// Nobody used it for too long.
    Idle,
    /// Its lifetime was over.
    Lifetime,
    /// The box died by itself.
    Lost,
}

/// What there is to say of a session now.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SessionState {
    pub status: SessionStatus,
    pub ended: Option<SessionEnd>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// When it ends at the latest.
    pub expires_at: Timestamp,
    /// When it ends if nobody uses it meanwhile.
    pub idle_until: Timestamp,
    pub backend: String,
    pub profile: String,
    pub barriers: Vec<Barrier>,
    pub usage: Usage,
    pub notes: Vec<String>,
}

/// A program of a session, under way or ended. Cheap to clone; all clones are the same program.
#[derive(Clone, Debug)]
pub struct Exec {}

/// What came of a program of a session.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are those of a run's result")]
pub struct ExecResult {
    pub status: Status,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub error: Option<ErrorInfo>,
    pub ended_at: Timestamp,
    pub duration_ms: u64,
    pub cpu_ms: u64,
}

fn not_built() -> ErrorInfo {
    ErrorInfo { code: ErrorCode::Internal, message: "sessions are not built yet".to_owned(), hint: None }
}

impl Engine {
    /// Makes a session's box, and waits until it stands.
    pub async fn open_session(&self, spec: SessionSpec) -> Result<Session, ErrorInfo> {
        let _ = spec;
        Err(not_built())
    }

    /// Makes a session like this one, with a copy of its workspace.
    pub async fn fork_session(&self, of: &Session, spec: SessionSpec) -> Result<Session, ErrorInfo> {
        let _ = (of, spec);
        Err(not_built())
    }
}

impl Session {
    /// Its identifier.
    pub fn id(&self) -> &Id {
        unimplemented!()
    }

    /// How it is now.
    pub fn state(&self) -> SessionState {
        unimplemented!()
    }

    /// Somebody uses it: the idle time begins anew.
    pub fn touch(&self) {}

    /// Starts a program, and waits until it runs.
    pub async fn exec(&self, request: ExecRequest) -> Result<Exec, ErrorInfo> {
        let _ = request;
        Err(not_built())
    }

    /// Its programs, the oldest first: those that run, and the newest of those that have ended.
    pub fn execs(&self) -> Vec<Exec> {
        Vec::new()
    }

    /// One of them.
    pub fn find_exec(&self, id: &str) -> Option<Exec> {
        let _ = id;
        None
    }

    /// Its workspace, as a handle of the host's, and who owns what is put there; refused once the box is gone.
    pub fn workspace(&self) -> Result<(OwnedFd, Option<(u32, u32)>), ErrorInfo> {
        Err(not_built())
    }

    /// Stops everything in it where it is.
    pub async fn pause(&self) -> Result<(), ErrorInfo> {
        Err(not_built())
    }

    /// Lets it go on.
    pub async fn resume(&self) -> Result<(), ErrorInfo> {
        Err(not_built())
    }

    /// Ends it, and waits until nothing is left of it.
    pub async fn end(&self) -> SessionState {
        self.state()
    }

    /// Waits for its end, whatever brings it about.
    pub async fn ended(&self) -> SessionState {
        self.state()
    }
}

impl Exec {
    /// Its identifier, unique within its session.
    pub fn id(&self) -> &str {
        ""
    }

    /// What was asked for.
    pub fn request(&self) -> &ExecRequest {
        unimplemented!()
    }

    /// When it was started.
    pub fn started_at(&self) -> Timestamp {
        Timestamp::default()
    }

    /// What it writes. A terminal writes to standard output only.
    pub fn output(&self) -> &Feed {
        unimplemented!()
    }

    /// What came of it, once it has ended and its output is complete.
    pub fn result(&self) -> Option<ExecResult> {
        None
    }

    /// Waits for its end.
    pub async fn wait(&self) -> ExecResult {
        unimplemented!()
    }

    /// Types something; waits while the program does not read. An error once it cannot any more.
    pub async fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Nothing more will be typed.
    pub fn close_input(&self) {}

    /// Changes the size of its terminal.
    pub fn resize(&self, size: TerminalSize) -> std::io::Result<()> {
        let _ = size;
        Ok(())
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, number: i32) {
        let _ = number;
    }

    /// Ends it: SIGTERM, after `grace` SIGKILL. Waits until it is gone.
    pub async fn stop(&self, grace: Duration) -> ExecResult {
        let _ = grace;
        unimplemented!()
    }
}
