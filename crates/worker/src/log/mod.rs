//! What the worker tells of itself: one line an event on stderr, as JSON or as text, with the ids that the rest of the mesh
//! knows a call by. Whoever tells never waits: lines go to a thread by a bounded queue, and those that find no room are counted.
//!
//! Nothing secret: names, codes, times. What a tool prints is told, too, within bounds and cleaned.

mod names;
mod output;

pub use names::by_all_names;
pub use output::{MOST_OUTPUT, Stream, ToolOutput, clean, hide};

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

/// Lines that may wait.
const MOST_WAITING: usize = 4096;
/// The longest text in a line, in letters: names and reasons come from strangers.
const LONGEST_TEXT: usize = 4096;
/// How long the last lines are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Error => "ERROR",
        }
    }
}

/// Which call a line is about, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct About {
    pub trace: Option<String>,
    pub task: Option<String>,
    pub correlation: Option<String>,
    pub tool: Option<String>,
}

/// One event: what, about which call, and what else.
#[derive(Clone, Debug)]
pub struct Line {
    level: Level,
    event: &'static str,
    about: About,
    message: Option<String>,
    fields: Vec<(&'static str, Value)>,
    at: SystemTime,
}

impl Line {
    /// Something happened.
    pub fn new(level: Level, event: &'static str) -> Line {
        let (about, message, fields) = (About::default(), None, Vec::new());
        Line {
            level,
            event,
            about,
            message,
            fields,
            at: SystemTime::now(),
        }
    }

    /// To this call.
    pub fn about(mut self, about: &About) -> Line {
        self.about = about.clone();
        self
    }

    /// In words.
    pub fn message(mut self, message: impl Into<String>) -> Line {
        self.message = Some(message.into());
        self
    }

    /// It took so long.
    pub fn took(self, took: Duration) -> Line {
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.with("duration_ms", milliseconds)
    }

    /// With this beside it.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Line {
        self.fields.push((name, value.into()));
        self
    }

    /// In the order in which they are written; every text clean and short.
    fn parts(&self) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        let About {
            trace,
            task,
            correlation,
            tool,
        } = &self.about;
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

    fn write(&self, format: LogFormat) -> String {
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
    clean(text, &[]).chars().take(LONGEST_TEXT).collect()
}

enum Message {
    Line(Box<Line>),
    Flush(SyncSender<()>),
}

/// The log. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Log(..)")
    }
}

impl Log {
    /// One on stderr.
    pub fn on_stderr(format: LogFormat) -> io::Result<Log> {
        Log::new(format, io::stderr())
    }

    /// One that writes there.
    pub fn new(format: LogFormat, to: impl Write + Send + 'static) -> io::Result<Log> {
        let (queue, lines) = mpsc::sync_channel(MOST_WAITING);
        let writing = move || write_all(&lines, to, format);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(writing)?;
        Ok(Log {
            queue,
            dropped: Arc::default(),
        })
    }

    /// Tells of something. Never waits.
    pub fn tell(&self, line: Line) {
        if self.queue.try_send(Message::Line(Box::new(line))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all that was told is written, for a moment.
    pub fn flush(&self) {
        let (done, written) = mpsc::sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // Nobody may read stderr any more.
            _ = written.recv_timeout(LAST_WORDS);
        }
    }
}

fn write_all(lines: &Receiver<Message>, mut to: impl Write, format: LogFormat) {
    for message in lines {
        match message {
            // Where stderr is gone there is nobody left to tell, and no reason to stop.
            Message::Line(line) => _ = to.write_all(line.write(format).as_bytes()),
            Message::Flush(done) => {
                _ = to.flush();
                _ = done.send(());
            }
        }
    }
}

/// As ISO 8601 has it, in UTC, with milliseconds.
fn iso_8601(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a day since 1970, by years that begin in March: leap days are then their last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
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
