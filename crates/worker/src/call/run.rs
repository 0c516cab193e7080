//! How an order is carried out: a box and the files, then the tool until it ends or its time does, then what it left.

use super::{
    Done, Inner, Order, Outcome, arguments, output, places,
    profile::Profile,
    result::{self, Said},
    room::{self, Kind, NoRoom, Room},
    stage::{self, Staged},
    status::Statuses,
};
use crate::{
    artifacts::Scope,
    tools::{Code, Tool, What},
    warm::Parked,
    wire::{
        answer::CreatedArtifact,
        code::{self, Refusal},
        request::Invoke,
    },
};
use engine::{Exec, ExecResult};
use serde_json::{Map, Value};
use spec::{LimitName, Status, Stream};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};

/// What a tool has to end by itself after SIGTERM: its asker waits for some seconds more than it had.
const GRACE: Duration = Duration::from_secs(2);
/// What its files may take to be kept, beyond its time: less than its asker's patience.
const LONGEST_KEEPING: Duration = Duration::from_secs(7);
/// Files of one call that are put into place at once; more is left to another thread.
const LITTLE: usize = 1 << 20;
/// Characters of what a tool says on standard error that its asker is told.
const LONGEST_EXCUSE: usize = 500;
/// What a program that is asked for a schema may print.
const LARGEST_ANSWER: u64 = 4 << 20;
/// How long compiling may take.
const LONGEST_COMPILING: Duration = Duration::from_secs(60);
const LARGEST_COMPILED: u64 = 4 << 20;
/// Written for every Python there is.
const COMPILE: &str = "import sys, py_compile; py_compile.compile(sys.argv[1], cfile=sys.argv[2], dfile='runner.py', \
                       doraise=True)";
/// What a parked interpreter says before it waits.
pub(crate) const READY: &[u8] = b"ready\n";

/// Why a call is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Time,
    Cancelled,
}

/// A call under way.
struct Call<'a> {
    inner: &'a Inner,
    tool: Arc<Tool>,
    invoke: Box<Invoke>,
    kind: Kind,
    began: Instant,
    until: Instant,
    cancelled: watch::Receiver<bool>,
    statuses: mpsc::Sender<String>,
    done: Done,
}

/// A tool that runs.
struct Running {
    room: Room,
    exec: Exec,
    statuses: Statuses,
}

impl Done {
    fn new() -> Done {
        Done {
            outcome: Outcome::Cancelled,
            stdout: Vec::new(),
            stderr: Vec::new(),
            limits_hit: BTreeSet::new(),
            notes: Vec::new(),
            was_warm: false,
        }
    }
}

pub(super) async fn carry_out(
    inner: &Arc<Inner>,
    order: Order,
    cancelled: watch::Receiver<bool>,
    statuses: mpsc::Sender<String>,
) -> Done {
    let Order { tool, invoke, time, profile } = order;
    let (code, limits, what) = (tool.code.clone(), tool.limits, Some(tool.what.clone()));
    let kind = Kind { code, profile, limits, what };
    prepare_behind(inner);
    // Gone with the call: then another interpreter is made ready.
    let _using = inner.warm.using(&kind);
    let began = Instant::now();
    let (until, done) = (began + time, Done::new());
    let mut call = Call { inner, tool, invoke, kind, began, until, cancelled, statuses, done };
    call.done.outcome = match call.go().await {
        Ok((result, artifacts)) => Outcome::Success { result, artifacts, took: began.elapsed() },
        Err(outcome) => outcome,
    };
    call.done
}

type Kept = (Map<String, Value>, Vec<CreatedArtifact>);

