//! Cgroups: the limits of a whole sandbox, whatever forks inside it, and the counters of its usage.
//!
//! A run gets a cgroup of its own, `airlock/airlock-<state folder>-<run id>` below the engine's
//! own, in each usable tree. It is created before the sandbox, never used twice, and removed after
//! it. The launcher places the sandbox in it; this module only creates, limits, reads, kills and
//! removes. Calls may block for a second: not for an async thread.

mod detect;
mod dir;
mod foreign;
mod freezer;
mod group;
mod tree;
mod v1;
mod v2;

#[cfg(test)]
mod tests;

pub use foreign::ForeignCgroups;
pub use freezer::Freezer;
pub use group::{CgroupPlacement, ResourceCounters, RunCgroups};

use group::{Version, removed};
use spec::{Enforcer, Id, Limits};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// Our one directory in each tree, with the runs in it.
const PARENT: &str = "airlock";
/// The prefix of a run's cgroup, before the mark of its owner.
const PREFIX: &str = "airlock-";
/// A resource that the kernel limits or counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Controller {
    Memory,
    Pids,
    /// The quota: a share of CPUs.
    CpuShare,
    /// The count: CPU time used.
    CpuTime,
}

impl Controller {
    const ALL: [Controller; 4] = [
        Controller::Memory,
        Controller::Pids,
        Controller::CpuShare,
        Controller::CpuTime,
    ];

    fn v1_name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::CpuShare => "cpu",
            Controller::CpuTime => "cpuacct",
        }
    }

    /// The name in v2, where time is counted without any controller.
    fn v2_name(self) -> Option<&'static str> {
        match self {
            Controller::Memory | Controller::Pids | Controller::CpuShare => Some(self.v1_name()),
            Controller::CpuTime => None,
        }
    }

    /// The name of its limit, as in `enforced_by`.
    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::CpuShare | Controller::CpuTime => "cpu",
        }
    }
}

/// A usable tree, and the controllers that are taken from it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subtree {
    top: PathBuf,
    own: PathBuf,
    controllers: Vec<Controller>,
}

impl Subtree {
    fn parent(&self) -> PathBuf {
        self.own.join(PARENT)
    }

