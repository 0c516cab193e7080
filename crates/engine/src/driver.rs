//! One driver task a run: down once, back once.
//!
//! ```text
//! record ─ box ─ inputs ─ program ─┬─ ended ──────────────┐
//!                                  ├─ wall time ─ TERM ─ grace ─┤
//!                                  ├─ CPU time ── XCPU ─ grace ─┤─ box ended ─ artifacts ─ box released ─ record closed
//!                                  ├─ cancelled ─ TERM ─ grace ─┤
//!                                  └─ terminated ─ TERM ─ its grace ─┘
//! ```

use crate::{
    capture::Capture,
    contract,
    denials::{self, LONGEST_LAST_WORD},
    doors::Opened,
    files::{self, Bounds},
    interpreter,
    keep::Keeper,
    making::{
        LONGEST_START, Making, Standing, cancellation, close, environment, injected, internal,
        leave, refused, take_in, until_cancelled,
    },
    origin::Origin,
    pool,
    record::{self, Record},
    room,
    streams::{Reading, Streams, connect_pipes},
    terminal::{self, Terminal},
    verdict::{
        CANCEL_GRACE, COUNTED_EVERY, Ending, GRACE, SIGKILL, SIGTERM, SIGXCPU, Stopped, cpu_left,
        ending, first_look, judge,
    },
};
use sandbox::{Program, Sandbox, SandboxError};
use spec::{
    Backend, Enforcer, ErrorCode, ErrorInfo, Event, Id, LimitName, RunResult, RunSpec, Status,
    Stream, Truncated, Usage,
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

/// The exit status of a command that is not there.
const NOT_FOUND: u8 = 127;

/// One run's task.
pub(crate) struct Driver {
    pub(crate) making: Making,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) doors: Option<oneshot::Sender<Vec<TcpListener>>>,
    pub(crate) terminal: Option<oneshot::Sender<Terminal>>,
    /// That the program shall end by itself, and how long it has for that.
    pub(crate) terminated: watch::Receiver<Option<Duration>>,
    /// That nobody is left inside, before the rest of the output is taken.
    pub(crate) over: watch::Sender<bool>,
    /// Milliseconds of CPU time that it has used so far.
    pub(crate) cpu_ms: Arc<AtomicU64>,
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

impl Driver {
    pub(crate) async fn drive(mut self, input: io::Result<Option<OwnedFd>>) -> RunResult {
        let mut result = blank(&self.making.id, &self.making.spec);
        result.moments.begun = record::now_us();
        let started = Instant::now();
        let ran = self.run(input, &mut result).await;
        self.making.settle_workspace(ran.is_ok(), &mut result).await;
        if let Err(refused) = ran {
            result.status = match refused.code {
                ErrorCode::Cancelled => Status::Cancelled,
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
        result.moments.ended = result.moments.begun + took.as_micros() as u64;
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
        let Standing {
            origin,
            opened,
            records,
            mut sandbox,
        } = self.making.stand(result).await?;
        let ran = self.run_in(&mut *sandbox, &opened, input, result).await;
        // Before the box is cleared away: listeners keep its network alive.
        opened.close(result).await;
        // With the result a workspace is the caller's again.
        take_in(result, sandbox.give_workspace_back().await);
        match self.making.engine.pools.is_on() && !matches!(origin, Origin::Engine(_)) {
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
        let named = self.making.spec.run_id.is_some();
        // Of a box that was not made ahead, what it holds outside has the caller's name.
        if sandbox.holds_workspace() || named && records.len() == 1 {
            notes.extend(leave(sandbox, records).await);
            return pool::refill(&self.making.engine);
        }
        if named {
            close(records.remove(0), notes);
        }
        pool::restock(&self.making.engine, sandbox, records);
    }

    async fn run_in(
        &mut self,
        sandbox: &mut dyn Sandbox,
        opened: &Opened,
        input: Option<OwnedFd>,
        result: &mut RunResult,
    ) -> Result<(), ErrorInfo> {
        let outputs = match self.making.furnish(sandbox, opened, result).await {
            Ok(listeners) => {
                if let Some(doors) = self.doors.take() {
                    // Nobody may want them: then nobody listens.
                    _ = doors.send(listeners);
                }
                self.exec_in_time(sandbox, input, result).await
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
        result.notes.extend(self.making.told_secrets());
        result.barriers = sandbox.barriers();
        result.started_at = record::now();
        result.moments.started = record::now_us();
        let ending = self.watch(sandbox).await;
        self.conclude(sandbox, ending, outputs, result).await;
        Ok(())
    }

    /// Opening a program can take as long as its file system likes, and the clock does not tick yet.
    async fn exec_in_time(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
        result: &mut RunResult,
    ) -> Result<Outputs, ErrorInfo> {
        let mut cancelled = self.making.cancelled.clone();
        let secrets = injected(&self.making.engine.doors.secrets, &self.making.spec)?;
        let started = tokio::select! {
            started = tokio::time::timeout(LONGEST_START, self.exec(sandbox, input, secrets)) => match started {
                Ok(started) => started.map_err(|error| refused(&error, result)),
                Err(_) => Err(internal("the program was not started in time".to_owned())),
            },
            () = until_cancelled(&mut cancelled) => Err(cancellation()),
        };
        started.map_err(|mut info| {
            let spec = &self.making.spec;
            if let (NOT_FOUND, Some(command)) = (result.exit_status, spec.command.first()) {
                let directory = &spec.sandbox.directory;
                let better = interpreter::explain(sandbox.workspace(), directory, command);
                interpreter::mend(&mut info, better);
            }
            info
        })
    }

    /// Pipes, or the terminal on all three.
    fn connect(
        &mut self,
        sandbox: &mut dyn Sandbox,
        input: Option<OwnedFd>,
    ) -> io::Result<Streams> {
        let Some((ours, size)) = sandbox.take_terminal().zip(self.making.spec.sandbox.tty) else {
            return connect_pipes(input);
        };
        let parts = terminal::take_apart(ours, size)?;
        if let Some(terminal) = self.terminal.take() {
            // Nobody may want it: then nobody types.
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
    ) -> Result<Outputs, SandboxError> {
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
        let mut env = environment(&self.making.id, &self.making.spec);
        env.extend(secrets);
        let (argv, terminal) = (
            self.making.spec.command.clone(),
            self.making.spec.sandbox.tty.is_some(),
        );
        let program = Program {
            argv,
            env,
            terminal,
            ..Program::default()
        };
        sandbox.exec(&program, inside).await?;
        // Nothing has been sent yet, so there is room, and a reader who does not read cannot hold the clock up.
        _ = self.events.try_send(Event::Started {
            barriers: sandbox.barriers(),
        });
        let cap = self.making.spec.sandbox.limits.output.0;
        let (ended, has_ended) = watch::channel(false);
        let read = |stream, pipe| {
            let reading = Reading::new(pipe, has_ended.clone());
            tokio::spawn(read_output(stream, reading, cap, self.events.clone()))
        };
        let stdout = read(Stream::Stdout, stdout);
        let stderr = stderr.map(|pipe| read(Stream::Stderr, pipe));
        let denials = denials::collect(
            sandbox.take_denials(),
            self.events.clone(),
            has_ended.clone(),
            LONGEST_LAST_WORD,
        );
        Ok(Outputs {
            ended,
            stdout,
            stderr,
            _inside: held,
            denials: tokio::spawn(denials),
        })
    }

    /// Waits for the end of the program, or brings it about.
    async fn watch(&mut self, sandbox: &mut dyn Sandbox) -> Ending {
        let limits = self.making.spec.sandbox.limits.clone();
        let deadline = tokio::time::sleep(limits.wall_time.0);
        tokio::pin!(deadline);
        let mut next_look = Instant::now() + first_look(&limits);
        let mut counting =
            tokio::time::interval_at((Instant::now() + COUNTED_EVERY).into(), COUNTED_EVERY);
        let is_counted = self.making.spec.owner.is_some();
        let (state, has_layer) = (self.making.engine.state.clone(), self.making.fills_state());
        let shortage = room::shortage(&state);
        tokio::pin!(shortage);
        let mut asked = None;
        loop {
            let grace = self.terminated.borrow_and_update().map(|grace| {
                // Once: asking again changes nothing but how long it has.
                let asked = *asked.get_or_insert_with(|| {
                    sandbox.signal(SIGTERM);
                    tokio::time::Instant::now()
                });
                asked + grace
            });
            let stopped = tokio::select! {
                () = &mut shortage, if has_layer => Stopped::Disk,
                progress = sandbox.progress() => return ending(progress, grace.map(|_| Stopped::Cancelled)),
                () = until(grace), if grace.is_some() => return killed(),
                () = &mut deadline => match grace {
                    None => Stopped::WallTime,
                    Some(_) => return killed(),
                },
                () = until_cancelled(&mut self.making.cancelled) => Stopped::Cancelled,
                _ = counting.tick(), if is_counted => {
                    let cpu = sandbox.counters().cpu.unwrap_or_default();
                    self.cpu_ms.fetch_max(cpu.as_millis() as u64, Ordering::Relaxed);
                    continue;
                }
                () = told_again(&mut self.terminated) => continue,
                () = tokio::time::sleep_until(next_look.into()) => {
                    match cpu_left(sandbox, Duration::ZERO, &limits) {
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
        let counted = !matches!(
            result.enforced_by.get("cpu"),
            None | Some(Enforcer::Rlimit | Enforcer::Nothing)
        );
        let native = self.making.spec.sandbox.backend == Backend::Native;
        let quiet = ending.alone && counted && native && self.making.engine.pools.is_on();
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
        result.moments.over = record::now_us();
        self.over.send_replace(true);
        let ([(stdout, cut_out), (stderr, cut_err)], denials) = outputs.finish().await;
        (result.stdout, result.stderr) = (stdout, stderr);
        result.truncated = Truncated {
            stdout: cut_out,
            stderr: cut_err,
        };
        result.denials = denials.list;
        result.notes.extend(denials.note);
        if self.keep_artifacts(sandbox, result).await {
            sandbox.artifacts_are_kept();
        }
        result.moments.kept = record::now_us();
        let counters = before.unwrap_or_else(|| sandbox.counters());
        result.usage = Usage {
            cpu_ms: counters
                .cpu
                .unwrap_or(Duration::from_micros(ending.cpu_us))
                .as_millis() as u64,
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
        result.limits_hit = hits
            .into_iter()
            .filter(|(_, hit)| *hit)
            .map(|(name, _)| name)
            .collect();
        judge(&ending, oom, &self.making.spec.sandbox.limits, result);
        contract::hold(self.making.spec.contract, result);
    }

    /// Off the event loop: what a program leaves can take minutes to copy, and signals must be heard meanwhile.
    /// Says whether nothing is left that was not kept.
    async fn keep_artifacts(&self, sandbox: &dyn Sandbox, result: &mut RunResult) -> bool {
        let fresh = self.making.spec.sandbox.workspace.is_none();
        if fresh
            && self.making.spec.artifacts.is_empty()
            && files::artifacts_are_empty(sandbox.workspace())
        {
            return true;
        }
        if !self.making.spec.keep {
            let note = "no artifact was kept: whoever asked for this run may not keep any";
            result.notes.push(note.to_owned());
            return false;
        }
        let kept = match sandbox.workspace().try_clone_to_owned() {
            Ok(workspace) => {
                let Making {
                    engine, id, spec, ..
                } = &self.making;
                let keeper = Keeper::new(engine, id, spec);
                let (wanted, bounds, sandbox) =
                    (spec.artifacts.clone(), self.bounds(), spec.sandbox.clone());
                tokio::task::spawn_blocking(move || {
                    keeper.collect(&workspace, &wanted, bounds, &sandbox)
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

    /// From a fresh workspace no more than could be written there: files with holes are larger than they are.
    fn bounds(&self) -> Bounds {
        let (bounds, sandbox) = (Bounds::default(), &self.making.spec.sandbox);
        match sandbox.workspace {
            Some(_) => bounds,
            None => Bounds {
                total_bytes: bounds.total_bytes.min(sandbox.limits.disk.0),
                ..bounds
            },
        }
    }
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

/// Reads to the end of the stream or of the box.
async fn read_output(
    stream: Stream,
    mut reading: Reading,
    cap: u64,
    events: mpsc::Sender<Event>,
) -> (Vec<u8>, bool) {
    let mut capture = Capture::new(cap);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count @ 1.. = reading.next(&mut buffer).await else {
            return capture.finish();
        };
        capture.add(&buffer[..count]);
        // Without a reader, the stream is still drained: a full pipe would stop the program.
        _ = events
            .send(Event::Output {
                stream,
                data: buffer[..count].to_vec(),
            })
            .await;
    }
}

/// Until somebody asks the program to end by itself, or gives it less time for that.
async fn told_again(terminated: &mut watch::Receiver<Option<Duration>>) {
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

/// It did not end by itself when it was asked to, and is ended with its box.
fn killed() -> Ending {
    Ending {
        status: Some(SIGKILL),
        stopped: Some(Stopped::Cancelled),
        ..Ending::default()
    }
}

/// Asks the program to end, and gives it a moment.
async fn stop(sandbox: &mut dyn Sandbox, stopped: Stopped) -> Ending {
    let (signal, grace) = match stopped {
        Stopped::WallTime => (SIGTERM, GRACE),
        Stopped::CpuTime => (SIGXCPU, CANCEL_GRACE),
        // Whoever may clean up may write on.
        Stopped::Disk => (SIGKILL, CANCEL_GRACE),
        Stopped::Cancelled => (SIGTERM, CANCEL_GRACE),
    };
    sandbox.signal(signal);
    match tokio::time::timeout(grace, sandbox.progress()).await {
        Ok(progress) => ending(progress, Some(stopped)),
        Err(_) => Ending {
            status: Some(SIGKILL),
            stopped: Some(stopped),
            ..Ending::default()
        },
    }
}

/// The result of a run whose driver panicked. Its box is gone with the driver's end of the channel.
pub(crate) fn broken(blank: RunResult) -> RunResult {
    let error = internal("the engine failed; this is a bug in Airlock".to_owned());
    RunResult {
        status: Status::Lost,
        error: Some(error),
        ..blank
    }
}

/// A result with nothing in it yet.
pub(crate) fn blank(id: &Id, spec: &RunSpec) -> RunResult {
    let blank = RunResult::blank(id.clone(), spec.sandbox.profile.clone(), record::now());
    RunResult {
        task_id: spec.task_id.clone(),
        job_id: spec.job_id.clone(),
        ..blank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::output_pipe;

    #[tokio::test]
    async fn output_ends_with_the_box_although_somebody_keeps_the_pipe_open() {
        let (reader, writer) = output_pipe().unwrap();
        let (ended, has_ended) = watch::channel(false);
        let (events, mut seen) = mpsc::channel(16);
        let reading = tokio::spawn(read_output(
            Stream::Stdout,
            Reading::new(reader, has_ended),
            100,
            events,
        ));
        rustix::io::write(&writer, b"before").unwrap();
        assert!(seen.recv().await.is_some());
        rustix::io::write(&writer, b" and at the end").unwrap();
        ended.send_replace(true);
        assert_eq!(
            reading.await.unwrap(),
            (b"before and at the end".to_vec(), false)
        );
        drop(writer);
    }
}
