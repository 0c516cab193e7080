//! Profiles (named policies) and the operator's maximum: what a request is measured against.

use crate::{
    egress::{EgressLimits, EgressRule},
    grant::{Budget, ModelPattern},
    host::HostPattern,
    image_policy::ImagePolicy,
    limits::{Limits, Maximum},
    quantity::{Size, Time},
    run::Network,
    workspace::ProtectedNames,
};
use std::{collections::BTreeMap, time::Duration};

/// What the operator allows: profiles by name and a maximum for every run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Profiles by name; the four built-in ones are always there.
    pub profiles: BTreeMap<String, Profile>,
    /// What no run may exceed.
    pub maximum: Maximum,
    /// What those of a server's keys without `admin` may not exceed, either.
    pub key_maximum: Maximum,
    /// What no run may spend more of.
    pub maximum_budget: Budget,
    /// Which hosts a run may be granted at most; every one if none is said.
    pub maximum_hosts: Option<Vec<HostPattern>>,
    /// The profile of a request that names none.
    pub default_profile: String,
    /// Which images may be used.
    pub images: ImagePolicy,
    /// What holds in workspaces.
    pub workspace: WorkspacePolicy,
}

/// What an operator or a project says of workspaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspacePolicy {
    /// Names that are protected beyond the usual, and those that are not.
    pub protected: ProtectedNames,
    /// Patterns of files that no program sees, beyond the usual.
    pub hide: Vec<String>,
    /// Up to which size a folder is copied for its layer, rather than laid over. Unless it is
    /// said, as far as a copy is fast, and up to the default where no overlay can be laid.
    pub copy: Option<CopyBounds>,
}

/// Up to which size a folder is copied for the layer that takes a program's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBounds {
    /// Names in it.
    pub names: u32,
    /// Bytes of all its files.
    pub bytes: u64,
}

impl CopyBounds {
    /// What is copied about as fast as an overlay is laid. File systems look for a place for each
    /// file among those that were removed lately, like the last copy.
    pub const FAST: CopyBounds = CopyBounds {
        names: 200,
        bytes: 32 << 20,
    };
}

impl Default for CopyBounds {
    fn default() -> CopyBounds {
        CopyBounds {
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
    /// Whether its time on the clock was said, and so holds for terminals, too: the built-in ones are for what runs unattended.
    pub limits_terminals: bool,
    /// Names of the caller's variables that pass.
    pub env_inherit: Vec<String>,
    /// What of the host is shown beyond the usual.
    pub extra_mounts: ExtraMounts,
    /// Whether stored secrets may be put into its environment, where the program can read them.
    pub allow_secrets: bool,
    /// Which models may be asked for at its doors; every one if empty.
    pub allow_models: Vec<ModelPattern>,
    /// Those of a project's own file: a model must be in both. Every one if empty.
    pub local_models: Vec<ModelPattern>,
    /// How much of them.
    pub budget: Budget,
    /// The rules of the egress door, which lets nothing out without one; no such door if there is no list.
    pub egress: Option<Vec<EgressRule>>,
    /// How much may pass there.
    pub egress_limits: EgressLimits,
    /// Hosts of a project's own file: one must be in it, too, if there is one.
    pub local_hosts: Option<Vec<HostPattern>>,
}

/// What of the host a profile shows beyond the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraMounts {
    /// Nothing.
    None,
    /// `/etc` and `/var`, read-only, without shadow files, sockets and Airlock's own state.
    SystemReadOnly,
}

impl Policy {
    /// The profile of that name.
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        self.profiles.get(name)
    }

    /// The policy of a server's keys without `admin`.
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
            maximum: Maximum::default(),
            key_maximum: Maximum::default(),
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
        // So that a program is told why it cannot get out, and can be let out while it runs.
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
