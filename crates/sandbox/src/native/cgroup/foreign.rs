//! The cgroups that a container engine created for a process: their limits and counters.

use super::{
    Controller, ResourceCounters, Version, dir, dir::CounterFiles, group::cpu_enforcer, tree, v1,
    v2,
};
use spec::{Enforcer, Limits};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The cgroups of one process that are not also ours.
#[derive(Debug)]
pub struct ForeignCgroups(Vec<ForeignMember>);

#[derive(Debug)]
struct ForeignMember {
    at: PathBuf,
    version: Version,
    controllers: Vec<Controller>,
    counts: CounterFiles,
}

impl ForeignCgroups {
    /// Finds the cgroups of a process.
    pub fn of_process(pid: i32) -> io::Result<ForeignCgroups> {
        let mounts = fs::read("/proc/self/mountinfo")?;
        let ours = tree::trees(&fs::read("/proc/self/cgroup")?, &mounts);
        let theirs = tree::trees(&fs::read(format!("/proc/{pid}/cgroup"))?, &mounts);
        let known = |at: &PathBuf| ours.v1.iter().chain(&ours.v2).any(|tree| tree.own == *at);
        let v1 = theirs.v1.into_iter().map(|tree| {
            let names = |controller: &Controller| {
                tree.controllers.iter().any(|it| it == controller.v1_name())
            };
            (
                Version::V1,
                Controller::ALL
                    .into_iter()
                    .filter(names)
                    .collect::<Vec<_>>(),
                tree.own,
            )
        });
        let v2 = theirs.v2.into_iter().map(|tree| {
            let offered = dir::read(&tree.own, "cgroup.controllers").unwrap_or_default();
            let names = |controller: &Controller| {
                controller
                    .v2_name()
                    .is_none_or(|name| offered.split(' ').any(|it| it == name))
            };
            (
                Version::V2,
                Controller::ALL.into_iter().filter(names).collect(),
                tree.own,
            )
        });
        let member =
            |(version, controllers, at): (Version, Vec<Controller>, PathBuf)| ForeignMember {
                counts: CounterFiles::new(at.clone()),
                at,
                version,
                controllers,
            };
        // Our own cgroups limit and count us, too.
        Ok(ForeignCgroups(
            v1.chain(v2)
                .filter(|(_, _, at)| !known(at))
                .map(member)
                .collect(),
        ))
    }

    /// A directory that lists the process and the others in its cgroup.
    pub fn directory(&self) -> Option<&Path> {
        self.0.first().map(|member| member.at.as_path())
    }

    /// The resource usage of the process and the others in its cgroup.
    pub fn counters(&self) -> ResourceCounters {
        let mut counters = ResourceCounters::default();
        for member in &self.0 {
            match member.version {
                Version::V1 => v1::count(&member.counts, &member.controllers, &mut counters),
                Version::V2 => v2::count(&member.counts, &member.controllers, &mut counters),
            }
        }
        counters
    }

    /// What enforces each limit, as the kernel reports it; a limit may be larger by what our own
    /// process needs.
    pub fn enforcers(
        &self,
        limits: &Limits,
        spare_pids: u32,
        spare_bytes: u64,
    ) -> BTreeMap<&'static str, Enforcer> {
        let held = |wanted: Controller| {
            let member = self
                .0
                .iter()
                .find(|member| member.controllers.contains(&wanted))?;
            let most = match wanted {
                Controller::Memory => limits.memory.0.saturating_add(spare_bytes),
                Controller::Pids => u64::from(limits.pids.saturating_add(spare_pids)),
                Controller::CpuShare => u64::from(limits.cpus?.0),
                Controller::CpuTime => return limits.cpu_time.and(member.counted()),
            };
            member
                .limit(wanted)
                .filter(|limit| *limit <= most)
                .map(|_| member.enforcer())
        };
        BTreeMap::from([
            (
                "memory",
                held(Controller::Memory).unwrap_or(Enforcer::Rlimit),
            ),
            ("pids", held(Controller::Pids).unwrap_or(Enforcer::Rlimit)),
            ("cpu", cpu_enforcer(limits, held)),
        ])
    }

    /// Whether a CPU share that was asked for is enforced.
    pub fn holds_share(&self, limits: &Limits) -> bool {
        let member = self
            .0
            .iter()
            .find(|member| member.controllers.contains(&Controller::CpuShare));
        let share = member.and_then(|member| member.limit(Controller::CpuShare));
        limits
            .cpus
            .is_none_or(|cpus| share.is_some_and(|share| share <= u64::from(cpus.0)))
    }
}

impl ForeignMember {
    fn enforcer(&self) -> Enforcer {
        match self.version {
            Version::V1 => Enforcer::CgroupV1,
            Version::V2 => Enforcer::CgroupV2,
        }
    }

    fn counted(&self) -> Option<Enforcer> {
        let mut counters = ResourceCounters::default();
        match self.version {
            Version::V1 => v1::count(&self.counts, &self.controllers, &mut counters),
            Version::V2 => v2::count(&self.counts, &self.controllers, &mut counters),
        }
        counters.cpu.map(|_| self.enforcer())
    }

    /// Bytes, processes, or thousandths of a CPU; none where there is no limit.
    fn limit(&self, controller: Controller) -> Option<u64> {
        let number = |file| dir::read(&self.at, file).ok()?.parse::<u64>().ok();
        match (self.version, controller) {
            (Version::V1, Controller::Memory) => number("memory.limit_in_bytes"),
            (Version::V2, Controller::Memory) => number("memory.max"),
            (_, Controller::Pids) => number("pids.max"),
            (Version::V1, Controller::CpuShare) => {
                share(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            }
            (Version::V2, Controller::CpuShare) => {
                let text = dir::read(&self.at, "cpu.max").ok()?;
                let (quota, period) = text.split_once(' ')?;
                share(quota.parse().ok()?, period.parse().ok()?)
            }
            (_, Controller::CpuTime) => None,
        }
    }
}

fn share(quota: u64, period: u64) -> Option<u64> {
    quota.checked_mul(1000)?.checked_div(period)
}
