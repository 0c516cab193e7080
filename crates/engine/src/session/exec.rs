//! A program of a session, and the task that attends it: what it writes is read for ever into its feed, whoever looks.
//!
//! It has ended when its first process has, and what was written by then is in the feed; the feed ends there, too. What
//! somebody who was left behind writes to the same pipe later is read and thrown away: a full pipe would stop him, a closed
//! one kill him. Whoever wants his output starts him as a program of its own.

use super::{SessionEnd, SessionStatus, Shared, actor::Order};
use crate::{
    denials,
    driver::blank,
    feed::Feed,
    record,
    streams::Reading,
    terminal::Window,
    verdict::{Ending, GRACE, SIGKILL, SIGTERM, Stopped, judge},
};
use sandbox::{Ended, Process, SandboxError};
use spec::{
    Denial, ErrorInfo, ExecRequest, LimitName, Limits, Status, Stream, TerminalSize, Time,
    Timestamp, Truncated,
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

/// What is kept of each stream at least and at most, whatever the session's own limit is.
const FEWEST_KEPT: u64 = 4 << 20;
const MOST_KEPT: u64 = 64 << 20;
/// Signals that wait to be sent; who sends more at once sends some in vain. Ends never do.
const MOST_SIGNALS: usize = 64;
/// Of what was typed, what is known to tell what is sent again from what is not.
const MOST_KNOWN: usize = 4096;
/// How long nobody may type before what is still missing is taken for missing. What comes with an order is typed behind
/// the answer to it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a watcher may take for its last words. One that goes on watching those who were left behind has none.
const LONGEST_LAST_WORD: Duration = Duration::from_millis(100);
/// How long the kernel may take to end a program for good.
const LONGEST_DEATH: Duration = Duration::from_secs(5);
/// How long the session's task may take to answer.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);

const SIGCONT: i32 = 18;

/// A program of a session, under way or ended. Cheap to clone; all clones are the same program.
#[derive(Clone, Debug)]
pub struct Exec {
    shared: Arc<Common>,
}

/// What came of a program of a session.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are those of a run's result")]
pub struct ExecResult {
    pub status: Status,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub exit_status: u8,
    pub error: Option<ErrorInfo>,
    pub ended_at: Timestamp,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    /// Whether the feed has forgotten something of a stream.
    pub truncated: Truncated,
    pub limits_hit: BTreeSet<LimitName>,
    pub denials: Vec<Denial>,
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct Common {
    id: String,
    request: ExecRequest,
    started_at: Timestamp,
    feed: Feed,
    done: watch::Sender<Option<ExecResult>>,
    /// That it shall end, and how long it has to do so by itself: the shortest time that anybody gave.
    stop: watch::Sender<Option<Duration>>,
    signals: mpsc::Sender<i32>,
    input: tokio::sync::Mutex<Input>,
    input_is_over: watch::Sender<bool>,
    /// How much was typed. Changes only with the input locked.
    typed: watch::Sender<u64>,
    window: Mutex<Option<Window>>,
    /// The beginning of each stream, as much of it as was asked for.
    beginnings: [Mutex<Vec<u8>>; 2],
}

/// A program's standard input.
#[derive(Debug, Default)]
struct Input {
    /// None once nothing more can be typed.
    keys: Option<pipe::Sender>,
    newest: Newest,
}

/// The end of what was typed.
#[derive(Debug, Default)]
struct Newest(VecDeque<u8>);

/// Why something was not typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTyped {
    /// Something is missing before it.
    #[error("what comes before is missing: {typed} bytes were typed")]
    Ahead {
        /// How much was typed.
        typed: u64,
    },
    /// Somebody else typed something else there.
    #[error("something else was typed there: {typed} bytes were typed")]
    Other {
        /// How much was typed.
        typed: u64,
    },
    /// The program has ended, or its input has.
    #[error("the program reads nothing any more")]
    Over,
}

/// A program's standard input, to see what nobody has read of it, also when the program is gone. While this is held, the input
/// does not end.
#[derive(Debug)]
pub struct Unread(OwnedFd);

impl Unread {
    /// How many bytes nobody has read, if that can be told.
    pub fn bytes(&self) -> Option<u64> {
        rustix::io::ioctl_fionread(&self.0).ok()
    }
}

impl Exec {
    /// Its identifier, unique within its session.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// What was asked for.
    pub fn request(&self) -> &ExecRequest {
        &self.shared.request
    }

    /// When it was started.
    pub fn started_at(&self) -> Timestamp {
        self.shared.started_at
    }

    /// What it writes. A terminal writes to standard output only.
    pub fn output(&self) -> &Feed {
        &self.shared.feed
    }

    /// What is kept of the beginning of a stream, which is not kept here any longer.
    pub fn take_beginning(&self, stream: Stream) -> Vec<u8> {
        std::mem::take(&mut *self.beginning(stream))
    }

    fn beginning(&self, stream: Stream) -> MutexGuard<'_, Vec<u8>> {
        let place = if stream == Stream::Stdout { 0 } else { 1 };
        self.shared.beginnings[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_beginning(&self, stream: Stream, bytes: &[u8]) {
        let mut kept = self.beginning(stream);
        let room = self.shared.request.beginning.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// What came of it, once it has ended and its output is complete.
    pub fn result(&self) -> Option<ExecResult> {
        self.shared.done.borrow().clone()
    }

    /// Waits for its end.
    pub async fn wait(&self) -> ExecResult {
        let mut done = self.shared.done.subscribe();
        let ended = done
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|done| done.clone());
        // Its sender lives as long as this does.
        ended.unwrap_or_else(|| unseen(self.shared.started_at))
    }

    /// Types something; waits while the program does not read. An error once it cannot any more.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), NotTyped> {
        self.write_from(None, bytes).await
    }

    /// The same for what begins at this offset of all that is typed, or where that ends now. What was typed already is
    /// passed over: whoever does not know how much of it arrived sends it again. What is not the same is refused, as far
    /// back as what was typed is still known.
    pub async fn write_from(&self, offset: Option<u64>, bytes: &[u8]) -> Result<(), NotTyped> {
        let mut done = self.shared.done.subscribe();
        let mut input = self.shared.input.lock().await;
        let typed = self.typed();
        let known = typed
            .checked_sub(offset.unwrap_or(typed))
            .ok_or(NotTyped::Ahead { typed })?;
        if !input.newest.agrees(known, bytes) {
            return Err(NotTyped::Other { typed });
        }
        let rest = usize::try_from(known)
            .ok()
            .and_then(|known| bytes.get(known..))
            .unwrap_or_default();
        if rest.is_empty() && known > 0 {
            return Ok(());
        }
        if *self.shared.input_is_over.borrow() || input.keys.is_none() {
            return Err(NotTyped::Over);
        }
        let written = tokio::select! {
            written = input.type_all(rest, &self.shared.typed) => written.map_err(|_| NotTyped::Over),
            _ = done.wait_for(Option::is_some) => Err(NotTyped::Over),
        };
        // Somebody may have ended the input while we wrote.
        if written.is_err() || *self.shared.input_is_over.borrow() {
            input.keys = None;
        }
        written
    }

    /// Waits until all that comes before this offset is typed, as long as somebody types.
    pub async fn reached(&self, offset: u64) -> Result<(), NotTyped> {
        let mut typed = self.shared.typed.subscribe();
        while *typed.borrow_and_update() < offset {
            // Whoever is at it may get there.
            drop(self.shared.input.lock().await);
            if self.typed() >= offset {
                break;
            }
            if *self.shared.input_is_over.borrow() {
                return Err(NotTyped::Over);
            }
            let more = tokio::time::timeout(LONGEST_PAUSE, typed.changed()).await;
            more.map_err(|_| NotTyped::Ahead {
                typed: self.typed(),
            })?
            .map_err(|_| NotTyped::Over)?;
        }
        Ok(())
    }

    /// What nobody has read of what is typed; not of a terminal, nor of an input that is over.
    pub async fn unread(&self) -> Option<Unread> {
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
            .keys
            .as_ref()?
            .as_fd()
            .try_clone_to_owned()
            .ok()
            .map(Unread)
    }

    /// How much was typed until now.
    pub fn typed(&self) -> u64 {
        *self.shared.typed.borrow()
    }

    /// Nothing more will be typed. What is being typed arrives first.
    pub fn close_input(&self) {
        self.shared.input_is_over.send_replace(true);
        if let Ok(mut input) = self.shared.input.try_lock() {
            input.keys = None;
        }
    }

    /// Changes the size of its terminal.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let window = self
            .shared
            .window
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let none = || io::Error::new(io::ErrorKind::Unsupported, "the program has no terminal");
        window.as_ref().ok_or_else(none)?.resize(size)
    }

    /// Sends a signal to its process group; SIGKILL is the same as to stop it without grace.
    pub fn signal(&self, number: i32) {
        match number {
            SIGKILL => self.ask_to_stop(Duration::ZERO),
            // One that has ended hears nothing.
            _ => _ = self.shared.signals.try_send(number),
        }
    }

    /// Ends it: SIGTERM, after `grace` SIGKILL. Waits until it is gone.
    pub async fn stop(&self, grace: Duration) -> ExecResult {
        self.ask_to_stop(grace);
        self.wait().await
    }

    /// For one whose task is no more.
    pub(super) fn give_up(&self) {
        let common = &self.shared;
        common.feed.end();
        common.done.send_if_modified(|done| {
            let unknown = done.is_none();
            done.get_or_insert_with(|| unseen(record::now()));
            unknown
        });
    }

    fn ask_to_stop(&self, grace: Duration) {
        self.shared
            .stop
            .send_modify(|stop| *stop = Some(stop.map_or(grace, |before| before.min(grace))));
    }
}

