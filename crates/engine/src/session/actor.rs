//! The task of a session: it owns the box. Whoever wants something of the box asks here.

use super::{
    Book, Exec, LeftBehind, MOST_OUTPUT, MOST_RUNNING, MOST_WAITING, Session, SessionEnd,
    SessionState, SessionStatus, Shared, conflict,
    exec::{self, Beginning},
};
use crate::{
    doors::Opened,
    driver::blank,
    feed::Budget,
    making::{LONGEST_START, Making, Standing, environment, injected, internal, leave, take_in},
    origin::Origin,
    pool,
    record::{self, Record},
    room,
    streams::{Streams, connect_pipes, input_pipe},
    terminal,
    verdict::{COUNTED_EVERY, cpu_left, first_look},
};
use sandbox::{Counters, Program, Sandbox, SandboxError};
use spec::{
    Backend, ErrorCode, ErrorInfo, ExecRequest, LimitName, RunResult, SessionSpec, Timestamp, Usage,
};
use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

/// How long programs may take to have their last word written down once the box is gone.
const LONGEST_LAST_WORD: Duration = Duration::from_secs(5);
/// How long a paused box is let go, so that a program in it can die.
const LONGEST_RELEASE: Duration = Duration::from_millis(800);
/// What a terminal is taken for, unless the caller says.
const TERMINAL: &str = "xterm-256color";

/// The exit status of what could not be started for a reason of ours.
const REFUSED: u8 = 125;

type Answer<T> = oneshot::Sender<Result<T, ErrorInfo>>;

/// What is asked of the task.
#[derive(Debug)]
pub(super) enum Order {
    Start(Box<ExecRequest>, Answer<Exec>),
    Pause(Answer<()>),
    Resume(Answer<()>),
    /// Stop for as long as the workspace is copied, whoever else pauses or resumes meanwhile.
    Hold(Answer<()>),
    /// The end of that.
    LetGo(Answer<()>),
    /// What the whole box has used.
    Count(oneshot::Sender<Counters>),
    /// A program of a paused box is to die: nothing dies while it is stopped.
    Release(Exec),
    /// A program has ended.
    Ended,
}

/// The task.
pub(super) struct Actor {
    shared: Arc<Shared>,
    making: Making,
    origin: Origin,
    opened: Opened,
    records: Vec<Record>,
    sandbox: Box<dyn Sandbox>,
    orders: mpsc::Receiver<Order>,
    ending: watch::Receiver<Option<SessionEnd>>,
    programs: JoinSet<()>,
    /// Copies that are being made of it: it stands still for them.
    holds: usize,
    born: Instant,
    next_look: Instant,
    next_room: Instant,
    /// When it is looked next what a box at work has used.
    next_count: Instant,
    result: RunResult,
}

/// From nothing to nothing. An engine that closes, or a caller who is gone before it stands, ends it.
pub(super) async fn live(
    mut making: Making,
    mut spec: SessionSpec,
    cancel: watch::Sender<bool>,
    mut closing: watch::Receiver<bool>,
    mut ready: oneshot::Sender<Result<Session, ErrorInfo>>,
) {
    let mut result = blank(&making.id, &making.spec);
    let stood = {
        let standing = stand(&mut making, &mut result);
        tokio::pin!(standing);
        tokio::select! {
            stood = &mut standing => stood,
            () = closes(&mut closing) => { cancel.send_replace(true); standing.await }
            () = ready.closed() => { cancel.send_replace(true); standing.await }
        }
    };
    let mut actor = match stood {
        Ok(standing) => {
            // They lie in the workspace by now. Kept in memory, too, they would be there for as long as the session.
            (making.spec.inputs, spec.run.inputs) = (Vec::new(), Vec::new());
            Actor::new(making, spec, standing, result)
        }
        Err(error) => {
            making.settle_workspace(false, &mut result).await;
            // Nobody may be there to hear it.
            return drop(ready.send(Err(error)));
        }
    };
    let session = Session {
        shared: actor.shared.clone(),
    };
    let why = match ready.send(Ok(session)) {
        Ok(()) => actor.attend(&mut closing).await,
        Err(_) => SessionEnd::Asked,
    };
    actor.finish(why).await;
}

