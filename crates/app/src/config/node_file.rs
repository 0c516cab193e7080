//! The node file: startup settings of a worker node in the YAML format of other node managers.
//! Every known key is honoured or refused with a reason; none is ignored.

use super::{ConfigError, ProcessEnv, toml_file};
use serde_json::{Map, Value};
use spec::{Cpus, ImagePattern, ImageRef, Size, closest_name};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// Limits of the YAML document.
const MAX_YAML_NODES: usize = 4096;
const MAX_DEPTH: usize = 16;
const MAX_ENTRIES: usize = 64;
const MAX_TEXT_BYTES: usize = 256;
const DEFAULT_PORT: u16 = 12_090;
/// A variable of other node managers.
const MOUNT_ROOT: &str = "CYNODE_SANDBOX_MOUNT_ROOT";
const NO_MOUNT_ROOT: &str =
    "a workspace is in the memory of its own sandbox, not in a folder of the host";

/// Which work the node accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NodeMode {
    #[default]
    Allow,
    SandboxOnly,
    Disabled,
}

/// A parsed node file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeFile {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) listen_host: Option<IpAddr>,
    pub(crate) listen_port: Option<u16>,
    /// The public URL: a scheme, a host and an optional port.
    pub(crate) public_url: Option<String>,
    pub(crate) max_request_bytes: Option<usize>,
    pub(crate) mode: NodeMode,
    pub(crate) runtime: Option<String>,
    pub(crate) rootless: Option<bool>,
    pub(crate) max_concurrency: Option<usize>,
    pub(crate) default_image: Option<String>,
    pub(crate) allowed_images: Option<Vec<ImagePattern>>,
    pub(crate) memory: Option<Size>,
    pub(crate) cpus: Option<Cpus>,
    pub(crate) pids: Option<u32>,
    pub(crate) default_timeout: Option<Duration>,
    pub(crate) max_timeout: Option<Duration>,
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) without_inference: bool,
    pub(crate) state: Option<PathBuf>,
    pub(crate) logging: NodeLogging,
}

/// The log settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeLogging {
    /// `trace`, `debug`, `info`, `warn` or `error`.
    pub(crate) level: Option<String>,
    /// `text` or `json`.
    pub(crate) format: Option<String>,
    pub(crate) file: Option<PathBuf>,
}

impl NodeFile {
    /// The listen address, unless `--listen` is given.
    pub(crate) fn listen(&self) -> SocketAddr {
        let host = self.listen_host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        SocketAddr::new(host, self.listen_port.unwrap_or(DEFAULT_PORT))
    }

    /// Host and port of the public URL.
    pub(crate) fn public_name(&self) -> Option<String> {
        self.public_url
            .as_deref()
            .and_then(authority)
            .map(str::to_owned)
    }
}

/// Reads a node file, and checks it against the environment.
pub(crate) fn read(path: &Path, env: &ProcessEnv) -> Result<NodeFile, ConfigError> {
    let text = toml_file::read(path, toml_file::Links::Follow)?.ok_or_else(|| {
        ConfigError::new(
            format!("the node file `{}` does not exist", path.display()),
            "correct --node",
        )
    })?;
    if env.variable(MOUNT_ROOT).is_some() {
        let message = format!("the variable {MOUNT_ROOT} cannot be honoured: {NO_MOUNT_ROOT}");
        return Err(ConfigError::new(message, "remove it from the environment"));
    }
    let node = parse(&text, path)?;
    let by_engine = node
        .runtime
        .as_deref()
        .is_some_and(|runtime| runtime != "native");
    if node.rootless == Some(true) && by_engine && env.root {
        let what =
            "cannot be honoured: Airlock runs as root, and would use root's container engine";
        let at = NodeSection {
            path,
            name: "sandbox".to_owned(),
        };
        return Err(at.error(
            "rootless",
            what,
            "start it as an ordinary user, or set `rootless: false`",
        ));
    }
    Ok(node)
}

