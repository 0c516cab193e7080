//! The worker's log: one line per event on stderr, as JSON or text, with the ids by which the mesh
//! knows a call. Logging never blocks: lines go to a thread through a bounded queue, and lines that
//! do not fit are counted.
//!
//! The log has no secrets: names, codes, durations. The output of tools is logged within limits and
//! sanitized.

mod path_aliases;
mod tool_output;

pub use path_aliases::path_aliases;
pub use tool_output::{MAX_OUTPUT_BYTES, OutputStream, ToolOutput, clean, hide};

use serde_json::{Map, Value};
use spec::LogFormat;
use std::{
    fmt,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Capacity of the queue.
const MAX_QUEUED: usize = 4096;
/// Maximum length of a text: names and reasons are untrusted.
const MAX_TEXT_CHARS: usize = 4096;
/// Timeout of a flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSeverity {
    /// Normal operation.
    Info,
    /// A problem that the worker handles.
    Warn,
    /// A problem that needs attention.
    Error,
}

impl LogSeverity {
    fn name(self) -> &'static str {
        match self {
            LogSeverity::Info => "INFO",
            LogSeverity::Warn => "WARN",
            LogSeverity::Error => "ERROR",
        }
    }
}

/// Ids of the call that a line belongs to, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallIds {
    /// Trace id.
    pub trace: Option<String>,
    /// Task id of the agent.
    pub task: Option<String>,
    /// Correlation id of the answer.
    pub correlation: Option<String>,
    /// Name of the tool.
    pub tool: Option<String>,
}

/// A log line: event, ids, message and fields.
#[derive(Clone, Debug)]
pub struct LogEntry {
    level: LogSeverity,
    event: &'static str,
    ids: CallIds,
    message: Option<String>,
    fields: Vec<(&'static str, Value)>,
    at: SystemTime,
}

impl LogEntry {
    /// A line for this event, now.
    pub fn new(level: LogSeverity, event: &'static str) -> LogEntry {
        LogEntry {
            level,
            event,
            ids: CallIds::default(),
            message: None,
            fields: Vec::new(),
            at: SystemTime::now(),
        }
    }

    /// Adds the ids of a call.
    pub fn for_call(mut self, ids: &CallIds) -> LogEntry {
        self.ids = ids.clone();
        self
    }

    /// Adds a message.
    pub fn message(mut self, message: impl Into<String>) -> LogEntry {
        self.message = Some(message.into());
        self
    }

    /// Adds a duration.
    pub fn took(self, took: Duration) -> LogEntry {
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.with("duration_ms", milliseconds)
    }

    /// Adds a field.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> LogEntry {
        self.fields.push((name, value.into()));
        self
    }

    /// All parts in the order in which they are written, sanitized and truncated.
    fn parts(&self) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        let CallIds {
            trace,
            task,
            correlation,
            tool,
        } = &self.ids;
        let ids = [
            ("traceID", trace),
            ("taskID", task),
            ("corrID", correlation),
            ("tool", tool),
        ];
        let ids = ids
            .into_iter()
            .filter_map(|(name, id)| Some((name, Value::from(short(id.as_ref()?)))));
        let message = self
            .message
            .iter()
            .map(|message| ("msg", Value::from(short(message))));
        let fields = self.fields.iter().map(|(name, value)| match value {
            Value::String(text) => (*name, Value::from(short(text))),
            other => (*name, other.clone()),
        });
        message.chain(ids).chain(fields)
    }

    fn format(&self, format: LogFormat) -> String {
        let time = iso_8601(self.at);
        match format {
            LogFormat::Json => {
                let mut object = Map::new();
                object.insert("time".to_owned(), time.into());
                object.insert("level".to_owned(), self.level.name().into());
                object.insert("event".to_owned(), self.event.into());
                self.parts()
                    .for_each(|(name, value)| _ = object.insert(name.to_owned(), value));
                format!("{}\n", Value::Object(object))
            }
            LogFormat::Text => {
                let parts: String = self
                    .parts()
                    .map(|(name, value)| format!(" {name}={value}"))
                    .collect();
                format!("{time} {} {}{parts}\n", self.level.name(), self.event)
            }
        }
    }
}

fn short(text: &str) -> String {
    clean(text, &[]).chars().take(MAX_TEXT_CHARS).collect()
}

enum QueueItem {
    Line(Box<LogEntry>),
    Flush(SyncSender<()>),
}

/// Handle of the log. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    queue: SyncSender<QueueItem>,
    dropped: Arc<AtomicU64>,
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Log(..)")
    }
}

impl Log {
    /// Logs to stderr.
    pub fn on_stderr(format: LogFormat) -> io::Result<Log> {
        Log::new(format, io::stderr())
    }

    /// Logs to this writer.
    pub fn new(format: LogFormat, to: impl Write + Send + 'static) -> io::Result<Log> {
        let (queue, lines) = mpsc::sync_channel(MAX_QUEUED);
        let writing = move || write_all(&lines, to, format);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(writing)?;
        Ok(Log {
            queue,
            dropped: Arc::default(),
        })
    }

    /// Queues a line. Never blocks.
    pub fn write(&self, line: LogEntry) {
        if self
            .queue
            .try_send(QueueItem::Line(Box::new(line)))
            .is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of lines that did not fit into the queue.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits, with a timeout, until all queued lines are written.
    pub fn flush(&self) {
        let (done, written) = mpsc::sync_channel(1);
        if self.queue.try_send(QueueItem::Flush(done)).is_ok() {
            // Nobody may be reading stderr any more.
            _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

fn write_all(lines: &Receiver<QueueItem>, mut to: impl Write, format: LogFormat) {
    for message in lines {
        match message {
            // A write error cannot be reported, and is no reason to stop.
            QueueItem::Line(line) => _ = to.write_all(line.format(format).as_bytes()),
            QueueItem::Flush(done) => {
                _ = to.flush();
                _ = done.send(());
            }
        }
    }
}

/// ISO 8601 in UTC with milliseconds.
fn iso_8601(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let hour = seconds / 3600 % 24;
    let minute = seconds / 60 % 60;
    let second = seconds % 60;
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Civil date of a day since 1970. Years are counted from March, so that leap days come last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
#[path = "../log_tests.rs"]
mod tests;
