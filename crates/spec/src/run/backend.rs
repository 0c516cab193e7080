//! The runtime that creates a sandbox.

use super::{Root, RunRequest, SpecError, invalid};
use crate::ErrorCode;

/// The runtime that creates a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Airlock itself.
    #[default]
    Native,
    /// Docker, over its API.
    Docker,
    /// Podman, over its API.
    Podman,
    /// Podman or Docker, whichever is present.
    Container,
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 4] = [
        Backend::Native,
        Backend::Docker,
        Backend::Podman,
        Backend::Container,
    ];

    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::Docker => "docker",
            Backend::Podman => "podman",
            Backend::Container => "container",
        }
    }
}

pub(super) fn backend_of(name: Option<&str>) -> Result<Backend, SpecError> {
    match name {
        None => Ok(Backend::Native),
        Some("microvm") => Err(SpecError {
            code: ErrorCode::BackendUnavailable,
            message: "the backend `microvm` is not part of this build".to_owned(),
            hint: "leave --backend away to use the native one".to_owned(),
        }),
        Some(name) => Backend::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            invalid(
                format!("no backend is called `{}`", name.escape_debug()),
                "the backends are native, docker, podman, container (whichever there is), microvm",
            )
        }),
    }
}

/// Refuses options that only a container engine has without one, and roots that it cannot run.
pub(super) fn check_containers_only(
    request: &RunRequest,
    backend: Backend,
    root: &Root,
) -> Result<(), SpecError> {
    let native = backend == Backend::Native;
    let needs_engine = |option: &str| {
        Err(invalid(
            format!("{option} needs a container engine"),
            "add --backend docker or --backend podman",
        ))
    };
    let no_image = "a container needs an image that its engine has: --image REF";
    match (native, root) {
        (true, _) if !request.volumes.is_empty() => needs_engine("--volume"),
        (true, _) if request.internal_network.is_some() => needs_engine("--internal-network"),
        (true, Root::Host) if request.writable_root => Err(invalid(
            "--writable-root needs an image",
            "add --image REF; the host's own /usr stays as it is",
        )),
        (false, Root::Host) => Err(invalid(
            format!("the backend `{}` runs images only", backend.name()),
            no_image,
        )),
        (false, Root::Folder(_)) => Err(invalid(
            "a folder is not an image of a container engine",
            no_image,
        )),
        _ => Ok(()),
    }
}