/// Parses a node file. Aliases, merges and several documents are refused.
pub(crate) fn parse(text: &str, path: &Path) -> Result<NodeFile, ConfigError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MAX_YAML_NODES,
            max_nodes: MAX_YAML_NODES,
            max_depth: MAX_DEPTH,
            max_aliases: 0,
            max_anchors: 0,
            max_merge_keys: 0,
            max_documents: 1,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
    };
    let tree: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let cause: String = error
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let cause: String = cause.chars().take(300).collect();
        let message = format!(
            "`{}` cannot be read: {}",
            path.display(),
            cause.escape_debug()
        );
        ConfigError::new(
            message,
            "write one plain YAML document, without anchors, aliases or merges",
        )
    })?;
    let top = NodeSection {
        path,
        name: String::new(),
    };
    let mut node = NodeFile::default();
    for (key, value) in &top.root(&tree)? {
        let at = NodeSection {
            path,
            name: key.clone(),
        };
        match key.as_str() {
            "version" => top.version(key, value)?,
            "orchestrator" => orchestrator(&at, &top.table(key, value)?)?,
            "node" => node_table(&mut node, &at, &top.table(key, value)?)?,
            "worker_api" => worker_api(&mut node, &at, &top.table(key, value)?)?,
            "sandbox" => sandbox(&mut node, &at, &top.table(key, value)?)?,
            "inference" => inference(&mut node, &at, &top.table(key, value)?)?,
            "storage" => storage(&mut node, &at, &top.table(key, value)?)?,
            "logging" => logging(&mut node, &at, &top.table(key, value)?)?,
            "updates" => updates(&at, &top.table(key, value)?)?,
            other => return Err(top.unknown(other, &TOP_KEYS)),
        }
    }
    check_together(&node, path)?;
    Ok(node)
}

const TOP_KEYS: [&str; 9] = [
    "version",
    "orchestrator",
    "node",
    "worker_api",
    "sandbox",
    "inference",
    "storage",
    "logging",
    "updates",
];

/// Checks combinations of keys.
fn check_together(node: &NodeFile, path: &Path) -> Result<(), ConfigError> {
    let at = NodeSection {
        path,
        name: "sandbox".to_owned(),
    };
    let times = (
        node.default_timeout,
        node.max_timeout.unwrap_or(Duration::from_secs(10_800)),
    );
    if times.0.is_some_and(|default| default > times.1) {
        return Err(at.error(
            "timeouts.default_seconds",
            "is more than `max_seconds`",
            "make it less",
        ));
    }
    if node
        .runtime
        .as_deref()
        .is_some_and(|runtime| runtime != "native")
        && node.default_image.is_none()
    {
        let what =
            "needs `sandbox.default_image`: a container engine runs nothing without an image";
        return Err(at.error(
            "runtime",
            what,
            "name one, or use `native`, which can use the host's /usr",
        ));
    }
    if let (Some(image), Some(allowed)) = (&node.default_image, &node.allowed_images) {
        let listed = image
            .parse::<ImageRef>()
            .is_ok_and(|image| allowed.iter().any(|one| one.matches(&image)));
        if !listed {
            let hint = "add it to the list, or name another";
            return Err(at.error("default_image", "is not in `sandbox.allowed_images`", hint));
        }
    }
    Ok(())
}

fn orchestrator(at: &NodeSection<'_>, table: &Map<String, Value>) -> Result<(), ConfigError> {
    const KEYS: [&str; 5] = [
        "url",
        "registration_psk_env",
        "registration_psk_file",
        "tls",
        "timeouts",
    ];
    match table.keys().next() {
        None => Ok(()),
        Some(key) if KEYS.contains(&key.as_str()) => Err(at.error(
            key,
            "cannot be honoured: Airlock does not register itself; an orchestrator gets a key and calls it",
            "remove `orchestrator`, and create a key with `airlock key create`",
        )),
        Some(other) => Err(at.unknown(other, &KEYS)),
    }
}

fn node_table(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "id" => node.id = Some(at.word(key, value)?),
            "name" => node.name = Some(at.word(key, value)?),
            "labels" => node.labels = at.labels(key, value)?,
            "metadata" => node.metadata = at.words(key, value)?,
            other => return Err(at.unknown(other, &["id", "name", "labels", "metadata"])),
        }
    }
    Ok(())
}

