//! Control groups: the limits of a whole box, whoever forks inside it, and the counters of what it used.
//!
//! A run gets a cgroup of its own, `airlock/airlock-<state folder>-<run id>` below the one the engine itself sits
//! in, in each tree that has something to offer. It is made before the box, never used twice, and removed after it. The
//! launcher puts the box in; this module only makes, limits, reads, kills and removes. Calls may block for a
//! second at worst: not for an async thread.

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

/// The one directory of ours in each tree, with the runs in it.
const PARENT: &str = "airlock";
/// What the name of a run's cgroup begins with, before the mark of its owner.
const PREFIX: &str = "airlock-";
/// Something the kernel limits or counts.
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

    /// The name in v2, where the time is counted without any controller.
    fn v2_name(self) -> Option<&'static str> {
        match self {
            Controller::Memory | Controller::Pids | Controller::CpuShare => Some(self.v1_name()),
            Controller::CpuTime => None,
        }
    }

    /// The name of the limit that hangs on it, as in `enforced_by`.
    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::CpuShare | Controller::CpuTime => "cpu",
        }
    }
}

/// A tree of use to us: where it is and which controllers we take from it.
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

/// What this host offers, found once.
#[derive(Clone, Debug)]
pub struct CgroupHost {
    v1: Vec<Subtree>,
    v2: Option<Subtree>,
    missing: BTreeMap<Controller, MissingController>,
    /// Where whole boxes can be frozen.
    freezer: Result<(Version, Subtree), MissingController>,
    /// What the names of our cgroups begin with.
    prefix: String,
}

/// What holds one limit on this host; for `doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFinding {
    /// `memory`, `pids` or `cpu`.
    pub limit: &'static str,
    /// What looks able to hold it. Each run says what really did.
    pub enforcer: Enforcer,
    /// What is in the way of the real thing, and what would help, in a line each.
    pub obstacle: Option<(String, &'static str)>,
}

/// Why cgroups could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A cgroup is never used twice.
    #[error("a cgroup of run `{name}` exists already at `{}`", at.display())]
    Exists {
        /// The run.
        name: Id,
        /// The directory found.
        at: PathBuf,
    },
    /// Something would not die, or not go away.
    #[error("cannot remove the cgroups of run `{name}`: {}", listed(left))]
    Remove {
        /// The run.
        name: Id,
        /// The directories that are still there.
        left: Vec<PathBuf>,
        /// Why the first is.
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
    /// Looks around. Never fails: what cannot be had is a finding.
    pub fn detect() -> CgroupHost {
        let text = |path| fs::read(path).unwrap_or_default();
        CgroupHost::read_from(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"))
    }

    /// The same host, for the runs of one owner: a run of another owner that has the same id has another cgroup.
    pub fn owned_by(mut self, owner: &str) -> CgroupHost {
        self.prefix = format!("{PREFIX}{owner}-");
        self
    }

    fn read_from(cgroup: &[u8], mountinfo: &[u8]) -> CgroupHost {
        detect::judge(&tree::trees(cgroup, mountinfo))
    }

    /// Per limit: what holds it, and what is in the way of something better.
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

    /// Makes the cgroups of one run and writes its limits. What cannot be had is no error: the group says
    /// what really holds. On v2 outside of the real root the first call moves this process into a leaf.
    pub fn make(&self, name: &Id, limits: &Limits) -> Result<RunCgroups, CgroupError> {
        let mut group = self.group(name, limits);
        match self.make_in(&mut group, limits) {
            Ok(()) => Ok(group),
            Err(error) => group.remove().and(Err(error)),
        }
    }

    /// The same for a box that stays: it can be frozen, where this host has a freezer for us.
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
        // The new cgroup keeps the parent in place; what the parent hands down now reaches it.
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
            // Another engine is handing them down just now: they are listed, and their files are not there yet.
            v2::insist(&tree.parent(), &tree.controllers);
            outcomes = v2::limit(&at, tree, limits);
        }
        group.note(outcomes, Enforcer::CgroupV2);
        Ok(())
    }

    /// The runs that have cgroups now, in any part of the trees we see. Other engines' runs are among
    /// them: it is for the caller to know which have no owner.
    pub fn leftovers(&self) -> Vec<Id> {
        let names: BTreeSet<_> = self.groups().into_iter().map(|(name, _)| name).collect();
        names.into_iter().collect()
    }

    /// Kills what lives in the cgroups of that run and removes them; absent is fine. One that an engine made
    /// below another cgroup than ours is only removed when empty: the same name there may be another's run.
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

/// The run whose cgroup this directory is, if it is one.
fn run_of(prefix: &str, path: &Path) -> Option<Id> {
    let ours = path.parent()?.file_name()? == PARENT;
    let name = path.file_name()?.to_str()?.strip_prefix(prefix)?;
    ours.then(|| Id::new(name).ok()).flatten()
}
