//! JSON of requests and responses about sandboxes and programs.

use super::output_cursor::stream_index;
use crate::{
    Problem,
    problem::Answer,
    wire::{Quantity, RunOrder, decoded, encoded},
};
use engine::{Exec, ExecResult, OutputLog, SessionEnd, SessionState, SessionStatus};
use serde::{Deserialize, Serialize};
use spec::{
    Barrier, Denial, ErrorInfo, LimitName, Status, StdStream, TerminalSize, Timestamp, Usage,
    WorkspaceChanges,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    time::Duration,
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// Number of labels of a sandbox, and maximum bytes of their names and values.
const MAX_LABELS: usize = 16;
const MAX_LABEL_BYTES: usize = 256;
/// Maximum standard input in the request; more goes through the stdin route.
const MAX_STDIN: usize = 1 << 20;
const MAX_ARGUMENTS: usize = 4096;
/// Maximum bytes of each stream in a response; a feed returns as much at a time.
const MAX_INLINE_OUTPUT: usize = 1 << 20;

/// An optional duration.
pub(super) fn optional_duration(given: Option<&Quantity>, name: &str) -> Answer<Option<Duration>> {
    Ok(given
        .map(|span| span.parse::<spec::Time>(name))
        .transpose()?
        .map(|time| time.0))
}

/// Labels that the caller chose.
pub(crate) type Labels = BTreeMap<String, String>;

pub(super) fn check_labels(labels: &Labels) -> Answer<()> {
    crate::wire::check_label_names(labels)?;
    let too_long = |text: &String| text.len() > MAX_LABEL_BYTES;
    if labels.len() > MAX_LABELS
        || labels
            .iter()
            .any(|(name, value)| too_long(name) || too_long(value))
    {
        Err(Problem::invalid(
            "these labels are too many or too long",
            format!(
                "a sandbox has up to {MAX_LABELS}, with names and values of up to {MAX_LABEL_BYTES} bytes"
            ),
        ))
    } else {
        Ok(())
    }
}

/// What a sandbox has beyond the options of a run.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = Stay)]
pub(crate) struct LifetimeOptions {
    /// It ends when nobody has used it for so long (15 minutes unless said).
    pub(super) idle_timeout: Option<Quantity>,
    /// It ends after so long in any case (an hour unless said, seven days at most).
    pub(super) lifetime: Option<Quantity>,
    /// Words of your own about it.
    pub(super) labels: Labels,
}

/// The options of a sandbox: those of a run that are not about one program, and its lifetime
/// options.
pub(crate) struct SandboxOrder;

/// Options of a run that are about its program.
const PROGRAM_FIELDS: [&str; 7] = [
    "command",
    "entrypoint",
    "stdin",
    "stdin_base64",
    "artifacts",
    "contract",
    "run_id",
];

impl PartialSchema for SandboxOrder {
    fn schema() -> RefOr<Schema> {
        let run = RunOrder::schema();
        let lifetime_options = LifetimeOptions::schema();
        let (RefOr::T(Schema::Object(mut run)), RefOr::T(Schema::Object(lifetime_options))) =
            (run, lifetime_options)
        else {
            return LifetimeOptions::schema();
        };
        run.properties
            .retain(|name, _| !PROGRAM_FIELDS.contains(&name.as_str()));
        run.properties.extend(lifetime_options.properties);
        run.description =
            Some("The options of a run without a command, and how long it stays.".to_owned());
        RefOr::T(Schema::Object(run))
    }
}

impl ToSchema for SandboxOrder {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        RunOrder::schemas(schemas);
        LifetimeOptions::schemas(schemas);
    }
}