impl Call<'_> {
    async fn go(&mut self) -> Result<Kept, Outcome> {
        let stopped = stop(self.until, self.cancelled.clone());
        let Running { room, exec, mut statuses } = tokio::select! {
            biased;
            // What was made until then is ended behind.
            why = stopped => return Err(self.stopped(why)),
            started = self.start() => started.map_err(Outcome::Refused)?,
        };
        let ended = self.attend(&exec, &mut statuses).await;
        // All of them before the outcome.
        statuses.finish(&self.statuses).await;
        self.listen(&exec);
        match ended {
            Err(why) => {
                room.leave().await;
                Err(self.stopped(why))
            }
            Ok(result) if result.status == Status::Succeeded => {
                self.done.limits_hit.extend(result.limits_hit);
                let kept = self.collect(&room).await;
                room.leave().await;
                kept.map_err(Outcome::Refused)
            }
            Ok(result) => Err(Outcome::Refused(self.failed(room, result).await)),
        }
    }

    fn stopped(&self, why: Stop) -> Outcome {
        match why {
            Stop::Time => Outcome::TimedOut { took: self.began.elapsed() },
            Stop::Cancelled => Outcome::Cancelled,
        }
    }

    /// Until the tool runs: an interpreter that is ready, or a box of its own.
    async fn start(&mut self) -> Result<Running, Refusal> {
        let scope = self.scope();
        let Inner { shelf, rooms, warm, .. } = self.inner;
        let most = self.most_staged();
        let (staged, room) = match warm.take(&self.kind) {
            Some(parked) => {
                (stage::find(shelf, &scope, &mut self.invoke, most).await, Ok(Place::Warm(parked)))
            }
            None => {
                let found = stage::find(shelf, &scope, &mut self.invoke, most);
                let (found, room) = tokio::join!(found, rooms.open(&self.kind));
                (found, room.map(Place::Cold))
            }
        };
        let mut staged = staged?;
        let ipc = self.ipc();
        let arguments = arguments::write(&self.tool, &mut self.invoke, &staged, ipc)
            .map_err(|error| internal(format!("the arguments cannot be written: {error}")))?;
        let place = match room {
            Ok(Place::Cold(room)) => room,
            Err(why) => return Err(self.no_room(&why)),
            Ok(Place::Warm(parked)) => match self.wake(parked, &mut staged, &arguments).await {
                Some(running) => return Ok(running),
                None => rooms.open(&self.kind).await.map_err(|why| self.no_room(&why))?,
            },
        };
        self.begin(place, staged, &arguments).await
    }

    /// Hands a call to an interpreter that waits; none if it cannot be used, and then it has not been told anything.
    async fn wake(&mut self, parked: Parked, staged: &mut Staged, arguments: &[u8]) -> Option<Running> {
        let Parked { room, exec, statuses, .. } = parked;
        let put = put(&room, std::mem::take(staged), arguments).await;
        let handed = match put {
            Ok(back) => {
                *staged = back;
                exec.write(&room::line(&places::inside(places::ARGUMENTS))).await.is_ok()
            }
            Err((back, why)) => {
                *staged = back;
                self.done.notes.push(format!("a parked interpreter could not be used: {}", why.message));
                false
            }
        };
        self.done.was_warm = handed;
        exec.close_input();
        handed.then_some(Running { room, exec, statuses })
    }

    async fn begin(&mut self, room: Room, staged: Staged, arguments: &[u8]) -> Result<Running, Refusal> {
        let statuses = room.prepare().map_err(|why| self.no_room(&why))?;
        put(&room, staged, arguments).await.map_err(|(_, why)| why)?;
        let file = places::inside(places::ARGUMENTS);
        let command = match &self.tool.what {
            What::Function { .. } | What::Class { .. } => {
                room.runner(&self.kind, &self.inner.settings.python, &[&file])
            }
            What::Executable { path, .. } => {
                let program = room::executable(&self.kind.code, path);
                room::bare(&self.kind, vec![program, file.into()])
            }
        };
        let exec = room.start(command, false).await.map_err(|why| self.no_room(&why))?;
        Ok(Running { room, exec, statuses })
    }

    /// The name of a socket in the work folder at which models are asked, if there are any.
    fn ipc(&self) -> Option<&'static str> {
        // Who listens there comes with `ipc`: a box's work folder by handle, before its program starts.
        self.inner.models.as_ref().and(None)
    }

    /// Half of what the work folder may hold: the tool, too, needs room.
    fn most_staged(&self) -> u64 {
        self.inner.rooms.disk(self.kind.profile) / 2
    }

    fn scope(&self) -> Scope {
        Scope {
            app: self.invoke.app_name.clone(),
            user: self.invoke.user_id.clone(),
            session: self.invoke.session_id.clone(),
        }
    }

    /// Until the tool has ended, by itself or not; its statuses go out meanwhile.
    async fn attend(&mut self, exec: &Exec, statuses: &mut Statuses) -> Result<ExecResult, Stop> {
        let why = tokio::select! {
            biased;
            result = exec.wait() => return Ok(result),
            never = statuses.forward(&self.statuses) => match never {},
            why = stop(self.until, self.cancelled.clone()) => why,
        };
        tokio::select! {
            _ = exec.stop(GRACE) => {}
            never = statuses.forward(&self.statuses) => match never {},
        }
        Err(why)
    }

    /// Keeps what it printed for the log.
    fn listen(&mut self, exec: &Exec) {
        let stdout = printed(exec, Stream::Stdout);
        let own = if self.done.was_warm { READY.len().min(stdout.len()) } else { 0 };
        self.done.stdout = stdout[own..].to_vec();
        self.done.stderr = printed(exec, Stream::Stderr);
    }

    /// The result, and the files.
    async fn collect(&mut self, room: &Room) -> Result<Kept, Refusal> {
        let workspace = room.workspace().map_err(|why| self.no_room(&why))?.clone();
        let (most, handle) = (self.inner.settings.largest_result as u64, workspace.clone());
        let read = move || {
            let mut said = result::read(&handle, most)?;
            let found = output::find(&handle, &mut said)?;
            Ok((said, found))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let (Said { result, .. }, mut found) = read.map_err(|error| internal(error.to_string()))??;
        self.done.notes.append(&mut found.notes);
        if found.is_empty() {
            return Ok((result, Vec::new()));
        }
        let scope = self.scope();
        let keeping = found.keep(&workspace, &self.inner.shelf, &scope);
        let until = self.until + LONGEST_KEEPING;
        let kept = tokio::select! {
            kept = keeping => kept?,
            () = tokio::time::sleep_until(until.into()) => {
                let why = "the tool's files could not be kept in time";
                return Err(Refusal::new(code::Code::ArtifactError, why));
            }
        };
        Ok((result, kept))
    }

    /// Why there is no result. The box is ended first: only then it is known which limits were hit.
    async fn failed(&mut self, room: Room, result: ExecResult) -> Refusal {
        let ended = room.end().await;
        self.done.limits_hit.extend(result.limits_hit.iter().copied());
        self.done.limits_hit.extend(ended.into_iter().flat_map(|state| state.limits_hit));
        let limits = self.done.limits_hit.iter().filter_map(|limit| named(*limit));
        let limits = limits.collect::<Vec<_>>().join(", ");
        let limits = if limits.is_empty() { limits } else { format!("it ran into its limit of {limits}. ") };
        let said = excuse(&self.done.stderr);
        let said = match (said.is_empty(), result.exit_code, result.signal) {
            (false, ..) => said,
            (true, Some(status), _) => format!("it ended with status {status}"),
            (true, None, Some(signal)) => format!("it ended by signal {signal}"),
            (true, None, None) => result.error.map_or_else(String::new, |error| error.message),
        };
        let code = match result.status {
            Status::Lost => code::Code::SandboxFailed,
            _ => code::Code::ExecutionError,
        };
        Refusal::new(code, format!("Sandbox execution failed: {limits}{said}"))
    }

    /// The reason is for the log: it may name paths of this machine.
    fn no_room(&mut self, why: &NoRoom) -> Refusal {
        self.done.notes.push(format!("there is no sandbox: {why}"));
        no_room()
    }
}

