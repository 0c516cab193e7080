//! Settings of the server's log.

use std::{path::PathBuf, str::FromStr};

/// Settings of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The lowest level that is logged.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// The file; stderr without one.
    pub file: Option<LogFile>,
    /// Whether the log itself has warnings and errors only. The node's telemetry keeps every level.
    pub quiet: bool,
}

/// A log file with rotation: `PATH`, then `PATH.1` to `PATH.KEEP`, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Its path.
    pub path: PathBuf,
    /// The size at which it is rotated.
    pub size: u64,
    /// The number of rotated files that stay.
    pub keep: u32,
}

/// The severity of a line, the highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// A failure.
    Error,
    /// A condition that an operator should look at.
    Warn,
    /// A normal event.
    #[default]
    Info,
    /// Details for debugging.
    Debug,
}

impl LogLevel {
    /// All of them.
    pub const ALL: [LogLevel; 4] = [
        LogLevel::Error,
        LogLevel::Warn,
        LogLevel::Info,
        LogLevel::Debug,
    ];

    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("write text or json".to_owned()),
        }
    }
}
