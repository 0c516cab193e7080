//! One driver task a run: down once, back once.
//!
//! ```text
//! record ─ box ─ inputs ─ program ─┬─ ended ──────────────┐
//!                                  ├─ wall time ─ TERM ─ grace ─┤
//!                                  ├─ CPU time ── XCPU ─ grace ─┤─ box ended ─ artifacts ─ box released ─ record closed
//!                                  └─ cancelled ─ TERM ─ grace ─┘
//! ```

use crate::{
    Inner,
    capture::Capture,
    contract, denials,
    doors::{self, Opened},
    files::{self, Bounds, Collected},
    origin::{self, Origin},
    pool::{self, Made, Taken},
    record::{self, Record},
    terminal::{self, Terminal},
};
use ::doors::secrets::Secrets;
use sandbox::{Ended, Program, Progress, Sandbox, SandboxError, container::ImageFacts};
use spec::{
    ArtifactRef, Backend, Enforcer, EnvName, ErrorCode, ErrorInfo, Event, Id, InputSource, LimitName, Limits,
    RunResult, RunSpec, Status, Stream, Truncated, Usage, WorkspacePath,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

/// What a program has to end by itself after SIGTERM when its time is up.
const GRACE: Duration = Duration::from_secs(2);
/// The same when somebody waits for the cancelled run to be gone.
const CANCEL_GRACE: Duration = Duration::from_millis(500);
/// How long making a box may take; only a file system that does not answer takes this long.
pub(crate) const LONGEST_START: Duration = Duration::from_secs(30);
/// How often CPU time is looked at, at most.
const CPU_LOOK: Duration = Duration::from_millis(50);

/// The record of such a run stays: by it the sweep looks for what came of it.
const LEFT_TO_SWEEP: &str = "what the container engine still makes of it, `airlock sweep` removes";

/// What a terminal holds back, and then some; it has no size that could be asked for.
const MOST_IN_TERMINAL: usize = 256 << 10;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// One run's task.
pub(crate) struct Driver {
    pub(crate) engine: Arc<Inner>,
    pub(crate) id: Id,
    pub(crate) spec: RunSpec,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) cancelled: watch::Receiver<bool>,
    pub(crate) doors: Option<oneshot::Sender<Vec<TcpListener>>>,
    pub(crate) terminal: Option<oneshot::Sender<Terminal>>,
}

/// Why the program was stopped by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    WallTime,
    CpuTime,
    Cancelled,
}

/// A box, and the records that hold what it has outside.
struct Berthed {
    records: Vec<Record>,
    sandbox: Box<dyn Sandbox>,
}

/// How the program ended.
#[derive(Debug, Default)]
struct Ending {
    /// Wait status of the program, if anybody saw it.
    status: Option<i32>,
    stopped: Option<Stopped>,
    cpu_us: u64,
    peak_bytes: u64,
    /// Nothing else is left in the box.
    alone: bool,
}

/// The output of a run, being read.
struct Outputs {
    ended: watch::Sender<bool>,
    stdout: JoinHandle<(Vec<u8>, bool)>,
    /// None where both streams are the terminal.
    stderr: Option<JoinHandle<(Vec<u8>, bool)>>,
    /// The program's end of its terminal: held open, so that what it shows ends with the box and not before.
    _inside: Option<OwnedFd>,
    denials: JoinHandle<denials::Collected>,
}

/// Where a program's streams lead, before it has them.
struct Streams {
    inside: [OwnedFd; 3],
    stdout: pipe::Receiver,
    stderr: Option<pipe::Receiver>,
}

impl Driver {
    pub(crate) async fn drive(mut self, input: io::Result<Option<OwnedFd>>) -> RunResult {
        let mut result = blank(&self.id, &self.spec);
        let started = Instant::now();
        if let Err(refused) = self.run(input, &mut result).await {
            result.status = match refused.code {
                ErrorCode::Cancelled => Status::Cancelled,
                _ => Status::NotStarted,
            };
            result.exit_status = if result.status == Status::Cancelled { 130 } else { result.exit_status };
            result.error = Some(refused);
        }
        result.ended_at = record::now();
        result.duration_ms = started.elapsed().as_millis() as u64;
        result
    }