async fn stand(making: &mut Making, result: &mut RunResult) -> Result<Standing, ErrorInfo> {
    let mut standing = making.stand(result).await?;
    match making
        .furnish(&mut *standing.sandbox, &standing.opened, result)
        .await
    {
        // Listeners that are not ours: nobody serves there.
        Ok(_) => Ok(standing),
        Err(error) => {
            standing.sandbox.end().await;
            standing.opened.close(result).await;
            take_in(result, standing.sandbox.give_workspace_back().await);
            leave(standing.sandbox, standing.records).await;
            Err(error)
        }
    }
}

async fn closes(closing: &mut watch::Receiver<bool>) {
    // An error is the end of the last clone of the engine.
    _ = closing.wait_for(|closing| *closing).await;
}

/// Waits until somebody wants the session to end.
async fn asked(ending: &mut watch::Receiver<Option<SessionEnd>>) -> SessionEnd {
    let why = ending
        .wait_for(|ending| ending.is_some())
        .await
        .map(|why| *why);
    // Its sender lives as long as the session.
    why.ok().flatten().unwrap_or(SessionEnd::Asked)
}

impl Actor {
    fn new(making: Making, spec: SessionSpec, standing: Standing, mut result: RunResult) -> Actor {
        let Standing {
            origin,
            opened,
            records,
            sandbox,
        } = standing;
        result.notes.extend(making.told_secrets());
        let (orders, received) = mpsc::channel(MOST_WAITING);
        let (ending, is_ending) = watch::channel(None);
        let (now, born) = (record::now(), Instant::now());
        let state = SessionState {
            status: SessionStatus::Ready,
            is_asked_to_pause: false,
            ended: None,
            created_at: now,
            ended_at: None,
            expires_at: Timestamp(now.0 + spec.lifetime.as_millis() as u64),
            idle_until: now,
            backend: result.backend.to_owned(),
            profile: result.profile.clone(),
            barriers: sandbox.barriers(),
            usage: Usage::default(),
            limits_hit: BTreeSet::new(),
            denials: Vec::new(),
            learned: Vec::new(),
            workspace: None,
            notes: result.notes.clone(),
        };
        let workspace = sandbox.workspace().try_clone_to_owned().ok();
        let book = Book {
            state,
            cpu_ms: Arc::default(),
            box_cpu: Duration::ZERO,
            own_cpu: Duration::ZERO,
            execs: Vec::new(),
            started: 0,
            ended_cpu_us: 0,
            largest_bytes: 0,
            used: born,
            copies: 0,
            workspace,
        };
        let shared = Shared {
            id: making.id.clone(),
            spec,
            orders,
            status: watch::Sender::new(SessionStatus::Ready),
            ending,
            owner: sandbox.owner_inside(),
            feeds: Budget::of(
                making.engine.feeds.owner(making.spec.owner.as_ref()),
                MOST_OUTPUT,
            ),
            left_behind: LeftBehind::default(),
            book: Mutex::new(book),
        };
        Actor {
            next_look: born + first_look(&making.spec.sandbox.limits),
            next_room: born,
            next_count: born + COUNTED_EVERY,
            shared: Arc::new(shared),
            making,
            origin,
            opened,
            records,
            sandbox,
            orders: received,
            ending: is_ending,
            programs: JoinSet::new(),
            holds: 0,
            born,
            result,
        }
    }

    /// Does what it is asked, until something ends the session.
    async fn attend(&mut self, closing: &mut watch::Receiver<bool>) -> SessionEnd {
        let mut ending = self.ending.clone();
        let (folders, most) = self.making.own_folders();
        let overflow = room::until_they_take(&folders, most);
        tokio::pin!(overflow);
        loop {
            while self.programs.try_join_next().is_some() {}
            let due = self.due();
            tokio::select! {
                why = asked(&mut ending) => return why,
                () = closes(closing) => return SessionEnd::Asked,
                Some(order) = self.orders.recv() => self.obey(order, closing).await,
                _ = self.sandbox.progress() => return SessionEnd::Lost,
                () = &mut overflow => return self.disk_is_spent(),
                () = tokio::time::sleep_until(due.into()) => {
                    if let Some(why) = self.overdue() {
                        return why;
                    }
                }
            }
        }
    }