/// How a sandbox is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxStatus {
    /// Programs can be started.
    Ready,
    /// All its processes are stopped where they are.
    Paused,
    /// It is gone; `reason` says why.
    Ended,
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxState {
    sandbox_id: String,
    pub(super) status: SandboxStatus,
    /// Why it ended: `asked`, `idle`, `lifetime`, `limit`, `server_stopped` or `lost`.
    reason: Option<&'static str>,
    labels: Labels,
    #[schema(value_type = String)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>)]
    ended_at: Option<Timestamp>,
    /// When it ends at the latest.
    #[schema(value_type = String)]
    expires_at: Timestamp,
    /// When it ends if nobody uses it meanwhile.
    #[schema(value_type = String)]
    idle_until: Timestamp,
    backend: String,
    profile: String,
    #[schema(value_type = Vec<String>)]
    barriers: Vec<Barrier>,
    #[schema(value_type = Object)]
    usage: Usage,
    #[schema(value_type = Vec<String>)]
    limits_hit: BTreeSet<LimitName>,
    /// What its doors refused; each program has a list of its own.
    #[schema(value_type = Vec<Object>)]
    denials: Vec<Denial>,
    /// Once it has ended: what its programs changed in a workspace with a layer, what of it was applied to the folder, and what
    /// was not (`conflicts`, `held_back`).
    #[schema(value_type = Option<Object>)]
    workspace: Option<WorkspaceChanges>,
    notes: Vec<String>,
}

impl SandboxState {
    pub(super) fn new(sandbox_id: &str, labels: &Labels, state: SessionState) -> SandboxState {
        SandboxState {
            sandbox_id: sandbox_id.to_owned(),
            status: match state.status {
                SessionStatus::Ready => SandboxStatus::Ready,
                SessionStatus::Paused => SandboxStatus::Paused,
                SessionStatus::Ended => SandboxStatus::Ended,
            },
            reason: state.ended.map(end_reason),
            labels: labels.clone(),
            created_at: state.created_at,
            ended_at: state.ended_at,
            expires_at: state.expires_at,
            idle_until: state.idle_until,
            backend: state.backend,
            profile: state.profile,
            barriers: state.barriers,
            usage: state.usage,
            limits_hit: state.limits_hit,
            denials: state.denials,
            workspace: state.workspace,
            notes: state.notes,
        }
    }
}

/// Parses the text of [`end_reason`]; anything else is `lost`.
pub(super) fn parse_end(text: &str) -> SessionEnd {
    use SessionEnd::{Asked, Idle, Lifetime, Limit, ServerStopped};
    let ends = [Asked, Idle, Lifetime, Limit, ServerStopped];
    ends.into_iter()
        .find(|end| end_reason(*end) == text)
        .unwrap_or(SessionEnd::Lost)
}

pub(crate) fn end_reason(end: SessionEnd) -> &'static str {
    match end {
        SessionEnd::Asked => "asked",
        SessionEnd::Idle => "idle",
        SessionEnd::Lifetime => "lifetime",
        SessionEnd::Limit => "limit",
        SessionEnd::ServerStopped => "server_stopped",
        SessionEnd::Lost => "lost",
    }
}

/// 410: the sandbox has ended, and why.
pub(super) fn gone_problem(state: &SessionState) -> Problem {
    let why = match state.ended {
        Some(SessionEnd::Asked) => "it was ended by request",
        Some(SessionEnd::Idle) => "nobody used it for its `idle_timeout`",
        Some(SessionEnd::Lifetime) => "its `lifetime` was over",
        Some(SessionEnd::Limit) => "a limit of the whole sandbox was spent",
        Some(SessionEnd::ServerStopped) => "its server was stopped",
        Some(SessionEnd::Lost) | None => "its box or its server died",
    };
    let hint = "make another with `POST /v1/sandboxes`".to_owned();
    Problem::new(
        http::StatusCode::GONE,
        "gone",
        format!("this sandbox is gone: {why}"),
        Some(hint),
    )
}

/// The sandboxes of a tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxList {
    pub(super) sandboxes: Vec<SandboxState>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Size)]
pub(crate) struct TtySize {
    /// Lines.
    pub(super) rows: u16,
    /// Characters in a line.
    pub(super) columns: u16,
}

