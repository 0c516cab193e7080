//! What came of a run: the one result object of every front.

use crate::{Barrier, Host, Id, Json, LimitName};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

/// How a run stands or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub enum Status {
    Queued,
    Running,
    Succeeded,
    Failed,
    TimedOut,
    OomKilled,
    Cancelled,
    NotStarted,
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
#[allow(missing_docs, reason = "the names are those of the contract")]
pub enum ErrorCode {
    InvalidSpec,
    ImageMissing,
    ImageRefused,
    BackendUnavailable,
    BarrierMissing,
    StartFailed,
    Timeout,
    OomKilled,
    Cancelled,
    PolicyDenied,
    BudgetExceeded,
    QuotaExceeded,
    ContractViolated,
    WorkspaceConflict,
    Conflict,
    Lost,
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

/// What a run used.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct Usage {
    pub cpu_ms: u64,
    pub memory_peak_bytes: u64,
    /// `None` where nothing on this host counts it.
    pub pids_peak: Option<u64>,
    pub llm: LlmUsage,
    pub egress: EgressUsage,
}

/// What of a run passed the egress door, or did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EgressUsage {
    /// Connections, and requests where they are looked at, that were let out.
    pub passed: u64,
    /// What was refused, each time.
    pub denied: u64,
    /// Bytes that went out.
    pub bytes_sent: u64,
    /// Bytes that came in.
    pub bytes_received: u64,
}

/// A rule that a run with `--learn` would have needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedRule {
    /// The host.
    pub host: Host,
    /// At these ports.
    pub ports: BTreeSet<u16>,
    /// How often it was used.
    pub uses: u64,
}

/// What a run used of models.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct LlmUsage {
    pub calls: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub cost_usd: f64,
}

/// Something the program tried and was refused. Each is listed once, however often it was tried.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Denial {
    /// `connect`, `write`, the name of a system call, or the type of a step.
    pub what: String,
    /// What it was about, where that is known: an address, a path inside, arguments. The program's own words.
    pub target: String,
    /// What denied it: `network`, `protected`, `mount`, `read_only_root`, `workspace_layer` or `syscall_filter`; of a
    /// step `workspace`, too.
    pub rule: String,
    /// The option that would have allowed it, or `nothing`.
    pub allow_with: String,
}

/// A kept file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct ArtifactRef {
    pub name: String,
    pub version: u64,
    pub size_bytes: u64,
    pub sha256: String,
}

/// Which streams were longer than what was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names are those of the contract")]
pub struct Truncated {
    pub stdout: bool,
    pub stderr: bool,
}

/// What holds a limit on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcer {
    /// A cgroup of the unified tree.
    CgroupV2,
    /// A cgroup of a version 1 tree.
    CgroupV1,
    /// Resource limits of each process: weaker.
    Rlimit,
    /// Nothing at all.
    Nothing,
}

/// One of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What happens while a run goes on.
#[derive(Clone, Debug)]
pub enum Event {
    /// The program is about to run, behind these barriers.
    Started {
        /// What the steps reported as up.
        barriers: Vec<Barrier>,
    },
    /// Bytes it wrote, in order within a stream.
    Output {
        /// Where it wrote them.
        stream: Stream,
        /// The bytes, unchanged.
        data: Vec<u8>,
    },
    /// It was denied something, for the first time.
    Denied(Denial),
}

/// A point in time, in milliseconds since 1970, shown as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

/// When a run came how far, in microseconds since 1970: for whoever traces it, and in no result that is shown. Zero where it
/// did not come so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// The driver began.
    pub begun: u64,
    /// The program runs.
    pub started: u64,
    /// It has ended, by itself or not, and everything in its box with it.
    pub over: u64,
    /// What it left is kept.
    pub kept: u64,
    /// Nothing is left to do.
    pub ended: u64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are those of the contract")]
pub struct RunResult {
    pub run_id: Id,
    pub task_id: Option<Id>,
    pub job_id: Option<Id>,
    pub status: Status,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// What `airlock run` exits with.
    pub exit_status: u8,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub truncated: Truncated,
    /// What the program printed, where a contract says what that is and it was kept.
    pub output: Option<Json>,
    pub error: Option<ErrorInfo>,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub duration_ms: u64,
    pub usage: Usage,
    pub limits_hit: BTreeSet<LimitName>,
    pub denials: Vec<Denial>,
    pub artifacts: Vec<ArtifactRef>,
    pub backend: &'static str,
    pub profile: String,
    pub barriers: Vec<Barrier>,
    /// What holds each limit on this host: `memory`, `pids`, `cpu`.
    pub enforced_by: BTreeMap<&'static str, Enforcer>,
    /// What a reader should know: where something is weaker or was done another way.
    pub notes: Vec<String>,
    /// The rules that were missing, if the run was to find that out.
    pub learned: Vec<LearnedRule>,
    /// What the program changed in a workspace with a layer, if it was one, or what was taken out of one that it shared.
    pub workspace: Option<WorkspaceChanges>,
    /// What arrived in the repositories of a workspace that is mounted as it is, or did not.
    pub git: Vec<GitImport>,
    /// Not shown.
    pub moments: Moments,
}

