//! Finds the container engine: where it may listen, whether it is local, what it is and which
//! limits it enforces.

use super::{api::EngineApi, refused, unavailable};
use crate::native::SandboxError;
use serde_json::Value;
use spec::{Backend, ErrorCode};
use std::path::{Path, PathBuf};

/// Where container engines may listen, best first. The caller fills it from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSockets {
    /// `unix:///PATH` or a path; exactly one if the caller named one (`DOCKER_HOST`).
    pub docker: Vec<String>,
    /// The same for `CONTAINER_HOST`.
    pub podman: Vec<String>,
}

/// A container engine that responds, and its description.
#[derive(Clone, Debug)]
pub(super) struct ContainerEngine {
    pub(super) api: EngineApi,
    pub(super) podman: bool,
    /// It runs as an ordinary user, and so do its containers.
    pub(super) rootless: bool,
    pub(super) holds: EngineLimits,
    /// The CPUs of its host; it refuses requests for more.
    pub(super) cpus: Option<u64>,
}

/// The limits that it claims to enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineLimits {
    pub(super) memory: bool,
    pub(super) pids: bool,
    pub(super) cpu: bool,
}

impl ContainerEngine {
    /// The engine of this backend.
    pub(super) async fn find(
        hosts: &EngineSockets,
        backend: Backend,
    ) -> Result<ContainerEngine, SandboxError> {
        // Podman first: without a daemon it is the caller's own.
        let candidates: Vec<_> = match backend {
            Backend::Docker => hosts.docker.iter().collect(),
            Backend::Podman => hosts.podman.iter().collect(),
            Backend::Container | Backend::Native => {
                hosts.podman.iter().chain(&hosts.docker).collect()
            }
        };
        let mut tried = Vec::new();
        for candidate in candidates {
            let socket = local_socket(candidate)?;
            if !socket.exists() {
                tried.push(format!("`{}` is not there", socket.display()));
                continue;
            }
            match ContainerEngine::open(&socket).await {
                Ok(engine) => return Ok(engine),
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(unavailable(backend, &tried))
    }

    /// The engine at this socket.
    pub(super) async fn open(socket: &Path) -> Result<ContainerEngine, SandboxError> {
        let failed = |error: super::api::EngineApiError| {
            refused(
                ErrorCode::BackendUnavailable,
                error,
                "start it, or name its socket in DOCKER_HOST or CONTAINER_HOST",
            )
        };
        let (api, version) = EngineApi::connect(socket).await.map_err(failed)?;
        let info = api.get("/info").await.map_err(failed)?;
        let podman = version["Components"]
            .as_array()
            .is_some_and(|parts| parts.iter().any(|part| part["Name"] == "Podman Engine"));
        let engine = ContainerEngine {
            api,
            podman,
            rootless: is_rootless(&info),
            holds: holds(&info),
            cpus: info["NCPU"].as_u64(),
        };
        if has_option(&info, "seccomp") {
            Ok(engine)
        } else {
            Err(refused(
                ErrorCode::BarrierMissing,
                format!(
                    "`{}` has no system call filters (seccomp)",
                    socket.display()
                ),
                "use an engine that has them, or the native backend",
            ))
        }
    }

    /// Its name in results.
    pub(super) fn name(&self) -> &'static str {
        if self.podman {
            Backend::Podman.name()
        } else {
            Backend::Docker.name()
        }
    }
}

/// The options are texts such as `name=seccomp,profile=default`.
fn has_option(info: &Value, name: &str) -> bool {
    let options = info["SecurityOptions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let wanted = format!("name={name}");
    options
        .iter()
        .filter_map(Value::as_str)
        .any(|option| option.split(',').any(|part| part == wanted))
}

fn is_rootless(info: &Value) -> bool {
    info["Rootless"].as_bool().unwrap_or(false) || has_option(info, "rootless")
}

fn holds(info: &Value) -> EngineLimits {
    // Podman reports what the kernel has; an ordinary user never owns v1 cgroups.
    let could = !(is_rootless(info) && info["CgroupVersion"] == "1");
    let says = |name: &str| could && info[name].as_bool().unwrap_or(false);
    EngineLimits {
        memory: says("MemoryLimit"),
        pids: says("PidsLimit"),
        cpu: says("CpuCfsQuota"),
    }
}

/// Only a local socket: a program's streams and files are passed as descriptors.
fn local_socket(host: &str) -> Result<PathBuf, SandboxError> {
    let path = host.strip_prefix("unix://").unwrap_or(host);
    if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err(refused(
            ErrorCode::BackendUnavailable,
            format!("`{}` is not a socket of this machine", host.escape_debug()),
            "a remote container host is not used; give DOCKER_HOST or CONTAINER_HOST as unix:///PATH, or unset it",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_of_this_machine_are_used() {
        assert_eq!(
            local_socket("unix:///run/x.sock").unwrap(),
            Path::new("/run/x.sock")
        );
        assert_eq!(
            local_socket("/run/x.sock").unwrap(),
            Path::new("/run/x.sock")
        );
        for remote in [
            "tcp://1.2.3.4:2375",
            "ssh://me@host",
            "http://localhost",
            "unix://relative",
            "",
            "x\n",
        ] {
            let error = local_socket(remote).unwrap_err().info();
            assert!(
                !error.message.contains('\n')
                    && error.message.ends_with("is not a socket of this machine")
            );
        }
    }

    #[test]
    fn what_an_engine_says_of_itself_is_read_by_word() {
        let info = serde_json::json!({
            "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"], "PidsLimit": true
        });
        assert!(has_option(&info, "seccomp") && is_rootless(&info) && !has_option(&info, "sec"));
        assert_eq!(
            holds(&info),
            EngineLimits {
                memory: false,
                pids: true,
                cpu: false
            }
        );
        let podmans =
            serde_json::json!({ "Rootless": true, "CgroupVersion": "1", "MemoryLimit": true });
        assert_eq!(holds(&podmans), EngineLimits::default());
    }
}