fn worker_api(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "listen_host" => {
                let text = at.text(key, value)?;
                let host = if text == "localhost" {
                    Ok(Ipv4Addr::LOCALHOST.into())
                } else {
                    text.parse()
                };
                let bad = |_| {
                    at.error(
                        key,
                        "is not an address",
                        "write one such as 127.0.0.1, 0.0.0.0 or ::1",
                    )
                };
                node.listen_host = Some(host.map_err(bad)?);
            }
            "listen_port" => {
                let port = u16::try_from(at.whole_number(key, value, 0)?);
                node.listen_port =
                    Some(port.map_err(|_| at.error(key, "is not a port", "write 0 to 65535"))?);
            }
            "public_base_url" => node.public_url = Some(public_url(at, key, value)?),
            "max_request_bytes" => {
                node.max_request_bytes = Some(
                    at.whole_number(key, value, 1)?
                        .try_into()
                        .unwrap_or(usize::MAX),
                );
            }
            other => {
                let known = [
                    "listen_host",
                    "listen_port",
                    "public_base_url",
                    "max_request_bytes",
                ];
                return Err(at.unknown(other, &known));
            }
        }
    }
    Ok(())
}

fn authority(url: &str) -> Option<&str> {
    url.strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"))
}

/// A URL without a path.
fn public_url(at: &NodeSection<'_>, key: &str, value: &Value) -> Result<String, ConfigError> {
    let text = at.text(key, value)?;
    let text = text.strip_suffix('/').unwrap_or(text);
    let plain = |name: &&str| {
        let sign = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        (1..=MAX_TEXT_BYTES).contains(&name.len()) && name.bytes().all(sign)
    };
    match authority(text).filter(plain) {
        Some(_) => Ok(text.to_owned()),
        None => Err(at.error(
            key,
            "is not the URL of a host",
            "write https://HOST or https://HOST:PORT",
        )),
    }
}

const SANDBOX_KEYS: [&str; 13] = [
    "mode",
    "runtime",
    "rootless",
    "max_concurrency",
    "default_image",
    "allowed_images",
    "default_network_policy",
    "allowed_egress_domains",
    "resources",
    "timeouts",
    "mount_root",
    "mounts",
    "security",
];

fn sandbox(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "mode" => {
                node.mode = match at.one_of(key, value, &["allow", "sandbox_only", "disabled"])? {
                    "sandbox_only" => NodeMode::SandboxOnly,
                    "disabled" => NodeMode::Disabled,
                    _ => NodeMode::Allow,
                }
            }
            "runtime" => {
                node.runtime = Some(
                    at.one_of(key, value, &["native", "podman", "docker"])?
                        .to_owned(),
                )
            }
            "rootless" => node.rootless = Some(at.flag(key, value)?),
            "max_concurrency" => {
                node.max_concurrency = Some(
                    at.whole_number(key, value, 1)?
                        .try_into()
                        .unwrap_or(usize::MAX),
                )
            }
            "default_image" => {
                let text = at.word(key, value)?;
                text.parse::<ImageRef>()
                    .map_err(|error| at.error(key, error, "write NAME[:TAG][@DIGEST]"))?;
                node.default_image = Some(text);
            }
            "allowed_images" => node.allowed_images = Some(images(at, key, value)?),
            "default_network_policy" => network(at, key, value)?,
            "allowed_egress_domains" => no_egress_domains(at, key, value)?,
            "resources" => resources(node, &at.nested(key), &at.table(key, value)?)?,
            "timeouts" => timeouts(node, &at.nested(key), &at.table(key, value)?)?,
            "mount_root" => {
                let what = format!("cannot be honoured: {NO_MOUNT_ROOT}");
                return Err(at.error(
                    key,
                    what,
                    "remove it; `sandbox.resources` limits what sandboxes use",
                ));
            }
            "mounts" => mounts(node, &at.nested(key), &at.table(key, value)?)?,
            "security" => security(&at.nested(key), &at.table(key, value)?)?,
            other => return Err(at.unknown(other, &SANDBOX_KEYS)),
        }
    }
    Ok(())
}