/// What a program changed in the folder of its workspace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct WorkspaceChanges {
    /// By which they can be looked at, committed or discarded.
    pub id: Id,
    /// How the folder was shared.
    pub mode: WorkspaceMode,
    /// New names.
    pub added: u64,
    /// Names with other contents, permissions, or of another kind.
    pub changed: u64,
    /// Names that are gone.
    pub removed: u64,
    /// Changes that were applied to the folder when the program had ended.
    pub applied: u64,
    /// What was taken out of the folder, or is not taken over; at most [`MAX_LISTED_CHANGES`].
    pub held_back: Vec<HeldBack>,
    /// How many there are.
    pub held_back_total: u64,
    /// What was not applied, because the folder has changed there, too; at most [`MAX_LISTED_CHANGES`].
    pub conflicts: Vec<Conflict>,
    /// How many there are.
    pub conflicts_total: u64,
    /// Commits that the program made, each with the beginning of its name and its subject.
    pub commits: Vec<String>,
    /// How the layer with the changes was made, if there was one, and what it takes on the disk.
    #[serde(flatten)]
    pub layer: Option<LayerUse>,
}

/// Names that a result lists.
pub const MAX_LISTED_CHANGES: usize = 100;

impl WorkspaceChanges {
    /// Nothing was changed.
    pub fn none(id: Id, mode: WorkspaceMode) -> WorkspaceChanges {
        WorkspaceChanges {
            id,
            mode,
            added: 0,
            changed: 0,
            removed: 0,
            applied: 0,
            held_back: Vec::new(),
            held_back_total: 0,
            conflicts: Vec::new(),
            conflicts_total: 0,
            commits: Vec::new(),
            layer: None,
        }
    }

    /// Adds what was held back; what is beyond the bound is counted.
    pub fn hold_back(&mut self, held_back: impl IntoIterator<Item = HeldBack>) {
        for held in held_back {
            self.held_back_total += 1;
            if self.held_back.len() < MAX_LISTED_CHANGES {
                self.held_back.push(held);
            }
        }
    }
}

/// How a program gets the folder of its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceMode {
    /// It writes to the folder at once.
    Live,
    /// Its changes are applied when it has ended.
    Staged,
    /// Its changes are kept until somebody applies or discards them.
    CopyOnWrite,
}

/// A change that was not applied, because the folder has changed there, too.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Conflict {
    /// Relative to the workspace; what is no text is replaced.
    pub path: String,
    /// What stands against it.
    pub why: String,
}

/// What a layer with a program's changes is and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LayerUse {
    /// How it was made.
    #[serde(rename = "layer")]
    pub kind: LayerKind,
    /// Bytes on the disk.
    #[serde(rename = "layer_bytes")]
    pub bytes: u64,
}

/// How the layer of a workspace is made that takes a program's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// A copy that shares its blocks with the folder until either is written.
    Reflink,
    /// A copy.
    #[default]
    Copy,
    /// The kernel lays it over the folder and copies a file when it is written.
    Overlay,
}

/// Something that was taken out of a mounted workspace when the program ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HeldBack {
    /// Relative to the workspace; what is no text is replaced.
    pub path: String,
    /// Why it does not stay there.
    pub why: HoldReason,
}

/// Why something does not stay in a mounted workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// Tools of the host obey what has this name.
    ProtectedName,
    /// A link that leads out of the folder.
    LinkOut,
    /// A link that leads to a protected name.
    LinkToProtected,
    /// A device, a socket or a whiteout.
    SpecialFile,
    /// A folder that could not be looked into.
    Unreadable,
    /// The folder for artifacts, of which not all was kept.
    Artifacts,
}

impl HoldReason {
    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            HoldReason::ProtectedName => "tools of the host obey files of this name",
            HoldReason::LinkOut => "it is a link that leads out of the folder",
            HoldReason::LinkToProtected => "it is a link to a protected name",
            HoldReason::SpecialFile => "it is a device, a socket or a whiteout",
            HoldReason::Unreadable => "it could not be looked into",
            HoldReason::Artifacts => "what lies there was not kept as artifacts",
        }
    }
}