    /// When to look next.
    fn due(&self) -> Instant {
        let (spec, book) = (&self.shared.spec, self.shared.book());
        let lifetime = self.born + spec.lifetime;
        let mut due = lifetime.min(self.next_look);
        if self.making.fills_state() {
            due = due.min(self.next_room);
        }
        if book.running() > 0 {
            due = due.min(self.next_count);
        }
        // Whoever is at work says when he has finished.
        if book.is_at_work() {
            due
        } else {
            due.min(book.used + spec.idle)
        }
    }

    fn overdue(&mut self) -> Option<SessionEnd> {
        let (spec, now) = (&self.shared.spec, Instant::now());
        if now >= self.born + spec.lifetime {
            return Some(SessionEnd::Lifetime);
        }
        if now >= self.next_count {
            self.next_count = now + COUNTED_EVERY;
            self.count();
        }
        if now >= self.next_look {
            self.count();
            let own_cpu = self.shared.book().own_cpu;
            match cpu_left(&*self.sandbox, own_cpu, &self.making.spec.sandbox.limits) {
                Some(left) => self.next_look = now + left,
                None => {
                    self.result.limits_hit.insert(LimitName::CpuTime);
                    return Some(SessionEnd::Limit);
                }
            }
        }
        if self.making.fills_state() && now >= self.next_room {
            self.next_room = now + room::LOOK;
            if room::is_short(&self.making.engine.state) {
                return Some(self.disk_is_spent());
            }
        }
        let book = self.shared.book();
        (!book.is_at_work() && now >= book.used + spec.idle).then_some(SessionEnd::Idle)
    }

    fn disk_is_spent(&mut self) -> SessionEnd {
        self.result.limits_hit.insert(LimitName::Disk);
        // Its programs end by it, and say so.
        self.shared.book().state.limits_hit.insert(LimitName::Disk);
        SessionEnd::Limit
    }

    /// Whoever asked may be gone: then nobody hears the answer.
    async fn obey(&mut self, order: Order, closing: &mut watch::Receiver<bool>) {
        match order {
            Order::Start(request, answer) => {
                let mut ending = self.ending.clone();
                let started = tokio::select! {
                    started = self.start(*request) => started,
                    _ = asked(&mut ending) => Err(super::gone("the session ends")),
                    () = closes(closing) => Err(super::gone("the engine closes")),
                };
                _ = answer.send(started);
            }
            Order::Pause(answer) => _ = answer.send(self.pause().await),
            Order::Resume(answer) => _ = answer.send(self.resume().await),
            Order::Hold(answer) => _ = answer.send(self.hold().await),
            Order::LetGo(answer) => _ = answer.send(self.let_go().await),
            Order::Count(answer) => _ = answer.send(self.sandbox.counters()),
            Order::Release(exec) => self.release(exec).await,
            Order::Ended => self.count(),
        }
    }

    fn set(&self, status: SessionStatus) {
        self.shared.book().state.status = status;
        self.shared.status.send_replace(status);
    }

    async fn pause(&mut self) -> Result<(), ErrorInfo> {
        if self.shared.book().state.is_asked_to_pause {
            return Err(conflict("the session is paused", "resume it"));
        }
        self.stop().await?;
        // What it holds stays as it is from here on: whoever asks need not wait for the next look.
        self.count();
        self.shared.book().state.is_asked_to_pause = true;
        Ok(())
    }

    async fn resume(&mut self) -> Result<(), ErrorInfo> {
        if !self.shared.book().state.is_asked_to_pause {
            return Err(conflict(
                "the session is not paused",
                "there is nothing to resume",
            ));
        }
        if self.holds == 0 {
            self.go_on().await?;
        }
        self.shared.book().state.is_asked_to_pause = false;
        Ok(())
    }

    async fn hold(&mut self) -> Result<(), ErrorInfo> {
        self.stop().await?;
        self.holds += 1;
        Ok(())
    }

    async fn let_go(&mut self) -> Result<(), ErrorInfo> {
        self.holds = self.holds.saturating_sub(1);
        if self.holds > 0 || self.shared.book().state.is_asked_to_pause {
            return Ok(());
        }
        let gone_on = self.go_on().await;
        // What stays stopped can at least be resumed.
        self.shared.book().state.is_asked_to_pause = gone_on.is_err();
        gone_on
    }

    async fn stop(&mut self) -> Result<(), ErrorInfo> {
        if !self.shared.is_paused() {
            self.sandbox.freeze().await.map_err(|error| error.info())?;
            self.set(SessionStatus::Paused);
        }
        Ok(())
    }