    /// The way of a run; an error means that no line of the program ran.
    async fn run(
        &mut self,
        input: io::Result<Option<OwnedFd>>,
        result: &mut RunResult,
    ) -> Result<(), ErrorInfo> {
        result.exit_status = 125;
        let input = input.map_err(|error| internal(format!("cannot make a pipe: {error}")))?;
        self.engine.guard(&self.spec)?;
        // A secret that is missing is no reason to have made anything.
        injected(&self.engine.doors.secrets, &self.spec)?;
        let mut cancelled = self.cancelled.clone();
        let (origin, notes) = tokio::select! {
            found = origin::find(&self.engine, &mut self.spec) => found?,
            () = until_cancelled(&mut cancelled) => return Err(cancellation()),
        };
        result.notes.extend(notes);
        // Of two runs with one id the second is refused, before it touches what the first one's doors have; an id that we
        // made is nobody else's.
        let named = self.spec.run_id.is_some().then(|| self.record()).transpose()?;
        let opened = match doors::open(&self.engine, &self.id, &mut self.spec).await {
            Ok(opened) => opened,
            Err(error) => {
                named.into_iter().for_each(|record| close(record, &mut result.notes));
                return Err(error);
            }
        };
        let berthed = match &origin {
            Origin::Here | Origin::Stored(_) => self.berthed(named, result).await,
            Origin::Engine(facts) => self.contained(named, facts, result).await,
        };
        let Berthed { records, mut sandbox } = match berthed {
            Ok(berthed) => berthed,
            Err(error) => {
                opened.close(result).await;
                return Err(error);
            }
        };
        let ran = self.run_in(&mut *sandbox, &opened, input, result).await;
        // Before the box is cleared away: listeners keep its network alive.
        opened.close(result).await;
        // With the result a workspace is the caller's again.
        result.notes.extend(sandbox.give_workspace_back().await);
        match self.engine.pools.is_on() && !matches!(origin, Origin::Engine(_)) {
            true => self.leave_behind(sandbox, records, &mut result.notes).await,
            false => result.notes.extend(leave(sandbox, records).await),
        }
        ran
    }

    /// What nobody waits for is cleared away behind the result. A name that the caller chose is his again with it.
    async fn leave_behind(
        &self,
        sandbox: Box<dyn Sandbox>,
        mut records: Vec<Record>,
        notes: &mut Vec<String>,
    ) {
        let named = self.spec.run_id.is_some();
        // Of a box that was not made ahead, what it holds outside has the caller's name.
        if sandbox.holds_workspace() || named && records.len() == 1 {
            notes.extend(leave(sandbox, records).await);
            return pool::refill(&self.engine);
        }
        if named {
            close(records.remove(0), notes);
        }
        pool::restock(&self.engine, sandbox, records);
    }

    /// A box for this run, made ahead or now.
    async fn berthed(&mut self, named: Option<Record>, result: &mut RunResult) -> Result<Berthed, ErrorInfo> {
        let mut records: Vec<_> = named.into_iter().collect();
        let taken = pool::take(&self.engine, &self.spec.sandbox);
        // What was made ahead has a record of its own.
        if taken.is_none() && records.is_empty() {
            records.push(self.record()?);
        }
        let berth = match taken {
            Some(Taken { record, made }) => {
                records.push(record);
                match made {
                    Made::Parked(sandbox) => return Ok(Berthed { records, sandbox }),
                    Made::Berth(berth) => Some(*berth),
                }
            }
            None => None,
        };
        let create = self.engine.native.create(&self.id, &self.spec.sandbox, berth);
        match tokio::time::timeout(LONGEST_START, create).await {
            Ok(Ok(sandbox)) => Ok(Berthed { records, sandbox: Box::new(sandbox) }),
            Ok(Err(error)) => {
                let abandoned = records.into_iter().map(|record| record.abandon(&self.engine.native));
                abandoned.for_each(|done| note(done, &mut result.notes));
                Err(refused(&error, result))
            }
            Err(_) => Err(internal("the sandbox was not made in time".to_owned())),
        }
    }

