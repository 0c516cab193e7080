//! How an order is carried out: a box and the files, then the tool until it ends or its time does, then what it left.

use super::{
    Done, Inner, Order, Outcome, arguments, ask,
    output::{self, Target},
    places,
    result::{self, Said},
    room::{self, Kind, NoRoom, Room},
    stage::{Plan, Source, Unstaged},
    status::Statuses,
};
use crate::{
    artifacts::Scope,
    ipc::{self, Listening},
    log,
    tools::{Tool, What},
    warm::Parked,
    wire::{
        answer::CreatedArtifact,
        code::{self, Refusal},
        request::Invoke,
    },
};
use engine::{Exec, ExecResult, SessionState, Unread};
use serde_json::{Map, Value};
use spec::{LimitName, Status, Stream};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::{
    net::UnixListener,
    sync::{mpsc, watch},
};

/// What is waited for the last words of a tool that was asked to end.
const LAST_WORDS: Duration = room::SHORT_GRACE;
/// What its files may take to be kept, beyond its time: less than its asker's patience.
const LONGEST_KEEPING: Duration = Duration::from_secs(7);
/// What a question to a model that is under way may take to be given up.
const LONGEST_SETTLING: Duration = Duration::from_secs(2);
/// The same, where the time is up: the outcome does not come later for it.
const SHORT_SETTLING: Duration = Duration::from_millis(250);
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
    /// What it is told, once that is written.
    arguments: Option<Vec<u8>>,
    done: Done,
}

/// A tool that runs.
struct Running {
    room: Room,
    exec: Exec,
    statuses: Statuses,
    /// Answers for models, as long as the tool runs.
    models: Option<Listening>,
    /// How one that was ready was told of the call.
    told: Option<Told>,
}

/// The line that tells of a call, and where it lies until somebody reads it.
struct Told {
    bytes: u64,
    input: Unread,
}

impl Told {
    /// Whether nobody has read any of it.
    fn is_unread(&self) -> bool {
        self.input.bytes() == Some(self.bytes)
    }
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
            unsaid: 0,
        }
    }
}

pub(super) async fn carry_out(
    inner: &Arc<Inner>,
    order: Order,
    cancelled: watch::Receiver<bool>,
    statuses: mpsc::Sender<String>,
) -> Done {
    let Order {
        tool,
        invoke,
        time,
        profile,
    } = order;
    let (code, limits, what) = (tool.code.clone(), tool.limits, Some(tool.what.clone()));
    let kind = Kind {
        code,
        profile,
        limits,
        what,
    };
    ask::prepare_behind(inner);
    // Gone with the call: then another interpreter is made ready.
    let _using = inner.warm.using(&kind);
    let began = Instant::now();
    let (until, done) = (began + time, Done::new());
    let mut call = Call {
        inner,
        tool,
        invoke,
        kind,
        began,
        until,
        cancelled,
        statuses,
        arguments: None,
        done,
    };
    call.done.outcome = match call.go().await {
        Ok((result, artifacts)) => Outcome::Success {
            result,
            artifacts,
            took: began.elapsed(),
        },
        Err(Outcome::Refused(refusal)) => Outcome::Refused(inner.hide(refusal)),
        Err(outcome) => outcome,
    };
    if !call.done.was_warm {
        inner.spares.restock(&call.kind);
    }
    call.done.notes.extend(
        inner
            .warm
            .trouble()
            .into_iter()
            .chain(inner.spares.trouble()),
    );
    call.done
}

type Kept = (Map<String, Value>, Vec<CreatedArtifact>);