    async fn go_on(&mut self) -> Result<(), ErrorInfo> {
        if self.shared.is_paused() {
            self.sandbox.thaw().await.map_err(|error| error.info())?;
            self.set(SessionStatus::Ready);
        }
        Ok(())
    }

    /// Lets a paused box go for as long as it takes a program to die of the signal that waits for it.
    async fn release(&mut self, exec: Exec) {
        if !self.shared.is_paused() || self.sandbox.thaw().await.is_err() {
            return;
        }
        _ = tokio::time::timeout(LONGEST_RELEASE, exec.wait()).await;
        if let Err(error) = self.sandbox.freeze().await {
            let note = format!(
                "it goes on, because it could not be stopped again: {}",
                error.info().message
            );
            self.shared.book().state.notes.push(note);
            self.set(SessionStatus::Ready);
            self.shared.book().state.is_asked_to_pause = false;
        }
    }

    async fn start(&mut self, request: ExecRequest) -> Result<Exec, ErrorInfo> {
        if self.shared.book().state.is_asked_to_pause {
            return Err(conflict("the session is paused", "resume it first"));
        }
        if self.shared.is_paused() {
            return Err(conflict(
                "the session stands still while it is copied",
                "ask again in a moment",
            ));
        }
        if self.shared.book().running() >= MOST_RUNNING {
            return Err(ErrorInfo {
                code: ErrorCode::QuotaExceeded,
                message: format!(
                    "{MOST_RUNNING} programs are under way in this session, and no more can be"
                ),
                hint: Some("wait for one of them, or end one".to_owned()),
            });
        }
        let broken = |error: io::Error| internal(format!("cannot connect the program: {error}"));
        let mut connected = self.connect(&request).await?;
        let inside = connected.streams.inside;
        let held = request
            .tty
            .map(|_| inside[0].try_clone())
            .transpose()
            .map_err(broken)?;
        let program = self.program(&request)?;
        let before = self.sandbox.counters().oom_kills;
        let started =
            tokio::time::timeout(LONGEST_START, self.sandbox.start(&program, inside)).await;
        let late = |_| internal("the program was not started in time".to_owned());
        let process = match started.map_err(late)? {
            Ok(process) => process,
            // That it is not there, or cannot be run, is what came of it: a result like any other.
            Err(error) if error.exit_status() != REFUSED => return Ok(self.never(request, &error)),
            Err(error) => {
                // A limit may be why.
                self.count();
                return Err(error.info());
            }
        };
        let id = self.next_id();
        let beginning = Beginning {
            id,
            request,
            process,
            stdout: connected.streams.stdout,
            stderr: connected.streams.stderr.take(),
            held,
            input: connected.input,
            window: connected.window,
            oom_kills: before,
        };
        let (exec, attending) = exec::begin(&self.shared, &self.making.engine.state, beginning);
        self.programs.spawn(attending);
        self.shared.book().add(exec.clone());
        Ok(exec)
    }

    fn next_id(&self) -> String {
        let mut book = self.shared.book();
        book.state.barriers = self.sandbox.barriers();
        book.started += 1;
        book.started.to_string()
    }

    /// One that ended before it began.
    fn never(&self, request: ExecRequest, error: &SandboxError) -> Exec {
        let exec = exec::never(self.next_id(), request, error);
        self.shared.book().add(exec.clone());
        exec
    }

    fn program(&self, request: &ExecRequest) -> Result<Program, ErrorInfo> {
        let mut env = environment(&self.making.id, &self.making.spec);
        if request.tty.is_some() {
            env.entry("TERM".into()).or_insert_with(|| TERMINAL.into());
        }
        env.extend(request.env.iter().cloned());
        env.extend(injected(
            &self.making.engine.doors.secrets,
            &self.making.spec,
        )?);
        let (directory, terminal) = (request.directory.clone(), request.tty.is_some());
        Ok(Program {
            argv: request.command.clone(),
            env,
            directory,
            terminal,
        })
    }

