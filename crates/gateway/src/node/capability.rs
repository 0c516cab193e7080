//! Capability report of the node: read from kernel files, and from a probe in a real sandbox.
//! Nothing is assumed; what cannot be observed is left out.

use super::settings::NodeSettings;
use crate::{Caller, Gateway, Problem, Scope, health};
use axum::{Json, extract::State};
use engine::Engine;
use serde_json::{Map, Value, json};
use spec::{Barrier, Enforcer, Network, Policy, RunResult, RunSpec, Status};
use std::{fs, path::Path, time::Duration};
use tokio::net::TcpStream;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Interval of the reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// Timeout of the connection to the model server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size read from a host file.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Facts about a node that only its start configuration knows.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Name of the node.
    pub slug: String,
    /// Maximum number of concurrent runs.
    pub max_concurrency: usize,
    /// Host and port of the node's own model server, if there is one.
    pub inference: Option<(String, u16)>,
    /// The TLS certificate chain of the server, PEM.
    pub certificate: Option<String>,
}

impl NodeFacts {
    /// Uses the host name if no name was chosen.
    pub fn new(slug: Option<String>) -> NodeFacts {
        let name = || {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        };
        NodeFacts {
            slug: slug.unwrap_or_else(name),
            ..NodeFacts::default()
        }
    }
}

/// The operating system of the host.
#[derive(Clone, Debug)]
pub(super) struct Platform {
    pub(super) os: &'static str,
    pub(super) arch: &'static str,
    pub(super) kernel: String,
    distro: Option<String>,
}

impl Platform {
    pub(super) fn read() -> Platform {
        let release = read_text("/etc/os-release");
        let distro = release
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="));
        Platform {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            distro: distro.map(|name| name.trim_matches('"').to_owned()),
        }
    }
}

/// Current load of the host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) average: [f64; 3],
    pub(super) memory_total_mb: u64,
    /// Memory that programs could still get.
    pub(super) memory_free_mb: u64,
    pub(super) disk_free_mb: u64,
    pub(super) disk_total_mb: u64,
}

impl Load {
    pub(super) fn read(state: &Path) -> Load {
        let mut load = Load::default();
        for (value, word) in load
            .average
            .iter_mut()
            .zip(read_text("/proc/loadavg").split(' '))
        {
            *value = word.parse().unwrap_or_default();
        }
        let memory = read_text("/proc/meminfo");
        let kib = |name: &str| {
            let line = memory
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or_default()
        };
        (load.memory_total_mb, load.memory_free_mb) =
            (kib("MemTotal") >> 10, kib("MemAvailable") >> 10);
        if let Ok(disk) = rustix::fs::statvfs(state) {
            let mb = |blocks: u64| blocks.saturating_mul(disk.f_frsize) >> 20;
            (load.disk_free_mb, load.disk_total_mb) = (mb(disk.f_bavail), mb(disk.f_blocks));
        }
        load
    }
}

/// Number of CPUs allowed by affinity and cgroups.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reads a system file; empty if it cannot be read.
fn read_text(path: &str) -> String {
    let mut bytes = fs::read(path).unwrap_or_default();
    bytes.truncate(MAX_FILE_BYTES);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn cpu_model() -> Option<String> {
    let model = |line: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    };
    read_text("/proc/cpuinfo").lines().find_map(model)
}

/// GPUs that can compute: a display-only card has no render node.
fn gpus() -> Vec<Value> {
    let names = |folder: &str, start: &str| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(start)).collect()
    };
    let of_node = |name: String| {
        let read = |file: &str| {
            read_text(&format!("/sys/class/drm/{name}/device/{file}"))
                .trim()
                .to_owned()
        };
        let vendor = match read("vendor").as_str() {
            "0x10de" => "nvidia",
            "0x1002" => "amd",
            "0x8086" => "intel",
            // GPUs of virtual machines do not compute.
            _ => return None,
        };
        Some(json!({ "vendor": vendor, "device_id": read("device") }))
    };
    let mut devices: Vec<_> = names("/sys/class/drm", "renderD")
        .into_iter()
        .filter_map(of_node)
        .collect();
    let numbered = |name: &String| name["nvidia".len()..].parse::<u32>().is_ok();
    if !devices.iter().any(|device| device["vendor"] == "nvidia") {
        let found = names("/dev", "nvidia").into_iter().filter(numbered);
        devices.extend(found.map(|name| json!({ "vendor": "nvidia", "device_id": name })));
    }
    devices
}

