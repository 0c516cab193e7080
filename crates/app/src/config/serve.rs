//! `[serve]`: the listen address, host paths that requests may name, and limits.

use super::{
    ConfigError,
    toml_file::{LIMITS, Section},
};
use spec::{LimitSet, ServerLimits, Size, Time};
use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};
use toml::{Table, Value};

/// The section `[serve]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    /// Where to listen.
    pub(crate) listen: Option<ListenAddress>,
    /// Accepted host names, beside its own.
    pub(crate) hosts: Vec<String>,
    /// Host folders that requests may name.
    pub(crate) folders: Vec<PathBuf>,
    /// Profiles that every key may use; the default is those without host paths.
    pub(crate) profiles: Option<Vec<String>>,
    /// The limits of the server.
    pub(crate) bounds: ServerLimits,
    /// The maximum of a run or sandbox of a key without `admin`.
    pub(crate) maximum: LimitSet,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        match (text.strip_prefix("unix:"), text.parse()) {
            (Some(""), _) => Err("`unix:` needs a path".to_owned()),
            (Some(path), _) => Ok(ListenAddress::Unix(PathBuf::from(path))),
            (None, Ok(address)) => Ok(ListenAddress::Tcp(address)),
            (None, Err(_)) => {
                Err("write an address such as 127.0.0.1:7070 or [::1]:0, or unix:PATH".to_owned())
            }
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(out),
            ListenAddress::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

const KEYS: [&str; 14] = [
    "listen",
    "hosts",
    "folders",
    "profiles",
    "connections",
    "body",
    "header_time",
    "write_time",
    "runs_per_key",
    "runs",
    "keep_runs",
    "keep_for",
    "grace",
    "maximum",
];

/// Reads the table.
pub(super) fn read(table: &Table, path: &Path) -> Result<ServeConfig, ConfigError> {
    let section = Section {
        path,
        name: "serve",
    };
    let mut serve = ServeConfig::default();
    for (key, value) in table {
        let bounds = &mut serve.bounds;
        match key.as_str() {
            "listen" => serve.listen = Some(section.quantity(key, value)?),
            "hosts" => {
                serve.hosts = section
                    .texts(key, value)?
                    .into_iter()
                    .map(str::to_owned)
                    .collect()
            }
            "profiles" => {
                serve.profiles = Some(
                    section
                        .texts(key, value)?
                        .into_iter()
                        .map(str::to_owned)
                        .collect(),
                )
            }
            "folders" => serve.folders = folders(&section, key, value)?,
            "maximum" => serve.maximum = maximum(section.table(key, value)?, path)?,
            "connections" => bounds.connections = section.count(key, value)? as usize,
            "body" => bounds.body = section.quantity::<Size>(key, value)?.0 as usize,
            "header_time" => bounds.header_timeout = section.quantity::<Time>(key, value)?.0,
            "write_time" => bounds.write_timeout = section.quantity::<Time>(key, value)?.0,
            "runs_per_key" => bounds.runs_per_key = section.count(key, value)? as usize,
            "runs" => bounds.runs = section.count(key, value)? as usize,
            "keep_runs" => bounds.keep_runs = section.count(key, value)?,
            "keep_for" => bounds.keep_for = section.quantity::<Time>(key, value)?.0,
            "grace" => bounds.grace = section.quantity::<Time>(key, value)?.0,
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    Ok(serve)
}

fn maximum(table: &Table, path: &Path) -> Result<LimitSet, ConfigError> {
    let section = Section {
        path,
        name: "serve.maximum",
    };
    let mut maximum = LimitSet::default();
    for (key, value) in table {
        if !LIMITS.contains(&key.as_str()) {
            return Err(section.unknown(key, &LIMITS));
        }
        section.limit(&mut maximum, key, value)?;
    }
    Ok(maximum)
}

fn folders(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<PathBuf>, ConfigError> {
    let folders: Vec<_> = section
        .texts(key, value)?
        .into_iter()
        .map(PathBuf::from)
        .collect();
    if folders.iter().all(|folder| folder.is_absolute()) {
        Ok(folders)
    } else {
        Err(section.error(key, "must be absolute paths", "begin each with /"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ServeConfig, ConfigError> {
        super::read(&text.parse().unwrap(), Path::new("/c.toml"))
    }

    #[test]
    fn every_key_reaches_its_field_and_a_mistake_is_named() {
        let config = read(
            "listen = \"127.0.0.1:1\"\nhosts = [\"a\"]\nfolders = [\"/srv\"]\nprofiles = [\"agent\"]\nconnections = 2\nbody = \"1M\"\n\
             header_time = \"3s\"\nwrite_time = \"9s\"\nruns_per_key = 4\nruns = 5\nkeep_runs = 6\nkeep_for = \"7s\"\ngrace = \"8s\"\n\
             [maximum]\nmemory = \"9G\"\npids = 10",
        );
        let seconds = std::time::Duration::from_secs;
        let bounds = ServerLimits {
            connections: 2,
            body: 1 << 20,
            header_timeout: seconds(3),
            write_timeout: seconds(9),
            runs_per_key: 4,
            runs: 5,
            keep_runs: 6,
            keep_for: seconds(7),
            grace: seconds(8),
        };
        let listen = "127.0.0.1:1".parse().ok();
        let hosts = vec!["a".into()];
        let folders = vec!["/srv".into()];
        let profiles = Some(vec!["agent".into()]);
        let wanted = ServeConfig {
            listen,
            hosts,
            folders,
            profiles,
            bounds,
            maximum: LimitSet {
                memory: "9G".parse().ok(),
                pids: Some(10),
                ..LimitSet::default()
            },
        };
        assert_eq!(config, Ok(wanted));
        let unknown = read("[maximum]\nmemroy = \"1G\"").unwrap_err();
        assert_eq!(unknown.hint, "did you mean `memory`?");
        assert_eq!(
            read("folder = [\"/x\"]").unwrap_err().hint,
            "did you mean `folders`?"
        );
        assert!(
            read("folders = [\"x\"]")
                .unwrap_err()
                .message
                .contains("must be absolute paths")
        );
        assert!(
            read("listen = \"here\"")
                .unwrap_err()
                .message
                .contains("`serve.listen`")
        );
    }
}