impl TtySize {
    pub(super) fn validate(self) -> Answer<TerminalSize> {
        if (1..=4096).contains(&self.rows) && (1..=4096).contains(&self.columns) {
            Ok(TerminalSize {
                rows: self.rows,
                columns: self.columns,
            })
        } else {
            Err(Problem::invalid(
                "no terminal has that size",
                "give 1 to 4096 rows and columns",
            ))
        }
    }
}

/// A program to be run in a sandbox.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ExecAsked)]
pub(crate) struct ExecOptions {
    /// Exact arguments; no shell is put before them.
    command: Vec<String>,
    /// Variables beyond those of the sandbox.
    env: BTreeMap<String, String>,
    /// Where it starts, inside.
    directory: Option<String>,
    /// What it reads, as text.
    stdin: Option<String>,
    /// What it reads, as base64.
    stdin_base64: Option<String>,
    /// Leaves its standard input open for `…/stdin`.
    open_stdin: bool,
    /// Gives it a terminal.
    tty: Option<TtySize>,
    /// Its time on the clock: never more than the sandbox allows.
    timeout: Option<Quantity>,
    /// Runs as long as the sandbox does; the answer is there at once.
    background: bool,
}

/// A program to start, and its first standard input.
#[derive(Debug)]
pub(crate) struct ExecStart {
    pub(crate) request: spec::ExecRequest,
    pub(crate) typed: Vec<u8>,
    /// Whether standard input stays open.
    pub(crate) stays_open: bool,
}

impl ExecOptions {
    pub(super) fn background(&self) -> bool {
        self.background
    }

    pub(super) fn into_start(self) -> Answer<ExecStart> {
        let words = self.command.len() + self.env.len();
        if self.command.is_empty() || words > MAX_ARGUMENTS {
            let hint =
                format!("name a program, with up to {MAX_ARGUMENTS} arguments and variables");
            return Err(Problem::invalid("`command` is empty or too long", hint));
        }
        let typed = stdin_bytes(self.stdin, self.stdin_base64)?;
        let stdin = self.open_stdin || typed.is_some();
        let request = spec::ExecRequest {
            command: self.command.into_iter().map(OsString::from).collect(),
            env: self
                .env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            directory: self.directory.map(Into::into),
            stdin,
            tty: self.tty.map(TtySize::validate).transpose()?,
            timeout: optional_duration(self.timeout.as_ref(), "timeout")?,
            background: self.background,
            beginning: 0,
        };
        let has_nul = |text: &OsString| text.as_encoded_bytes().contains(&0);
        if request
            .command
            .iter()
            .chain(request.env.iter().flat_map(|(n, v)| [n, v]))
            .any(has_nul)
        {
            return Err(Problem::invalid(
                "a NUL cannot be passed to a program",
                "leave it out",
            ));
        }
        Ok(ExecStart {
            request,
            typed: typed.unwrap_or_default(),
            stays_open: self.open_stdin,
        })
    }
}

fn stdin_bytes(text: Option<String>, base64: Option<String>) -> Answer<Option<Vec<u8>>> {
    let typed = match (text, base64) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid(
                "`stdin` and `stdin_base64` exclude each other",
                "give one of them",
            ));
        }
        (Some(text), None) => Some(text.into_bytes()),
        (None, Some(base64)) => Some(decoded(&base64, "stdin_base64")?),
        (None, None) => None,
    };
    if typed.as_ref().is_some_and(|typed| typed.len() > MAX_STDIN) {
        Err(Problem::invalid(
            format!("`stdin` is longer than {MAX_STDIN} bytes"),
            "set `open_stdin` and send it to `…/exec/{exec}/stdin`",
        ))
    } else {
        Ok(typed)
    }
}

/// How much a program has written so far, or where a reader is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Offsets {
    stdout: u64,
    stderr: u64,
}