fn images(
    at: &NodeSection<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<ImagePattern>, ConfigError> {
    let texts = at.texts(key, value)?;
    let pattern = |text: &String| {
        text.parse().map_err(|error: spec::BadImagePattern| {
            at.error(
                key,
                error,
                "write names such as alpine:3, or registry.example/team/*",
            )
        })
    };
    texts.iter().map(pattern).collect()
}

/// Both accepted values mean the same: jobs reach nothing but the doors that they are granted.
fn network(at: &NodeSection<'_>, key: &str, value: &Value) -> Result<(), ConfigError> {
    match at.one_of(key, value, &["restricted", "none", "allowlist"])? {
        "allowlist" => Err(at.error(
            key,
            "cannot be `allowlist`: jobs of the worker API reach nothing",
            "write rules of the egress door as [[profile.NAME.egress]] in the configuration file, for /v1/runs",
        )),
        _ => Ok(()),
    }
}

fn no_egress_domains(at: &NodeSection<'_>, key: &str, value: &Value) -> Result<(), ConfigError> {
    if at.texts(key, value)?.is_empty() {
        Ok(())
    } else {
        Err(at.error(
            key,
            "cannot be honoured: jobs of the worker API reach nothing",
            "write rules of the egress door as [[profile.NAME.egress]] in the configuration file, for /v1/runs",
        ))
    }
}

fn resources(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "max_cpu_cores" => {
                let bad = || at.error(key, "is not a number of CPUs", "write one such as 2 or 1.5");
                let number = value.as_number().ok_or_else(bad)?.to_string();
                let number = number.strip_suffix(".0").unwrap_or(&number);
                node.cpus = Some(number.parse().map_err(|_| bad())?);
            }
            "max_memory_mb" => {
                let bytes = at.whole_number(key, value, 1)?.checked_mul(1 << 20);
                node.memory = Some(Size(
                    bytes.ok_or_else(|| at.error(key, "is too much", "write less"))?,
                ));
            }
            "max_pids" => {
                let pids = u32::try_from(at.whole_number(key, value, 1)?);
                node.pids = Some(pids.map_err(|_| at.error(key, "is too many", "write less"))?);
            }
            other => return Err(at.unknown(other, &["max_cpu_cores", "max_memory_mb", "max_pids"])),
        }
    }
    Ok(())
}

fn timeouts(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        let time = match key.as_str() {
            "default_seconds" => &mut node.default_timeout,
            "max_seconds" => &mut node.max_timeout,
            other => return Err(at.unknown(other, &["default_seconds", "max_seconds"])),
        };
        let seconds = at.whole_number(key, value, 1)?;
        if seconds > 7 * 24 * 3600 {
            return Err(at.error(key, "is more than seven days", "write less"));
        }
        *time = Some(Duration::from_secs(seconds));
    }
    Ok(())
}

fn mounts(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "allowed_host_paths" => {
                let paths: Vec<_> = at
                    .texts(key, value)?
                    .into_iter()
                    .map(PathBuf::from)
                    .collect();
                if !paths.iter().all(|path| path.is_absolute()) {
                    return Err(at.error(key, "must be absolute paths", "begin each with /"));
                }
                node.folders = paths;
            }
            "read_only_by_default" if at.flag(key, value)? => {}
            "read_only_by_default" => {
                let hint = "remove it; requests that need to write give `:rw`";
                return Err(at.error(
                    key,
                    "cannot be `false`: mounts are read-only unless they give `:rw`",
                    hint,
                ));
            }
            other => return Err(at.unknown(other, &["allowed_host_paths", "read_only_by_default"])),
        }
    }
    Ok(())
}

fn security(at: &NodeSection<'_>, table: &Map<String, Value>) -> Result<(), ConfigError> {
    const KEYS: [&str; 3] = [
        "allow_privileged",
        "allow_host_network",
        "allow_device_mounts",
    ];
    for (key, value) in table {
        if !KEYS.contains(&key.as_str()) {
            return Err(at.unknown(key, &KEYS));
        }
        at.must_be_false(key, value, "no job of the worker API ever gets that")?;
    }
    Ok(())
}