    /// A box that a container engine makes. Its record says where, before there is anything.
    async fn contained(
        &mut self,
        named: Option<Record>,
        facts: &ImageFacts,
        result: &mut RunResult,
    ) -> Result<Berthed, ErrorInfo> {
        let (backend, containers) = (self.spec.sandbox.backend, &self.engine.containers);
        let record = match named {
            Some(record) => record,
            None => self.record()?,
        };
        let (name, socket) = match containers.identify(backend).await {
            Ok(identified) => identified,
            Err(error) => {
                close(record, &mut result.notes);
                return Err(refused(&error, result));
            }
        };
        result.backend = name;
        record.note(&socket).map_err(|error| of_record(&self.id, error))?;
        let ids =
            [("io.airlock.task", self.spec.task_id.clone()), ("io.airlock.job", self.spec.job_id.clone())];
        let create = containers.create(&self.id, &self.spec.sandbox, facts, ids);
        let mut cancelled = self.cancelled.clone();
        let created = tokio::select! {
            created = tokio::time::timeout(LONGEST_START, create) => created,
            () = until_cancelled(&mut cancelled) => {
                result.notes.push(LEFT_TO_SWEEP.to_owned());
                return Err(cancellation());
            }
        };
        match created {
            Ok(Ok(sandbox)) => Ok(Berthed { records: vec![record], sandbox: Box::new(sandbox) }),
            Ok(Err(error)) => {
                let swept = record.abandon_container(&self.engine.native, containers).await;
                note(swept, &mut result.notes);
                Err(refused(&error, result))
            }
            Err(_) => {
                result.notes.push(LEFT_TO_SWEEP.to_owned());
                Err(internal("the container was not made in time".to_owned()))
            }
        }
    }

    fn record(&self) -> Result<Record, ErrorInfo> {
        let taken = self.engine.records.take(&self.id, &self.engine.native, &self.engine.containers);
        taken.map_err(|error| of_record(&self.id, error))
    }

    async fn run_in(
        &mut self,
        sandbox: &mut dyn Sandbox,
        opened: &Opened,
        input: Option<OwnedFd>,
        result: &mut RunResult,
    ) -> Result<(), ErrorInfo> {
        let served = opened.serve(sandbox.take_doors(), sandbox.take_passing());
        let listeners = match served {
            Ok(listeners) => listeners,
            Err(error) => {
                sandbox.end().await;
                return Err(error);
            }
        };
        if let Some(doors) = self.doors.take() {
            // Nobody may want them: then nobody listens.
            _ = doors.send(listeners);
        }
        result.enforced_by = sandbox.enforcers();
        result.notes.extend(sandbox.notes());
        let ready = match opened.note_secrets(&self.id, &self.spec.grants.secrets) {
            Ok(()) => self.put_inputs(sandbox).await,
            Err(error) => Err(error),
        };
        let outputs = match ready {
            Ok(()) => self.exec_in_time(sandbox, input, result).await,
            Err(error) => Err(error),
        };
        let outputs = match outputs {
            Ok(outputs) => outputs,
            Err(error) => {
                sandbox.end().await;
                return Err(error);
            }
        };
        let secrets = self.spec.grants.secrets.iter();
        result.notes.extend(secrets.map(|(name, variable)| {
            format!("the secret `{name}` was injected as {}", variable.as_os_str().display())
        }));
        result.barriers = sandbox.barriers();
        result.started_at = record::now();
        let ending = self.watch(sandbox).await;
        self.conclude(sandbox, ending, outputs, result).await;
        Ok(())
    }

    /// Off the event loop, like the artifacts.
    async fn put_inputs(&self, sandbox: &dyn Sandbox) -> Result<(), ErrorInfo> {
        if self.spec.inputs.is_empty() {
            return Ok(());
        }
        let broken =
            |error: io::Error| internal(format!("cannot put the inputs into the workspace: {error}"));
        let workspace = sandbox.workspace().try_clone_to_owned().map_err(broken)?;
        let (engine, inputs) = (self.engine.clone(), self.spec.inputs.clone());
        let (owner, limit) = (sandbox.owner_inside(), self.spec.sandbox.limits.disk.0);
        let (mut cancelled, seen) = (self.cancelled.clone(), self.cancelled.clone());
        let put = move || {
            inputs.iter().try_for_each(|(name, source)| {
                let mut file = UntilCancelled { file: open_input(&engine, source)?, cancelled: &seen };
                files::put_input(workspace.as_fd(), name, &mut file, owner, limit)
                    .map_err(|error| of_input(&error))
            })
        };
        tokio::select! {
            put = tokio::task::spawn_blocking(put) => put.map_err(|error| broken(error.into()))?,
            () = until_cancelled(&mut cancelled) => Err(cancellation()),
        }
    }

    /// Opening a program can take as long as its file system likes, and the clock does not tick yet.
    async fn exec_in_time(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
        result: &mut RunResult,
    ) -> Result<Outputs, ErrorInfo> {
        let mut cancelled = self.cancelled.clone();
        let secrets = injected(&self.engine.doors.secrets, &self.spec)?;
        tokio::select! {
            started = tokio::time::timeout(LONGEST_START, self.exec(sandbox, input, secrets)) => match started {
                Ok(started) => started.map_err(|error| refused(&error, result)),
                Err(_) => Err(internal("the program was not started in time".to_owned())),
            },
            () = until_cancelled(&mut cancelled) => Err(cancellation()),
        }
    }