/// The isolation features that were in force for the probe.
fn features(probe: &RunResult) -> Vec<&'static str> {
    let barriers = [
        (Barrier::OwnNet, "netns"),
        (Barrier::OwnUser, "userns"),
        (Barrier::OwnPid, "pidns"),
        (Barrier::SyscallFilter, "seccomp"),
        (Barrier::PathRules, "landlock"),
        (Barrier::NoNewPrivileges, "no_new_privileges"),
    ];
    let barriers_in_force = barriers
        .into_iter()
        .filter(|(barrier, _)| probe.barriers.contains(barrier));
    let cgroups = [
        (Enforcer::CgroupV2, "cgroups_v2"),
        (Enforcer::CgroupV1, "cgroups_v1"),
    ];
    let cgroups = cgroups
        .into_iter()
        .filter(|(by, _)| probe.enforced_by.values().any(|found| found == by));
    barriers_in_force
        .map(|(_, name)| name)
        .chain(cgroups.map(|(_, name)| name))
        .collect()
}

/// The run spec that a default request gets; `None` if no work is accepted.
fn default_spec(policy: &Policy, node: &NodeSettings) -> Option<RunSpec> {
    node.check_takes_work().ok()?;
    let mut request = health::probe_request();
    node.fill_defaults(&mut request);
    policy.admit(request).ok()
}

/// The container runtime; only our own has a known version.
pub(super) fn runtime(policy: &Policy, node: &NodeSettings) -> Value {
    let named = || node.backend.clone().unwrap_or_else(|| "native".to_owned());
    let name = default_spec(policy, node)
        .map_or_else(named, |spec| spec.sandbox.backend.name().to_owned());
    match name.as_str() {
        "native" => json!({ "runtime": name, "version": env!("CARGO_PKG_VERSION") }),
        _ => json!({ "runtime": name }),
    }
}

fn outbound(default_spec: Option<&RunSpec>) -> &'static str {
    match default_spec.map(|spec| spec.sandbox.network) {
        Some(Network::Doors) => "allowlist",
        Some(Network::Open | Network::Host) => "unrestricted",
        Some(Network::None) | None => "none",
    }
}

async fn inference(facts: &NodeFacts, node: &NodeSettings) -> Value {
    let server = facts
        .inference
        .as_ref()
        .filter(|_| node.check_inference().is_ok());
    let Some((host, port)) = server else {
        return json!({ "supported": false, "mode": "disabled" });
    };
    let reached =
        tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host.as_str(), *port))).await;
    let running = matches!(reached, Ok(Ok(_)));
    json!({ "supported": running, "mode": "allow", "existing_service": running, "running": running })
}

/// Builds the report. Runs a probe in a real sandbox.
pub async fn report(
    engine: &Engine,
    policy: &Policy,
    facts: &NodeFacts,
    node: &NodeSettings,
    address: Option<&str>,
) -> Value {
    let default_spec = default_spec(policy, node);
    let outbound = outbound(default_spec.as_ref());
    let probe = match default_spec {
        Some(spec) => engine.run(spec).await,
        None => RunResult::blank(engine::fresh_id(), String::new(), engine::now()),
    };
    let state = engine.state_folder().to_owned();
    let platform = Platform::read();
    let host = tokio::task::spawn_blocking(move || (Load::read(&state), cpu_model(), gpus())).await;
    let (load, model, gpus) = host.unwrap_or_default();
    let as_user = !rustix::process::geteuid().is_root();
    let mut sandbox = Map::new();
    sandbox.insert(
        "supported".to_owned(),
        (probe.status == Status::Succeeded).into(),
    );
    sandbox.insert("features".to_owned(), features(&probe).into());
    if facts.max_concurrency > 0 {
        sandbox.insert("max_concurrency".to_owned(), facts.max_concurrency.into());
    }
    let mut report = json!({
        "version": 1,
        "reported_at": engine::now().to_string(),
        "node": { "node_slug": facts.slug },
        "platform": { "os": platform.os, "arch": platform.arch, "kernel_version": platform.kernel },
        "container_runtime": runtime(policy, node),
        "compute": { "cpu_cores": cores(), "ram_mb": load.memory_total_mb, "storage_free_mb": load.disk_free_mb },
        "gpu": { "present": !gpus.is_empty() },
        "sandbox": sandbox,
        "network": { "outbound_policy": outbound },
        "inference": inference(facts, node).await,
        "managed_services": { "supported": false },
    });
    if report["container_runtime"]["runtime"] == "native" {
        report["container_runtime"]["rootless_enabled"] = as_user.into();
        // Known only for an unprivileged user; as root it was not tried.
        if as_user && probe.status == Status::Succeeded {
            report["container_runtime"]["rootless_supported"] = true.into();
        }
    }
    let mut add = |part: &str, name: &str, value: Option<Value>| {
        if let Some(value) = value {
            report[part][name] = value;
        }
    };
    let labels = node.labels.clone();
    let metadata = &node.metadata;
    add("node", "name", node.name.clone().map(Value::from));
    add(
        "node",
        "labels",
        (!labels.is_empty()).then(|| labels.into()),
    );
    add(
        "node",
        "metadata",
        (!metadata.is_empty()).then(|| json!(metadata)),
    );
    add("platform", "distro", platform.distro.map(Value::from));
    add("compute", "cpu_model", model.map(Value::from));
    add("gpu", "devices", (!gpus.is_empty()).then(|| gpus.into()));
    add(
        "worker_api",
        "base_url",
        node.public_url.as_deref().or(address).map(Value::from),
    );
    add(
        "tls",
        "worker_api_server_cert_pem",
        facts.certificate.clone().map(Value::from),
    );
    report
}

