//! Reads TOML files: bounded size, regular files only, and errors that name file, key and remedy.

use super::ConfigError;
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open},
    io::Errno,
};
use spec::{LimitSet, Network, closest_name};
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
};
use toml::{Table, Value};

/// The maximum size of a settings file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Whether a symbolic link is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Follow,
    Refuse,
}

/// Tables that contain only named tables.
const NAMED: [&str; 5] = ["profile", "provider", "credential", "model", "prices"];

/// The keys of limits, in every section that can have them.
pub(super) const LIMITS: [&str; 13] = [
    "memory",
    "cpu_time",
    "cpus",
    "wall_time",
    "pids",
    "file_size",
    "open_files",
    "disk",
    "output",
    "stack",
    "locked_memory",
    "message_queues",
    "nice",
];

/// Reads a file; `None` if it does not exist.
pub(super) fn read(path: &Path, links: Links) -> Result<Option<String>, ConfigError> {
    let unreadable = |error: &dyn fmt::Display| {
        let message = format!("cannot read `{}`: {error}", path.display());
        ConfigError::new(
            message,
            "make it a plain text file of at most 1 MiB that you may read",
        )
    };
    let refuse_links = if links == Links::Refuse {
        OFlags::NOFOLLOW
    } else {
        OFlags::empty()
    };
    // A FIFO must not block the read, and a terminal must not become the controlling one.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | refuse_links;
    let descriptor = match open(path, flags, Mode::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) if links == Links::Refuse => {
            return Err(unreadable(&"it is a symbolic link"));
        }
        Err(error) => return Err(unreadable(&io::Error::from(error))),
    };
    let found = fstat(&descriptor).map_err(|error| unreadable(&io::Error::from(error)))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(unreadable(&"it is not a regular file"));
    }
    let mut text = String::new();
    let read = File::from(descriptor)
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text);
    match read {
        Ok(size) if size as u64 > MAX_FILE_BYTES => Err(unreadable(&"it is larger than 1 MiB")),
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(unreadable(&"it is not UTF-8"))
        }
        Err(error) => Err(unreadable(&error)),
    }
}

/// Parses TOML; the error names the line.
pub(super) fn parse(text: &str, path: &Path) -> Result<Table, ConfigError> {
    text.parse::<Table>().map_err(|error| {
        let before = error
            .span()
            .and_then(|span| text.get(..span.start))
            .unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let what = error
            .message()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        ConfigError::new(
            format!("`{}` line {line} is not TOML: {what}", path.display()),
            "docs/configuration.md shows every key",
        )
    })
}

/// A table of a file, with its name for error messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    pub(super) path: &'a Path,
    /// The name as in the file, such as `profile.ci`; empty at the top.
    pub(super) name: &'a str,
}