    /// Pipes, or the terminal on all three.
    fn connect(&mut self, sandbox: &mut dyn Sandbox, input: Option<OwnedFd>) -> io::Result<Streams> {
        let Some((ours, size)) = sandbox.take_terminal().zip(self.spec.sandbox.tty) else {
            return connect_pipes(input);
        };
        let parts = terminal::take_apart(ours, size)?;
        if let Some(terminal) = self.terminal.take() {
            // Nobody may want it: then nobody types.
            _ = terminal.send(parts.terminal);
        }
        let inside = [parts.inside.try_clone()?, parts.inside.try_clone()?, parts.inside];
        Ok(Streams { inside, stdout: parts.shown, stderr: None })
    }

    async fn exec(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
        secrets: Vec<(OsString, OsString)>,
    ) -> Result<Outputs, SandboxError> {
        let failed = |source: io::Error| SandboxError::Launcher { what: "connect", source };
        let Streams { inside, stdout, stderr } = self.connect(sandbox, input).map_err(failed)?;
        let held = stderr.is_none().then(|| inside[0].try_clone()).transpose().map_err(failed)?;
        let mut env = environment(&self.id, &self.spec);
        env.extend(secrets);
        let program = Program { argv: self.spec.command.clone(), env };
        sandbox.exec(&program, inside).await?;
        // Nothing has been sent yet, so there is room, and a reader who does not read cannot hold the clock up.
        _ = self.events.try_send(Event::Started { barriers: sandbox.barriers() });
        let cap = self.spec.sandbox.limits.output.0;
        let (ended, has_ended) = watch::channel(false);
        let read = |stream, pipe| {
            tokio::spawn(read_output(stream, pipe, cap, self.events.clone(), has_ended.clone()))
        };
        let stdout = read(Stream::Stdout, stdout);
        let stderr = stderr.map(|pipe| read(Stream::Stderr, pipe));
        let denials = denials::collect(sandbox.take_denials(), self.events.clone(), has_ended.clone());
        Ok(Outputs { ended, stdout, stderr, _inside: held, denials: tokio::spawn(denials) })
    }

    /// Waits for the end of the program, or brings it about.
    async fn watch(&mut self, sandbox: &mut dyn Sandbox) -> Ending {
        let limits = self.spec.sandbox.limits.clone();
        let deadline = tokio::time::sleep(limits.wall_time.0);
        tokio::pin!(deadline);
        let mut next_look = Instant::now() + first_look(&limits);
        loop {
            let stopped = tokio::select! {
                progress = sandbox.progress() => return ending(progress, None),
                () = &mut deadline => Stopped::WallTime,
                () = until_cancelled(&mut self.cancelled) => Stopped::Cancelled,
                () = tokio::time::sleep_until(next_look.into()) => {
                    match cpu_left(sandbox, &limits) {
                        Some(left) => {
                            next_look = Instant::now() + left;
                            continue;
                        }
                        None => Stopped::CpuTime,
                    }
                }
            };
            return stop(sandbox, stopped).await;
        }
    }

    /// Everything in the box is ended first: what is read and kept then cannot change any more.
    async fn conclude(
        &self,
        sandbox: &mut dyn Sandbox,
        mut ending: Ending,
        outputs: Outputs,
        result: &mut RunResult,
    ) {
        // With nobody left inside nothing can change any more; where clean-up comes behind the result, so does the
        // end of an empty box. What its first process counted matters only without a cgroup.
        let counted =
            !matches!(result.enforced_by.get("cpu"), None | Some(Enforcer::Rlimit | Enforcer::Nothing));
        let native = self.spec.sandbox.backend == Backend::Native;
        let quiet = ending.alone && counted && native && self.engine.pools.is_on();
        // A container's counters go with it.
        let before = (!native).then(|| sandbox.counters());
        if !quiet {
            match sandbox.end().await {
                Some(gone) => {
                    ending.cpu_us += gone.cpu_us;
                    ending.peak_bytes = ending.peak_bytes.max(gone.peak_bytes);
                }
                None => {
                    let note = "the kernel has not ended every process of the sandbox yet";
                    result.notes.push(note.to_owned());
                }
            }
        }
        let ([(stdout, cut_out), (stderr, cut_err)], denials) = outputs.finish().await;
        (result.stdout, result.stderr) = (stdout, stderr);
        result.truncated = Truncated { stdout: cut_out, stderr: cut_err };
        result.denials = denials.list;
        result.notes.extend(denials.note);
        self.keep_artifacts(sandbox, result).await;
        let counters = before.unwrap_or_else(|| sandbox.counters());
        result.usage = Usage {
            cpu_ms: counters.cpu.unwrap_or(Duration::from_micros(ending.cpu_us)).as_millis() as u64,
            memory_peak_bytes: counters.memory_peak.unwrap_or(ending.peak_bytes),
            pids_peak: counters.pids_peak,
            ..Usage::default()
        };
        let oom = counters.oom_kills.is_some_and(|kills| kills > 0);
        let pids = counters.pids_refused.is_some_and(|times| times > 0);
        let hits = [
            (LimitName::Memory, oom),
            (LimitName::Pids, pids),
            (LimitName::Disk, sandbox.scratch_is_full()),
            (LimitName::Output, cut_out || cut_err),
        ];
        result.limits_hit = hits.into_iter().filter(|(_, hit)| *hit).map(|(name, _)| name).collect();
        judge(&ending, oom, &self.spec.sandbox.limits, result);
        contract::hold(self.spec.contract, result);
    }

