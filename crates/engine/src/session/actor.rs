//! The task of a session, which owns the sandbox. All requests for the sandbox are commands to this
//! task.

use super::{
    COMMAND_QUEUE_LENGTH, Exec, MAX_OUTPUT_BYTES, MAX_RUNNING, OrphanPipes, Session, SessionData,
    SessionEnd, SessionState, SessionStatus, Shared, conflict,
    exec::{self, StartedProgram},
};
use crate::{
    disk_space,
    doors::OpenDoors,
    driver::blank_result,
    file_locks::LockWatch,
    outcome::{ACCOUNTING_INTERVAL, StopReason, cpu_left, first_cpu_check},
    output_log::LogBudget,
    pool,
    provision::{
        ExecutionEnd, Provisioned, Provisioner, START_TIMEOUT, environment, internal,
        note_held_back, release_sandbox, secret_variables,
    },
    record::{self, Record},
    rootfs::RootSource,
    stdio::{Streams, connect_pipes, input_pipe},
    terminal,
};
use sandbox::{Program, ResourceCounters, Sandbox, SandboxError};
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

/// The timeout for the tasks of programs to finish once the sandbox is gone.
const PROGRAMS_FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a paused sandbox is thawed so that a killed program in it can exit.
const THAW_TIMEOUT: Duration = Duration::from_millis(800);
/// The default value of TERM.
const DEFAULT_TERM: &str = "xterm-256color";

/// The exit status of a program that Airlock could not start.
const EXIT_NOT_STARTED: u8 = 125;

type ReplySender<T> = oneshot::Sender<Result<T, ErrorInfo>>;

/// A command to the session's task.
#[derive(Debug)]
pub(super) enum SessionCommand {
    Start(Box<ExecRequest>, ReplySender<Exec>),
    Pause(ReplySender<()>),
    Resume(ReplySender<()>),
    /// Freezes the sandbox for a copy of the workspace, independently of pause and resume.
    FreezeForCopy(ReplySender<()>),
    /// Ends the freeze for a copy.
    ThawAfterCopy(ReplySender<()>),
    /// Reads the counters of the sandbox.
    ReadCounters(oneshot::Sender<ResourceCounters>),
    /// Lets a killed program in a paused sandbox exit: a frozen process cannot.
    ThawUntilExit(Exec),
    /// A program has ended.
    Ended,
}

/// The state of the task.
pub(super) struct SessionActor {
    shared: Arc<Shared>,
    provisioner: Provisioner,
    root: RootSource,
    opened: OpenDoors,
    records: Vec<Record>,
    sandbox: Box<dyn Sandbox>,
    commands: mpsc::Receiver<SessionCommand>,
    ending: watch::Receiver<Option<SessionEnd>>,
    programs: JoinSet<()>,
    /// The copies that are being made, for which the sandbox is frozen.
    copies_under_way: usize,
    created: Instant,
    next_cpu_check: Instant,
    next_disk_check: Instant,
    /// The next sample of the CPU time while programs run.
    next_accounting: Instant,
    locks: LockWatch,
    result: RunResult,
}

/// Runs a session from provisioning to release. Ends early if the engine closes or the caller drops
/// the request.
pub(super) async fn run_session(
    mut provisioner: Provisioner,
    mut spec: SessionSpec,
    cancel: watch::Sender<bool>,
    mut closing: watch::Receiver<bool>,
    mut ready: oneshot::Sender<Result<Session, ErrorInfo>>,
) {
    let mut result = blank_result(&provisioner.id, &provisioner.spec);
    let outcome = {
        let provisioned = provision(&mut provisioner, &mut result);
        tokio::pin!(provisioned);
        tokio::select! {
            outcome = &mut provisioned => outcome,
            () = engine_closed(&mut closing) => { cancel.send_replace(true); provisioned.await }
            () = ready.closed() => { cancel.send_replace(true); provisioned.await }
        }
    };
    let mut actor = match outcome {
        Ok(provisioned) => {
            // The inputs are in the workspace by now and need not stay in memory for the whole
            // session.
            (provisioner.spec.inputs, spec.run.inputs) = (Vec::new(), Vec::new());
            SessionActor::new(provisioner, spec, provisioned, result)
        }
        Err(error) => {
            provisioner
                .finish_workspace(ExecutionEnd::NeverRan, &mut result)
                .await;
            // The caller may be gone.
            return drop(ready.send(Err(error)));
        }
    };
    let session = Session {
        shared: actor.shared.clone(),
    };
    let why = match ready.send(Ok(session)) {
        Ok(()) => actor.run(&mut closing).await,
        Err(_) => SessionEnd::Asked,
    };
    actor.finish(why).await;
}