impl From<[u64; 2]> for Offsets {
    fn from([stdout, stderr]: [u64; 2]) -> Offsets {
        Offsets { stdout, stderr }
    }
}

/// Which streams are not here from their beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = Shortened)]
pub(crate) struct TruncatedStart {
    stdout: bool,
    stderr: bool,
}

/// A program of a sandbox, and what came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecState {
    exec_id: String,
    command: Vec<String>,
    /// As of a run: `running`, then `succeeded`, `failed`, `timed_out`, `oom_killed`, `cancelled`, `not_started`, `lost`.
    #[schema(value_type = String)]
    status: Status,
    exit_code: Option<i32>,
    signal: Option<i32>,
    /// What a shell would report; 127 if there is no such program inside, 126 if it cannot be run.
    exit_status: Option<u8>,
    #[schema(value_type = Option<Object>)]
    error: Option<ErrorInfo>,
    background: bool,
    tty: bool,
    #[schema(value_type = String)]
    started_at: Timestamp,
    #[schema(value_type = Option<String>)]
    ended_at: Option<Timestamp>,
    duration_ms: Option<u64>,
    cpu_ms: Option<u64>,
    #[schema(value_type = Vec<String>)]
    limits_hit: BTreeSet<LimitName>,
    #[schema(value_type = Vec<Object>)]
    denials: Vec<Denial>,
    notes: Vec<String>,
    /// How much it has written in all.
    offsets: Offsets,
    #[serde(flatten)]
    output: Option<ExecOutput>,
}

/// The end of what a program wrote: up to 1 MiB of each stream. `…/output` has the rest, from `kept_from` on.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Output)]
pub(crate) struct ExecOutput {
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<String>,
    /// Instead of `stdout` where that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<String>,
    /// Instead of `stderr` where that is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    truncated: TruncatedStart,
    /// Where what is here begins.
    from: Offsets,
    /// From where on it can still be fetched.
    kept_from: Offsets,
}

impl ExecOutput {
    fn of(feed: &OutputLog) -> ExecOutput {
        let [(stdout_from, stdout), (stderr_from, stderr)] =
            [StdStream::Stdout, StdStream::Stderr].map(|stream| output_tail(feed, stream));
        let truncated = TruncatedStart {
            stdout: stdout_from > 0,
            stderr: stderr_from > 0,
        };
        let from = [stdout_from, stderr_from].into();
        let (stdout, stdout_base64) = text_or_base64(stdout);
        let (stderr, stderr_base64) = text_or_base64(stderr);
        let kept_from = feed.oldest().into();
        ExecOutput {
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            truncated,
            from,
            kept_from,
        }
    }
}

/// The end of a stream and its offset, cut at a character boundary.
fn output_tail(feed: &OutputLog, stream: StdStream) -> (u64, Vec<u8>) {
    let from = feed.lengths()[stream_index(stream)].saturating_sub(MAX_INLINE_OUTPUT as u64);
    let piece = feed.read(stream, from, MAX_INLINE_OUTPUT);
    let mut from = piece.from;
    let mut bytes = piece.bytes;
    let cut = bytes
        .iter()
        .take(3)
        .take_while(|byte| **byte & 0xc0 == 0x80)
        .count();
    if from > 0 && std::str::from_utf8(&bytes[cut..]).is_ok() {
        from += cut as u64;
        bytes.drain(..cut);
    }
    (from, bytes)
}

/// Text if it is UTF-8, else base64.
pub(super) fn text_or_base64(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(other) => (None, Some(encoded(other.as_bytes()))),
    }
}