/// Where a call can be carried out.
enum Place {
    Warm(Parked),
    Cold(Room),
}

fn no_room() -> Refusal {
    let message = "the sandbox could not be made; the log of the worker says why";
    Refusal::new(code::Code::SandboxFailed, message)
}

fn internal(message: String) -> Refusal {
    Refusal::new(code::Code::InternalError, message)
}

/// Puts files and arguments into place; gives the files back.
async fn put(room: &Room, staged: Staged, arguments: &[u8]) -> Result<Staged, (Staged, Refusal)> {
    let workspace = match room.workspace() {
        Ok(workspace) => workspace,
        Err(_) => return Err((staged, no_room())),
    };
    let total: usize = staged.bytes.values().map(bytes::Bytes::len).sum();
    let (staged, done) = match total <= LITTLE {
        true => {
            let done = stage::put(workspace, &staged);
            (staged, done)
        }
        false => {
            let workspace = workspace.clone();
            let putting = move || {
                let done = stage::put(&workspace, &staged);
                (staged, done)
            };
            match tokio::task::spawn_blocking(putting).await {
                Ok(done) => done,
                Err(error) => (Staged::default(), Err(internal(error.to_string()))),
            }
        }
    };
    if let Err(why) = done {
        return Err((staged, why));
    }
    match workspace.make_file(workspace.folder(), places::ARGUMENTS, 0o600, arguments) {
        Ok(()) => Ok(staged),
        Err(error) => Err((staged, internal(format!("the arguments cannot be put into place: {error}")))),
    }
}

