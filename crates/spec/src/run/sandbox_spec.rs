//! The sandbox of a run: root file system, workspace, mounts, network, limits, user.

use crate::{
    Backend, Barrier, EnvName, ExtraMounts, FileId, HiddenFiles, Id, LayerCopyLimits, Limits,
    Mount, Network, PinnedPaths, Ports, ProtectedNames, Root, TerminalSize, User, Volume,
    WorkspacePath,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The working directory inside.
pub const WORKSPACE: &str = "/workspace";
/// The program's home: scratch space that is removed with the sandbox.
pub const HOME: &str = "/home/agent";
/// The search path inside.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A checked sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxSpec {
    /// The name of the profile.
    pub profile: String,
    /// The runtime that creates the sandbox.
    pub backend: Backend,
    /// The root file system.
    pub root: Root,
    /// Whether the program may change the root, in a copy of its own.
    pub writable_root: bool,
    /// The host folder at `/workspace`; a fresh one if none.
    pub workspace: Option<PathBuf>,
    /// Whether the workspace is mounted read-only.
    pub read_only_workspace: bool,
    /// Whether the program's changes go to a layer, so that the workspace's folder stays as it is.
    pub copy_on_write: bool,
    /// The largest folder that is copied for its layer; a larger one gets an overlay.
    pub copy: Option<LayerCopyLimits>,
    /// The overlay over the workspace's folder, where it is not copied. The engine sets it.
    pub overlay: Option<WorkspaceOverlay>,
    /// Protected names in a mounted workspace.
    pub protected: ProtectedNames,
    /// Hidden files in a mounted workspace.
    pub hide: HiddenFiles,
    /// Inputs that are put into a mounted workspace for the run only.
    pub transient_inputs: Vec<WorkspacePath>,
    /// Further mounts.
    pub mounts: Vec<Mount>,
    /// The only host paths that may be mounted, with the identity that each must have whenever it
    /// is opened. None where the caller may name any path.
    pub allowed_paths: Option<PinnedPaths>,
    /// Host paths whose identity was recorded without following links. Other paths may lead
    /// anywhere.
    pub pinned: PinnedPaths,
    /// Mounts that replace the workspace's own git repository, with the identity of each. The
    /// paths that they cover are not protected, and are read with the rights of their owner.
    pub git: PinnedPaths,
    /// Volumes of a container engine.
    pub volumes: Vec<Volume>,
    /// The working directory of the program.
    pub directory: PathBuf,
    /// Variables of the image; those of `env` override them.
    pub image_env: BTreeMap<OsString, OsString>,
    /// Host folders that are shown beyond the default ones.
    pub extra_mounts: ExtraMounts,
    /// All variables but those that Airlock itself sets.
    pub env: BTreeMap<EnvName, OsString>,
    /// The network mode.
    pub network: Network,
    /// A network of a container engine that has no way out.
    pub internal_network: Option<Id>,
    /// Ports on the loopback interface inside at which the host listens.
    pub doors: Vec<u16>,
    /// Ports whose connections are redirected to the egress door (transparent proxying), together
    /// with DNS; none without an egress door.
    pub transparent_ports: Option<Ports>,
    /// Whether the egress door allows every public host.
    pub reaches_any_host: bool,
    /// The limits.
    pub limits: Limits,
    /// Barriers without which the run is refused, beyond those that the backend always requires.
    pub required: BTreeSet<Barrier>,
    /// The user inside.
    pub user: User,
    /// The user by a name that only the image knows; `user` is then without meaning.
    pub named_user: Option<String>,
    /// The initial size of the terminal, if the program has one.
    pub tty: Option<TerminalSize>,
    /// Whether the sandbox outlives its programs, of which each has a terminal of its own, if any.
    pub outlives_programs: bool,
}

/// An overlay over the folder of a workspace, which takes the program's changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceOverlay {
    /// A folder of Airlock's state that holds `upper` and `work`, and belongs to the owner of the
    /// workspace.
    pub layer: PathBuf,
    /// Hidden files of the workspace.
    pub hidden: Vec<PathBuf>,
}

impl SandboxSpec {
    /// The part that decides whether a sandbox of the pool fits: everything but variables, which
    /// are set when the program starts.
    pub fn pool_key(&self) -> SandboxSpec {
        SandboxSpec {
            env: BTreeMap::new(),
            image_env: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Whether the file `found` at a host path may be mounted: it must be the one that was pinned,
    /// wherever a pin exists.
    pub fn admits(&self, path: &Path, found: FileId) -> bool {
        let is_pinned = |pins: &PinnedPaths| pins.get(path).is_none_or(|known| *known == found);
        let allowed = self.allowed_paths.as_ref();
        allowed.is_none_or(|allowed| allowed.get(path) == Some(&found))
            && is_pinned(&self.pinned)
            && is_pinned(&self.git)
    }

    /// The limit for files that are put into the workspace from outside, together and each.
    pub fn workspace_bytes(&self) -> u64 {
        match self.workspace {
            Some(_) => self.limits.disk.0,
            None => self.limits.scratch().0,
        }
    }

    /// Allows a host path of Airlock's own, beside those that the operator has approved.
    pub fn allow_own_path(&mut self, path: &Path, found: FileId) {
        if let Some(allowed) = &mut self.allowed_paths {
            allowed.insert(path.to_owned(), found);
        }
    }
}