    /// Off the event loop: what a program leaves can take minutes to copy, and signals must be heard meanwhile.
    async fn keep_artifacts(&self, sandbox: &dyn Sandbox, result: &mut RunResult) {
        let fresh = self.spec.sandbox.workspace.is_none();
        if fresh && self.spec.artifacts.is_empty() && files::artifacts_are_empty(sandbox.workspace()) {
            return;
        }
        let kept = match sandbox.workspace().try_clone_to_owned() {
            Ok(workspace) => {
                let (engine, id) = (self.engine.clone(), self.id.clone());
                let (wanted, bounds) = (self.spec.artifacts.clone(), self.bounds());
                tokio::task::spawn_blocking(move || collect(&engine, &id, &workspace, &wanted, bounds))
                    .await
                    .map_err(io::Error::from)
            }
            Err(error) => Err(error),
        };
        let (kept, collected) = match kept {
            Ok(kept) => kept,
            Err(error) => return result.notes.push(format!("no artifact was kept: {error}")),
        };
        result.artifacts = kept;
        let told = collected.skipped.iter();
        result.notes.extend(
            told.map(|skipped| format!("artifact `{}` was not kept: {}", skipped.name, skipped.reason)),
        );
        if collected.more_skipped > 0 {
            result.notes.push(format!("{} more artifacts were not kept", collected.more_skipped));
        }
    }

    /// From a fresh workspace no more than could be written there: files with holes are larger than they are.
    fn bounds(&self) -> Bounds {
        let (bounds, sandbox) = (Bounds::default(), &self.spec.sandbox);
        match sandbox.workspace {
            Some(_) => bounds,
            None => Bounds { total_bytes: bounds.total_bytes.min(sandbox.limits.disk.0), ..bounds },
        }
    }
}

fn collect(
    engine: &Inner,
    id: &Id,
    workspace: &OwnedFd,
    wanted: &[WorkspacePath],
    bounds: Bounds,
) -> (Vec<ArtifactRef>, Collected) {
    let mut kept = Vec::new();
    let collected = files::collect(workspace.as_fd(), wanted, bounds, &mut |mut found| {
        let put = engine.artifacts.put(&found.name, Some(id), &mut found.contents, bounds.file_bytes);
        put.map(|artifact| kept.push(artifact)).map_err(|error| error.to_string())
    });
    (kept, collected)
}

impl Outputs {
    /// What was written before the end, at the pace of whoever reads it.
    async fn finish(self) -> ([(Vec<u8>, bool); 2], denials::Collected) {
        self.ended.send_replace(true);
        let cut = |_| (Vec::new(), true);
        let stdout = self.stdout.await.unwrap_or_else(cut);
        let stderr = match self.stderr {
            Some(stderr) => stderr.await.unwrap_or_else(cut),
            None => (Vec::new(), false),
        };
        ([stdout, stderr], self.denials.await.unwrap_or_default())
    }
}

