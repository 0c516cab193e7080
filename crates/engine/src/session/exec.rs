//! A program of a session and the task that monitors it. Its output is read into an output log,
//! whether or not there is a reader.
//!
//! A program ends with its first process; the output up to then is in the log, and the log ends
//! there. What an orphaned process writes to the pipe afterwards is read and discarded: a full pipe
//! would block it, and a closed one would kill it with SIGPIPE. To keep such output, start the
//! process as a program of its own.

use super::{SessionEnd, SessionStatus, Shared, actor::SessionCommand};
use crate::{
    denials,
    driver::blank_result,
    outcome::{ProgramEnd, SIGKILL, SIGTERM, StopReason, TIMEOUT_GRACE, classify},
    output_log::OutputLog,
    record,
    stdio::OutputReader,
    terminal::TerminalWindow,
};
use sandbox::{ExecProcess, ProcessExit, SandboxError};
use spec::{
    Denial, ErrorInfo, ExecRequest, LimitName, Limits, Status, StdStream, TerminalSize, Time,
    Timestamp, Truncation,
};
use std::{
    collections::{BTreeSet, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe,
    sync::{mpsc, oneshot, watch},
};

/// The least and the most bytes of each stream that are kept, whatever the session's limit is.
const MIN_LOG_BYTES: u64 = 4 << 20;
const MAX_LOG_BYTES: u64 = 64 << 20;
/// The capacity of the signal queue; further signals are dropped. SIGKILL is never dropped.
const SIGNAL_QUEUE_LENGTH: usize = 64;
/// The most recent bytes of standard input that are kept, to recognize a repeated write.
const MAX_RECENT_BYTES: usize = 4096;
/// The time without a write after which a missing part of the input is reported. Input that comes
/// with a command is written behind the reply to it.
const GAP_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout for the last denials. A listener that also watches orphaned processes has no end.
const DENIALS_TIMEOUT: Duration = Duration::from_millis(100);
/// The timeout for the kernel to end a killed program.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for a reply of the session's task.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

const SIGCONT: i32 = 18;

/// A program of a session, running or ended. Cheap to clone; all clones are the same program.
#[derive(Clone, Debug)]
pub struct Exec {
    shared: Arc<ExecShared>,
}

/// The result of a program of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecResult {
    /// The status.
    pub status: Status,
    /// The exit code, if the program exited by itself.
    pub exit_code: Option<i32>,
    /// The signal that killed the program.
    pub signal: Option<i32>,
    /// The exit status of the command line for this result.
    pub exit_status: u8,
    /// The error, if the program was stopped or could not start.
    pub error: Option<ErrorInfo>,
    /// The end time.
    pub ended_at: Timestamp,
    /// The wall time.
    pub duration_ms: u64,
    /// The CPU time.
    pub cpu_ms: u64,
    /// Whether the log has dropped bytes of a stream.
    pub truncated: Truncation,
    /// The limits that the program hit.
    pub limits_hit: BTreeSet<LimitName>,
    /// What the program was denied.
    pub denials: Vec<Denial>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct ExecShared {
    id: String,
    request: ExecRequest,
    started_at: Timestamp,
    log: OutputLog,
    done: watch::Sender<Option<ExecResult>>,
    /// The grace, once somebody asked for the end: the shortest of all requests.
    stop: watch::Sender<Option<Duration>>,
    signals: mpsc::Sender<i32>,
    input: tokio::sync::Mutex<StdinState>,
    input_is_over: watch::Sender<bool>,
    /// The bytes written to standard input. Changes only with the input locked.
    typed: watch::Sender<u64>,
    window: Mutex<Option<TerminalWindow>>,
    /// The first bytes of each stream, as many as were requested.
    beginnings: [Mutex<Vec<u8>>; 2],
}

/// The standard input of a program.
#[derive(Debug, Default)]
struct StdinState {
    /// None once the input is closed.
    pipe: Option<pipe::Sender>,
    recent: RecentInput,
}

/// The most recent bytes of the input.
#[derive(Debug, Default)]
struct RecentInput(VecDeque<u8>);

/// Why a write to standard input failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StdinError {
    /// Bytes before it are missing.
    #[error("what comes before is missing: {typed} bytes were typed")]
    Gap {
        /// The offset of the input.
        typed: u64,
    },
    /// Other bytes were written at that offset.
    #[error("something else was typed there: {typed} bytes were typed")]
    Mismatch {
        /// The offset of the input.
        typed: u64,
    },
    /// The program or its input has ended.
    #[error("the program reads nothing any more")]
    Closed,
}

