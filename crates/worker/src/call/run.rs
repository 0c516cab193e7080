//! How an order is carried out: a box and the files, then the tool until it ends or its time does, then what it left.

use super::{
    Done, Inner, Order, Outcome, arguments, ask, output, places,
    result::{self, Said},
    room::{self, Kind, NoRoom, Room},
    stage::{self, Staged},
    status::Statuses,
};
use crate::{
    artifacts::Scope,
    ipc::{self, Listening},
    tools::{Tool, What},
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
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::{
    net::UnixListener,
    sync::{mpsc, watch},
};

/// What a tool has to end by itself after SIGTERM: its asker waits for some seconds more than it had.
const GRACE: Duration = Duration::from_secs(2);
/// What its files may take to be kept, beyond its time: less than its asker's patience.
const LONGEST_KEEPING: Duration = Duration::from_secs(7);
/// What a question to a model that is under way may take to be given up.
const LONGEST_SETTLING: Duration = Duration::from_secs(2);
/// Files of one call that are put into place at once; more is left to another thread.
const LITTLE: usize = 1 << 20;
/// Characters of what a tool says on standard error that its asker is told.
const LONGEST_EXCUSE: usize = 500;
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
    /// Answers for models, as long as the tool runs.
    models: Option<Listening>,
}

impl Done {
    fn new() -> Done {
        Done {
            outcome: Outcome::Cancelled,
            stdout: Vec::new(),
            stderr: Vec::new(),
            limits_hit: BTreeSet::new(),
            notes: Vec::new(),
            spent: None,
            was_warm: false,
            bytes_in: 0,
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
    ask::prepare_behind(inner);
    // Gone with the call: then another interpreter is made ready.
    let _using = inner.warm.using(&kind);
    let began = Instant::now();
    let (until, done) = (began + time, Done::new());
    let mut call = Call { inner, tool, invoke, kind, began, until, cancelled, statuses, done };
    call.done.outcome = match call.go().await {
        Ok((result, artifacts)) => Outcome::Success { result, artifacts, took: began.elapsed() },
        Err(outcome) => outcome,
    };
    call.done.notes.extend(inner.warm.trouble());
    call.done
}

type Kept = (Map<String, Value>, Vec<CreatedArtifact>);

impl Call<'_> {
    async fn go(&mut self) -> Result<Kept, Outcome> {
        let stopped = stop(self.until, self.cancelled.clone());
        let Running { room, exec, mut statuses, models } = tokio::select! {
            biased;
            // What was made until then is ended behind.
            why = stopped => return Err(self.stopped(why)),
            started = self.start() => started.map_err(Outcome::Refused)?,
        };
        let ended = self.attend(&exec, &mut statuses).await;
        // All of them before the outcome.
        statuses.finish(&self.statuses).await;
        self.listen(&exec);
        self.settle(models).await;
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
        self.done.bytes_in = staged.bytes.values().map(|bytes| bytes.len() as u64).sum();
        let ipc = self.inner.models.as_ref().map(|_| ipc::SOCKET);
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
        let Parked { room, exec, statuses, socket, .. } = parked;
        let put = put(&room, std::mem::take(staged), arguments).await;
        let handed = match put {
            Ok(back) => {
                *staged = back;
                // Nobody in it saw how its files came. It goes on only for the call.
                room.resume().await.is_ok()
                    && exec.write(&room::line(&places::inside(places::ARGUMENTS))).await.is_ok()
            }
            Err((back, why)) => {
                *staged = back;
                self.done.notes.push(format!("a parked interpreter could not be used: {}", why.message));
                false
            }
        };
        self.done.was_warm = handed;
        exec.close_input();
        let models = if handed { self.answer_for_models(&room, socket) } else { None };
        handed.then_some(Running { room, exec, statuses, models })
    }

    async fn begin(&mut self, room: Room, staged: Staged, arguments: &[u8]) -> Result<Running, Refusal> {
        let has_models = self.inner.models.is_some();
        let (statuses, socket) = room.prepare(has_models).map_err(|why| self.no_room(&why))?;
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
        let models = self.answer_for_models(&room, socket);
        Ok(Running { room, exec, statuses, models })
    }

    /// Whoever asked before waits in line at the socket.
    fn answer_for_models(&self, room: &Room, socket: Option<UnixListener>) -> Option<Listening> {
        Some(self.inner.models.as_ref()?.listen(room.id()?, socket?))
    }

    /// Nobody is answered any more; what was spent is told.
    async fn settle(&mut self, models: Option<Listening>) {
        if let Some(models) = models {
            self.done.spent = tokio::time::timeout(LONGEST_SETTLING, models.close()).await.ok();
        }
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
        if let Some(weakness) = self.inner.shelf.weakness()
            && !self.inner.is_weakness_told.swap(true, Ordering::Relaxed)
        {
            self.done.notes.push(weakness.to_owned());
        }
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

pub(super) fn no_room() -> Refusal {
    let message = "the sandbox could not be made; the log of the worker says why";
    Refusal::new(code::Code::SandboxFailed, message)
}

pub(super) fn internal(message: String) -> Refusal {
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
pub(super) fn printed(exec: &Exec, stream: Stream) -> Vec<u8> {
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
pub(super) fn excuse(stderr: &[u8]) -> String {
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