/// Reads to the end of the stream or of the box. The two differ when a program has handed its end of the pipe to
/// somebody outside: then only what lies in the pipe at the end of the box is still its own.
async fn read_output(
    stream: Stream,
    mut pipe: pipe::Receiver,
    cap: u64,
    events: mpsc::Sender<Event>,
    mut ended: watch::Receiver<bool>,
) -> (Vec<u8>, bool) {
    let mut capture = Capture::new(cap);
    let mut buffer = vec![0; 64 << 10];
    let mut left = None;
    loop {
        let read = match left {
            None => tokio::select! {
                read = pipe.read(&mut buffer) => read,
                Ok(_) = ended.wait_for(|ended| *ended) => {
                    left = Some(rustix::pipe::fcntl_getpipe_size(&pipe).unwrap_or(MOST_IN_TERMINAL));
                    continue;
                }
            },
            Some(left) => {
                let most = buffer.len().min(left);
                rustix::io::read(&pipe, &mut buffer[..most]).map_err(io::Error::from)
            }
        };
        let Ok(count @ 1..) = read else { return capture.finish() };
        left = left.map(|left| left - count);
        capture.add(&buffer[..count]);
        // Without a reader, the stream is still drained: a full pipe would stop the program.
        _ = events.send(Event::Output { stream, data: buffer[..count].to_vec() }).await;
    }
}

/// A file that cannot be read any more once the run is cancelled.
struct UntilCancelled<'a> {
    file: Box<dyn io::Read>,
    cancelled: &'a watch::Receiver<bool>,
}

impl io::Read for UntilCancelled<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match *self.cancelled.borrow() {
            true => Err(io::Error::other("cancelled")),
            false => self.file.read(buffer),
        }
    }
}

/// The variables that stored secrets become. Kept out of the spec, which is shown and written down.
pub(crate) fn injected(secrets: &Secrets, spec: &RunSpec) -> Result<Vec<(OsString, OsString)>, ErrorInfo> {
    let bad =
        |message: String, hint: String| ErrorInfo { code: ErrorCode::InvalidSpec, message, hint: Some(hint) };
    let one = |(name, variable): &(String, EnvName)| {
        let value = secrets.stored(name).map_err(|error| bad(error.message, error.hint))?;
        if value.expose().contains(&0) {
            let message = format!("the secret `{name}` has a NUL byte, which no variable can hold");
            return Err(bad(message, format!("set it anew: airlock secrets set {name}")));
        }
        Ok((variable.as_os_str().to_owned(), OsStr::from_bytes(value.expose()).to_owned()))
    };
    spec.grants.secrets.iter().map(one).collect()
}

