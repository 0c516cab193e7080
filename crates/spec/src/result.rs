//! The result of a run. The command line, the server and the library return the same object.

mod wire;

use crate::{Barrier, GitImport, Host, Id, Json, LimitName, Timestamp, WorkspaceChanges};
use std::collections::{BTreeMap, BTreeSet};

/// The state of a run, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The job waits for its turn.
    Queued,
    /// The program runs.
    Running,
    /// The program exited with 0, and its output kept the contract.
    Succeeded,
    /// The program exited with another status or by a signal, or its output broke the contract.
    Failed,
    /// A time limit ended the program.
    TimedOut,
    /// The kernel killed the program at its memory limit.
    OomKilled,
    /// The caller cancelled the run.
    Cancelled,
    /// The program was never started.
    NotStarted,
    /// The server ended before the run did, so that its end is unknown.
    Lost,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 9] = [
        Status::Queued,
        Status::Running,
        Status::Succeeded,
        Status::Failed,
        Status::TimedOut,
        Status::OomKilled,
        Status::Cancelled,
        Status::NotStarted,
        Status::Lost,
    ];

    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Queued => "queued",
            Status::Running => "running",
            Status::Succeeded => "succeeded",
            Status::Failed => "failed",
            Status::TimedOut => "timed_out",
            Status::OomKilled => "oom_killed",
            Status::Cancelled => "cancelled",
            Status::NotStarted => "not_started",
            Status::Lost => "lost",
        }
    }
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is wrong in itself.
    InvalidSpec,
    /// The image is not present and cannot be pulled.
    ImageMissing,
    /// The image policy refuses the image.
    ImageRefused,
    /// The backend is not part of this build, or not present on this host.
    BackendUnavailable,
    /// This host cannot enforce a required barrier.
    BarrierMissing,
    /// The sandbox or the program could not be started.
    StartFailed,
    /// A time limit was reached.
    Timeout,
    /// The memory limit was reached.
    OomKilled,
    /// The caller cancelled the run.
    Cancelled,
    /// The operator or the profile does not allow it.
    PolicyDenied,
    /// The budget for models is used up.
    BudgetExceeded,
    /// A quota of the tenant is used up.
    QuotaExceeded,
    /// Standard output is not what the contract asks for.
    ContractViolated,
    /// The workspace is not in the state that the request needs.
    WorkspaceConflict,
    /// The state of the object does not allow it.
    Conflict,
    /// The server ended before the run did.
    Lost,
    /// An error of Airlock itself.
    Internal,
}

/// An error as a caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ErrorInfo {
    /// Its kind.
    pub code: ErrorCode,
    /// What happened, on one line.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// Resources that a run used.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Usage {
    /// CPU time of all processes.
    pub cpu_ms: u64,
    /// The largest use of memory of all processes together.
    pub memory_peak_bytes: u64,
    /// The largest number of processes and threads; `None` where nothing on this host counts them.
    pub pids_peak: Option<u64>,
    /// Use of models.
    pub llm: LlmUsage,
    /// Traffic at the egress door.
    pub egress: EgressUsage,
}

/// Traffic of a run at the egress door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EgressUsage {
    /// Allowed connections, and allowed requests where TLS ends at the door.
    pub passed: u64,
    /// Denied connections, requests and name lookups, each attempt counted.
    pub denied: u64,
    /// Bytes to the outside.
    pub bytes_sent: u64,
    /// Bytes from the outside.
    pub bytes_received: u64,
}

/// A rule that a run with `--learn` would have needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedRule {
    /// The host.
    pub host: Host,
    /// Its ports.
    pub ports: BTreeSet<u16>,
    /// Number of connections.
    pub uses: u64,
}

/// Use of models by a run.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct LlmUsage {
    /// Calls that reached a provider.
    pub calls: u64,
    /// Tokens of the requests.
    pub input_tokens: u64,
    /// Tokens of the responses.
    pub output_tokens: u64,
    /// Input tokens that the provider read from its cache.
    pub cached_tokens: u64,
    /// The cost in dollars by the price book.
    pub cost_usd: f64,
}

/// An attempt of the program that was denied. It is listed once, however often it was repeated.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Denial {
    /// `connect`, `write`, the name of a system call, or the type of a step.
    pub what: String,
    /// The target, where it is known: an address, a path inside, arguments. The program chose the
    /// text.
    pub target: String,
    /// The rule that denied it: `network`, `protected`, `mount`, `read_only_root`,
    /// `workspace_layer` or `syscall_filter`; for a step also `workspace`.
    pub rule: String,
    /// The option that would have allowed it, or `nothing`.
    pub allow_with: String,
}