    async fn connect(&mut self, request: &ExecRequest) -> Result<Connected, ErrorInfo> {
        let broken = |error: io::Error| internal(format!("cannot connect the program: {error}"));
        let Some(size) = request.tty else {
            let (input, theirs) = request
                .stdin
                .then(input_pipe)
                .transpose()
                .map_err(broken)?
                .unzip();
            let streams = connect_pipes(theirs).map_err(broken)?;
            return Ok(Connected {
                streams,
                input,
                window: None,
            });
        };
        let ours = self
            .sandbox
            .open_terminal()
            .await
            .map_err(|error| error.info())?;
        let parts = terminal::take_apart(ours, size).map_err(broken)?;
        let inside: io::Result<[OwnedFd; 3]> = (|| {
            Ok([
                parts.inside.try_clone()?,
                parts.inside.try_clone()?,
                parts.inside,
            ])
        })();
        let streams = Streams {
            inside: inside.map_err(broken)?,
            stdout: parts.shown,
            stderr: None,
        };
        let (input, window) = (Some(parts.terminal.input), Some(parts.terminal.window));
        Ok(Connected {
            streams,
            input,
            window,
        })
    }

    /// Writes down what the box has used so far.
    fn count(&self) {
        let counters = self.sandbox.counters();
        self.shared.book().tally(&counters);
    }

    /// The box first: what is then read, counted and released cannot change any more.
    async fn finish(mut self, why: SessionEnd) {
        self.shared.ending.send_if_modified(|ending| {
            let first = ending.is_none();
            *ending = ending.or(Some(why));
            first
        });
        // Nobody is started any more, and nobody waits for an answer in vain.
        self.orders.close();
        while self.orders.try_recv().is_ok() {}
        if self.shared.is_paused() {
            // What stays stopped is ended all the same, as far as the kernel lets us.
            _ = self.sandbox.thaw().await;
        }
        let native = self.making.spec.sandbox.backend == Backend::Native;
        // A container's counters go with it.
        let before = (!native).then(|| self.sandbox.counters());
        match self.sandbox.end().await {
            Some(gone) => {
                let mut book = self.shared.book();
                book.ended_cpu_us += gone.cpu_us;
                book.largest_bytes = book.largest_bytes.max(gone.peak_bytes);
            }
            None => {
                let note = "the kernel has not ended every process of the sandbox yet";
                self.result.notes.push(note.to_owned());
            }
        }
        let last_words = async { while self.programs.join_next().await.is_some() {} };
        if tokio::time::timeout(LONGEST_LAST_WORD, last_words)
            .await
            .is_err()
        {
            self.programs.shutdown().await;
            self.shared.book().execs.iter().for_each(Exec::give_up);
        }
        let counters = before.unwrap_or_else(|| self.sandbox.counters());
        self.result.limits_hit.extend(super::hit(&counters));
        let (folders, most) = self.making.own_folders();
        if self.sandbox.scratch_is_full() || room::take(&folders, most).await {
            self.result.limits_hit.insert(LimitName::Disk);
        }
        let usage = {
            let mut book = self.shared.book();
            book.tally(&counters);
            book.workspace = None;
            book.state.usage.clone()
        };
        self.result.usage = usage;
        self.give_back(why).await;
    }

    /// As at the end of a run: doors, workspace, box, record.
    async fn give_back(mut self, why: SessionEnd) {
        self.opened.close(&mut self.result).await;
        take_in(&mut self.result, self.sandbox.give_workspace_back().await);
        self.result
            .notes
            .extend(leave(self.sandbox, self.records).await);
        self.making.settle_workspace(true, &mut self.result).await;
        drop(self.origin);
        pool::refill(&self.making.engine);
        let mut book = self.shared.book();
        let noted = std::mem::take(&mut book.state.notes);
        let result = self.result;
        let (more, known): (Vec<_>, Vec<_>) = noted
            .into_iter()
            .partition(|note| !result.notes.contains(note));
        drop(known);
        book.state = SessionState {
            status: SessionStatus::Ended,
            is_asked_to_pause: false,
            ended: Some(why),
            ended_at: Some(record::now()),
            usage: result.usage,
            limits_hit: result.limits_hit,
            denials: result.denials,
            learned: result.learned,
            workspace: result.workspace,
            notes: result.notes.into_iter().chain(more).collect(),
            ..book.state.clone()
        };
        drop(book);
        self.shared.status.send_replace(SessionStatus::Ended);
    }
}

/// The streams of a program that is about to start, and our ends of them.
struct Connected {
    streams: Streams,
    input: Option<tokio::net::unix::pipe::Sender>,
    window: Option<terminal::Window>,
}
