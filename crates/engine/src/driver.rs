//! The driver: one task per run, from provisioning to the closed record.
//!
//! ```text
//! record ─ sandbox ─ inputs ─ program ─┬─ ended ─────────────────────┐
//!                                      ├─ wall time ─ TERM ─ grace ──┤
//!                                      ├─ file locks  KILL ──────────┤
//!                                      ├─ CPU time ── XCPU ─ grace ──┤─ sandbox ended ─ artifacts
//!                                      ├─ cancelled ─ TERM ─ grace ──┤    ─ sandbox released
//!                                      └─ terminated  TERM ─ grace ──┘    ─ record closed
//! ```

use crate::{
    artifacts::ArtifactCollector,
    capture::Capture,
    contract,
    denials::{self, LISTENER_FLUSH_TIMEOUT},
    disk_space,
    doors::OpenDoors,
    file_locks::LockWatch,
    files::{self, CollectLimits},
    outcome::{
        ACCOUNTING_INTERVAL, CANCEL_GRACE, ProgramEnd, SIGKILL, SIGTERM, SIGXCPU, StopReason,
        TIMEOUT_GRACE, classify, cpu_left, first_cpu_check, program_end,
    },
    pool,
    provision::{
        ExecutionEnd, Provisioned, Provisioner, START_TIMEOUT, cancellation, close, environment,
        internal, note_held_back, refused, release_sandbox, secret_variables, until_cancelled,
    },
    record::{self, Record},
    rootfs::RootSource,
    shebang,
    stdio::{OutputReader, Streams, connect_pipes},
    terminal::{self, Terminal},
};
use sandbox::{Program, Sandbox, SandboxError};
use spec::{
    Backend, Enforcer, ErrorCode, ErrorInfo, Id, LimitName, RunEvent, RunResult, RunSpec, Status,
    StdStream, Truncation, Usage,
};
use std::{
    ffi::OsString,
    io,
    net::TcpListener,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

/// The exit status of a command that does not exist.
const EXIT_NOT_FOUND: u8 = 127;

/// The state of one run's task.
pub(crate) struct Driver {
    pub(crate) provisioner: Provisioner,
    pub(crate) events: mpsc::Sender<RunEvent>,
    pub(crate) doors: Option<oneshot::Sender<Vec<TcpListener>>>,
    pub(crate) terminal: Option<oneshot::Sender<Terminal>>,
    /// The grace, once somebody asked for termination.
    pub(crate) terminated: watch::Receiver<Option<Duration>>,
    /// Set once no process is left inside, before the rest of the output is read.
    pub(crate) over: watch::Sender<bool>,
    /// CPU time used so far, in milliseconds.
    pub(crate) cpu_ms: Arc<AtomicU64>,
}

/// The tasks that read the output and the denials of a run.
struct OutputReaders {
    ended: watch::Sender<bool>,
    stdout: JoinHandle<(Vec<u8>, bool)>,
    /// None where both streams are the terminal.
    stderr: Option<JoinHandle<(Vec<u8>, bool)>>,
    /// The program's end of its terminal, held open so that the terminal ends with the sandbox and
    /// not before.
    _inside: Option<OwnedFd>,
    denials: JoinHandle<denials::DenialReport>,
}

impl Driver {
    pub(crate) async fn drive(mut self, input: io::Result<Option<OwnedFd>>) -> RunResult {
        let mut result = blank_result(&self.provisioner.id, &self.provisioner.spec);
        result.phase_times.begun = record::now_us();
        let started = Instant::now();
        let ran = self.run(input, &mut result).await;
        let end = match &ran {
            Ok(end) => *end,
            Err(refused) if refused.code == ErrorCode::Lost => ExecutionEnd::Lost,
            Err(_) => ExecutionEnd::NeverRan,
        };
        self.provisioner.finish_workspace(end, &mut result).await;
        if let Err(refused) = ran {
            result.status = match refused.code {
                ErrorCode::Cancelled => Status::Cancelled,
                // The program may have started.
                ErrorCode::Lost => Status::Lost,
                _ => Status::NotStarted,
            };
            result.exit_status = if result.status == Status::Cancelled {
                130
            } else {
                result.exit_status
            };
            result.error = Some(refused);
        }
        result.ended_at = record::now();
        let took = started.elapsed();
        result.duration_ms = took.as_millis() as u64;
        result.phase_times.ended = result.phase_times.begun + took.as_micros() as u64;
        result
    }

    /// Executes the run. An error means that the program did not start, or, with the code `lost`,
    /// that this is not known.
    async fn run(
        &mut self,
        input: io::Result<Option<OwnedFd>>,
        result: &mut RunResult,
    ) -> Result<ExecutionEnd, ErrorInfo> {
        result.exit_status = 125;
        let input = input.map_err(|error| internal(format!("cannot make a pipe: {error}")))?;
        let Provisioned {
            root,
            opened,
            records,
            mut sandbox,
        } = self.provisioner.provision(result).await?;
        let ran = self.run_in(&mut *sandbox, &opened, input, result).await;
        // Before the sandbox is released: listeners keep its network namespace alive.
        opened.close(result).await;
        // The workspace belongs to the caller again once there is a result.
        note_held_back(result, sandbox.give_workspace_back().await);
        if self.provisioner.engine.pools.is_on() && !matches!(root, RootSource::Engine(_)) {
            self.clean_up_later(sandbox, records, &mut result.notes)
                .await
        } else {
            result.notes.extend(release_sandbox(sandbox, records).await)
        }
        ran
    }

    /// Releases the sandbox in the background where nobody waits for it. A name that the caller
    /// chose is free again with the result.
    async fn clean_up_later(
        &self,
        sandbox: Box<dyn Sandbox>,
        mut records: Vec<Record>,
        notes: &mut Vec<String>,
    ) {
        let named = self.provisioner.spec.run_id.is_some();
        // A sandbox that was not pooled holds host resources under the caller's name.
        if sandbox.holds_workspace() || named && records.len() == 1 {
            notes.extend(release_sandbox(sandbox, records).await);
            return pool::refill(&self.provisioner.engine);
        }
        if named {
            close(records.remove(0), notes);
        }
        pool::restock(&self.provisioner.engine, sandbox, records);
    }

    async fn run_in(
        &mut self,
        sandbox: &mut dyn Sandbox,
        opened: &OpenDoors,
        input: Option<OwnedFd>,
        result: &mut RunResult,
    ) -> Result<ExecutionEnd, ErrorInfo> {
        let outputs = match self
            .provisioner
            .start_doors_and_inputs(sandbox, opened, result)
            .await
        {
            Ok(listeners) => {
                if let Some(doors) = self.doors.take() {
                    // If nobody takes the listeners, they are closed.
                    _ = doors.send(listeners);
                }
                self.exec_with_timeout(sandbox, input, result).await
            }
            Err(error) => Err(error),
        };
        let outputs = match outputs {
            Ok(outputs) => outputs,
            Err(error) => {
                sandbox.end().await;
                return Err(error);
            }
        };
        result.notes.extend(self.provisioner.secret_notes());
        result.barriers = sandbox.barriers();
        result.started_at = record::now();
        result.phase_times.started = record::now_us();
        let end = self.watch(sandbox).await;
        let execution = end.execution();
        self.conclude(sandbox, end, outputs, result).await;
        Ok(execution)
    }

    /// Starts the program, with a timeout: opening the executable can block on a slow file system,
    /// and the wall clock has not started.
    async fn exec_with_timeout(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
        result: &mut RunResult,
    ) -> Result<OutputReaders, ErrorInfo> {
        let mut cancelled = self.provisioner.cancelled.clone();
        let secrets = secret_variables(
            &self.provisioner.engine.doors.secrets,
            &self.provisioner.spec,
        )?;
        let started = tokio::select! {
            started = tokio::time::timeout(START_TIMEOUT, self.exec(sandbox, input, secrets)) => match started {
                // The launcher died after it received the request.
                Ok(Err(SandboxError::Died)) => Err(unknown_start("the sandbox died under the start")),
                Ok(started) => started.map_err(|error| refused(&error, result)),
                Err(_) => Err(unknown_start("the program was not started in time")),
            },
            () = until_cancelled(&mut cancelled) => Err(cancellation()),
        };
        started.map_err(|mut info| {
            let spec = &self.provisioner.spec;
            if let (EXIT_NOT_FOUND, Some(command)) = (result.exit_status, spec.command.first()) {
                let directory = &spec.sandbox.directory;
                let better = shebang::explain(sandbox.workspace(), directory, command);
                shebang::replace_message(&mut info, better);
            }
            info
        })
    }

    /// Connects the standard streams: pipes, or the terminal on all three.
    fn connect(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
    ) -> io::Result<Streams> {
        let Some((ours, size)) = sandbox
            .take_terminal()
            .zip(self.provisioner.spec.sandbox.tty)
        else {
            return connect_pipes(input);
        };
        let parts = terminal::split_terminal(ours, size)?;
        if let Some(terminal) = self.terminal.take() {
            // If nobody takes the terminal, nothing is typed.
            _ = terminal.send(parts.terminal);
        }
        let inside = [
            parts.inside.try_clone()?,
            parts.inside.try_clone()?,
            parts.inside,
        ];
        Ok(Streams {
            inside,
            stdout: parts.shown,
            stderr: None,
        })
    }

    async fn exec(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
        secrets: Vec<(OsString, OsString)>,
    ) -> Result<OutputReaders, SandboxError> {
        let failed = |source: io::Error| SandboxError::Launcher {
            what: "connect",
            source,
        };
        let Streams {
            inside,
            stdout,
            stderr,
        } = self.connect(sandbox, input).map_err(failed)?;
        let held = stderr
            .is_none()
            .then(|| inside[0].try_clone())
            .transpose()
            .map_err(failed)?;
        let mut env = environment(&self.provisioner.id, &self.provisioner.spec);
        env.extend(secrets);
        let argv = self.provisioner.spec.command.clone();
        let terminal = self.provisioner.spec.sandbox.tty.is_some();
        let program = Program {
            argv,
            env,
            terminal,
            ..Program::default()
        };
        sandbox.exec(&program, inside).await?;
        // The channel is still empty, so this cannot block on a slow reader.
        _ = self.events.try_send(RunEvent::Started {
            barriers: sandbox.barriers(),
        });
        let cap = self.provisioner.spec.sandbox.limits.output.0;
        let (ended, has_ended) = watch::channel(false);
        let read = |stream, pipe| {
            let reader = OutputReader::new(pipe, has_ended.clone());
            tokio::spawn(read_output(stream, reader, cap, self.events.clone()))
        };
        let stdout = read(StdStream::Stdout, stdout);
        let stderr = stderr.map(|pipe| read(StdStream::Stderr, pipe));
        let denials = denials::collect(
            sandbox.take_denials(),
            self.events.clone(),
            has_ended.clone(),
            LISTENER_FLUSH_TIMEOUT,
        );
        Ok(OutputReaders {
            ended,
            stdout,
            stderr,
            _inside: held,
            denials: tokio::spawn(denials),
        })
    }

    /// Waits for the end of the program, or stops it by a limit, a cancellation or a termination
    /// request.
    async fn watch(&mut self, sandbox: &mut dyn Sandbox) -> ProgramEnd {
        let limits = self.provisioner.spec.sandbox.limits.clone();
        let deadline = tokio::time::sleep(limits.wall_time.0);
        tokio::pin!(deadline);
        let mut next_cpu_check = Instant::now() + first_cpu_check(&limits);
        let mut counting = tokio::time::interval_at(
            (Instant::now() + ACCOUNTING_INTERVAL).into(),
            ACCOUNTING_INTERVAL,
        );
        let is_counted = self.provisioner.spec.owner.is_some();
        let state = self.provisioner.engine.state.clone();
        let has_layer = self.provisioner.fills_state();
        let shortage = disk_space::wait_for_shortage(&state);
        tokio::pin!(shortage);
        let mut locks = LockWatch::of_run(sandbox);
        let mut asked = None;
        loop {
            let grace = self.terminated.borrow_and_update().map(|grace| {
                // SIGTERM is sent once; later requests only change the grace.
                let asked = *asked.get_or_insert_with(|| {
                    sandbox.signal(SIGTERM);
                    tokio::time::Instant::now()
                });
                asked + grace
            });
            let stopped = tokio::select! {
                () = &mut shortage, if has_layer => StopReason::Disk,
                progress = sandbox.progress() => return program_end(progress, grace.map(|_| StopReason::Cancelled)),
                () = until(grace), if grace.is_some() => return killed_end(),
                () = &mut deadline => match grace {
                    None => StopReason::WallTime,
                    Some(_) => return killed_end(),
                },
                () = until_cancelled(&mut self.provisioner.cancelled) => StopReason::Cancelled,
                _ = counting.tick(), if is_counted => {
                    let cpu = sandbox.counters().cpu.unwrap_or_default();
                    self.cpu_ms.fetch_max(cpu.as_millis() as u64, Ordering::Relaxed);
                    continue;
                }
                () = termination_changed(&mut self.terminated) => continue,
                () = tokio::time::sleep_until(next_cpu_check.into()) => {
                    match cpu_left(sandbox, Duration::ZERO, &limits) {
                        Some(left) => {
                            next_cpu_check = Instant::now() + left;
                            continue;
                        }
                        None => StopReason::CpuTime,
                    }
                }
                () = tokio::time::sleep_until(locks.due(true).into()) => {
                    if !locks.is_over(sandbox).await {
                        continue;
                    }
                    StopReason::FileLocks
                }
            };
            return stop(sandbox, stopped).await;
        }
    }

    /// Ends every process in the sandbox first, so that output and artifacts cannot change while
    /// they are read.
    async fn conclude(
        &mut self,
        sandbox: &mut dyn Sandbox,
        mut end: ProgramEnd,
        outputs: OutputReaders,
        result: &mut RunResult,
    ) {
        // An empty sandbox need not be ended now: with pools its end is part of the clean-up behind
        // the result. The counters of its first process matter only without a cgroup.
        let counted = !matches!(
            result.enforced_by.get("cpu"),
            None | Some(Enforcer::Rlimit | Enforcer::Nothing)
        );
        let native = self.provisioner.spec.sandbox.backend == Backend::Native;
        let ends_later = end.alone && counted && native && self.provisioner.engine.pools.is_on();
        // A container's counters are gone with the container.
        let before = (!native).then(|| sandbox.counters());
        if !ends_later {
            match sandbox.end().await {
                Some(gone) => {
                    end.cpu_us += gone.cpu_us;
                    end.peak_bytes = end.peak_bytes.max(gone.peak_bytes);
                }
                None => {
                    let note = "the kernel has not ended every process of the sandbox yet";
                    result.notes.push(note.to_owned());
                }
            }
        }
        result.phase_times.over = record::now_us();
        self.over.send_replace(true);
        let ([(stdout, cut_out), (stderr, cut_err)], denials) = outputs.finish().await;
        (result.stdout, result.stderr) = (stdout, stderr);
        result.truncated = Truncation {
            stdout: cut_out,
            stderr: cut_err,
        };
        result.denials = denials.list;
        result.notes.extend(denials.note);
        if self.keep_artifacts(sandbox, result).await {
            sandbox.mark_artifacts_kept();
            self.provisioner.artifacts_kept = true;
        }
        result.phase_times.kept = record::now_us();
        let counters = before.unwrap_or_else(|| sandbox.counters());
        result.usage = Usage {
            cpu_ms: counters
                .cpu
                .unwrap_or(Duration::from_micros(end.cpu_us))
                .as_millis() as u64,
            memory_peak_bytes: counters.memory_peak.unwrap_or(end.peak_bytes),
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
        result.limits_hit = hits
            .into_iter()
            .filter(|(_, hit)| *hit)
            .map(|(name, _)| name)
            .collect();
        classify(&end, oom, &self.provisioner.spec.sandbox.limits, result);
        contract::enforce(self.provisioner.spec.contract, result);
    }

    /// Stores the artifacts on a blocking thread: a copy can take minutes, and signals must be
    /// handled meanwhile. Returns whether everything in `.artifacts` was stored.
    async fn keep_artifacts(&self, sandbox: &dyn Sandbox, result: &mut RunResult) -> bool {
        let fresh = self.provisioner.spec.sandbox.workspace.is_none();
        if fresh
            && self.provisioner.spec.artifacts.is_empty()
            && files::artifacts_are_empty(sandbox.workspace())
        {
            return true;
        }
        if !self.provisioner.spec.keep_artifacts {
            let note = "no artifact was kept: whoever asked for this run may not keep any";
            result.notes.push(note.to_owned());
            return false;
        }
        let kept = match sandbox.workspace().try_clone_to_owned() {
            Ok(workspace) => {
                let Provisioner {
                    engine, id, spec, ..
                } = &self.provisioner;
                let collector = ArtifactCollector::new(engine, id, spec);
                let wanted = spec.artifacts.clone();
                let bounds = self.bounds();
                let sandbox = spec.sandbox.clone();
                // The artifacts of a cancelled program are stored too, until a second cancellation.
                let mut cancelled = self.provisioner.cancelled.clone();
                cancelled.mark_unchanged();
                tokio::task::spawn_blocking(move || {
                    let is_cancelled = || cancelled.has_changed().unwrap_or(false);
                    collector.collect(&workspace, &wanted, bounds, &sandbox, &is_cancelled)
                })
                .await
                .unwrap_or_else(|error| Err(error.into()))
            }
            Err(error) => Err(error),
        };
        let (kept, collected) = match kept {
            Ok(kept) => kept,
            Err(error) => {
                result.notes.push(format!("no artifact was kept: {error}"));
                return false;
            }
        };
        result.artifacts = kept;
        let told = collected.skipped.iter();
        result.notes.extend(told.map(|skipped| {
            format!(
                "artifact `{}` was not kept: {}",
                skipped.name, skipped.reason
            )
        }));
        if collected.more_skipped > 0 {
            result.notes.push(format!(
                "{} more artifacts were not kept",
                collected.more_skipped
            ));
        }
        collected.folder_is_kept
    }

    /// The limits of the collection. A fresh workspace gets no more than could be written there,
    /// since sparse files have a larger size than disk usage.
    fn bounds(&self) -> CollectLimits {
        let bounds = CollectLimits::default();
        let sandbox = &self.provisioner.spec.sandbox;
        match sandbox.workspace {
            Some(_) => bounds,
            None => CollectLimits {
                total_bytes: bounds.total_bytes.min(sandbox.workspace_bytes()),
                ..bounds
            },
        }
    }
}

impl OutputReaders {
    /// Waits for the output up to the end, at the pace of the event reader.
    async fn finish(self) -> ([(Vec<u8>, bool); 2], denials::DenialReport) {
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

/// Reads a stream to its end or to the end of the sandbox.
async fn read_output(
    stream: StdStream,
    mut reader: OutputReader,
    cap: u64,
    events: mpsc::Sender<RunEvent>,
) -> (Vec<u8>, bool) {
    let mut capture = Capture::new(cap);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count @ 1.. = reader.next(&mut buffer).await else {
            return capture.finish();
        };
        capture.add(&buffer[..count]);
        // Without an event reader the stream is still drained: a full pipe would block the program.
        _ = events
            .send(RunEvent::Output {
                stream,
                data: buffer[..count].to_vec(),
            })
            .await;
    }
}

fn unknown_start(what: &str) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Lost,
        message: format!("{what}; whether a line of the program ran is not known"),
        hint: Some("start it again; `airlock doctor` tries one out".to_owned()),
    }
}

/// Waits for a termination request or a shorter grace.
async fn termination_changed(terminated: &mut watch::Receiver<Option<Duration>>) {
    // The sender lives in `Run`; a caller who dropped it asks for nothing else.
    if terminated.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The program did not end within its grace and is killed with its sandbox.
fn killed_end() -> ProgramEnd {
    ProgramEnd {
        status: Some(SIGKILL),
        stopped: Some(StopReason::Cancelled),
        ..ProgramEnd::default()
    }
}

/// Sends the signal for this reason and waits for the grace.
async fn stop(sandbox: &mut dyn Sandbox, stopped: StopReason) -> ProgramEnd {
    let (signal, grace) = match stopped {
        StopReason::WallTime => (SIGTERM, TIMEOUT_GRACE),
        StopReason::CpuTime => (SIGXCPU, CANCEL_GRACE),
        // A program that may clean up could go on writing or locking: no SIGTERM.
        StopReason::Disk | StopReason::FileLocks => (SIGKILL, CANCEL_GRACE),
        StopReason::Cancelled => (SIGTERM, CANCEL_GRACE),
    };
    sandbox.signal(signal);
    match tokio::time::timeout(grace, sandbox.progress()).await {
        Ok(progress) => program_end(progress, Some(stopped)),
        Err(_) => ProgramEnd {
            status: Some(SIGKILL),
            stopped: Some(stopped),
            ..ProgramEnd::default()
        },
    }
}

/// The result of a run whose driver panicked. The sandbox ended with the driver's end of the
/// channel.
pub(crate) fn result_of_panic(blank_result: RunResult) -> RunResult {
    let error = internal("the engine failed; this is a bug in Airlock".to_owned());
    RunResult {
        status: Status::Lost,
        error: Some(error),
        ..blank_result
    }
}

/// An empty result of this run.
pub(crate) fn blank_result(id: &Id, spec: &RunSpec) -> RunResult {
    let blank_result = RunResult::blank(id.clone(), spec.sandbox.profile.clone(), record::now());
    RunResult {
        task_id: spec.task_id.clone(),
        job_id: spec.job_id.clone(),
        ..blank_result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stdio::output_pipe;

    #[tokio::test]
    async fn output_ends_with_the_box_although_somebody_keeps_the_pipe_open() {
        let (reader, writer) = output_pipe().unwrap();
        let (ended, has_ended) = watch::channel(false);
        let (events, mut seen) = mpsc::channel(16);
        let reader = tokio::spawn(read_output(
            StdStream::Stdout,
            OutputReader::new(reader, has_ended),
            100,
            events,
        ));
        rustix::io::write(&writer, b"before").unwrap();
        assert!(seen.recv().await.is_some());
        rustix::io::write(&writer, b" and at the end").unwrap();
        ended.send_replace(true);
        assert_eq!(
            reader.await.unwrap(),
            (b"before and at the end".to_vec(), false)
        );
        drop(writer);
    }
}
