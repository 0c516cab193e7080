//! How a server keeps its log.

use std::{path::PathBuf, str::FromStr};

/// How a log is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// What is less grave is left out.
    pub level: LogLevel,
    /// For people or for programs.
    pub format: LogFormat,
    /// Where; stderr unless said.
    pub file: Option<LogFile>,
    /// Nothing that is not at least a warning: on the way out, not in the records of the node.
    pub quiet: bool,
}

/// A log in files: `PATH`, and behind it `PATH.1` to `PATH.KEEP`, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Where.
    pub path: PathBuf,
    /// No piece is larger.
    pub size: u64,
    /// How many older pieces stay.
    pub keep: u32,
}

/// How grave something is; the gravest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// Somebody should look at it.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// What happens inside.
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

/// What lines look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line.
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