async fn provision(
    provisioner: &mut Provisioner,
    result: &mut RunResult,
) -> Result<Provisioned, ErrorInfo> {
    let mut provisioned = provisioner.provision(result).await?;
    match provisioner
        .start_doors_and_inputs(&mut *provisioned.sandbox, &provisioned.opened, result)
        .await
    {
        // Nobody serves the listeners that are not doors.
        Ok(_) => Ok(provisioned),
        Err(error) => {
            provisioned.sandbox.end().await;
            provisioned.opened.close(result).await;
            note_held_back(result, provisioned.sandbox.give_workspace_back().await);
            release_sandbox(provisioned.sandbox, provisioned.records).await;
            Err(error)
        }
    }
}

async fn engine_closed(closing: &mut watch::Receiver<bool>) {
    // An error means that the last clone of the engine was dropped.
    _ = closing.wait_for(|closing| *closing).await;
}

/// Waits for a request to end the session.
async fn end_requested(ending: &mut watch::Receiver<Option<SessionEnd>>) -> SessionEnd {
    let why = ending
        .wait_for(|ending| ending.is_some())
        .await
        .map(|why| *why);
    // The sender lives as long as the session.
    why.ok().flatten().unwrap_or(SessionEnd::Asked)
}

impl SessionActor {
    fn new(
        provisioner: Provisioner,
        spec: SessionSpec,
        provisioned: Provisioned,
        mut result: RunResult,
    ) -> SessionActor {
        let Provisioned {
            root,
            opened,
            records,
            sandbox,
        } = provisioned;
        result.notes.extend(provisioner.secret_notes());
        let (commands, received) = mpsc::channel(COMMAND_QUEUE_LENGTH);
        let (ending, is_ending) = watch::channel(None);
        let (now, created) = (record::now(), Instant::now());
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
            not_applied: None,
            notes: result.notes.clone(),
        };
        let workspace = sandbox.workspace().try_clone_to_owned().ok();
        let data = SessionData {
            state,
            cpu_ms: Arc::default(),
            sandbox_cpu: Duration::ZERO,
            own_cpu: Duration::ZERO,
            execs: Vec::new(),
            started: 0,
            ended_cpu_us: 0,
            largest_bytes: 0,
            used: created,
            copies: 0,
            applies: None,
            workspace,
            limit: None,
        };
        let shared = Shared {
            id: provisioner.id.clone(),
            spec,
            commands,
            status: watch::Sender::new(SessionStatus::Ready),
            ending,
            owner: sandbox.owner_inside(),
            log_budget: LogBudget::of(
                provisioner
                    .engine
                    .log_budget
                    .owner(provisioner.spec.owner.as_ref()),
                MAX_OUTPUT_BYTES,
            ),
            orphan_pipes: OrphanPipes::default(),
            data: Mutex::new(data),
        };
        SessionActor {
            next_cpu_check: created + first_cpu_check(&provisioner.spec.sandbox.limits),
            next_disk_check: created,
            next_accounting: created + ACCOUNTING_INTERVAL,
            locks: LockWatch::of_session(&*sandbox),
            shared: Arc::new(shared),
            provisioner,
            root,
            opened,
            records,
            sandbox,
            commands: received,
            ending: is_ending,
            programs: JoinSet::new(),
            copies_under_way: 0,
            created,
            result,
        }
    }

    /// Handles commands and timers until something ends the session.
    async fn run(&mut self, closing: &mut watch::Receiver<bool>) -> SessionEnd {
        let mut ending = self.ending.clone();
        let (folders, most) = self.provisioner.own_mount_limits();
        let overflow = disk_space::wait_until_exceeded(&folders, most);
        tokio::pin!(overflow);
        loop {
            while self.programs.try_join_next().is_some() {}
            let due = self.due();
            tokio::select! {
                why = end_requested(&mut ending) => return why,
                () = engine_closed(closing) => return SessionEnd::Asked,
                Some(command) = self.commands.recv() => self.handle(command, closing).await,
                _ = self.sandbox.progress() => return SessionEnd::Lost,
                () = &mut overflow => return self.end_by_disk(),
                () = tokio::time::sleep_until(due.into()) => {
                    if let Some(why) = self.overdue().await {
                        return why;
                    }
                }
            }
        }
    }

    /// The time of the next check.
    fn due(&self) -> Instant {
        let spec = &self.shared.spec;
        let data = self.shared.data();
        let lifetime = self.created + spec.lifetime;
        let mut due = lifetime.min(self.next_cpu_check);
        if !self.shared.is_paused() {
            due = due.min(self.locks.due(data.running() > 0));
        }
        if self.provisioner.fills_state() {
            due = due.min(self.next_disk_check);
        }
        if data.running() > 0 {
            due = due.min(self.next_accounting);
        }
        // A busy session is not idle: its end of work sends a command.
        if data.is_at_work() {
            due
        } else {
            due.min(data.used + spec.idle)
        }
    }

    async fn overdue(&mut self) -> Option<SessionEnd> {
        let spec = &self.shared.spec;
        let now = Instant::now();
        if now >= self.created + spec.lifetime {
            return Some(SessionEnd::Lifetime);
        }
        if now >= self.next_accounting {
            self.next_accounting = now + ACCOUNTING_INTERVAL;
            self.count();
        }
        if now >= self.next_cpu_check {
            self.count();
            let own_cpu = self.shared.data().own_cpu;
            match cpu_left(
                &*self.sandbox,
                own_cpu,
                &self.provisioner.spec.sandbox.limits,
            ) {
                Some(left) => self.next_cpu_check = now + left,
                None => return Some(self.end_by_limit(LimitName::CpuTime, StopReason::CpuTime)),
            }
        }
        if self.provisioner.fills_state() && now >= self.next_disk_check {
            self.next_disk_check = now + disk_space::CHECK_INTERVAL;
            if disk_space::is_short(&self.provisioner.engine.state) {
                return Some(self.end_by_disk());
            }
        }
        if now >= self.locks.due(true) && self.locks.is_over(&*self.sandbox).await {
            return Some(self.end_by_limit(LimitName::Memory, StopReason::FileLocks));
        }
        let data = self.shared.data();
        (!data.is_at_work() && now >= data.used + spec.idle).then_some(SessionEnd::Idle)
    }

    fn end_by_disk(&mut self) -> SessionEnd {
        self.end_by_limit(LimitName::Disk, StopReason::Disk)
    }

    fn end_by_limit(&mut self, name: LimitName, limit: StopReason) -> SessionEnd {
        self.result.limits_hit.insert(name);
        let mut data = self.shared.data();
        // The programs report this limit as the cause of their end.
        data.state.limits_hit.insert(name);
        data.limit = Some(limit);
        SessionEnd::Limit
    }

    /// The caller may be gone: then nobody receives the reply.
    async fn handle(&mut self, command: SessionCommand, closing: &mut watch::Receiver<bool>) {
        match command {
            SessionCommand::Start(request, reply) => {
                let mut ending = self.ending.clone();
                let started = tokio::select! {
                    started = self.start(*request) => started,
                    _ = end_requested(&mut ending) => Err(super::session_gone("the session ends")),
                    () = engine_closed(closing) => Err(super::session_gone("the engine closes")),
                };
                _ = reply.send(started);
            }
            SessionCommand::Pause(reply) => _ = reply.send(self.pause().await),
            SessionCommand::Resume(reply) => _ = reply.send(self.resume().await),
            SessionCommand::FreezeForCopy(reply) => _ = reply.send(self.freeze_for_copy().await),
            SessionCommand::ThawAfterCopy(reply) => _ = reply.send(self.thaw_after_copy().await),
            SessionCommand::ReadCounters(reply) => _ = reply.send(self.sandbox.counters()),
            SessionCommand::ThawUntilExit(exec) => self.thaw_until_exit(exec).await,
            SessionCommand::Ended => self.count(),
        }
    }

    fn set_status(&self, status: SessionStatus) {
        self.shared.data().state.status = status;
        self.shared.status.send_replace(status);
    }

    async fn pause(&mut self) -> Result<(), ErrorInfo> {
        if self.shared.data().state.is_asked_to_pause {
            return Err(conflict("the session is paused", "resume it"));
        }
        self.stop().await?;
        // The usage does not change from here on, so it need not wait for the next sample.
        self.count();
        self.shared.data().state.is_asked_to_pause = true;
        Ok(())
    }

    async fn resume(&mut self) -> Result<(), ErrorInfo> {
        if !self.shared.data().state.is_asked_to_pause {
            return Err(conflict(
                "the session is not paused",
                "there is nothing to resume",
            ));
        }
        if self.copies_under_way == 0 {
            self.thaw().await?;
        }
        self.shared.data().state.is_asked_to_pause = false;
        Ok(())
    }

    async fn freeze_for_copy(&mut self) -> Result<(), ErrorInfo> {
        self.stop().await?;
        self.copies_under_way += 1;
        Ok(())
    }

    async fn thaw_after_copy(&mut self) -> Result<(), ErrorInfo> {
        self.copies_under_way = self.copies_under_way.saturating_sub(1);
        if self.copies_under_way > 0 || self.shared.data().state.is_asked_to_pause {
            return Ok(());
        }
        let gone_on = self.thaw().await;
        // A sandbox that stays frozen can at least be resumed.
        self.shared.data().state.is_asked_to_pause = gone_on.is_err();
        gone_on
    }

    async fn stop(&mut self) -> Result<(), ErrorInfo> {
        if !self.shared.is_paused() {
            self.sandbox.freeze().await.map_err(|error| error.info())?;
            self.set_status(SessionStatus::Paused);
        }
        Ok(())
    }

    async fn thaw(&mut self) -> Result<(), ErrorInfo> {
        if self.shared.is_paused() {
            self.sandbox.thaw().await.map_err(|error| error.info())?;
            self.set_status(SessionStatus::Ready);
        }
        Ok(())
    }

    /// Thaws a paused sandbox until a killed program has exited.
    async fn thaw_until_exit(&mut self, exec: Exec) {
        if !self.shared.is_paused() || self.sandbox.thaw().await.is_err() {
            return;
        }
        _ = tokio::time::timeout(THAW_TIMEOUT, exec.wait()).await;
        if let Err(error) = self.sandbox.freeze().await {
            let note = format!(
                "it goes on, because it could not be stopped again: {}",
                error.info().message
            );
            self.shared.data().state.notes.push(note);
            self.set_status(SessionStatus::Ready);
            self.shared.data().state.is_asked_to_pause = false;
        }
    }

    async fn start(&mut self, request: ExecRequest) -> Result<Exec, ErrorInfo> {
        if self.shared.data().state.is_asked_to_pause {
            return Err(conflict("the session is paused", "resume it first"));
        }
        if self.shared.is_paused() {
            return Err(conflict(
                "the session stands still while it is copied",
                "ask again in a moment",
            ));
        }
        if self.shared.data().running() >= MAX_RUNNING {
            return Err(ErrorInfo {
                code: ErrorCode::QuotaExceeded,
                message: format!(
                    "{MAX_RUNNING} programs are under way in this session, and no more can be"
                ),
                hint: Some("wait for one of them, or end one".to_owned()),
            });
        }
        let broken = |error: io::Error| internal(format!("cannot connect the program: {error}"));
        let mut connection = self.connect(&request).await?;
        let inside = connection.streams.inside;
        let held = request
            .tty
            .map(|_| inside[0].try_clone())
            .transpose()
            .map_err(broken)?;
        let program = self.program(&request)?;
        let before = self.sandbox.counters().oom_kills;
        let started =
            tokio::time::timeout(START_TIMEOUT, self.sandbox.start(&program, inside)).await;
        let late = |_| internal("the program was not started in time".to_owned());
        let process = match started.map_err(late)? {
            Ok(process) => process,
            // A missing command, or one that cannot be executed, is an ordinary result.
            Err(error) if error.exit_status() != EXIT_NOT_STARTED => {
                return Ok(self.not_started(request, &error));
            }
            Err(error) => {
                // A limit may be the cause.
                self.count();
                return Err(error.info());
            }
        };
        let id = self.next_id();
        let started = StartedProgram {
            id,
            request,
            process,
            stdout: connection.streams.stdout,
            stderr: connection.streams.stderr.take(),
            held,
            input: connection.input,
            window: connection.window,
            oom_kills: before,
        };
        let (exec, monitor) = exec::monitor(&self.shared, &self.provisioner.engine.state, started);
        self.programs.spawn(monitor);
        self.shared.data().add(exec.clone());
        Ok(exec)
    }

    fn next_id(&self) -> String {
        let mut data = self.shared.data();
        data.state.barriers = self.sandbox.barriers();
        data.started += 1;
        data.started.to_string()
    }

    /// A program that could not be started.
    fn not_started(&self, request: ExecRequest, error: &SandboxError) -> Exec {
        let exec = exec::not_started(self.next_id(), request, error);
        self.shared.data().add(exec.clone());
        exec
    }

    fn program(&self, request: &ExecRequest) -> Result<Program, ErrorInfo> {
        let mut env = environment(&self.provisioner.id, &self.provisioner.spec);
        if request.tty.is_some() {
            env.entry("TERM".into())
                .or_insert_with(|| DEFAULT_TERM.into());
        }
        env.extend(request.env.iter().cloned());
        env.extend(secret_variables(
            &self.provisioner.engine.doors.secrets,
            &self.provisioner.spec,
        )?);
        let directory = request.directory.clone();
        let terminal = request.tty.is_some();
        Ok(Program {
            argv: request.command.clone(),
            env,
            directory,
            terminal,
        })
    }

    async fn connect(&mut self, request: &ExecRequest) -> Result<ConnectedStreams, ErrorInfo> {
        let broken = |error: io::Error| internal(format!("cannot connect the program: {error}"));
        let Some(size) = request.tty else {
            let (input, theirs) = request
                .stdin
                .then(input_pipe)
                .transpose()
                .map_err(broken)?
                .unzip();
            let streams = connect_pipes(theirs).map_err(broken)?;
            return Ok(ConnectedStreams {
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
        let parts = terminal::split_terminal(ours, size).map_err(broken)?;
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
        let input = Some(parts.terminal.input);
        let window = Some(parts.terminal.window);
        Ok(ConnectedStreams {
            streams,
            input,
            window,
        })
    }

    /// Samples the usage of the sandbox.
    fn count(&self) {
        let counters = self.sandbox.counters();
        self.shared.data().update_usage(&counters);
    }

    /// Ends the sandbox first, so that output, counters and workspace cannot change while they are
    /// read.
    async fn finish(mut self, why: SessionEnd) {
        self.shared.ending.send_if_modified(|ending| {
            let first = ending.is_none();
            *ending = ending.or(Some(why));
            first
        });
        // No more programs are started, and waiting callers get an error.
        self.commands.close();
        while self.commands.try_recv().is_ok() {}
        if self.shared.is_paused() {
            // A frozen sandbox is ended all the same, as far as the kernel permits.
            _ = self.sandbox.thaw().await;
        }
        let native = self.provisioner.spec.sandbox.backend == Backend::Native;
        // A container's counters are gone with the container.
        let before = (!native).then(|| self.sandbox.counters());
        match self.sandbox.end().await {
            Some(gone) => {
                let mut data = self.shared.data();
                data.ended_cpu_us += gone.cpu_us;
                data.largest_bytes = data.largest_bytes.max(gone.peak_bytes);
            }
            None => {
                let note = "the kernel has not ended every process of the sandbox yet";
                self.result.notes.push(note.to_owned());
            }
        }
        let last_words = async { while self.programs.join_next().await.is_some() {} };
        if tokio::time::timeout(PROGRAMS_FINISH_TIMEOUT, last_words)
            .await
            .is_err()
        {
            self.programs.shutdown().await;
            self.shared.data().execs.iter().for_each(Exec::give_up);
        }
        let counters = before.unwrap_or_else(|| self.sandbox.counters());
        self.result
            .limits_hit
            .extend(super::limits_hit_by(&counters));
        let (folders, most) = self.provisioner.own_mount_limits();
        if self.sandbox.scratch_is_full() || disk_space::exceeds(&folders, most).await {
            self.result.limits_hit.insert(LimitName::Disk);
        }
        let usage = {
            let mut data = self.shared.data();
            data.update_usage(&counters);
            data.workspace = None;
            data.state.usage.clone()
        };
        self.result.usage = usage;
        self.release_all(why).await;
    }

    /// Releases everything in the order of a run: doors, workspace, sandbox, record.
    async fn release_all(mut self, why: SessionEnd) {
        self.opened.close(&mut self.result).await;
        note_held_back(&mut self.result, self.sandbox.give_workspace_back().await);
        self.result
            .notes
            .extend(release_sandbox(self.sandbox, self.records).await);
        let applies = self.shared.data().applies;
        let spec = &mut self.provisioner.spec;
        spec.apply_changes = applies.unwrap_or(spec.apply_changes);
        let end = match why {
            SessionEnd::Lost => ExecutionEnd::Lost,
            _ => ExecutionEnd::Ended,
        };
        self.provisioner
            .finish_workspace(end, &mut self.result)
            .await;
        // A session has no result that could fail, so the error becomes a note.
        let not_applied = self.result.error.take();
        let message = not_applied.as_ref().map(|error| error.message.clone());
        self.result.notes.extend(message);
        drop(self.root);
        pool::refill(&self.provisioner.engine);
        let mut data = self.shared.data();
        let noted = std::mem::take(&mut data.state.notes);
        let result = self.result;
        let (more, known): (Vec<_>, Vec<_>) = noted
            .into_iter()
            .partition(|note| !result.notes.contains(note));
        drop(known);
        data.state = SessionState {
            status: SessionStatus::Ended,
            is_asked_to_pause: false,
            ended: Some(why),
            ended_at: Some(record::now()),
            usage: result.usage,
            limits_hit: result.limits_hit,
            denials: result.denials,
            learned: result.learned,
            workspace: result.workspace,
            not_applied,
            notes: result.notes.into_iter().chain(more).collect(),
            ..data.state.clone()
        };
        drop(data);
        self.shared.status.send_replace(SessionStatus::Ended);
    }
}

/// The program's streams, and the engine's ends of them.
struct ConnectedStreams {
    streams: Streams,
    input: Option<tokio::net::unix::pipe::Sender>,
    window: Option<terminal::TerminalWindow>,
}