/// What a program committed in one repository of its workspace. Of the user's only moves what nothing stands against: the
/// rest arrives beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GitImport {
    /// `.git`, or that of a submodule below it.
    pub path: String,
    /// Objects that are new.
    pub objects: u64,
    /// What they take.
    pub bytes: u64,
    /// Branches and tags that are new or other than before.
    pub refs: Vec<GitRef>,
    /// What git or other tools would obey, or write through, once these are taken over: protected names that they change,
    /// symbolic links, and places at which another repository is to lie.
    pub touches: Vec<String>,
    /// New commits, the newest first: the beginning of each name, and the subject. At most [`MAX_LISTED_CHANGES`].
    pub commits: Vec<String>,
    /// Where `HEAD` is, inside and here, if the program's changes were applied to the folder.
    pub head: Option<GitHead>,
    /// What became of the index.
    pub index: GitIndex,
    /// What did not arrive.
    pub not_brought: Vec<GitLeft>,
}

/// Where `HEAD` is: the full name of a branch, or a commit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GitHead {
    /// When the program had ended, in its repository.
    pub inside: String,
    /// Now, in the user's.
    pub host: String,
}

/// What became of the index of a user's repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GitIndex {
    /// It is as it was.
    #[default]
    Kept,
    /// It went with the branch; what the user had staged is staged still.
    Moved,
    /// It went with the branch; of what the user had staged the program committed something newer.
    Superseded,
}

/// A reference that arrived.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GitRef {
    /// What the program called it.
    pub name: String,
    /// The object that it named before.
    pub old: Option<String>,
    /// The object that it names.
    pub new: String,
    /// What it is called on the host.
    pub placed: String,
    /// Whether that is its own name.
    pub moved: bool,
    /// Why not, where it could have been.
    pub why: Option<String>,
}

/// What did not arrive, and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct GitLeft {
    pub what: String,
    pub why: String,
}

impl RunResult {
    /// The result of a run of which nothing has happened yet.
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
            truncated: Truncated::default(),
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
            moments: Moments::default(),
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = ((self.0 / 86_400_000) as i64, self.0 % 86_400_000);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            ms % 1000
        )
    }
}

/// Why a text is no moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTimestamp;

impl fmt::Display for BadTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is not a moment such as 2030-01-31T23:59:59Z, in UTC")
    }
}

/// RFC 3339 in UTC, from 1970 on; parts of a second finer than thousandths are left away.
impl FromStr for Timestamp {
    type Err = BadTimestamp;

    fn from_str(text: &str) -> Result<Timestamp, BadTimestamp> {
        moment(text).ok_or(BadTimestamp)
    }
}

fn moment(text: &str) -> Option<Timestamp> {
    let (body, fraction) = match text.strip_suffix('Z')?.split_once('.') {
        Some((body, fraction)) if (1..=9).contains(&fraction.len()) => (body, fraction),
        Some(_) => return None,
        None => (text.strip_suffix('Z')?, "0"),
    };
    let signs = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let bytes = body.as_bytes();
    let is_digit = |(at, byte): (usize, &u8)| {
        signs.iter().any(|(sign, _)| *sign == at) || byte.is_ascii_digit()
    };
    let is_shaped = bytes.len() == 19
        && bytes.iter().enumerate().all(is_digit)
        && signs.iter().all(|(at, sign)| bytes[*at] == *sign)
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let number = |from: usize, to: usize| body.get(from..to)?.parse::<u64>().ok();
    if !is_shaped {
        return None;
    }
    let [hour, minute, second] = [number(11, 13)?, number(14, 16)?, number(17, 19)?];
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let days = days_of(year as i64, month as i64, day as i64);
    // A day that there is not would come back as another.
    let is_real = civil(days) == (year as i64, month as i64, day as i64)
        && hour < 24
        && minute < 60
        && second < 60;
    let thousandths: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60 + second;
    is_real.then_some(Timestamp(seconds * 1000 + thousandths))
}

/// The other way round of [`civil`].
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Days since 1970 to year, month, day (proleptic Gregorian, counted in 400-year eras that start on 1 March).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

pub use wire::base64;

mod wire {
    use super::{GitImport, LearnedRule, RunResult, Timestamp, WorkspaceChanges};
    use serde::{
        Serialize, Serializer,
        ser::{SerializeMap, SerializeStruct},
    };