impl Input {
    /// Counts what has arrived as it does: whoever types may be gone in the middle of it.
    async fn type_all(&mut self, mut bytes: &[u8], typed: &watch::Sender<u64>) -> io::Result<()> {
        let keys = self.keys.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        while !bytes.is_empty() {
            let count = keys.write(bytes).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.newest.add(&bytes[..count]);
            typed.send_modify(|typed| *typed += count as u64);
            bytes = &bytes[count..];
        }
        Ok(())
    }
}

impl Newest {
    fn add(&mut self, bytes: &[u8]) {
        self.0
            .extend(&bytes[bytes.len().saturating_sub(MOST_KNOWN)..]);
        let over = self.0.len().saturating_sub(MOST_KNOWN);
        self.0.drain(..over);
    }

    /// Whether what begins so many bytes before the end is what was typed there.
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

/// What a program begins with.
pub(super) struct Beginning {
    pub(super) id: String,
    pub(super) request: ExecRequest,
    pub(super) process: Process,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: Option<pipe::Receiver>,
    /// The program's end of its terminal: held open, so that what it shows ends with the program and not before.
    pub(super) held: Option<OwnedFd>,
    pub(super) input: Option<pipe::Sender>,
    pub(super) window: Option<Window>,
    /// Processes of the box killed for memory before it began.
    pub(super) oom_kills: Option<u64>,
}

/// A program that runs, and the task that attends it.
pub(super) fn begin(
    session: &Arc<Shared>,
    state: &Path,
    beginning: Beginning,
) -> (Exec, impl Future<Output = ()> + Send + use<>) {
    let Beginning {
        id,
        request,
        mut process,
        stdout,
        stderr,
        held,
        input,
        window,
        oom_kills,
    } = beginning;
    let limits = &session.spec.run.sandbox.limits;
    let (signals, to_send) = mpsc::channel(MOST_SIGNALS);
    let common = Common {
        id,
        started_at: record::now(),
        feed: Feed::within(
            &session.feeds,
            limits.output.0.clamp(FEWEST_KEPT, MOST_KEPT),
            state,
        ),
        done: watch::Sender::default(),
        stop: watch::Sender::default(),
        signals,
        input: tokio::sync::Mutex::new(Input {
            keys: input,
            newest: Newest::default(),
        }),
        input_is_over: watch::Sender::new(!request.stdin),
        typed: watch::Sender::new(0),
        window: Mutex::new(window),
        beginnings: Default::default(),
        request,
    };
    let wall_time = common
        .request
        .timeout
        .map_or(limits.wall_time.0, |time| time.min(limits.wall_time.0));
    let limits = Limits {
        wall_time: Time(wall_time),
        ..limits.clone()
    };
    let exec = Exec {
        shared: Arc::new(common),
    };
    let (ended, has_ended) = watch::channel(false);
    let streams = [(Stream::Stdout, Some(stdout)), (Stream::Stderr, stderr)];
    let reads = streams.into_iter().filter_map(|(stream, pipe)| {
        let reading = Reading::new(pipe?, has_ended.clone());
        let (read, is_read) = oneshot::channel();
        let session = held.is_none().then(|| session.clone());
        tokio::spawn(read_into(exec.clone(), stream, reading, read, session));
        Some(is_read)
    });
    let reads = reads.collect();
    // Nobody waits for them one by one.
    let (events, _) = mpsc::channel(1);
    let denials = denials::collect(process.take_denials(), events, has_ended, LONGEST_LAST_WORD);
    let attending = Attending {
        exec: exec.clone(),
        session: session.clone(),
        process,
        signals: to_send,
        limits,
        oom_kills,
        ended,
        reads,
        denials: tokio::spawn(denials),
        _held: held,
        began: Instant::now(),
    };
    (exec, attending.attend())
}

/// Reads to the end of the program; then for whoever was left behind, as long as the session lives and has room.
async fn read_into(
    exec: Exec,
    stream: Stream,
    mut reading: Reading,
    read: oneshot::Sender<()>,
    session: Option<Arc<Shared>>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let count @ 1.. = reading.next(&mut buffer).await {
        exec.keep_beginning(stream, &buffer[..count]);
        buffer = exec.output().append_from(stream, buffer, count).await;
    }
    drop((buffer, exec));
    // The task that waits for it may be gone.
    _ = read.send(());
    if let Some(session) = session.filter(|_| !reading.is_over()) {
        session.left_behind.drain(&session, reading).await;
    }
}

struct Attending {
    exec: Exec,
    session: Arc<Shared>,
    process: Process,
    signals: mpsc::Receiver<i32>,
    limits: Limits,
    oom_kills: Option<u64>,
    ended: watch::Sender<bool>,
    reads: Vec<oneshot::Receiver<()>>,
    denials: tokio::task::JoinHandle<denials::Collected>,
    _held: Option<OwnedFd>,
    began: Instant,
}

impl Attending {
    async fn attend(mut self) {
        let ending = match self.watch().await {
            Ok(ended) => self.told(ended, None),
            Err(stopped) => {
                let ended = self.stop(stopped).await;
                self.told(ended, Some(stopped))
            }
        };
        self.conclude(ending).await;
    }