impl Section<'_> {
    /// The full name of a key.
    pub(super) fn key(&self, key: &str) -> String {
        match self.name {
            "" => key.to_owned(),
            name => format!("{name}.{key}"),
        }
    }

    /// An error about a key.
    pub(super) fn error(
        &self,
        key: &str,
        what: impl fmt::Display,
        hint: impl Into<String>,
    ) -> ConfigError {
        ConfigError::new(
            format!("`{}` in `{}` {what}", self.key(key), self.path.display()),
            hint,
        )
    }

    /// An error about an unknown key, with the nearest known one.
    pub(super) fn unknown(&self, key: &str, known: &[&str]) -> ConfigError {
        let hint = match closest_name(key, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the keys here are {}", known.join(", ")),
        };
        self.error(key, "is not a known key", hint)
    }

    /// Requires keys.
    pub(super) fn needs(
        &self,
        table: &Table,
        keys: &[&str],
        hint: &str,
    ) -> Result<(), ConfigError> {
        match keys.iter().find(|key| !table.contains_key(**key)) {
            Some(missing) => Err(self.error(missing, "is missing", hint)),
            None => Ok(()),
        }
    }

    /// A value as a table.
    pub(super) fn table<'v>(&self, key: &str, value: &'v Value) -> Result<&'v Table, ConfigError> {
        let key_of_one = self.key(key);
        let hint = if NAMED.contains(&&*key_of_one) {
            format!("write [{key_of_one}.NAME] and the keys below it")
        } else {
            format!("write [{key_of_one}] and the keys below it")
        };
        value
            .as_table()
            .ok_or_else(|| self.error(key, "must be a table", hint))
    }

    /// A value as text.
    pub(super) fn text<'v>(&self, key: &str, value: &'v Value) -> Result<&'v str, ConfigError> {
        value
            .as_str()
            .ok_or_else(|| self.error(key, "must be text", "put it in double quotes"))
    }

    /// A value as yes or no.
    pub(super) fn flag(&self, key: &str, value: &Value) -> Result<bool, ConfigError> {
        value
            .as_bool()
            .ok_or_else(|| self.error(key, "must be true or false", "write it without quotes"))
    }

    /// A value as a list of texts, which must not be empty.
    pub(super) fn texts<'v>(
        &self,
        key: &str,
        value: &'v Value,
    ) -> Result<Vec<&'v str>, ConfigError> {
        let bad = || {
            self.error(
                key,
                "must be a list of texts, and not empty",
                "such as [\"one\", \"two\"]",
            )
        };
        let list = value
            .as_array()
            .filter(|list| !list.is_empty())
            .ok_or_else(bad)?;
        list.iter()
            .map(|one| one.as_str().ok_or_else(bad))
            .collect()
    }

    /// A value that is one of a few words.
    pub(super) fn word<T: Copy>(
        &self,
        key: &str,
        value: &Value,
        words: &[(&str, T)],
    ) -> Result<T, ConfigError> {
        let text = self.text(key, value)?;
        words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, means)| *means)
            .ok_or_else(|| {
                let known: Vec<_> = words
                    .iter()
                    .map(|(word, _)| format!("\"{word}\""))
                    .collect();
                self.error(
                    key,
                    "is not a known word",
                    format!("write {}", known.join(" or ")),
                )
            })
    }

    /// A value as an absolute path.
    pub(super) fn absolute(&self, key: &str, value: &Value) -> Result<PathBuf, ConfigError> {
        let path = Path::new(self.text(key, value)?);
        if path.is_absolute() {
            Ok(path.to_owned())
        } else {
            Err(self.error(key, "must be an absolute path", "begin it with /"))
        }
    }

    /// A value as an unsigned number.
    pub(super) fn number(&self, key: &str, value: &Value) -> Result<u64, ConfigError> {
        let number = value
            .as_integer()
            .and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| {
            self.error(
                key,
                "must be a whole number of at least 0",
                "write it without quotes",
            )
        })
    }

    /// A value as a network mode.
    pub(super) fn network(&self, key: &str, value: &Value) -> Result<Network, ConfigError> {
        let mode: Network = self.quantity(key, value)?;
        match mode {
            Network::Host => {
                let what = "cannot be `host`: the host's network must be requested for each run";
                Err(self.error(key, what, "ask for it per run, with --network host"))
            }
            Network::None | Network::Doors | Network::Open => Ok(mode),
        }
    }

    /// Sets a limit by its name. The name must be one of [`LIMITS`].
    pub(super) fn limit(
        &self,
        limits: &mut LimitSet,
        key: &str,
        value: &Value,
    ) -> Result<(), ConfigError> {
        match key {
            "memory" => limits.memory = Some(self.quantity(key, value)?),
            "cpu_time" => limits.cpu_time = Some(self.quantity(key, value)?),
            "cpus" => limits.cpus = Some(self.quantity(key, value)?),
            "wall_time" => limits.wall_time = Some(self.quantity(key, value)?),
            "pids" => limits.pids = Some(self.count(key, value)?),
            "file_size" => limits.file_size = Some(self.quantity(key, value)?),
            "open_files" => limits.open_files = Some(self.count(key, value)?),
            "disk" => limits.disk = Some(self.quantity(key, value)?),
            "output" => limits.output = Some(self.quantity(key, value)?),
            "stack" => limits.stack = Some(self.quantity(key, value)?),
            "locked_memory" => limits.locked_memory = Some(self.quantity(key, value)?),
            "message_queues" => limits.message_queues = Some(self.quantity(key, value)?),
            "nice" => limits.nice = Some(self.count(key, value)?),
            other => return Err(self.unknown(other, &LIMITS)),
        }
        Ok(())
    }

    pub(super) fn count(&self, key: &str, value: &Value) -> Result<u32, ConfigError> {
        let count = value
            .as_integer()
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| *number > 0);
        count.ok_or_else(|| {
            self.error(
                key,
                "must be a whole number of at least 1",
                "write it without quotes",
            )
        })
    }

    /// A quantity as text or number: `"2G"`, `"1h"`, `1.5`.
    pub(super) fn quantity<T: FromStr<Err: fmt::Display>>(
        &self,
        key: &str,
        value: &Value,
    ) -> Result<T, ConfigError> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err(self.error(
                    key,
                    "must be text or a number",
                    "such as \"2G\", \"30s\" or 1.5",
                ));
            }
        };
        text.parse().map_err(|error: T::Err| {
            self.error(
                key,
                format_args!("has a bad value: {error}"),
                "write it as on the command line",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_small_regular_files_are_read() {
        let folder = std::env::temp_dir().join(format!("airlock-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| -> PathBuf { folder.join(name) };
        fs::write(at("plain"), "pids = 1\n").unwrap();
        fs::write(at("large"), vec![b'#'; MAX_FILE_BYTES as usize + 1]).unwrap();
        fs::write(at("bytes"), b"\xff").unwrap();
        std::os::unix::fs::symlink(at("plain"), at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let why = |name: &str, links| read(&at(name), links).unwrap_err().message;
        assert_eq!(
            read(&at("plain"), Links::Refuse).unwrap().as_deref(),
            Some("pids = 1\n")
        );
        assert_eq!(
            read(&at("link"), Links::Follow).unwrap().as_deref(),
            Some("pids = 1\n")
        );
        assert_eq!(read(&at("absent"), Links::Refuse), Ok(None));
        assert!(why("link", Links::Refuse).ends_with("it is a symbolic link"));
        assert!(why("large", Links::Follow).ends_with("it is larger than 1 MiB"));
        assert!(why("bytes", Links::Follow).ends_with("it is not UTF-8"));
        assert!(why("fifo", Links::Follow).ends_with("it is not a regular file"));
        assert!(why("", Links::Follow).ends_with("it is not a regular file"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn broken_text_is_told_with_its_line() {
        let error = parse("a = 1\nb = = 2\n", Path::new("/c.toml")).unwrap_err();
        assert!(
            error.message.starts_with("`/c.toml` line 2 is not TOML: "),
            "{}",
            error.message
        );
        assert!(!error.message.contains('\n'));
    }
}
