//! The log of the server: one line per event, as text or JSON, to stderr or to a rotated file.
//! Logging never blocks: lines go to a writer thread through a bounded queue, and dropped lines are
//! counted and reported.
//!
//! A line contains names, statuses and times: no tokens, arguments, output or query values.

mod file;
mod line;

pub(crate) use line::{LogFields, LogLine};
pub(crate) use spec::LogLevel as Level;

use crate::telemetry::TelemetryRecorder;
use file::LogTarget;
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

/// Queue length, in lines.
const MAX_QUEUED: usize = 4096;
/// Timeout of `flush`.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The log of this process, a global like stderr.
static LOG: OnceLock<Log> = OnceLock::new();

#[derive(Debug)]
struct Log {
    settings: LogSettings,
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
    /// Receives every line as a telemetry record.
    recorder: Mutex<Weak<TelemetryRecorder>>,
}

enum Message {
    Line(Box<LogLine>),
    Reopen,
    Flush(SyncSender<()>),
}

/// Opens the log of this process. Earlier lines went to stderr; a second call has no effect.
pub fn open(settings: LogSettings) -> io::Result<()> {
    let target = LogTarget::open(settings.file.clone())?;
    let (queue, lines) = mpsc::sync_channel(MAX_QUEUED);
    let dropped = Arc::new(AtomicU64::default());
    let format = settings.format;
    let lost = dropped.clone();
    let log = Log {
        settings,
        queue,
        dropped,
        recorder: Mutex::default(),
    };
    if LOG.set(log).is_ok() {
        let write_loop = move || write_all(&lines, target, format, &lost);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(write_loop)?;
    }
    Ok(())
}

/// Reopens the log file after an external rotation.
pub fn reopen() {
    if let Some(log) = LOG.get() {
        // If the queue is full, the writer thread is stuck; the next rotation reopens the file.
        _ = log.queue.try_send(Message::Reopen);
    }
}

/// Waits briefly until all lines are written.
pub fn flush() {
    let Some(log) = LOG.get() else { return };
    let (done, written) = mpsc::sync_channel(1);
    if log.queue.try_send(Message::Flush(done)).is_ok() {
        // stderr may be closed.
        _ = written.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Number of lines that were dropped because of a full queue or a write error.
pub(crate) fn dropped() -> u64 {
    LOG.get()
        .map_or(0, |log| log.dropped.load(Ordering::Relaxed))
}

/// Records every line as node telemetry, too.
pub(crate) fn attach_recorder(recorder: &Arc<TelemetryRecorder>) {
    if let Some(log) = LOG.get() {
        *log.recorder.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(recorder);
    }
}

/// Whether lines of this level are written anywhere.
pub(crate) fn is_enabled(level: Level) -> bool {
    LOG.get().is_none_or(|log| level <= log.settings.level)
}

/// Writes a line. Never blocks.
pub(crate) fn write(line: LogLine) {
    let Some(log) = LOG.get() else {
        // If stderr is closed, nobody can be told, and the server continues.
        _ = io::stderr().write_all(line.text().as_bytes());
        return;
    };
    if line.level > log.settings.level {
        return;
    }
    let recorder = log
        .recorder
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .upgrade();
    if let Some(recorder) = recorder {
        recorder.service(line.at, line.record());
    }
    if log.settings.quiet && line.level > Level::Warn {
        return;
    }
    if log.queue.try_send(Message::Line(Box::new(line))).is_err() {
        log.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_all(
    lines: &Receiver<Message>,
    mut target: LogTarget,
    format: Format,
    dropped: &AtomicU64,
) {
    let mut reported = 0;
    while let Ok(message) = lines.recv() {
        match message {
            Message::Line(line) => {
                if target.write(line.rendered(format).as_bytes()).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let lost = dropped.load(Ordering::Relaxed);
                if lost > reported {
                    let about = format!(
                        "{} lines of this log found no room and were dropped",
                        lost - reported
                    );
                    let written = target.write(LogLine::warn(about).rendered(format).as_bytes());
                    reported = if written.is_ok() { lost } else { reported };
                }
            }
            Message::Reopen => target.reopen(),
            Message::Flush(done) => _ = done.send(()),
        }
    }
}