fn inference(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "mode" => {
                node.without_inference =
                    at.one_of(key, value, &["allow", "disabled"])? == "disabled"
            }
            "max_concurrency" => {
                let what = "cannot be honoured: Airlock runs no models, its doors forward to model servers";
                return Err(at.error(
                    key,
                    what,
                    "remove it, and see [provider] in the configuration file",
                ));
            }
            "allow_gpu" => at.must_be_false(
                key,
                value,
                "no device of the host is available in a sandbox",
            )?,
            other => return Err(at.unknown(other, &["mode", "max_concurrency", "allow_gpu"])),
        }
    }
    Ok(())
}

fn storage(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        match key.as_str() {
            "state_dir" => node.state = Some(at.absolute_path(key, value)?),
            "cache_dir" => {
                let what =
                    "cannot be honoured: prepared sandboxes are in memory or in the state folder";
                return Err(at.error(key, what, "remove it"));
            }
            "artifacts_dir" => {
                let what = "cannot be honoured: artifacts are in the state folder or in a bucket";
                return Err(at.error(
                    key,
                    what,
                    "remove it, or see [artifacts] in the configuration file",
                ));
            }
            other => return Err(at.unknown(other, &["state_dir", "cache_dir", "artifacts_dir"])),
        }
    }
    Ok(())
}

fn logging(
    node: &mut NodeFile,
    at: &NodeSection<'_>,
    table: &Map<String, Value>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        let logging = &mut node.logging;
        match key.as_str() {
            "level" => {
                let levels = ["trace", "debug", "info", "warn", "error"];
                logging.level = Some(at.one_of(key, value, &levels)?.to_owned());
            }
            "format" => logging.format = Some(at.one_of(key, value, &["text", "json"])?.to_owned()),
            "file_path" => logging.file = Some(at.absolute_path(key, value)?),
            other => return Err(at.unknown(other, &["level", "format", "file_path"])),
        }
    }
    Ok(())
}

fn updates(at: &NodeSection<'_>, table: &Map<String, Value>) -> Result<(), ConfigError> {
    const KEYS: [&str; 3] = [
        "enable_dynamic_config",
        "poll_interval_seconds",
        "allow_service_restart",
    ];
    for (key, value) in table {
        match key.as_str() {
            "enable_dynamic_config" | "allow_service_restart" => {
                at.must_be_false(key, value, "settings are read once at the start")?
            }
            "poll_interval_seconds" => {
                let what = "cannot be honoured: settings are read once at the start";
                return Err(at.error(key, what, "remove it"));
            }
            other => return Err(at.unknown(other, &KEYS)),
        }
    }
    Ok(())
}

/// A table of the file, with its name for error messages.
struct NodeSection<'a> {
    path: &'a Path,
    /// The name with dots; empty at the top.
    name: String,
}