/// Until the time is up, or somebody cancels.
async fn stop(until: Instant, mut cancelled: watch::Receiver<bool>) -> Stop {
    let is_cancelled = async {
        // Whoever dropped the other end did not cancel.
        if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = is_cancelled => Stop::Cancelled,
        () = tokio::time::sleep_until(until.into()) => Stop::Time,
    }
}

/// The beginning of what a program wrote, and the end.
fn printed(exec: &Exec, stream: Stream) -> Vec<u8> {
    let mut kept = exec.take_beginning(stream);
    let place = if stream == Stream::Stdout { 0 } else { 1 };
    let (begun, total) = (kept.len() as u64, exec.output().lengths()[place]);
    if total > begun {
        let end = exec.output().read(stream, begun.max(total.saturating_sub(room::KEPT as u64)), room::KEPT);
        if end.from > begun {
            kept.extend(format!("\n[... {} bytes left out ...]\n", end.from - begun).bytes());
        }
        kept.extend(end.bytes);
    }
    kept
}

/// What a tool's asker is told of its standard error.
fn excuse(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let clean = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
    text.trim().chars().filter(|letter| clean(*letter)).take(LONGEST_EXCUSE).collect()
}

fn named(limit: LimitName) -> Option<&'static str> {
    match limit {
        LimitName::Memory => Some("memory"),
        LimitName::Pids => Some("processes"),
        LimitName::CpuTime => Some("CPU time"),
        LimitName::WallTime => Some("time"),
        LimitName::FileSize => Some("the size of a file"),
        LimitName::OpenFiles => Some("open files"),
        LimitName::Disk => Some("disk"),
        LimitName::Egress => Some("what may be sent out"),
        LimitName::Budget => Some("what may be spent on models"),
        // It printed a lot. That ends nobody.
        LimitName::Output => None,
    }
}

/// Has the runner compiled behind the first call, if nobody did before.
fn prepare_behind(inner: &Arc<Inner>) {
    let rooms = &inner.rooms;
    if rooms.compiled.get().is_none() && !rooms.is_compiling.swap(true, Ordering::Relaxed) {
        let inner = inner.clone();
        // Calls say what is wrong, if something is.
        rooms.behind(async move { _ = prepare(&inner).await });
    }
}