/// The standard input of a program, to count its unread bytes even after the program is gone. While
/// it is held, the input does not end.
#[derive(Debug)]
pub struct UnreadInput(OwnedFd);

impl UnreadInput {
    /// The number of unread bytes, if it is known.
    pub fn bytes(&self) -> Option<u64> {
        rustix::io::ioctl_fionread(&self.0).ok()
    }
}

impl Exec {
    /// The id, unique within the session.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// The request.
    pub fn request(&self) -> &ExecRequest {
        &self.shared.request
    }

    /// The start time.
    pub fn started_at(&self) -> Timestamp {
        self.shared.started_at
    }

    /// The output log. A terminal writes to standard output only.
    pub fn output(&self) -> &OutputLog {
        &self.shared.log
    }

    /// Takes the first bytes of a stream that were kept.
    pub fn take_beginning(&self, stream: StdStream) -> Vec<u8> {
        std::mem::take(&mut *self.started(stream))
    }

    fn started(&self, stream: StdStream) -> MutexGuard<'_, Vec<u8>> {
        let place = if stream == StdStream::Stdout { 0 } else { 1 };
        self.shared.beginnings[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_beginning(&self, stream: StdStream, bytes: &[u8]) {
        let mut kept = self.started(stream);
        let room = self.shared.request.beginning.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The result, once the program has ended and its output is complete.
    pub fn result(&self) -> Option<ExecResult> {
        self.shared.done.borrow().clone()
    }

    /// Waits for the result.
    pub async fn wait(&self) -> ExecResult {
        let mut done = self.shared.done.subscribe();
        let ended = done
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|done| done.clone());
        // The sender lives as long as this does.
        ended.unwrap_or_else(|| lost_result(self.shared.started_at))
    }

    /// Writes to standard input; waits while the program does not read. Fails once the input is
    /// closed.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), StdinError> {
        self.write_from(None, bytes).await
    }

    /// Writes at an offset of the input, or at its end. Bytes that were written already are
    /// skipped, so that a caller that does not know how much arrived can repeat a write. A repeated
    /// write with other bytes is refused, as far back as they are remembered.
    pub async fn write_from(&self, offset: Option<u64>, bytes: &[u8]) -> Result<(), StdinError> {
        let mut done = self.shared.done.subscribe();
        let mut input = self.shared.input.lock().await;
        let typed = self.input_offset();
        let known = typed
            .checked_sub(offset.unwrap_or(typed))
            .ok_or(StdinError::Gap { typed })?;
        if !input.recent.agrees(known, bytes) {
            return Err(StdinError::Mismatch { typed });
        }
        let rest = usize::try_from(known)
            .ok()
            .and_then(|known| bytes.get(known..))
            .unwrap_or_default();
        if rest.is_empty() && known > 0 {
            return Ok(());
        }
        if *self.shared.input_is_over.borrow() || input.pipe.is_none() {
            return Err(StdinError::Closed);
        }
        let written = tokio::select! {
            written = input.write_all(rest, &self.shared.typed) => written.map_err(|_| StdinError::Closed),
            _ = done.wait_for(Option::is_some) => Err(StdinError::Closed),
        };
        // The input may have been closed during the write.
        if written.is_err() || *self.shared.input_is_over.borrow() {
            input.pipe = None;
        }
        written
    }

    /// Waits until everything before this offset is written, as long as writes go on.
    pub async fn wait_for_offset(&self, offset: u64) -> Result<(), StdinError> {
        let mut typed = self.shared.typed.subscribe();
        while *typed.borrow_and_update() < offset {
            // A write in progress may get there.
            drop(self.shared.input.lock().await);
            if self.input_offset() >= offset {
                break;
            }
            if *self.shared.input_is_over.borrow() {
                return Err(StdinError::Closed);
            }
            let more = tokio::time::timeout(GAP_TIMEOUT, typed.changed()).await;
            more.map_err(|_| StdinError::Gap {
                typed: self.input_offset(),
            })?
            .map_err(|_| StdinError::Closed)?;
        }
        Ok(())
    }