    /// Waits for the end of the program, or for a reason to bring it about. While the session is paused, its clock stops.
    async fn watch(&mut self) -> Result<Option<Ended>, Stopped> {
        let mut status = self.session.status.subscribe();
        let mut stop = self.exec.shared.stop.subscribe();
        let mut left = (!self.exec.request().background).then_some(self.limits.wall_time.0);
        loop {
            let paused = *status.borrow_and_update() == SessionStatus::Paused;
            let since = Instant::now();
            tokio::select! {
                ended = self.process.ended() => return Ok(ended),
                Ok(_) = stop.wait_for(Option::is_some) => return Err(Stopped::Cancelled),
                () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() && !paused => {
                    return Err(Stopped::WallTime);
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

    /// Asks it to end, and sees to it. In a paused session it could not do so by itself.
    async fn stop(&mut self, stopped: Stopped) -> Option<Ended> {
        // Who has no time at all is not asked: he would be said to have died of the asking.
        let at_once = self
            .exec
            .shared
            .stop
            .borrow()
            .is_some_and(|grace| grace.is_zero());
        if !self.session.is_paused() && !at_once {
            self.process.signal(SIGTERM);
            // Whoever was stopped hears it only then.
            self.process.signal(SIGCONT);
            let mut stop = self.exec.shared.stop.subscribe();
            let own = (stopped == Stopped::WallTime).then_some(GRACE);
            tokio::select! {
                biased;
                ended = self.process.ended() => return ended,
                () = out_of_patience(&mut stop, own) => {}
            }
        }
        self.process.signal(SIGKILL);
        if self.session.is_paused() {
            // With the session's end it ends as well.
            _ = self
                .session
                .orders
                .send(Order::Release(self.exec.clone()))
                .await;
        }
        tokio::time::timeout(LONGEST_DEATH, self.process.ended())
            .await
            .ok()
            .flatten()
    }

    /// What is known of the end. Whoever ends with his session is told what that ended by.
    fn told(&self, ended: Option<Ended>, stopped: Option<Stopped>) -> Ending {
        let session = *self.session.ending.borrow();
        let by_session = session.and_then(|why| match why {
            SessionEnd::Asked
            | SessionEnd::Idle
            | SessionEnd::Lifetime
            | SessionEnd::ServerStopped => Some(Stopped::Cancelled),
            SessionEnd::Limit => Some(
                match self
                    .session
                    .book()
                    .state
                    .limits_hit
                    .contains(&LimitName::Disk)
                {
                    true => Stopped::Disk,
                    false => Stopped::CpuTime,
                },
            ),
            SessionEnd::Lost => None,
        });
        let killed = ended.is_none_or(|ended| ended.status & 0x7f == SIGKILL);
        let stopped = stopped.or(by_session.filter(|_| killed));
        let Some(Ended {
            status,
            cpu_us,
            peak_bytes,
            alone,
        }) = ended
        else {
            return Ending {
                stopped,
                ..Ending::default()
            };
        };
        Ending {
            status: Some(status),
            stopped,
            cpu_us,
            peak_bytes,
            alone,
        }
    }

    /// Whether memory ran out while it ran: then a kill that nobody asked for was the kernel's.
    async fn ran_out_of_memory(&self, ending: &Ending) -> bool {
        if ending.stopped.is_some() || ending.status.is_none_or(|status| status & 0x7f != SIGKILL) {
            return false;
        }
        let (answer, counted) = oneshot::channel();
        let asked = async {
            self.session.orders.send(Order::Count(answer)).await.ok()?;
            counted.await.ok()
        };
        let counters = tokio::time::timeout(LONGEST_ANSWER, asked)
            .await
            .ok()
            .flatten();
        counters.is_some_and(|counters| counters.oom_kills > self.oom_kills)
    }

    /// The output first: whoever has the result has all of it.
    async fn conclude(self, ending: Ending) {
        let oom = self.ran_out_of_memory(&ending).await;
        self.ended.send_replace(true);
        for read in self.reads {
            // A reader that is gone has read all that it will.
            _ = read.await;
        }
        let common = &self.exec.shared;
        common.feed.end();
        let denials = self.denials.await.unwrap_or_default();
        let mut result = blank(&self.session.id, &self.session.spec.run);
        let [stdout, stderr] = common.feed.oldest().map(|oldest| oldest > 0);
        if stdout || stderr {
            result.limits_hit.insert(LimitName::Output);
        }
        if oom {
            result.limits_hit.insert(LimitName::Memory);
        }
        judge(&ending, oom, &self.limits, &mut result);
        let result = ExecResult {
            status: result.status,
            exit_code: result.exit_code,
            signal: result.signal,
            exit_status: result.exit_status,
            error: result.error,
            ended_at: record::now(),
            duration_ms: self.began.elapsed().as_millis() as u64,
            cpu_ms: ending.cpu_us / 1000,
            truncated: Truncated { stdout, stderr },
            limits_hit: result.limits_hit,
            denials: denials.list,
            notes: denials.note.into_iter().collect(),
        };
        {
            let mut book = self.session.book();
            book.used = Instant::now();
            book.ended_cpu_us += ending.cpu_us;
            book.largest_bytes = book.largest_bytes.max(ending.peak_bytes);
        }
        common
            .window
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        common.done.send_replace(Some(result));
        self.exec.close_input();
        // The session may be over.
        _ = self.session.orders.try_send(Order::Ended);
    }
}

/// Until the shortest time is over that anybody gives it.
async fn out_of_patience(stop: &mut watch::Receiver<Option<Duration>>, own: Option<Duration>) {
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

/// A program that is not there or cannot be run, as it is found afterwards.
pub(super) fn never(id: String, request: ExecRequest, error: &SandboxError) -> Exec {
    let (at, (signals, _)) = (record::now(), mpsc::channel(1));
    let (status, exit_status) = (Status::NotStarted, error.exit_status());
    let result = ExecResult {
        status,
        exit_status,
        error: Some(error.info()),
        ..unseen(at)
    };
    let feed = Feed::new(0);
    feed.end();
    let common = Common {
        id,
        request,
        started_at: at,
        feed,
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
        shared: Arc::new(common),
    }
}

/// The result of a program whose task failed.
fn unseen(at: Timestamp) -> ExecResult {
    ExecResult {
        status: Status::Lost,
        exit_code: None,
        signal: None,
        exit_status: 125,
        error: Some(crate::making::internal(
            "the program's task failed".to_owned(),
        )),
        ended_at: at,
        duration_ms: 0,
        cpu_ms: 0,
        truncated: Truncated::default(),
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
        let mut newest = Newest::default();
        newest.add(b"one ");
        newest.add(b"two");
        for (known, bytes, agrees) in [
            (7, &b"one two"[..], true),
            (7, b"one", true),
            (5, b"e two three", true),
            (0, b"anything", true),
            (7, b"own", false),
            (3, b"ten", false),
            (1, b"x", false),
        ] {
            assert_eq!(newest.agrees(known, bytes), agrees, "{known} {bytes:?}");
        }
        newest.add(&[b'x'; 2 * MOST_KNOWN]);
        assert!(newest.0.len() == MOST_KNOWN && newest.0.capacity() < 4 * MOST_KNOWN);
        let (all, known) = ([b'x'; 3 * MOST_KNOWN], 2 * MOST_KNOWN as u64);
        assert!(newest.agrees(known, &all) && newest.agrees(known + 7, b"forgotten"));
        let mut other = all;
        other[2 * MOST_KNOWN - 1] = b'y';
        assert!(!newest.agrees(known, &other), "the last one that was typed");
    }
}
