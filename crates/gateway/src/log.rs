//! What a server tells of itself: one line an event, as text or as JSON, on stderr or in a file that is rotated. Whoever
//! tells never waits: lines go to a thread by a bounded queue, and those that find no room are counted and spoken of.
//!
//! A line holds names, statuses and times: no token, no argument list, no output, no value of a query.

mod file;
mod line;

pub(crate) use line::{Fields, Line};
pub(crate) use spec::LogLevel as Level;

use crate::telemetry::Recorder;
use file::Target;
use spec::{LogFormat as Format, LogSettings};
use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    time::Duration,
};

/// Lines that may wait.
const MOST_WAITING: usize = 4096;
/// How long the last lines are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The log of this process: like stderr there is one, and whoever has something to say reaches it.
static LOG: OnceLock<Log> = OnceLock::new();

#[derive(Debug)]
struct Log {
    settings: LogSettings,
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
    /// Where lines become records of the node.
    tap: Mutex<Weak<Recorder>>,
}

enum Message {
    Line(Box<Line>),
    Reopen,
    Flush(SyncSender<()>),
}

/// Opens the log of this process. Lines that were told before went to stderr; a second call changes nothing.
pub fn open(settings: LogSettings) -> io::Result<()> {
    let target = Target::open(settings.file.clone())?;
    let (queue, lines) = mpsc::sync_channel(MOST_WAITING);
    let dropped = Arc::new(AtomicU64::default());
    let (format, lost) = (settings.format, dropped.clone());
    let log = Log {
        settings,
        queue,
        dropped,
        tap: Mutex::default(),
    };
    if LOG.set(log).is_ok() {
        let writing = move || write_all(&lines, target, format, &lost);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(writing)?;
    }
    Ok(())
}

/// Opens the file anew, for whoever moved it away.
pub fn reopen() {
    if let Some(log) = LOG.get() {
        // A queue that is full has a thread that is stuck: the next rotation opens it anew.
        _ = log.queue.try_send(Message::Reopen);
    }
}

/// Waits until all that was told is written, for a moment.
pub fn flush() {
    let Some(log) = LOG.get() else { return };
    let (done, written) = mpsc::sync_channel(1);
    if log.queue.try_send(Message::Flush(done)).is_ok() {
        // Nobody may read stderr any more.
        _ = written.recv_timeout(LAST_WORDS);
    }
}

/// How many lines found no room or no disk.
pub(crate) fn dropped() -> u64 {
    LOG.get()
        .map_or(0, |log| log.dropped.load(Ordering::Relaxed))
}

/// Has every line written down as a record of the node, too.
pub(crate) fn tap(recorder: &Arc<Recorder>) {
    if let Some(log) = LOG.get() {
        *log.tap.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(recorder);
    }
}

/// Whether lines of this kind are of use to anybody.
pub(crate) fn wants(level: Level) -> bool {
    LOG.get().is_none_or(|log| level <= log.settings.level)
}

/// Tells of something. Never waits.
pub(crate) fn tell(line: Line) {
    let Some(log) = LOG.get() else {
        // Where stderr is gone there is nobody left to tell, and no reason to stop.
        _ = io::stderr().write_all(line.text().as_bytes());
        return;
    };
    if line.level > log.settings.level {
        return;
    }
    let tap = log
        .tap
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .upgrade();
    if let Some(recorder) = tap {
        recorder.service(line.at, line.record());
    }
    if log.settings.quiet && line.level > Level::Warn {
        return;
    }
    if log.queue.try_send(Message::Line(Box::new(line))).is_err() {
        log.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_all(lines: &Receiver<Message>, mut target: Target, format: Format, dropped: &AtomicU64) {
    let mut told = 0;
    while let Ok(message) = lines.recv() {
        match message {
            Message::Line(line) => {
                if target.write(line.rendered(format).as_bytes()).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let lost = dropped.load(Ordering::Relaxed);
                if lost > told {
                    let about = format!(
                        "{} lines of this log found no room and were dropped",
                        lost - told
                    );
                    let said = target.write(Line::warn(about).rendered(format).as_bytes());
                    told = if said.is_ok() { lost } else { told };
                }
            }
            Message::Reopen => target.reopen(),
            Message::Flush(done) => _ = done.send(()),
        }
    }
}