async fn until_cancelled(cancelled: &mut watch::Receiver<bool>) {
    // The sender lives in `Run`; a caller who dropped it did not cancel.
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Asks the program to end, and gives it a moment.
async fn stop(sandbox: &mut dyn Sandbox, stopped: Stopped) -> Ending {
    let (signal, grace) = match stopped {
        Stopped::WallTime => (SIGTERM, GRACE),
        Stopped::CpuTime => (SIGXCPU, CANCEL_GRACE),
        Stopped::Cancelled => (SIGTERM, CANCEL_GRACE),
    };
    sandbox.signal(signal);
    match tokio::time::timeout(grace, sandbox.progress()).await {
        Ok(progress) => ending(progress, Some(stopped)),
        Err(_) => Ending { status: Some(SIGKILL), stopped: Some(stopped), ..Ending::default() },
    }
}

fn ending(progress: Progress, stopped: Option<Stopped>) -> Ending {
    match progress {
        Progress::Ended(Ended { status, cpu_us, peak_bytes, alone }) => {
            Ending { status: Some(status), stopped, cpu_us, peak_bytes, alone }
        }
        // The box died under the program: its status is not known.
        Progress::Gone(Ended { cpu_us, peak_bytes, alone, .. }) => {
            Ending { status: None, stopped, cpu_us, peak_bytes, alone }
        }
    }
}

fn first_look(limits: &Limits) -> Duration {
    match limits.cpu_time {
        Some(_) => CPU_LOOK,
        None => Duration::from_secs(24 * 3600),
    }
}

/// How long CPU time cannot run out, however many CPUs are busy; nothing if it has.
fn cpu_left(sandbox: &dyn Sandbox, limits: &Limits) -> Option<Duration> {
    let (Some(limit), Some(used)) = (limits.cpu_time, sandbox.counters().cpu) else {
        // Each process has its own limit then.
        return Some(Duration::from_secs(24 * 3600));
    };
    let left = limit.0.checked_sub(used).filter(|left| !left.is_zero())?;
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    Some((left / cpus).max(CPU_LOOK))
}

/// From how the program ended to what is said of it.
fn judge(ending: &Ending, oom: bool, limits: &Limits, result: &mut RunResult) {
    let status = ending.status.unwrap_or(SIGKILL);
    let signal = Some(status & 0x7f).filter(|signal| *signal != 0);
    result.exit_code = if signal.is_none() { Some(status >> 8 & 0xff) } else { None };
    result.signal = signal;
    match signal {
        Some(SIGXCPU) => _ = result.limits_hit.insert(LimitName::CpuTime),
        Some(SIGXFSZ) => _ = result.limits_hit.insert(LimitName::FileSize),
        _ => {}
    }
    let error =
        |code, message: String, hint: &str| Some(ErrorInfo { code, message, hint: Some(hint.to_owned()) });
    match ending.stopped {
        Some(Stopped::WallTime) => {
            result.limits_hit.insert(LimitName::WallTime);
            let message = format!("stopped after {} on the clock", limits.wall_time);
            result.error = error(ErrorCode::Timeout, message, "give it more time with --timeout");
            (result.status, result.exit_status) = (Status::TimedOut, 124);
        }
        Some(Stopped::Cancelled) => {
            result.error = Some(cancellation());
            (result.status, result.exit_status) = (Status::Cancelled, 130);
        }
        Some(Stopped::CpuTime) => {
            result.limits_hit.insert(LimitName::CpuTime);
            (result.status, result.exit_status) = by_status(result);
        }
        None if oom && signal == Some(SIGKILL) => {
            let message = format!("killed at its memory limit of {}", limits.memory);
            result.error = error(ErrorCode::OomKilled, message, "give it more with --memory");
            (result.status, result.exit_status) = (Status::OomKilled, 137);
        }
        None if ending.status.is_none() => {
            (result.exit_code, result.signal) = (None, None);
            let message = "the sandbox died under the program".to_owned();
            result.error = error(ErrorCode::Lost, message, "start it again; `airlock doctor` tries one out");
            (result.status, result.exit_status) = (Status::Lost, 125);
        }
        None => (result.status, result.exit_status) = by_status(result),
    }
}

fn by_status(result: &RunResult) -> (Status, u8) {
    match (result.exit_code, result.signal) {
        (Some(0), _) => (Status::Succeeded, 0),
        (Some(code), _) => (Status::Failed, code as u8),
        (None, signal) => (Status::Failed, 128 + signal.unwrap_or(SIGKILL) as u8),
    }
}

/// The variables of a run: the caller's, and those that Airlock sets.
pub(crate) fn environment(id: &Id, spec: &RunSpec) -> BTreeMap<OsString, OsString> {
    let caller = spec.sandbox.env.iter().map(|(name, value)| (name.as_os_str().to_owned(), value.clone()));
    let mut env = spec.sandbox.image_env.clone();
    env.extend(caller);
    let path = spec.sandbox.image_env.get(OsStr::new("PATH")).cloned();
    let path = path.unwrap_or_else(|| spec::DEFAULT_PATH.into());
    let fixed = [
        ("AIRLOCK_RUN_ID", id.as_str()),
        ("AIRLOCK_WORKSPACE", spec::WORKSPACE),
        ("CYNODE_ARTIFACTS_DIR", "/workspace/.artifacts"),
        ("CYNODE_WORKSPACE_DIR", spec::WORKSPACE),
        ("HOME", "/workspace/.home"),
        ("RUN_ID", id.as_str()),
        ("TMPDIR", "/tmp"),
    ];
    let known = [("CYNODE_TASK_ID", &spec.task_id), ("CYNODE_JOB_ID", &spec.job_id)];
    let known = known.into_iter().filter_map(|(name, id)| id.as_ref().map(|id| (name, id.as_str())));
    env.extend(fixed.into_iter().chain(known).map(|(name, value)| (name.into(), value.into())));
    env.insert("PATH".into(), path);
    env
}

/// For a program's standard input: our end, and the program's.
pub(crate) fn input_pipe() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((pipe::Sender::from_owned_fd_unchecked(nonblocking(write)?)?, read))
}

fn connect_pipes(input: Option<OwnedFd>) -> io::Result<Streams> {
    let input = match input {
        Some(input) => input,
        None => File::open("/dev/null")?.into(),
    };
    let (stdout, out_write) = output_pipe()?;
    let (stderr, err_write) = output_pipe()?;
    Ok(Streams { inside: [input, out_write, err_write], stdout, stderr: Some(stderr) })
}

fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((pipe::Receiver::from_owned_fd_unchecked(nonblocking(read)?)?, write))
}

pub(crate) fn nonblocking(end: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(end.as_fd(), true)?;
    Ok(end)
}