    /// The unread bytes of the input; none for a terminal, or for a closed input.
    pub async fn unread_input(&self) -> Option<UnreadInput> {
        if self
            .shared
            .window
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
        {
            return None;
        }
        let input = self.shared.input.lock().await;
        input
            .pipe
            .as_ref()?
            .as_fd()
            .try_clone_to_owned()
            .ok()
            .map(UnreadInput)
    }

    /// The offset of the input: all bytes written so far.
    pub fn input_offset(&self) -> u64 {
        *self.shared.typed.borrow()
    }

    /// Closes the input, after a write in progress.
    pub fn close_input(&self) {
        self.shared.input_is_over.send_replace(true);
        if let Ok(mut input) = self.shared.input.try_lock() {
            input.pipe = None;
        }
    }

    /// Sets the size of the terminal.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let window = self
            .shared
            .window
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let none = || io::Error::new(io::ErrorKind::Unsupported, "the program has no terminal");
        window.as_ref().ok_or_else(none)?.resize(size)
    }

    /// Sends a signal to the process group; SIGKILL is the same as a stop without grace.
    pub fn signal(&self, number: i32) {
        match number {
            SIGKILL => self.ask_to_stop(Duration::ZERO),
            // A program that has ended gets no signal.
            _ => _ = self.shared.signals.try_send(number),
        }
    }

    /// Sends SIGTERM, and SIGKILL after `grace`; waits for the result.
    pub async fn stop(&self, grace: Duration) -> ExecResult {
        self.ask_to_stop(grace);
        self.wait().await
    }

    /// Sets the result of a program whose task was aborted.
    pub(super) fn give_up(&self) {
        let exec_shared = &self.shared;
        exec_shared.log.end();
        exec_shared.done.send_if_modified(|done| {
            let unknown = done.is_none();
            done.get_or_insert_with(|| lost_result(record::now()));
            unknown
        });
    }

    fn ask_to_stop(&self, grace: Duration) {
        self.shared
            .stop
            .send_modify(|stop| *stop = Some(stop.map_or(grace, |before| before.min(grace))));
    }
}

impl StdinState {
    /// Counts bytes as they are written: the caller may drop the future in the middle of it.
    async fn write_all(&mut self, mut bytes: &[u8], typed: &watch::Sender<u64>) -> io::Result<()> {
        let pipe = self.pipe.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        while !bytes.is_empty() {
            let count = pipe.write(bytes).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.recent.add(&bytes[..count]);
            typed.send_modify(|typed| *typed += count as u64);
            bytes = &bytes[count..];
        }
        Ok(())
    }
}

impl RecentInput {
    fn add(&mut self, bytes: &[u8]) {
        self.0
            .extend(&bytes[bytes.len().saturating_sub(MAX_RECENT_BYTES)..]);
        let over = self.0.len().saturating_sub(MAX_RECENT_BYTES);
        self.0.drain(..over);
    }

    /// Whether bytes that begin `known` bytes before the end equal what was written there.
    fn agrees(&self, known: u64, bytes: &[u8]) -> bool {
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let passed_over = bytes
            .iter()
            .take(known)
            .skip(known.saturating_sub(self.0.len()));
        passed_over
            .zip(self.0.iter().skip(self.0.len().saturating_sub(known)))
            .all(|(sent, typed)| sent == typed)
    }
}

/// A started program and its streams.
pub(super) struct StartedProgram {
    pub(super) id: String,
    pub(super) request: ExecRequest,
    pub(super) process: ExecProcess,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: Option<pipe::Receiver>,
    /// The program's end of its terminal, held open so that the terminal ends with the program and
    /// not before.
    pub(super) held: Option<OwnedFd>,
    pub(super) input: Option<pipe::Sender>,
    pub(super) window: Option<TerminalWindow>,
    /// The OOM kills in the sandbox before the start.
    pub(super) oom_kills: Option<u64>,
}