    impl Serialize for LearnedRule {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut rule = serializer.serialize_struct("LearnedRule", 3)?;
            rule.serialize_field("host", &self.host.to_string())?;
            rule.serialize_field("ports", &self.ports)?;
            rule.serialize_field("uses", &self.uses)?;
            rule.end()
        }
    }

    impl Serialize for Timestamp {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl Serialize for RunResult {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            map.serialize_entry("run_id", &self.run_id)?;
            map.serialize_entry("task_id", &self.task_id)?;
            map.serialize_entry("job_id", &self.job_id)?;
            map.serialize_entry("status", &self.status)?;
            map.serialize_entry("exit_code", &self.exit_code)?;
            map.serialize_entry("signal", &self.signal)?;
            map.serialize_entry("exit_status", &self.exit_status)?;
            output(&mut map, ["stdout", "stdout_base64"], &self.stdout)?;
            output(&mut map, ["stderr", "stderr_base64"], &self.stderr)?;
            map.serialize_entry("truncated", &self.truncated)?;
            map.serialize_entry("output", &self.output)?;
            map.serialize_entry("error", &self.error)?;
            map.serialize_entry("started_at", &self.started_at)?;
            map.serialize_entry("ended_at", &self.ended_at)?;
            map.serialize_entry("duration_ms", &self.duration_ms)?;
            map.serialize_entry("usage", &self.usage)?;
            map.serialize_entry("limits_hit", &self.limits_hit)?;
            map.serialize_entry("denials", &self.denials)?;
            map.serialize_entry("artifacts", &self.artifacts)?;
            map.serialize_entry("backend", &self.backend)?;
            map.serialize_entry("profile", &self.profile)?;
            map.serialize_entry("barriers", &self.barriers)?;
            map.serialize_entry("enforced_by", &self.enforced_by)?;
            map.serialize_entry("notes", &self.notes)?;
            map.serialize_entry("learned", &self.learned)?;
            if self.workspace.is_some() || !self.git.is_empty() {
                let (changes, git) = (self.workspace.as_ref(), self.git.as_slice());
                map.serialize_entry("workspace", &Workspace { changes, git })?;
            }
            map.end()
        }
    }

    /// What became of a workspace that is the host's.
    #[derive(serde::Serialize)]
    struct Workspace<'a> {
        #[serde(flatten)]
        changes: Option<&'a WorkspaceChanges>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        git: &'a [GitImport],
    }

    /// Timestamp where it is UTF-8, base64 under the other name where it is not.
    fn output<M: SerializeMap>(
        map: &mut M,
        names: [&str; 2],
        bytes: &[u8],
    ) -> Result<(), M::Error> {
        match std::str::from_utf8(bytes) {
            Ok(text) => map.serialize_entry(names[0], text),
            Err(_) => map.serialize_entry(names[1], &base64(bytes)),
        }
    }

    /// As RFC 4648 has it, with padding.
    pub fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
        for chunk in bytes.chunks(3) {
            let word = chunk
                .iter()
                .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            for place in 0..4 {
                let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
                text.push(if place > chunk.len() {
                    '='
                } else {
                    char::from(digit)
                });
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_rfc_3339() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (1_794_668_399_999, "2026-11-14T14:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ms)));
        }
    }

    #[test]
    fn what_is_no_moment_is_not_taken_for_one() {
        assert_eq!(
            "2030-01-02T03:04:05Z".parse(),
            Ok(Timestamp(1_893_553_445_000))
        );
        assert_eq!(
            "2030-01-02T03:04:05.6789Z".parse(),
            Ok(Timestamp(1_893_553_445_678))
        );
        for text in [
            "",
            "Z",
            "2030-01-02",
            "2030-01-02T03:04:05",
            "2030-01-02T03:04:05+00:00",
            "2030-02-30T00:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-00-01T00:00:00Z",
            "2030-01-01T24:00:00Z",
            "2030-01-01T00:00:60Z",
            "1969-12-31T23:59:59Z",
            "2030-01-01T00:00:00.Z",
            "2030-01-01T00:00:00.1234567890Z",
            "+030-01-01T00:00:00Z",
            "2030-01-01t00:00:00Z",
            "20３0-01-01T00:00:0Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(BadTimestamp), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_moment_is_read_as_it_is_shown(ms in 0u64..253_402_300_800_000, text in ".{0,40}") {
            proptest::prop_assert_eq!(Timestamp(ms).to_string().parse(), Ok(Timestamp(ms)));
            // No text panics.
            _ = text.parse::<Timestamp>();
        }
    }

    #[test]
    fn bytes_that_are_no_text_come_as_base64() {
        // The vectors of RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(wire::base64(bytes.as_bytes()), text);
        }
    }
}