fn open_input(engine: &Inner, source: &InputSource) -> Result<Box<dyn io::Read>, ErrorInfo> {
    match source {
        InputSource::File(path) => Ok(Box::new(open_file(path)?)),
        InputSource::Given(bytes) => Ok(Box::new(io::Cursor::new(bytes.clone()))),
        InputSource::Artifact { name, version } => {
            let opened = engine.artifacts.open_version(name, *version);
            opened.map(|(file, _)| Box::new(file) as Box<dyn io::Read>).map_err(|error| ErrorInfo {
                code: ErrorCode::InvalidSpec,
                message: error.to_string(),
                hint: Some("`airlock artifact list` shows what is kept".to_owned()),
            })
        }
    }
}

fn of_input(error: &files::InputError) -> ErrorInfo {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    let hint = "check the file, its name inside, and --disk".to_owned();
    ErrorInfo { code: ErrorCode::InvalidSpec, message: format!("{error}{cause}"), hint: Some(hint) }
}

fn open_file(path: &Path) -> Result<File, ErrorInfo> {
    open_regular(path).map_err(|error| ErrorInfo {
        code: ErrorCode::InvalidSpec,
        message: format!("cannot read the input `{}`: {error}", path.display()),
        hint: Some("check that it is a file and that you may read it".to_owned()),
    })
}

/// Whether the files that a run wants can be read; artifacts are looked up when it starts.
pub(crate) fn look_at_inputs(spec: &RunSpec) -> Result<(), ErrorInfo> {
    spec.inputs.iter().try_for_each(|(_, source)| match source {
        InputSource::File(path) => open_file(path).map(drop),
        InputSource::Artifact { .. } | InputSource::Given(_) => Ok(()),
    })
}

/// Opens without waiting for the other end of a FIFO, and takes nothing but a regular file.
fn open_regular(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn refused(error: &SandboxError, result: &mut RunResult) -> ErrorInfo {
    result.exit_status = error.exit_status();
    error.info()
}

pub(crate) fn internal(message: String) -> ErrorInfo {
    ErrorInfo { code: ErrorCode::Internal, message, hint: Some("`airlock doctor` may know why".to_owned()) }
}

fn cancellation() -> ErrorInfo {
    let hint = Some("start it again when you want it".to_owned());
    ErrorInfo { code: ErrorCode::Cancelled, message: "cancelled".to_owned(), hint }
}

fn of_record(id: &Id, error: io::Error) -> ErrorInfo {
    match error.kind() {
        io::ErrorKind::AlreadyExists => ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: format!("a run called `{id}` is under way"),
            hint: Some("choose another --run-id, or leave it away".to_owned()),
        },
        _ => internal(format!("cannot write the record of the run: {error}")),
    }
}

/// Gives back what a box that has ended held outside; what there is to say of it.
pub(crate) async fn leave(sandbox: Box<dyn Sandbox>, records: Vec<Record>) -> Vec<String> {
    let released = sandbox.release().await;
    let mut notes = released.notes;
    if !released.left_over {
        records.into_iter().for_each(|record| close(record, &mut notes));
    }
    notes
}

fn close(record: Record, notes: &mut Vec<String>) {
    note(record.close(), notes);
}

fn note(removed: io::Result<()>, notes: &mut Vec<String>) {
    if let Err(error) = removed {
        notes.push(format!("the record of the run could not be removed: {error}"));
    }
}

/// The result of a run whose driver panicked. Its box is gone with the driver's end of the channel.
pub(crate) fn broken(blank: RunResult) -> RunResult {
    let error = internal("the engine failed; this is a bug in Airlock".to_owned());
    RunResult { status: Status::Lost, error: Some(error), ..blank }
}

/// A result with nothing in it yet.
pub(crate) fn blank(id: &Id, spec: &RunSpec) -> RunResult {
    let blank = RunResult::blank(id.clone(), spec.sandbox.profile.clone(), record::now());
    RunResult { task_id: spec.task_id.clone(), job_id: spec.job_id.clone(), ..blank }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_ends_with_the_box_although_somebody_keeps_the_pipe_open() {
        let (reader, writer) = output_pipe().unwrap();
        let (ended, has_ended) = watch::channel(false);
        let (events, mut seen) = mpsc::channel(16);
        let reading = tokio::spawn(read_output(Stream::Stdout, reader, 100, events, has_ended));
        rustix::io::write(&writer, b"before").unwrap();
        assert!(seen.recv().await.is_some());
        rustix::io::write(&writer, b" and at the end").unwrap();
        ended.send_replace(true);
        assert_eq!(reading.await.unwrap(), (b"before and at the end".to_vec(), false));
        drop(writer);
    }
}