impl Call<'_> {
    async fn go(&mut self) -> Result<Kept, Outcome> {
        let most = self.most_staged();
        let mut plan = Plan::of(&mut self.invoke, most).map_err(Outcome::Refused)?;
        let mut parked = self.inner.warm.take(&self.kind);
        let (room, ended) = loop {
            if let Some(ended) = self.run(&mut plan, parked.take()).await? {
                break ended;
            }
        };
        if ended.status != Status::Succeeded {
            let state = room.end().await;
            return Err(Outcome::Refused(self.failed(state, ended)));
        }
        self.done.limits_hit.extend(ended.limits_hit);
        let cancelled = is_cancelled(self.cancelled.clone());
        // The box is ended behind.
        tokio::select! {
            biased;
            () = cancelled => Err(Outcome::Cancelled),
            kept = self.collect(&room) => kept.map_err(Outcome::Refused),
        }
    }

    /// Runs the tool until its end, in what is parked if there is something. None if that ended and never heard of the call.
    async fn run(
        &mut self,
        plan: &mut Plan,
        parked: Option<Parked>,
    ) -> Result<Option<(Room, ExecResult)>, Outcome> {
        let stopped = stop(self.until, self.cancelled.clone());
        let Running {
            room,
            exec,
            mut statuses,
            models,
            told,
        } = tokio::select! {
            biased;
            // What was made until then is ended behind.
            why = stopped => return Err(self.stopped(why)),
            started = self.start(plan, parked) => started.map_err(Outcome::Refused)?,
        };
        let ended = match self.attend(&exec, &mut statuses).await {
            Ok(result) => Ok((room, result)),
            Err(why) => {
                // It is asked to end at once. Its last words are waited for, its end is not.
                room.leave_to_stop(exec.clone());
                tokio::select! {
                    _ = tokio::time::timeout(LAST_WORDS, exec.wait()) => {}
                    never = statuses.forward(&self.statuses) => match never {},
                }
                Err(why)
            }
        };
        // All of them before the outcome.
        self.done.unsaid += statuses.finish(&self.statuses).await;
        self.listen(&exec);
        self.settle(
            models,
            if ended.is_ok() {
                LONGEST_SETTLING
            } else {
                SHORT_SETTLING
            },
        )
        .await;
        let (room, ended) = ended.map_err(|why| self.stopped(why))?;
        match told.filter(Told::is_unread) {
            Some(told) => self.unheard(told, room, ended).await,
            None => Ok(Some((room, ended))),
        }
    }

    /// One that ended with the line unread. With its box everybody is gone who could still read it: if it lies there then, it
    /// is certain that nobody began the call.
    async fn unheard<T>(
        &mut self,
        told: Told,
        room: Room,
        ended: ExecResult,
    ) -> Result<Option<T>, Outcome> {
        let state = room.end().await;
        let has_asked = self
            .done
            .spent
            .as_ref()
            .is_some_and(|spent| spent.questions > 0);
        if has_asked || !told.is_unread() {
            return Err(Outcome::Refused(self.failed(state, ended)));
        }
        self.done.was_warm = false;
        self.done
            .notes
            .push("a parked interpreter ended before it heard of the call".to_owned());
        Ok(None)
    }

    fn stopped(&self, why: Stop) -> Outcome {
        match why {
            Stop::Time => Outcome::TimedOut {
                took: self.began.elapsed(),
            },
            Stop::Cancelled => Outcome::Cancelled,
        }
    }

    /// Until the tool runs: an interpreter that is ready, or a box of its own.
    async fn start(&mut self, plan: &mut Plan, parked: Option<Parked>) -> Result<Running, Refusal> {
        if let Some(parked) = parked
            && let Some(running) = self.wake(parked, plan).await?
        {
            return Ok(running);
        }
        let room = self
            .inner
            .spares
            .open(&self.kind)
            .await
            .map_err(|why| self.no_room(&why))?;
        self.done
            .notes
            .extend(self.inner.news_of(&room, self.kind.profile));
        self.begin(room, plan).await
    }

    /// Hands a call to an interpreter that waits; none if it cannot be used, and then it has not been told anything.
    async fn wake(&mut self, parked: Parked, plan: &mut Plan) -> Result<Option<Running>, Refusal> {
        let Parked {
            room,
            exec,
            statuses,
            socket,
            ..
        } = parked;
        let line = room::line(&places::inside(places::ARGUMENTS));
        let input = exec.unread().await;
        let handed = match self.put(&room, plan).await {
            // Nobody in it saw how its files came. It goes on only for the call.
            Ok(()) => room.resume().await.is_ok() && exec.write(&line).await.is_ok(),
            Err(Unstaged::File(why)) => return Err(why),
            Err(Unstaged::Place(why)) => {
                self.done.notes.push(format!(
                    "a parked interpreter could not be used: {}",
                    why.message
                ));
                false
            }
        };
        self.done.was_warm = handed;
        exec.close_input();
        let models = if handed {
            self.answer_for_models(&room, socket)
        } else {
            None
        };
        let told = input.map(|input| Told {
            bytes: line.len() as u64,
            input,
        });
        Ok(handed.then_some(Running {
            room,
            exec,
            statuses,
            models,
            told,
        }))
    }

    async fn begin(&mut self, room: Room, plan: &mut Plan) -> Result<Running, Refusal> {
        let has_models = self.inner.models.is_some();
        let (statuses, socket) = room.prepare(has_models).map_err(|why| self.no_room(&why))?;
        self.put(&room, plan).await?;
        let file = places::inside(places::ARGUMENTS);
        let command = match &self.tool.what {
            What::Function { .. } | What::Class { .. } => {
                room.runner(&self.inner.settings.python, &[&file])
            }
            What::Executable { path, .. } => {
                let program = room::executable(&self.kind.code, path);
                room::bare(&self.kind, vec![program, file.into()])
            }
        };
        let exec = room
            .start(command, false)
            .await
            .map_err(|why| self.no_room(&why))?;
        let models = self.answer_for_models(&room, socket);
        Ok(Running {
            room,
            exec,
            statuses,
            models,
            told: None,
        })
    }

    /// Puts files and arguments into place.
    async fn put(&mut self, room: &Room, plan: &mut Plan) -> Result<(), Unstaged> {
        let workspace = room.workspace().map_err(|_| Unstaged::Place(no_room()))?;
        let Inner { shelf, inputs, .. } = self.inner;
        let from = Source {
            shelf,
            scope: &self.scope(),
            budget: inputs,
            until: self.until,
        };
        let staged = plan.put(workspace, from).await?;
        self.done.bytes_in = staged.bytes;
        let arguments = match self.arguments.take() {
            Some(arguments) => arguments,
            None => {
                let ipc = self.inner.models.as_ref().map(|_| ipc::SOCKET);
                let written = arguments::write(&self.tool, &mut self.invoke, &staged, ipc);
                let bad = |error| internal(format!("the arguments cannot be written: {error}"));
                written.map_err(|error| Unstaged::File(bad(error)))?
            }
        };
        let made = workspace.make_file(workspace.folder(), places::ARGUMENTS, 0o600, &arguments);
        self.arguments = Some(arguments);
        made.map_err(|error| {
            Unstaged::Place(internal(format!(
                "the arguments cannot be put into place: {error}"
            )))
        })
    }

    /// Whoever asked before waits in line at the socket.
    fn answer_for_models(&self, room: &Room, socket: Option<UnixListener>) -> Option<Listening> {
        Some(self.inner.models.as_ref()?.listen(room.id()?, socket?))
    }

    /// Nobody is answered any more; what was spent is told.
    async fn settle(&mut self, models: Option<Listening>, time: Duration) {
        if let Some(models) = models {
            self.done.spent = tokio::time::timeout(time, models.close()).await.ok();
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
        tokio::select! {
            biased;
            result = exec.wait() => Ok(result),
            never = statuses.forward(&self.statuses) => match never {},
            why = stop(self.until, self.cancelled.clone()) => Err(why),
        }
    }

    /// Keeps what it printed for the log.
    fn listen(&mut self, exec: &Exec) {
        let stdout = printed(exec, Stream::Stdout);
        let own = if self.done.was_warm {
            READY.len().min(stdout.len())
        } else {
            0
        };
        self.done.stdout = stdout[own..].to_vec();
        self.done.stderr = printed(exec, Stream::Stderr);
    }

    /// The result, and the files, which say themselves when their time is up.
    async fn collect(&mut self, room: &Room) -> Result<Kept, Refusal> {
        let workspace = room.workspace().map_err(|why| self.no_room(&why))?.clone();
        let (most, handle) = (self.inner.settings.largest_result as u64, workspace.clone());
        let read = move || {
            let mut said = result::read(&handle, most)?;
            let found = output::find(&handle, &mut said)?;
            Ok::<_, Refusal>((said, found))
        };
        let until = self.until + LONGEST_KEEPING;
        let read = tokio::time::timeout_at(until.into(), tokio::task::spawn_blocking(read)).await;
        let read =
            read.map_err(|_| internal("the tool's result could not be read in time".to_owned()))?;
        let (Said { result, .. }, mut found) =
            read.map_err(|error| internal(error.to_string()))??;
        self.done.notes.append(&mut found.notes);
        if found.is_empty() {
            return Ok((result, Vec::new()));
        }
        let Inner { shelf, outputs, .. } = self.inner;
        let (workspace, scope) = (&workspace, &self.scope());
        let kept = found
            .keep(Target {
                workspace,
                shelf,
                scope,
                budget: outputs,
                until,
            })
            .await?;
        if let Some(weakness) = self.inner.shelf.weakness()
            && !self.inner.is_weakness_told.swap(true, Ordering::Relaxed)
        {
            self.done.notes.push(weakness.to_owned());
        }
        Ok((result, kept))
    }

    /// Why there is no result. The box has ended before: only then it is known which limits were hit.
    fn failed(&mut self, ended: Option<SessionState>, result: ExecResult) -> Refusal {
        self.done
            .limits_hit
            .extend(result.limits_hit.iter().copied());
        self.done
            .limits_hit
            .extend(ended.into_iter().flat_map(|state| state.limits_hit));
        let limits = self
            .done
            .limits_hit
            .iter()
            .filter_map(|limit| named(*limit));
        let limits = limits.collect::<Vec<_>>().join(", ");
        let limits = if limits.is_empty() {
            limits
        } else {
            format!("it ran into its limit of {limits}. ")
        };
        let said = excuse(&self.done.stderr, &self.inner.settings.hidden);
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

pub(super) fn no_room() -> Refusal {
    let message = "the sandbox could not be made; the log of the worker says why";
    Refusal::new(code::Code::SandboxFailed, message)
}

pub(super) fn internal(message: String) -> Refusal {
    Refusal::new(code::Code::InternalError, message)
}

/// Until the time is up, or somebody cancels.
async fn stop(until: Instant, cancelled: watch::Receiver<bool>) -> Stop {
    tokio::select! {
        biased;
        () = is_cancelled(cancelled) => Stop::Cancelled,
        () = tokio::time::sleep_until(until.into()) => Stop::Time,
    }
}

/// Until somebody cancels. Whoever dropped the other end did not.
async fn is_cancelled(mut cancelled: watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The beginning of what a program wrote, and the end.
pub(super) fn printed(exec: &Exec, stream: Stream) -> Vec<u8> {
    let mut kept = exec.take_beginning(stream);
    let place = if stream == Stream::Stdout { 0 } else { 1 };
    let (begun, total) = (kept.len() as u64, exec.output().lengths()[place]);
    if total > begun {
        let end = exec.output().read(
            stream,
            begun.max(total.saturating_sub(room::KEPT as u64)),
            room::KEPT,
        );
        if end.from > begun {
            kept.extend(format!("\n[... {} bytes left out ...]\n", end.from - begun).bytes());
        }
        kept.extend(end.bytes);
    }
    kept
}

/// What a tool's asker is told of its standard error. Of a path that is hidden no beginning is left where it is cut.
pub(super) fn excuse(stderr: &[u8], hidden: &[PathBuf]) -> String {
    let text = log::hide(String::from_utf8_lossy(stderr).into_owned(), hidden);
    let clean = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
    text.trim()
        .chars()
        .filter(|letter| clean(*letter))
        .take(LONGEST_EXCUSE)
        .collect()
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
