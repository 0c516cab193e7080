//! The cgroups of one run: creation, counters, removal.

use super::{CgroupError, Controller, Freezer, Subtree, dir, dir::CounterFiles, freezer, v1, v2};
use rustix::fs::{CWD, Mode, OFlags, openat};
use spec::{Enforcer, Id, Limits};
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

/// Another engine may remove the empty parent between our creating and using it; more attempts are
/// no race.
const MAX_ATTEMPTS: usize = 64;

/// Collects the results of removals: our parent goes with the last run in it, the first failure is
/// reported.
pub(super) fn removed(
    name: &Id,
    attempts: Vec<(PathBuf, io::Result<()>)>,
) -> Result<(), CgroupError> {
    let mut left = Vec::new();
    let mut first = None;
    for (at, done) in attempts {
        match (done, at.parent()) {
            (Ok(()), Some(parent)) => drop(fs::remove_dir(parent)), // refused while another run is in it
            (Ok(()), None) => {}
            (Err(error), _) => {
                left.push(at);
                first.get_or_insert(error);
            }
        }
    }
    match first {
        None => Ok(()),
        Some(source) => Err(CgroupError::Remove {
            name: name.clone(),
            left,
            source,
        }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

#[derive(Debug)]
pub(super) struct GroupMember {
    pub(super) at: PathBuf,
    pub(super) version: Version,
    controllers: Vec<Controller>,
    counts: CounterFiles,
}

/// The cgroups of one run. They must be removed explicitly: nothing happens on drop.
#[derive(Debug)]
pub struct RunCgroups {
    name: Id,
    prefix: String,
    pub(super) members: Vec<GroupMember>,
    held: BTreeMap<Controller, Enforcer>,
    shortfalls: BTreeMap<Controller, String>,
    limits: Limits,
    /// Where it is frozen, or why it cannot be and what would help.
    pub(super) freezer: Result<Freezer, (String, &'static str)>,
}

/// How a sandbox gets into its cgroups. A host may have some controllers in v1 and others in v2.
#[derive(Debug, Default)]
pub struct CgroupPlacement {
    /// The v2 directory, for `CLONE_INTO_CGROUP`.
    pub v2: Option<OwnedFd>,
    /// `cgroup.procs` of each v1 tree, to write `0` into before forking the sandbox.
    pub v1: Vec<OwnedFd>,
}

/// The resource usage of a run; `None` where this host does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceCounters {
    /// CPU time of the whole process tree, including ended processes.
    pub cpu: Option<Duration>,
    /// Peak memory in bytes.
    pub memory_peak: Option<u64>,
    /// Peak number of processes and threads.
    pub pids_peak: Option<u64>,
    /// Processes killed by the OOM killer. It rises before the kill: read after the program was
    /// reaped.
    pub oom_kills: Option<u64>,
    /// Forks refused by the limit.
    pub pids_refused: Option<u64>,
}

impl RunCgroups {
    /// No cgroup yet, with the shortfalls that are known beforehand.
    pub(super) fn new(
        name: &Id,
        prefix: &str,
        limits: &Limits,
        shortfalls: BTreeMap<Controller, String>,
    ) -> RunCgroups {
        let name = name.clone();
        let prefix = prefix.to_owned();
        let limits = limits.clone();
        let freezer = Err(("it was not made for that".to_owned(), "make it to stay"));
        RunCgroups {
            name,
            prefix,
            members: Vec::new(),
            held: BTreeMap::new(),
            shortfalls,
            limits,
            freezer,
        }
    }

    /// Creates the directory in one tree. `None` if the tree refuses, which is then a shortfall.
    pub(super) fn join(
        &mut self,
        tree: &Subtree,
        version: Version,
    ) -> Result<Option<PathBuf>, CgroupError> {
        let at = tree.group(&self.prefix, &self.name);
        match make_directory(&tree.parent(), &at) {
            Ok(()) => {
                let controllers = tree.controllers.clone();
                let counts = CounterFiles::new(at.clone());
                self.members.push(GroupMember {
                    at: at.clone(),
                    version,
                    controllers,
                    counts,
                });
                Ok(Some(at))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(CgroupError::Exists {
                    name: self.name.clone(),
                    at,
                })
            }
            Err(error) => {
                self.lose(tree, &error);
                Ok(None)
            }
        }
    }

    pub(super) fn lose(&mut self, tree: &Subtree, error: &io::Error) {
        for controller in &tree.controllers {
            self.shortfalls
                .insert(*controller, format!("`{}`: {error}", tree.own.display()));
        }
    }

    /// Records the result for each limit. An earlier reason is nearer to the cause and stays.
    pub(super) fn note(&mut self, outcomes: Vec<(Controller, io::Result<()>)>, enforcer: Enforcer) {
        for (controller, outcome) in outcomes {
            match outcome {
                Ok(()) => {
                    self.held.insert(controller, enforcer);
                    self.shortfalls.remove(&controller);
                }
                Err(error) => {
                    self.shortfalls
                        .entry(controller)
                        .or_insert_with(|| error.to_string());
                }
            }
        }
    }

    /// Whether there is no directory to remove.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The descriptors with which the launcher places a sandbox.
    pub fn place(&self) -> io::Result<CgroupPlacement> {
        let mut placement = CgroupPlacement::default();
        for member in &self.members {
            match member.version {
                Version::V1 => placement.v1.push(openat(
                    CWD,
                    member.at.join("cgroup.procs"),
                    OFlags::WRONLY | OFlags::CLOEXEC,
                    Mode::empty(),
                )?),
                Version::V2 => {
                    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    placement.v2 = Some(openat(CWD, &member.at, flags, Mode::empty())?);
                }
            }
        }
        Ok(placement)
    }

    /// What enforces each limit: it was written and read back. For `cpu` a cgroup counts when it
    /// enforces all that was asked for: the quota, and the time, which it counts and the engine
    /// checks. A quota that failed, with no time limit beside it, is enforced by nothing.
    pub fn enforcers(&self) -> BTreeMap<&'static str, Enforcer> {
        let held = |controller| self.held.get(&controller).copied();
        BTreeMap::from([
            (
                "memory",
                held(Controller::Memory).unwrap_or(Enforcer::Rlimit),
            ),
            ("pids", held(Controller::Pids).unwrap_or(Enforcer::Rlimit)),
            ("cpu", cpu_enforcer(&self.limits, held)),
        ])
    }

    /// Why a limit is enforced by something weaker than a cgroup, for the notes of the result.
    pub fn shortfalls(&self) -> Vec<(&'static str, &str)> {
        let asked = |controller: &Controller| {
            *controller != Controller::CpuShare || self.limits.cpus.is_some()
        };
        let asked = self
            .shortfalls
            .iter()
            .filter(|(controller, _)| asked(controller));
        asked
            .map(|(controller, why)| (controller.name(), why.as_str()))
            .collect()
    }

    /// A directory that lists every process of the sandbox; each tree does.
    pub fn directory(&self) -> Option<&Path> {
        self.members.first().map(|member| member.at.as_path())
    }

    /// The resource usage so far.
    pub fn counters(&self) -> ResourceCounters {
        let mut counters = ResourceCounters::default();
        for member in &self.members {
            match member.version {
                Version::V1 => v1::count(&member.counts, &member.controllers, &mut counters),
                Version::V2 => v2::count(&member.counts, &member.controllers, &mut counters),
            }
        }
        counters
    }

    /// Where it is frozen, or why it cannot be and what would help.
    pub fn freezer(&self) -> Result<&Freezer, (&str, &'static str)> {
        self.freezer
            .as_ref()
            .map_err(|(why, remedy)| (why.as_str(), *remedy))
    }

    /// Kills all its processes, and returns when it is empty.
    pub fn kill(&self) -> io::Result<()> {
        self.thaw();
        self.members
            .iter()
            .try_for_each(|member| dir::kill(&member.at))
    }

    /// Kills all its processes and removes it. Tries every tree, then reports what is left; may be
    /// repeated.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.thaw();
        let attempts = self
            .members
            .iter()
            .rev()
            .map(|member| (member.at.clone(), dir::remove(&member.at)));
        removed(&self.name, attempts.collect())
    }

    fn thaw(&self) {
        freezer::thaw_before_killing(self.freezer.iter().map(|freezer| freezer.at.as_path()));
    }
}

/// What enforces all CPU limits that were asked for.
pub(super) fn cpu_enforcer(
    limits: &Limits,
    held: impl Fn(Controller) -> Option<Enforcer>,
) -> Enforcer {
    let share = limits.cpus.map(|_| held(Controller::CpuShare));
    let time = limits.cpu_time.map(|_| held(Controller::CpuTime));
    let all: Option<Vec<_>> = share.into_iter().chain(time).collect();
    let first = all.and_then(|all| all.first().copied());
    first.unwrap_or(match limits.cpu_time {
        Some(_) => Enforcer::Rlimit,
        None => Enforcer::Nothing,
    })
}

/// Creates the run's directory, and our parent above it if there is none.
fn make_directory(parent: &Path, at: &Path) -> io::Result<()> {
    for _ in 0..MAX_ATTEMPTS {
        match fs::create_dir(at) {
            // ENODEV is the error of a cgroup that is being removed.
            Err(error) if dir::gone(&error) => {}
            done => return done,
        }
        match fs::create_dir(parent) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists || dir::gone(&error) => {}
            made => made?,
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}