/// The report without the values that always change.
fn stable_part(report: &Value) -> Value {
    let mut report = report.clone();
    report["reported_at"] = Value::Null;
    report["compute"]["storage_free_mb"] = Value::Null;
    report
}

impl Gateway {
    /// Refreshes the capability report at an interval, and logs changes.
    pub(crate) async fn watch_capability(self) {
        loop {
            let now = self.fresh_report().await;
            let before = self.replace_report(now.clone());
            if before.as_ref().map(stable_part) != Some(stable_part(&now)) {
                let about = match before {
                    None => "capability report made",
                    Some(_) => "capability report changed",
                };
                crate::log::write(crate::log::LogLine::new(
                    crate::log::Level::Info,
                    "capability_report",
                    about,
                    crate::log::LogFields::default(),
                ));
            }
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }

    async fn fresh_report(&self) -> Value {
        report(
            self.engine(),
            self.policy(),
            self.facts(),
            self.node(),
            self.address(),
        )
        .await
    }
}

/// What this node can do
///
/// By looking, and by making a sandbox.
#[utoipa::path(get, path = "/v1/worker/capability", tag = "worker", responses(
    (status = 200, description = "The report, made now", body = Object),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn capability(
    State(gateway): State<Gateway>,
    caller: Caller,
) -> Result<Json<Value>, Problem> {
    caller.require(Scope::Admin)?;
    let report = gateway.fresh_report().await;
    gateway.replace_report(report.clone());
    Ok(Json(report))
}

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(capability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_that_stood_in_a_real_run() {
        let mut probe = RunResult::blank(engine::fresh_id(), String::new(), engine::now());
        assert_eq!(features(&probe), Vec::<&str>::new());
        probe.barriers = vec![Barrier::OwnNet, Barrier::SyscallFilter];
        probe.enforced_by = [("memory", Enforcer::CgroupV1), ("cpu", Enforcer::Rlimit)].into();
        assert_eq!(features(&probe), ["netns", "seccomp", "cgroups_v1"]);
    }

    #[test]
    fn what_is_seen_of_this_machine_can_be() {
        let load = Load::read(Path::new("/"));
        assert!(load.memory_total_mb > 0 && load.memory_total_mb >= load.memory_free_mb);
        assert!(load.disk_total_mb > 0 && load.disk_total_mb >= load.disk_free_mb);
        assert!(cores() > 0 && !Platform::read().kernel.is_empty());
    }

    #[tokio::test]
    async fn a_model_server_is_there_once_it_is_reached() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let facts = NodeFacts {
            inference: Some(("127.0.0.1".to_owned(), port)),
            ..NodeFacts::new(None)
        };
        let (node, closed) = (
            NodeSettings::default(),
            NodeSettings {
                inference: false,
                ..NodeSettings::default()
            },
        );
        assert_eq!(inference(&facts, &node).await["supported"], true);
        assert_eq!(inference(&facts, &closed).await["mode"], "disabled");
        drop(listener);
        assert_eq!(inference(&facts, &node).await["supported"], false);
        assert_eq!(
            inference(&NodeFacts::default(), &node).await["mode"],
            "disabled"
        );
    }
}
