//! A run: the request of a caller ([`RunRequest`]), its checks ([`Policy::admit`]) and what has
//! passed them ([`RunSpec`]).
//!
//! | file | what |
//! |---|---|
//! | `request.rs` | the request, unchecked |
//! | `admit.rs` | the checks, and the specification that they produce |
//! | `run_spec.rs`, `sandbox_spec.rs` | the checked run and its sandbox |
//! | `root.rs`, `backend.rs`, `network.rs`, `user.rs` | parts of the sandbox |
//! | `mounts.rs`, `inputs.rs`, `environment.rs` | what is brought in from outside |
//! | `doors.rs` | grants at the doors, and the network that follows from them |
//!
//! [`Policy::admit`]: crate::Policy::admit

mod admit;
mod backend;
mod doors;
mod environment;
mod error;
mod inputs;
mod mounts;
mod network;
mod request;
mod root;
mod run_spec;
mod sandbox_spec;
#[cfg(test)]
mod tests;
mod user;

pub(crate) use admit::check_command;
pub use backend::Backend;
pub use environment::EnvName;
pub(crate) use environment::environment;
pub use error::SpecError;
pub(crate) use error::invalid;
pub use inputs::{InputSource, MAX_ARTIFACT_PATHS};
pub use mounts::{Access, Mount, Volume};
pub use network::Network;
pub use request::RunRequest;
pub use root::Root;
pub use run_spec::RunSpec;
pub use sandbox_spec::{DEFAULT_PATH, HOME, SandboxSpec, WORKSPACE, WorkspaceOverlay};
pub use user::{DEFAULT_ID, TerminalSize, User};

/// Bytes of an argument list or an environment: what the kernel takes, with room to spare
/// (`ARG_MAX` is 2 MiB with the usual stack).
const MAX_ARGUMENT_BYTES: usize = 1 << 20;
/// Entries of a list in a request.
const MAX_ENTRIES: usize = 4096;