    fn group(&self, prefix: &str, name: &Id) -> PathBuf {
        self.parent().join(format!("{prefix}{name}"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MissingController {
    why: String,
    remedy: &'static str,
}

/// The cgroups of this host, detected once.
#[derive(Clone, Debug)]
pub struct CgroupHost {
    v1: Vec<Subtree>,
    v2: Option<Subtree>,
    missing: BTreeMap<Controller, MissingController>,
    /// Where whole sandboxes can be frozen.
    freezer: Result<(Version, Subtree), MissingController>,
    /// The prefix of our cgroups.
    prefix: String,
}

/// What enforces one limit on this host, for `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFinding {
    /// `memory`, `pids` or `cpu`.
    pub limit: &'static str,
    /// What should enforce it. Each run says what really did.
    pub enforcer: Enforcer,
    /// Why it is no cgroup, and what would help, in a line each.
    pub obstacle: Option<(String, &'static str)>,
}

/// Why cgroups could not be created or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A cgroup is never used twice.
    #[error("a cgroup of run `{name}` exists already at `{}`", at.display())]
    Exists {
        /// The run.
        name: Id,
        /// The existing directory.
        at: PathBuf,
    },
    /// A process or directory could not be removed.
    #[error("cannot remove the cgroups of run `{name}`: {}", listed(left))]
    Remove {
        /// The run.
        name: Id,
        /// The directories that are left.
        left: Vec<PathBuf>,
        /// The cause for the first.
        #[source]
        source: io::Error,
    },
}

fn listed(paths: &[PathBuf]) -> String {
    let quoted: Vec<_> = paths
        .iter()
        .map(|path| format!("`{}`", path.display()))
        .collect();
    quoted.join(", ")
}

impl CgroupHost {
    /// Detects the cgroups. Never fails: what is missing is a finding.
    pub fn detect() -> CgroupHost {
        let text = |path| fs::read(path).unwrap_or_default();
        CgroupHost::read_from(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"))
    }

    /// The same host, for the runs of one owner: a run of another owner with the same id has
    /// another cgroup.
    pub fn owned_by(mut self, owner: &str) -> CgroupHost {
        self.prefix = format!("{PREFIX}{owner}-");
        self
    }

    fn read_from(cgroup: &[u8], mountinfo: &[u8]) -> CgroupHost {
        detect::judge(&tree::trees(cgroup, mountinfo))
    }

    /// For each limit: what enforces it, and what prevents something better.
    pub fn findings(&self) -> Vec<CgroupFinding> {
        let finding = |(limit, controllers): (_, &[Controller])| CgroupFinding {
            limit,
            enforcer: controllers
                .iter()
                .find_map(|wanted| self.enforcer_of(*wanted))
                .unwrap_or(Enforcer::Rlimit),
            obstacle: controllers
                .iter()
                .find_map(|wanted| self.missing.get(wanted))
                .map(|missing| (missing.why.clone(), missing.remedy)),
        };
        let limits: [(_, &[Controller]); 3] = [
            ("memory", &[Controller::Memory]),
            ("pids", &[Controller::Pids]),
            ("cpu", &[Controller::CpuShare, Controller::CpuTime]),
        ];
        limits.into_iter().map(finding).collect()
    }

    fn enforcer_of(&self, controller: Controller) -> Option<Enforcer> {
        let has = |tree: &Subtree| tree.controllers.contains(&controller);
        match (self.v2.as_ref().is_some_and(has), self.v1.iter().any(has)) {
            (true, _) => Some(Enforcer::CgroupV2),
            (false, true) => Some(Enforcer::CgroupV1),
            (false, false) => None,
        }
    }

    fn miss(&mut self, controllers: &[Controller], missing: MissingController) {
        self.missing.extend(
            controllers
                .iter()
                .map(|controller| (*controller, missing.clone())),
        );
    }

    /// Creates the cgroups of one run and writes its limits. A missing controller is no error: the
    /// group says what is enforced. On v2 below the root cgroup the first call moves this process
    /// into a leaf.
    pub fn make(&self, name: &Id, limits: &Limits) -> Result<RunCgroups, CgroupError> {
        let mut group = self.group(name, limits);
        match self.make_in(&mut group, limits) {
            Ok(()) => Ok(group),
            Err(error) => group.remove().and(Err(error)),
        }
    }

    /// The same for a session: it can be frozen, where this host has a freezer for us.
    pub fn make_to_stay(&self, name: &Id, limits: &Limits) -> Result<RunCgroups, CgroupError> {
        let mut group = self.group(name, limits);
        match self
            .make_in(&mut group, limits)
            .and_then(|()| self.add_freezer(&mut group))
        {
            Ok(()) => Ok(group),
            Err(error) => group.remove().and(Err(error)),
        }
    }

    fn group(&self, name: &Id, limits: &Limits) -> RunCgroups {
        let known = self
            .missing
            .iter()
            .map(|(controller, missing)| (*controller, missing.why.clone()));
        RunCgroups::new(name, &self.prefix, limits, known.collect())
    }

    fn add_freezer(&self, group: &mut RunCgroups) -> Result<(), CgroupError> {
        let (version, tree) = match &self.freezer {
            Ok(found) => found,
            Err(missing) => {
                group.freezer = Err((missing.why.clone(), missing.remedy));
                return Ok(());
            }
        };
        let known = group
            .members
            .iter()
            .find(|member| member.version == Version::V2);
        let at = match known
            .filter(|_| *version == Version::V2)
            .map(|member| member.at.clone())
        {
            Some(at) => Some(at),
            None => group.join(tree, *version)?,
        };
        if let Some(at) = at {
            group.freezer = Ok(Freezer {
                at,
                version: *version,
            });
        }
        Ok(())
    }

    fn make_in(&self, group: &mut RunCgroups, limits: &Limits) -> Result<(), CgroupError> {
        for tree in self.v1.iter().filter(|tree| v1::wanted(tree, limits)) {
            if let Some(at) = group.join(tree, Version::V1)? {
                let outcomes = v1::limit(&at, tree, limits);
                group.note(outcomes, Enforcer::CgroupV1);
            }
        }
        let Some(tree) = &self.v2 else { return Ok(()) };
        let Some(at) = group.join(tree, Version::V2)? else {
            return Ok(());
        };
        // The new cgroup keeps the parent in place; controllers that the parent delegates now reach
        // it.
        if let Err(error) = v2::make_room(&tree.own, &tree.controllers) {
            group.lose(tree, &error);
        }
        for dir in [&tree.own, &tree.parent()] {
            let refused = v2::hand_down(dir, &tree.controllers)
                .into_iter()
                .filter(|(_, done)| done.is_err());
            group.note(refused.collect(), Enforcer::CgroupV2);
        }
        let mut outcomes = v2::limit(&at, tree, limits);
        let absent = |done: &io::Result<()>| matches!(done, Err(error) if error.kind() == io::ErrorKind::NotFound);
        if outcomes.iter().any(|(_, done)| absent(done)) {
            // Another engine is delegating them just now: they are listed, but their files do not
            // exist yet.
            v2::insist(&tree.parent(), &tree.controllers);
            outcomes = v2::limit(&at, tree, limits);
        }
        group.note(outcomes, Enforcer::CgroupV2);
        Ok(())
    }

    /// The runs that have cgroups now, in any visible part of the trees. Other engines' runs are
    /// among them: the caller has to know which have no owner.
    pub fn leftovers(&self) -> Vec<Id> {
        let names: BTreeSet<_> = self.groups().into_iter().map(|(name, _)| name).collect();
        names.into_iter().collect()
    }

    /// Kills and removes the cgroups of that run; absent is fine. One below another cgroup than
    /// ours is only removed when it is empty: the same name there may be another engine's run.
    pub fn remove(&self, name: &Id) -> Result<(), CgroupError> {
        let near: Vec<_> = self
            .trees()
            .map(|tree| tree.group(&self.prefix, name))
            .collect();
        freezer::thaw_before_killing(near.iter().map(PathBuf::as_path));
        let mut done: Vec<_> = near
            .iter()
            .map(|at| (at.clone(), dir::remove(at)))
            .collect();
        let far = self
            .groups()
            .into_iter()
            .filter(|(found, at)| found == name && !near.contains(at));
        done.extend(dir::remove_empty(far.map(|(_, at)| at).collect()));
        removed(name, done)
    }

    fn trees(&self) -> impl Iterator<Item = &Subtree> {
        let freezer = self.freezer.iter().map(|(_, tree)| tree);
        let known = |tree: &&Subtree| self.v2.as_ref().is_some_and(|v2| v2.own == tree.own);
        self.v1
            .iter()
            .chain(&self.v2)
            .chain(freezer.filter(move |tree| !known(tree)))
    }

    fn groups(&self) -> Vec<(Id, PathBuf)> {
        let dirs = self.trees().flat_map(|tree| dir::below(&tree.top));
        dirs.filter_map(|path| Some((run_of(&self.prefix, &path)?, path)))
            .collect()
    }
}

/// The run of a cgroup directory, if it is one of ours.
fn run_of(prefix: &str, path: &Path) -> Option<Id> {
    let ours = path.parent()?.file_name()? == PARENT;
    let name = path.file_name()?.to_str()?.strip_prefix(prefix)?;
    ours.then(|| Id::new(name).ok()).flatten()
}
