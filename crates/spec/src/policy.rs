//! The policy of an operator: profiles by name, and a maximum for every run.

use crate::{
    egress::{EgressLimits, EgressRule},
    grant::{Budget, ModelPattern},
    host::HostPattern,
    image_policy::ImagePolicy,
    limits::{LimitSet, Limits},
    protected_names::ProtectedNames,
    quantity::{Size, Time},
    run::Network,
};
use std::{collections::BTreeMap, time::Duration};

/// The policy against which a request is checked.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Profiles by name; the four built-in ones are always there.
    pub profiles: BTreeMap<String, Profile>,
    /// The highest limits of any run.
    pub maximum: LimitSet,
    /// The highest limits of API keys without the scope `admin`.
    pub key_maximum: LimitSet,
    /// The highest budget of any run.
    pub maximum_budget: Budget,
    /// The hosts that a run may be granted; all without a list.
    pub maximum_hosts: Option<Vec<HostPattern>>,
    /// The profile of a request that names none.
    pub default_profile: String,
    /// Which images may be used.
    pub images: ImagePolicy,
    /// The policy for workspaces.
    pub workspace: WorkspacePolicy,
}

/// The policy of an operator or a project for workspaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspacePolicy {
    /// Changes to the built-in list of protected names.
    pub protected: ProtectedNames,
    /// Patterns of hidden files, beyond the default list.
    pub hide: Vec<String>,
    /// The largest folder that is copied for its layer; a larger one gets an overlay. None:
    /// [`LayerCopyLimits::FAST`], and the default where no overlay can be mounted.
    pub copy: Option<LayerCopyLimits>,
}

/// The size up to which a folder is copied for its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCopyLimits {
    /// Names in it.
    pub names: u32,
    /// Bytes of all its files.
    pub bytes: u64,
}

impl LayerCopyLimits {
    /// A folder that is copied about as fast as an overlay is mounted. The time of larger copies
    /// grows, because file systems search for a free place for each file.
    pub const FAST: LayerCopyLimits = LayerCopyLimits {
        names: 200,
        bytes: 32 << 20,
    };
}

impl Default for LayerCopyLimits {
    fn default() -> LayerCopyLimits {
        LayerCopyLimits {
            names: 5_000,
            bytes: 256 << 20,
        }
    }
}

/// A named policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The network a run gets.
    pub network: Network,
    /// Its limits.
    pub limits: Limits,
    /// Whether the limit of time on the clock holds for terminals, too: only where the operator
    /// sets it, because the built-in limits are for unattended runs.
    pub limits_terminals: bool,
    /// Variables of the caller that pass.
    pub env_inherit: Vec<String>,
    /// Host folders that are shown beyond the default ones.
    pub extra_mounts: ExtraMounts,
    /// Whether stored secrets may be put into the environment of a program.
    pub allow_secrets: bool,
    /// Patterns of models at its doors; every model if empty.
    pub allow_models: Vec<ModelPattern>,
    /// Patterns of the project's own file; a model must match in both lists. Every model if empty.
    pub local_models: Vec<ModelPattern>,
    /// The budget for models.
    pub budget: Budget,
    /// The rules of the egress door, which denies everything without one; no egress door without a
    /// list.
    pub egress: Option<Vec<EgressRule>>,
    /// The limits of egress traffic.
    pub egress_limits: EgressLimits,
    /// Hosts of the project's own file; if there is a list, a host must be in it, too.
    pub local_hosts: Option<Vec<HostPattern>>,
}

/// Host folders that a profile shows beyond the default ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraMounts {
    /// None.
    None,
    /// `/etc` and `/var`, read-only, without shadow files, sockets and Airlock's own state.
    SystemReadOnly,
}

impl Policy {
    /// The profile of that name.
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        self.profiles.get(name)
    }

    /// The policy for API keys without the scope `admin`.
    pub fn of_keys(&self) -> Policy {
        Policy {
            maximum: self.maximum.and(&self.key_maximum),
            ..self.clone()
        }
    }
}

impl Default for Policy {
    /// The four built-in profiles, no maximum, every image.
    fn default() -> Self {
        let profiles = [
            ("restrictive", restrictive()),
            ("standard", standard()),
            ("permissive", permissive()),
            ("agent", agent()),
        ];
        Policy {
            profiles: profiles
                .into_iter()
                .map(|(name, profile)| (name.to_owned(), profile))
                .collect(),
            maximum: LimitSet::default(),
            key_maximum: LimitSet::default(),
            maximum_budget: Budget::default(),
            maximum_hosts: None,
            default_profile: "restrictive".to_owned(),
            images: ImagePolicy::default(),
            workspace: WorkspacePolicy::default(),
        }
    }
}

const MIB: u64 = 1 << 20;

fn seconds(count: u64) -> Time {
    Time(Duration::from_secs(count))
}

fn restrictive() -> Profile {
    Profile {
        network: Network::None,
        limits: Limits {
            memory: Size(512 * MIB),
            cpu_time: Some(seconds(60)),
            cpus: None,
            wall_time: seconds(120),
            pids: 32,
            file_size: Size(64 * MIB),
            open_files: 128,
            disk: Size(256 * MIB),
            output: Size(2 * MIB),
            stack: None,
            locked_memory: None,
            message_queues: None,
            nice: None,
        },
        limits_terminals: false,
        env_inherit: Vec::new(),
        extra_mounts: ExtraMounts::None,
        allow_secrets: false,
        allow_models: Vec::new(),
        local_models: Vec::new(),
        budget: Budget::default(),
        egress: None,
        egress_limits: EgressLimits::default(),
        local_hosts: None,
    }
}

fn standard() -> Profile {
    let base = restrictive();
    Profile {
        network: Network::Open,
        limits: Limits {
            memory: Size(1024 * MIB),
            cpu_time: Some(seconds(300)),
            wall_time: seconds(300),
            pids: 128,
            file_size: Size(256 * MIB),
            open_files: 512,
            disk: Size(512 * MIB),
            ..base.limits
        },
        allow_secrets: true,
        ..base
    }
}

fn permissive() -> Profile {
    let base = standard();
    Profile {
        limits: Limits {
            memory: Size(4096 * MIB),
            cpu_time: Some(seconds(600)),
            wall_time: seconds(900),
            pids: 512,
            file_size: Size(1024 * MIB),
            open_files: 1024,
            disk: Size(2048 * MIB),
            ..base.limits
        },
        extra_mounts: ExtraMounts::SystemReadOnly,
        ..base
    }
}

fn agent() -> Profile {
    let base = permissive();
    Profile {
        network: Network::Doors,
        // An egress door without rules tells the program why it cannot get out, and rules can be
        // added while the run is in progress.
        egress: Some(Vec::new()),
        limits: Limits {
            cpu_time: None,
            wall_time: seconds(3600),
            ..base.limits
        },
        extra_mounts: ExtraMounts::None,
        ..base
    }
}