impl<'a> NodeSection<'a> {
    fn nested(&self, key: &str) -> NodeSection<'a> {
        NodeSection {
            path: self.path,
            name: self.key(key),
        }
    }

    fn key(&self, key: &str) -> String {
        let key: String = key.chars().take(64).collect();
        if self.name.is_empty() {
            key
        } else {
            format!("{}.{key}", self.name)
        }
    }

    fn error(
        &self,
        key: &str,
        what: impl std::fmt::Display,
        hint: impl Into<String>,
    ) -> ConfigError {
        let key = self.key(key);
        ConfigError::new(
            format!(
                "`{}` in `{}` {what}",
                key.escape_debug(),
                self.path.display()
            ),
            hint,
        )
    }

    fn unknown(&self, key: &str, known: &[&str]) -> ConfigError {
        let hint = match closest_name(key, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the keys are {}", known.join(", ")),
        };
        self.error(key, "is not a known key", hint)
    }

    /// An empty document is an empty table.
    fn root(&self, value: &Value) -> Result<Map<String, Value>, ConfigError> {
        match value {
            Value::Null => Ok(Map::new()),
            Value::Object(table) => Ok(table.clone()),
            _ => Err(ConfigError::new(
                format!("`{}` is not a table of settings", self.path.display()),
                "begin with `version: 1`",
            )),
        }
    }

    fn table(&self, key: &str, value: &Value) -> Result<Map<String, Value>, ConfigError> {
        match value {
            Value::Null => Ok(Map::new()),
            Value::Object(table) => Ok(table.clone()),
            _ => Err(self.error(
                key,
                "must be a table",
                "write its keys on separate, indented lines",
            )),
        }
    }

    fn version(&self, key: &str, value: &Value) -> Result<(), ConfigError> {
        match self.whole_number(key, value, 0)? {
            1 => Ok(()),
            other => Err(self.error(
                key,
                format_args!("is {other}, and only 1 is known here"),
                "write 1",
            )),
        }
    }

    fn text<'v>(&self, key: &str, value: &'v Value) -> Result<&'v str, ConfigError> {
        value
            .as_str()
            .ok_or_else(|| self.error(key, "must be a text", "put it in quotes"))
    }

    fn word(&self, key: &str, value: &Value) -> Result<String, ConfigError> {
        let text = self.text(key, value)?;
        if (1..=MAX_TEXT_BYTES).contains(&text.len()) && !text.contains(char::is_control) {
            Ok(text.to_owned())
        } else {
            Err(self.error(
                key,
                "is empty or too long",
                "write 1 to 256 bytes on one line",
            ))
        }
    }

    fn words(&self, key: &str, value: &Value) -> Result<BTreeMap<String, String>, ConfigError> {
        let table = self.table(key, value)?;
        let nested = self.nested(key);
        if table.len() > MAX_ENTRIES {
            return Err(self.error(key, "has too many entries", "write at most 64"));
        }
        let word = |(name, value): (&String, &Value)| {
            nested.word(name, &Value::String(name.clone()))?;
            Ok((name.clone(), nested.word(name, value)?))
        };
        table.iter().map(word).collect()
    }

    /// A list of labels, or a table of them.
    fn labels(&self, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
        if !value.is_array() {
            let words = self.words(key, value)?;
            return Ok(words
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect());
        }
        let labels = self.texts(key, value)?;
        if labels.len() > MAX_ENTRIES {
            return Err(self.error(key, "has too many entries", "write at most 64"));
        }
        labels
            .into_iter()
            .map(|label| self.word(key, &Value::String(label)))
            .collect()
    }

    fn texts(&self, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
        let bad = || {
            self.error(
                key,
                "must be a list of texts",
                "write each on a line that begins with `- `",
            )
        };
        match value {
            Value::Null => Ok(Vec::new()),
            Value::Array(list) => list
                .iter()
                .map(|one| one.as_str().map(str::to_owned).ok_or_else(bad))
                .collect(),
            _ => Err(bad()),
        }
    }

    fn absolute_path(&self, key: &str, value: &Value) -> Result<PathBuf, ConfigError> {
        let path = PathBuf::from(self.text(key, value)?);
        if path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0) {
            Ok(path)
        } else {
            Err(self.error(key, "must be an absolute path", "begin it with /"))
        }
    }

    fn flag(&self, key: &str, value: &Value) -> Result<bool, ConfigError> {
        value
            .as_bool()
            .ok_or_else(|| self.error(key, "must be `true` or `false`", "write it without quotes"))
    }

    fn must_be_false(&self, key: &str, value: &Value, why: &str) -> Result<(), ConfigError> {
        if self.flag(key, value)? {
            let what = format!("cannot be `true`: {why}");
            Err(self.error(key, what, "write `false`, or remove it"))
        } else {
            Ok(())
        }
    }

    fn whole_number(&self, key: &str, value: &Value, least: u64) -> Result<u64, ConfigError> {
        value
            .as_u64()
            .filter(|number| *number >= least)
            .ok_or_else(|| {
                let what = format!("must be a whole number of at least {least}");
                self.error(key, what, "write it without quotes")
            })
    }

    fn one_of<'k>(
        &self,
        key: &str,
        value: &Value,
        known: &[&'k str],
    ) -> Result<&'k str, ConfigError> {
        let text = self.text(key, value)?;
        known
            .iter()
            .copied()
            .find(|word| *word == text)
            .ok_or_else(|| {
                let hint = match closest_name(text, known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write one of {}", known.join(", ")),
                };
                let shown: String = text.chars().take(64).collect();
                self.error(
                    key,
                    format_args!("cannot be `{}`", shown.escape_debug()),
                    hint,
                )
            })
    }
}

#[cfg(test)]
#[path = "node_file_tests.rs"]
mod tests;