impl ExecState {
    /// The state without output.
    pub(super) fn brief(exec: &Exec) -> ExecState {
        let request = exec.request();
        let result = exec.result();
        let words = request
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let state = ExecState {
            exec_id: exec.id().to_owned(),
            command: words.collect(),
            status: Status::Running,
            exit_code: None,
            signal: None,
            exit_status: None,
            error: None,
            background: request.background,
            tty: request.tty.is_some(),
            started_at: exec.started_at(),
            ended_at: None,
            duration_ms: None,
            cpu_ms: None,
            limits_hit: BTreeSet::new(),
            denials: Vec::new(),
            notes: Vec::new(),
            offsets: exec.output().lengths().into(),
            output: None,
        };
        match result {
            Some(result) => state.ended(result),
            None => state,
        }
    }

    fn ended(self, result: ExecResult) -> ExecState {
        ExecState {
            status: result.status,
            exit_code: result.exit_code,
            signal: result.signal,
            exit_status: Some(result.exit_status),
            error: result.error,
            ended_at: Some(result.ended_at),
            duration_ms: Some(result.duration_ms),
            cpu_ms: Some(result.cpu_ms),
            limits_hit: result.limits_hit,
            denials: result.denials,
            notes: result.notes,
            ..self
        }
    }

    /// The state with the end of the output.
    pub(super) fn whole(exec: &Exec) -> ExecState {
        ExecState {
            output: Some(ExecOutput::of(exec.output())),
            ..ExecState::brief(exec)
        }
    }
}

/// The programs of a sandbox, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecList {
    pub(super) execs: Vec<ExecState>,
}

/// One of the streams.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StreamName {
    /// Standard output, and all that a terminal shows.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

impl From<StreamName> for StdStream {
    fn from(name: StreamName) -> StdStream {
        match name {
            StreamName::Stdout => StdStream::Stdout,
            StreamName::Stderr => StdStream::Stderr,
        }
    }
}

impl From<StdStream> for StreamName {
    fn from(stream: StdStream) -> StreamName {
        [StreamName::Stdout, StreamName::Stderr][stream_index(stream)]
    }
}

/// A signal, by name or number.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum SignalName {
    /// 1 to 64.
    Number(i32),
    /// `TERM`, with or without `SIG`.
    Name(String),
}

/// Signals that have a name here.
const SIGNALS: [(&str, i32); 17] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("WINCH", 28),
];

impl SignalName {
    pub(super) fn number(&self) -> Answer<i32> {
        let found = match self {
            SignalName::Number(number) => (1..=64).contains(number).then_some(*number),
            SignalName::Name(name) => {
                let name = name.to_ascii_uppercase();
                let name = name.strip_prefix("SIG").unwrap_or(&name);
                SIGNALS
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, number)| *number)
            }
        };
        found.ok_or_else(|| {
            Problem::invalid(
                "there is no such signal",
                "give a name such as TERM, or 1 to 64",
            )
        })
    }
}

/// A path as text: invalid UTF-8 is replaced, and the exact bytes are in `…_base64`.
pub(super) fn name_or_base64(name: OsString) -> (String, Option<String>) {
    let shown = name.to_string_lossy().into_owned();
    let bytes = name.into_vec();
    let whole = (shown.as_bytes() != bytes).then(|| encoded(&bytes));
    (shown, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_end_of_a_long_stream_and_says_where_the_rest_is() {
        let feed = OutputLog::new(8 << 20);
        feed.append(StdStream::Stdout, "xä".repeat(1 << 20).as_bytes());
        feed.append(StdStream::Stderr, b"short");
        let output = ExecOutput::of(&feed);
        let text = output.stdout.unwrap();
        assert!(
            text.len() > MAX_INLINE_OUTPUT - 4
                && text.len() <= MAX_INLINE_OUTPUT
                && output.stdout_base64.is_none()
        );
        assert_eq!(
            output.truncated,
            TruncatedStart {
                stdout: true,
                stderr: false
            }
        );
        assert_eq!(
            output.from,
            Offsets {
                stdout: (3 << 20) - text.len() as u64,
                stderr: 0
            }
        );
        assert_eq!(
            (output.kept_from, output.stderr.as_deref()),
            (Offsets::default(), Some("short"))
        );
    }
}
