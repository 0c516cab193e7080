//! The request for a run, before any check.

use crate::{Barrier, Budget, Contract, LimitSet, Network, PinnedPaths, TerminalSize, User};
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, sync::Arc};

/// A run as a caller asks for it. The fields are the options of `airlock run`; none has been
/// checked.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The name of a profile; the policy's default without one.
    pub profile: Option<String>,
    /// The name of a backend; the native one without it.
    pub backend: Option<String>,
    /// A folder, if it begins with `/` or `.`; otherwise the name of an image.
    pub image: Option<PathBuf>,
    /// Replaces the entrypoint of the image; empty for none.
    pub entrypoint: Option<OsString>,
    /// Lets the program change the root file system, in a copy that is removed afterwards.
    pub writable_root: bool,
    /// The host folder at `/workspace`; a fresh one without it.
    pub workspace: Option<PathBuf>,
    /// Mounts the workspace read-only.
    pub read_only_workspace: bool,
    /// Keeps the program's changes in a layer; the workspace's folder stays as it is.
    pub copy_on_write: bool,
    /// Keeps the changes in a layer, too, and applies them to the folder when the program has
    /// ended.
    pub staged: bool,
    /// `HOST:INSIDE[:ro|rw]`
    pub mounts: Vec<OsString>,
    /// The host paths above that the operator has approved, with the identity of each file. None
    /// where the caller may name any path.
    pub allowed_paths: Option<PinnedPaths>,
    /// `NAME:INSIDE[:ro|rw]`, volumes of a container engine.
    pub volumes: Vec<OsString>,
    /// Variables of the program.
    pub env: Vec<(OsString, OsString)>,
    /// The caller's own environment, of which only the variables that the profile names pass.
    pub caller_env: BTreeMap<OsString, OsString>,
    /// Limits in place of the profile's.
    pub limits: LimitSet,
    /// The network mode; the profile's without it.
    pub network: Option<Network>,
    /// A network of a container engine that has no way out.
    pub internal_network: Option<String>,
    /// Ports on the loopback interface inside at which the host listens, beyond those of the
    /// doors below.
    pub doors: Vec<u16>,
    /// The LLM door, to a provider by name or to the only one that is configured.
    pub llm: Option<Option<String>>,
    /// The inference door.
    pub inference: bool,
    /// `HOST[:PORT]`, hosts that the egress door allows.
    pub allow_hosts: Vec<String>,
    /// Lets the egress door pass connections that no rule allows, and record them.
    pub learn: bool,
    /// Patterns of models; a model must also be in the profile's list.
    pub allow_models: Vec<String>,
    /// The budget for models.
    pub budget: Budget,
    /// `NAME=VARIABLE`, stored secrets that the program gets.
    pub secrets: Vec<OsString>,
    /// `NAME=FILE` or `NAME=artifact:NAME[@VERSION]`
    pub inputs: Vec<OsString>,
    /// Inputs whose bytes came with the request, by their names in the workspace.
    pub inline_inputs: Vec<(PathBuf, Arc<[u8]>)>,
    /// Inputs that are stored artifacts: the name in the workspace, the artifact's name and its
    /// version. Three fields, because a name in one text could contain the separator.
    pub artifact_inputs: Vec<(PathBuf, PathBuf, Option<u64>)>,
    /// Paths of the workspace that are stored after the run.
    pub artifacts: Vec<PathBuf>,
    /// Protected names of the workspace that the program may write.
    pub allow_protected: Vec<PathBuf>,
    /// Patterns of hidden files in the workspace, beyond the default list; `none` switches the
    /// default list off.
    pub hide: Vec<String>,
    /// Barriers without which the run is refused.
    pub require: Vec<Barrier>,
    /// The user inside.
    pub user: Option<User>,
    /// Whether standard input is passed through.
    pub stdin: bool,
    /// The size of a terminal, which then is standard input, output and error.
    pub tty: Option<TerminalSize>,
    /// The format of standard output.
    pub contract: Contract,
    /// The identifier of the run; the engine chooses one without it.
    pub run_id: Option<String>,
    /// The caller's task.
    pub task_id: Option<String>,
    /// The caller's job.
    pub job_id: Option<String>,
}