/// The handle of a started program, and the future that monitors it.
pub(super) fn monitor(
    session: &Arc<Shared>,
    state: &Path,
    started: StartedProgram,
) -> (Exec, impl Future<Output = ()> + Send + use<>) {
    let StartedProgram {
        id,
        request,
        mut process,
        stdout,
        stderr,
        held,
        input,
        window,
        oom_kills,
    } = started;
    let limits = &session.spec.run.sandbox.limits;
    let (signals, to_send) = mpsc::channel(SIGNAL_QUEUE_LENGTH);
    let exec_shared = ExecShared {
        id,
        started_at: record::now(),
        log: OutputLog::within(
            &session.log_budget,
            limits.output.0.clamp(MIN_LOG_BYTES, MAX_LOG_BYTES),
            state,
        ),
        done: watch::Sender::default(),
        stop: watch::Sender::default(),
        signals,
        input: tokio::sync::Mutex::new(StdinState {
            pipe: input,
            recent: RecentInput::default(),
        }),
        input_is_over: watch::Sender::new(!request.stdin),
        typed: watch::Sender::new(0),
        window: Mutex::new(window),
        beginnings: Default::default(),
        request,
    };
    let wall_time = exec_shared
        .request
        .timeout
        .map_or(limits.wall_time.0, |time| time.min(limits.wall_time.0));
    let limits = Limits {
        wall_time: Time(wall_time),
        ..limits.clone()
    };
    let exec = Exec {
        shared: Arc::new(exec_shared),
    };
    let (ended, has_ended) = watch::channel(false);
    let streams = [
        (StdStream::Stdout, Some(stdout)),
        (StdStream::Stderr, stderr),
    ];
    let outputs = streams.into_iter().filter_map(|(stream, pipe)| {
        let reader = OutputReader::new(pipe?, has_ended.clone());
        let (read, is_read) = oneshot::channel();
        let session = held.is_none().then(|| session.clone());
        tokio::spawn(read_into(exec.clone(), stream, reader, read, session));
        Some(is_read)
    });
    let outputs = outputs.collect();
    // Nobody waits for single denials.
    let (events, _) = mpsc::channel(1);
    let denials = denials::collect(process.take_denials(), events, has_ended, DENIALS_TIMEOUT);
    let monitor = ProgramMonitor {
        exec: exec.clone(),
        session: session.clone(),
        process,
        signals: to_send,
        limits,
        oom_kills,
        ended,
        outputs,
        denials: tokio::spawn(denials),
        _held: held,
        began: Instant::now(),
    };
    (exec, monitor.run())
}

/// Reads a stream to the end of the program; then drains it for orphaned processes, as long as the
/// session allows.
async fn read_into(
    exec: Exec,
    stream: StdStream,
    mut reader: OutputReader,
    read: oneshot::Sender<()>,
    session: Option<Arc<Shared>>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let count @ 1.. = reader.next(&mut buffer).await {
        exec.keep_beginning(stream, &buffer[..count]);
        buffer = exec.output().append_from(stream, buffer, count).await;
    }
    drop((buffer, exec));
    // The waiting task may be gone.
    _ = read.send(());
    if let Some(session) = session.filter(|_| !reader.is_over()) {
        session.orphan_pipes.drain(&session, reader).await;
    }
}

struct ProgramMonitor {
    exec: Exec,
    session: Arc<Shared>,
    process: ExecProcess,
    signals: mpsc::Receiver<i32>,
    limits: Limits,
    oom_kills: Option<u64>,
    ended: watch::Sender<bool>,
    outputs: Vec<oneshot::Receiver<()>>,
    denials: tokio::task::JoinHandle<denials::DenialReport>,
    _held: Option<OwnedFd>,
    began: Instant,
}

impl ProgramMonitor {
    async fn run(mut self) {
        let end = match self.watch().await {
            Ok(ended) => self.program_end(ended, None),
            Err(stopped) => {
                let ended = self.stop(stopped).await;
                self.program_end(ended, Some(stopped))
            }
        };
        self.conclude(end).await;
    }