/// A stored artifact.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ArtifactRef {
    /// Its name.
    pub name: String,
    /// Its version, counted from 1.
    pub version: u64,
    /// Its size.
    pub size_bytes: u64,
    /// The digest of its bytes, in hexadecimal.
    pub sha256: String,
}

/// Which streams were longer than the output limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Truncation {
    /// Standard output was cut.
    pub stdout: bool,
    /// Standard error was cut.
    pub stderr: bool,
}

/// The mechanism that enforces a limit on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcer {
    /// A cgroup of version 2.
    CgroupV2,
    /// A cgroup of version 1.
    CgroupV1,
    /// Resource limits of each process, which count no sums.
    Rlimit,
    /// None.
    Nothing,
}

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// An event of a run in progress.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// The program is about to start.
    Started {
        /// The barriers that are in place, as the steps of containment reported.
        barriers: Vec<Barrier>,
    },
    /// Output of the program, in order within a stream.
    Output {
        /// The stream.
        stream: StdStream,
        /// The bytes, unchanged.
        data: Vec<u8>,
    },
    /// A denial, reported the first time only.
    Denied(Denial),
}

/// When each phase of a run was reached, in microseconds since 1970; zero for a phase that was not.
/// Traces use it; the serialised result has none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// The engine took the run up.
    pub begun: u64,
    /// The program was started.
    pub started: u64,
    /// All processes of the sandbox have ended.
    pub over: u64,
    /// Artifacts and changes are stored.
    pub kept: u64,
    /// The sandbox is removed.
    pub ended: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// The identifier of the run.
    pub run_id: Id,
    /// The caller's task.
    pub task_id: Option<Id>,
    /// The caller's job.
    pub job_id: Option<Id>,
    /// How it ended.
    pub status: Status,
    /// The exit status of the program, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that killed the program, if one did.
    pub signal: Option<i32>,
    /// The exit status of `airlock run`.
    pub exit_status: u8,
    /// The kept part of standard output.
    pub stdout: Vec<u8>,
    /// The kept part of standard error.
    pub stderr: Vec<u8>,
    /// Which streams are cut.
    pub truncated: Truncation,
    /// The parsed standard output, where the contract names a format and the output keeps it.
    pub output: Option<Json>,
    /// Why the run did not succeed.
    pub error: Option<ErrorInfo>,
    /// When the run began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// The time between both.
    pub duration_ms: u64,
    /// Resources that it used.
    pub usage: Usage,
    /// Limits that it reached.
    pub limits_hit: BTreeSet<LimitName>,
    /// Attempts that were denied.
    pub denials: Vec<Denial>,
    /// Artifacts that were stored.
    pub artifacts: Vec<ArtifactRef>,
    /// The backend that ran it.
    pub backend: &'static str,
    /// The profile that applied.
    pub profile: String,
    /// The barriers that were in place.
    pub barriers: Vec<Barrier>,
    /// The mechanism that enforces each limit on this host: `memory`, `pids`, `cpu`.
    pub enforced_by: BTreeMap<&'static str, Enforcer>,
    /// Remarks for the reader: weaker limits, fallbacks, anything that was left out.
    pub notes: Vec<String>,
    /// The egress rules that were missing, for a run with `--learn`.
    pub learned: Vec<LearnedRule>,
    /// Changes in a layer over the workspace, or files that were removed from a shared workspace.
    pub workspace: Option<WorkspaceChanges>,
    /// Commits that were imported into the repositories of a mounted workspace.
    pub git: Vec<GitImport>,
    /// Not serialised.
    pub phase_times: PhaseTimes,
}

impl RunResult {
    /// The result of a run before its first phase.
    pub fn blank(run_id: Id, profile: String, now: Timestamp) -> RunResult {
        RunResult {
            run_id,
            task_id: None,
            job_id: None,
            status: Status::NotStarted,
            exit_code: None,
            signal: None,
            exit_status: 125,
            stdout: Vec::new(),
            stderr: Vec::new(),
            truncated: Truncation::default(),
            output: None,
            error: None,
            started_at: now,
            ended_at: now,
            duration_ms: 0,
            usage: Usage::default(),
            limits_hit: BTreeSet::new(),
            denials: Vec::new(),
            artifacts: Vec::new(),
            backend: "native",
            profile,
            barriers: Vec::new(),
            enforced_by: BTreeMap::new(),
            notes: Vec::new(),
            learned: Vec::new(),
            workspace: None,
            git: Vec::new(),
            phase_times: PhaseTimes::default(),
        }
    }
}