/// A box that shows what is wrong here, and compiles the runner.
pub(super) async fn prepare(inner: &Inner) -> Result<Vec<String>, Refusal> {
    let kind = asking(&Code::default());
    let open = inner.rooms.open(&kind).await;
    let room = open.map_err(|why| Refusal::new(code::Code::SandboxFailed, why.to_string()))?;
    let held = room.state().map(|state| {
        let barriers = state.barriers.iter().map(|barrier| barrier.to_string());
        barriers.chain(state.notes).collect()
    });
    inner.rooms.is_compiling.store(true, Ordering::Relaxed);
    if inner.rooms.compiled.get().is_none() {
        let compiled = places::inside(places::COMPILED);
        let words = [COMPILE, places::RUNNER, &compiled].map(OsString::from);
        let command = [inner.settings.python.as_os_str().to_owned(), "-c".into()].into_iter().chain(words);
        let command = room::bare(&kind, command.collect());
        answer_of(&room, command, LONGEST_COMPILING).await?;
        let workspace = room.workspace().map_err(|why| internal(why.to_string()))?;
        let read = workspace.read(workspace.folder(), places::COMPILED, LARGEST_COMPILED);
        // Without it the runner is used as it was written.
        if let Ok(bytes) = read {
            _ = inner.rooms.compiled.set(bytes.into());
        }
    }
    room.leave().await;
    Ok(held.unwrap_or_default())
}

/// The box of who asks what a tool is.
fn asking(code: &Code) -> Kind {
    Kind { code: code.clone(), profile: Profile::Standard, limits: Default::default(), what: None }
}

pub(super) async fn ask(
    inner: &Inner,
    code: &Code,
    command: Vec<OsString>,
    files: &[(&str, &[u8])],
    time: Duration,
) -> Result<Vec<u8>, Refusal> {
    let kind = asking(code);
    let work = async {
        let room = inner.rooms.open(&kind).await.map_err(|_| no_room())?;
        lay_out(&room, files).map_err(|why| internal(why.to_string()))?;
        let said = answer_of(&room, room::bare(&kind, command), time).await;
        room.leave().await;
        said
    };
    let late =
        || Refusal::new(code::Code::InitError, format!("there was no answer within {} s", time.as_secs()));
    tokio::time::timeout(time, work).await.unwrap_or_else(|_| Err(late()))
}

/// The runner as it was written, and what else is to be there.
fn lay_out(room: &Room, files: &[(&str, &[u8])]) -> Result<(), NoRoom> {
    let workspace = room.workspace()?;
    let own = workspace.enter_folder(workspace.folder(), places::OWN)?;
    match workspace.make_file(own.as_fd(), places::SOURCE, 0o444, room::RUNNER) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    for (name, bytes) in files {
        workspace.make_file(workspace.folder(), name, 0o600, bytes)?;
    }
    Ok(())
}

/// All that a program printed, if it ended well.
async fn answer_of(room: &Room, command: Vec<OsString>, time: Duration) -> Result<Vec<u8>, Refusal> {
    let bad = |message: String| Refusal::new(code::Code::InitError, message);
    let exec = room.start(command, false).await.map_err(|_| no_room())?;
    let Ok(result) = tokio::time::timeout(time, exec.wait()).await else {
        return Err(bad(format!("there was no answer within {} s", time.as_secs())));
    };
    if result.status != Status::Succeeded {
        let said = excuse(&printed(&exec, Stream::Stderr));
        let why = result.error.map(|error| error.message);
        let why = why.unwrap_or_else(|| format!("it ended with status {}", result.exit_status));
        return Err(bad(if said.is_empty() { why } else { said }));
    }
    let total = exec.output().lengths()[0];
    if total > LARGEST_ANSWER {
        return Err(bad(format!("the answer has {total} bytes, and may have {LARGEST_ANSWER}")));
    }
    let mut said = Vec::new();
    while (said.len() as u64) < total {
        let piece = exec.output().read(Stream::Stdout, said.len() as u64, 1 << 20);
        if piece.from != said.len() as u64 || piece.bytes.is_empty() {
            return Err(bad("some of the answer is lost".to_owned()));
        }
        said.extend(piece.bytes);
    }
    Ok(said)
}