    /// Waits for the end of the program, or for a reason to stop it. While the session is paused,
    /// the wall clock stops.
    async fn watch(&mut self) -> Result<Option<ProcessExit>, StopReason> {
        let mut status = self.session.status.subscribe();
        let mut stop = self.exec.shared.stop.subscribe();
        let mut left = (!self.exec.request().background).then_some(self.limits.wall_time.0);
        loop {
            let paused = *status.borrow_and_update() == SessionStatus::Paused;
            let since = Instant::now();
            tokio::select! {
                ended = self.process.ended() => return Ok(ended),
                Ok(_) = stop.wait_for(Option::is_some) => return Err(StopReason::Cancelled),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() && !paused => {
                    return Err(StopReason::WallTime);
                }
                Some(number) = self.signals.recv() => self.process.signal(number),
                Ok(()) = status.changed() => {}
            }
            left = left.map(|left| {
                if paused {
                    left
                } else {
                    left.saturating_sub(since.elapsed())
                }
            });
        }
    }

    /// Stops the program. In a paused session it could not react to SIGTERM.
    async fn stop(&mut self, stopped: StopReason) -> Option<ProcessExit> {
        // Without a grace no SIGTERM is sent: the result would name that signal.
        let at_once = self
            .exec
            .shared
            .stop
            .borrow()
            .is_some_and(|grace| grace.is_zero());
        if !self.session.is_paused() && !at_once {
            self.process.signal(SIGTERM);
            // A stopped process (SIGSTOP) handles SIGTERM only after SIGCONT.
            self.process.signal(SIGCONT);
            let mut stop = self.exec.shared.stop.subscribe();
            let own = (stopped == StopReason::WallTime).then_some(TIMEOUT_GRACE);
            tokio::select! {
                biased;
                ended = self.process.ended() => return ended,
                () = grace_expired(&mut stop, own) => {}
            }
        }
        self.process.signal(SIGKILL);
        if self.session.is_paused() {
            // At the latest it ends with the session.
            _ = self
                .session
                .commands
                .send(SessionCommand::ThawUntilExit(self.exec.clone()))
                .await;
        }
        tokio::time::timeout(KILL_TIMEOUT, self.process.ended())
            .await
            .ok()
            .flatten()
    }

    /// The end of the program. If the session ended it, the reason is the session's.
    fn program_end(&self, ended: Option<ProcessExit>, stopped: Option<StopReason>) -> ProgramEnd {
        let session = *self.session.ending.borrow();
        let by_session = session.and_then(|why| match why {
            SessionEnd::Asked
            | SessionEnd::Idle
            | SessionEnd::Lifetime
            | SessionEnd::ServerStopped => Some(StopReason::Cancelled),
            SessionEnd::Limit => self.session.data().limit,
            SessionEnd::Lost => None,
        });
        let killed = ended.is_none_or(|ended| ended.status & 0x7f == SIGKILL);
        let stopped = stopped.or(by_session.filter(|_| killed));
        let Some(ProcessExit {
            status,
            cpu_us,
            peak_bytes,
            alone,
        }) = ended
        else {
            return ProgramEnd {
                stopped,
                ..ProgramEnd::default()
            };
        };
        ProgramEnd {
            status: Some(status),
            stopped,
            cpu_us,
            peak_bytes,
            alone,
        }
    }

    /// Whether memory ran out: then a SIGKILL that nobody sent was the OOM killer's.
    async fn ran_out_of_memory(&self, end: &ProgramEnd) -> bool {
        if end.stopped.is_some() || end.status.is_none_or(|status| status & 0x7f != SIGKILL) {
            return false;
        }
        let (reply, counted) = oneshot::channel();
        let asked = async {
            self.session
                .commands
                .send(SessionCommand::ReadCounters(reply))
                .await
                .ok()?;
            counted.await.ok()
        };
        let counters = tokio::time::timeout(REPLY_TIMEOUT, asked)
            .await
            .ok()
            .flatten();
        counters.is_some_and(|counters| counters.oom_kills > self.oom_kills)
    }

    /// Waits for the output first: a caller that has the result can read all of it.
    async fn conclude(self, end: ProgramEnd) {
        let oom = self.ran_out_of_memory(&end).await;
        self.ended.send_replace(true);
        for read in self.outputs {
            // A reader that is gone has read everything.
            _ = read.await;
        }
        let exec_shared = &self.exec.shared;
        exec_shared.log.end();
        let denials = self.denials.await.unwrap_or_default();
        let mut result = blank_result(&self.session.id, &self.session.spec.run);
        let [stdout, stderr] = exec_shared.log.oldest().map(|oldest| oldest > 0);
        if stdout || stderr {
            result.limits_hit.insert(LimitName::Output);
        }
        if oom {
            result.limits_hit.insert(LimitName::Memory);
        }
        classify(&end, oom, &self.limits, &mut result);
        let result = ExecResult {
            status: result.status,
            exit_code: result.exit_code,
            signal: result.signal,
            exit_status: result.exit_status,
            error: result.error,
            ended_at: record::now(),
            duration_ms: self.began.elapsed().as_millis() as u64,
            cpu_ms: end.cpu_us / 1000,
            truncated: Truncation { stdout, stderr },
            limits_hit: result.limits_hit,
            denials: denials.list,
            notes: denials.note.into_iter().collect(),
        };
        {
            let mut data = self.session.data();
            data.used = Instant::now();
            data.ended_cpu_us += end.cpu_us;
            data.largest_bytes = data.largest_bytes.max(end.peak_bytes);
        }
        exec_shared
            .window
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        exec_shared.done.send_replace(Some(result));
        self.exec.close_input();
        // The session may have ended.
        _ = self.session.commands.try_send(SessionCommand::Ended);
    }
}

/// Waits until the shortest grace is over.
async fn grace_expired(stop: &mut watch::Receiver<Option<Duration>>, own: Option<Duration>) {
    let began = Instant::now();
    loop {
        let grace = stop
            .borrow_and_update()
            .into_iter()
            .chain(own)
            .min()
            .unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep_until((began + grace).into()) => return,
            Ok(()) = stop.changed() => {}
        }
    }
}

/// A program that does not exist or cannot be executed.
pub(super) fn not_started(id: String, request: ExecRequest, error: &SandboxError) -> Exec {
    let at = record::now();
    let (signals, _) = mpsc::channel(1);
    let status = Status::NotStarted;
    let exit_status = error.exit_status();
    let result = ExecResult {
        status,
        exit_status,
        error: Some(error.info()),
        ..lost_result(at)
    };
    let log = OutputLog::new(0);
    log.end();
    let exec_shared = ExecShared {
        id,
        request,
        started_at: at,
        log,
        done: watch::Sender::new(Some(result)),
        stop: watch::Sender::default(),
        signals,
        input: tokio::sync::Mutex::default(),
        input_is_over: watch::Sender::new(true),
        typed: watch::Sender::new(0),
        beginnings: Default::default(),
        window: Mutex::new(None),
    };
    Exec {
        shared: Arc::new(exec_shared),
    }
}

/// The result of a program whose task failed.
fn lost_result(at: Timestamp) -> ExecResult {
    ExecResult {
        status: Status::Lost,
        exit_code: None,
        signal: None,
        exit_status: 125,
        error: Some(crate::provision::internal(
            "the program's task failed".to_owned(),
        )),
        ended_at: at,
        duration_ms: 0,
        cpu_ms: 0,
        truncated: Truncation::default(),
        limits_hit: BTreeSet::new(),
        denials: Vec::new(),
        notes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_again_is_told_from_what_is_not() {
        let mut recent = RecentInput::default();
        recent.add(b"one ");
        recent.add(b"two");
        for (known, bytes, agrees) in [
            (7, &b"one two"[..], true),
            (7, b"one", true),
            (5, b"e two three", true),
            (0, b"anything", true),
            (7, b"own", false),
            (3, b"ten", false),
            (1, b"x", false),
        ] {
            assert_eq!(recent.agrees(known, bytes), agrees, "{known} {bytes:?}");
        }
        recent.add(&[b'x'; 2 * MAX_RECENT_BYTES]);
        assert!(recent.0.len() == MAX_RECENT_BYTES && recent.0.capacity() < 4 * MAX_RECENT_BYTES);
        let (all, known) = ([b'x'; 3 * MAX_RECENT_BYTES], 2 * MAX_RECENT_BYTES as u64);
        assert!(recent.agrees(known, &all) && recent.agrees(known + 7, b"forgotten"));
        let mut other = all;
        other[2 * MAX_RECENT_BYTES - 1] = b'y';
        assert!(!recent.agrees(known, &other), "the last one that was typed");
    }
}
