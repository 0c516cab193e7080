//! A plan in words, for `--explain`.

use super::{Missing, Native, Program, SandboxError, barriers, live, machine, plan, probe, root};
use init::{
    plan::{HostPath, PassingPlan, PlaceKind, ProgramPlan, TemplatePlan},
    step::Step,
};
use spec::{Enforcer, Id, Limits, SandboxSpec};
use std::{collections::BTreeMap, fmt::Write};

/// One line: a step and what it will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The step.
    pub step: &'static str,
    /// What exactly.
    pub detail: String,
}

fn line(step: Step, detail: impl Into<String>) -> Line {
    Line {
        step: step.name(),
        detail: detail.into(),
    }
}

impl Native {
    /// What a run would do, step by step, without doing it.
    pub fn explain(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        program: &Program,
    ) -> Result<Vec<Line>, SandboxError> {
        let template = root::plan(spec, self.steps, &self.hidden)?;
        let who = plan::Who::new(spec, self.starter, name, None);
        let in_box = plan::of_box(spec, self.steps, who, &[], false)?;
        let findings = self.cgroups.findings();
        let enforcers = findings
            .iter()
            .map(|finding| (finding.limit, finding.enforcer))
            .collect();
        self.check_planned(spec, in_box.own_network, &enforcers)?;
        let last = plan::of_program(Some(program), spec, self.steps, who.ids, &enforcers)?;
        let mut lines: Vec<_> = findings
            .iter()
            .map(|finding| Line {
                step: "cgroup",
                detail: format!("{} {}", finding.limit, held_by(finding.enforcer)),
            })
            .collect();
        lines.extend(of_template(&template));
        lines.extend(namespaces(in_box.own_network));
        let limits = &spec.limits;
        lines.push(line(
            Step::Proc,
            "a proc of the box's own; keys, kernel symbols and settings masked or read-only",
        ));
        lines.push(line(Step::ShowLimits, shown(limits)));
        lines.push(line(
            Step::Scratch,
            format!(
                "tmpfs of {} for /tmp, /dev/shm, home and a fresh workspace",
                limits.scratch()
            ),
        ));
        if !in_box.copies.is_empty() {
            let all: Vec<_> = in_box
                .copies
                .iter()
                .map(|path| path.to_string_lossy())
                .collect();
            lines.push(line(
                Step::Scratch,
                format!("a writable layer over {}, gone afterwards", all.join(" ")),
            ));
        }
        lines.push(match &in_box.workspace {
            Some(path) => line(Step::Workspace, host_path(path)),
            None => line(Step::Workspace, "fresh and empty, gone afterwards"),
        });
        lines.extend(
            in_box
                .mounts
                .iter()
                .map(|mount| line(Step::Mounts, host_path(mount))),
        );
        let doors: Vec<_> = in_box
            .doors
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let doors = if doors.is_empty() {
            "none; loopback up".to_owned()
        } else {
            doors.join(", ")
        };
        lines.push(line(
            Step::Doors,
            if in_box.own_network {
                doors
            } else {
                "none; the host's network".to_owned()
            },
        ));
        lines.extend(in_box.passing.as_ref().map(passing));
        if in_box.terminal {
            lines.push(line(
                Step::Terminal,
                "a devpts of the box's own; one terminal of it is 0, 1 and 2",
            ));
        }
        lines.extend(of_program(&last));
        Ok(lines)
    }
}

impl Native {
    /// Refuses a required barrier that would not stand if every step succeeds.
    fn check_planned(
        &self,
        spec: &SandboxSpec,
        own_network: bool,
        enforcers: &BTreeMap<&'static str, Enforcer>,
    ) -> Result<(), SandboxError> {
        let mut steps = self.steps;
        if !own_network {
            steps = steps.without(Step::NetNamespace);
        }
        if probe::landlock_version() == 0 {
            steps = steps.without(Step::PathRules);
        }
        let standing = barriers::standing(steps, spec, enforcers, self.starter);
        match spec.required.iter().find(|it| !standing.contains(it)) {
            None => Ok(()),
            Some(barrier) => {
                Err(Missing::new(barrier.name(), live::why_missing(*barrier, None)).into())
            }
        }
    }
}

/// What becomes of connections that no program sent to a door.
pub(crate) fn passing(plan: &PassingPlan) -> Line {
    let ports: Vec<_> = plan.ports.iter().map(u16::to_string).collect();
    let ports = match plan.redirect {
        Some(to) => format!(
            "every port, by a redirect to {to} (without nf_tables {})",
            ports.join(", ")
        ),
        None => format!("port {}", ports.join(", ")),
    };
    let names = plan.names;
    line(
        Step::Passing,
        format!(
            "what is dialled at {ports} arrives at the egress door; names at 127.0.0.1:{names}"
        ),
    )
}

fn of_template(template: &TemplatePlan) -> Vec<Line> {
    let mut bound = String::new();
    for place in template
        .places
        .iter()
        .filter(|place| matches!(place.kind, PlaceKind::Bind | PlaceKind::Shown))
    {
        // Writing to a String cannot fail.
        _ = write!(bound, " /{}", place.path.to_string_lossy());
    }
    let what = match &template.image {
        Some(image) => format!("{} under our own places", image.path.to_string_lossy()),
        None => format!("an empty root with{bound} of the host"),
    };
    vec![
        line(Step::Template, what),
        line(Step::ReadOnlyRoot, "every mount of it"),
    ]
}

fn namespaces(own_network: bool) -> Vec<Line> {
    let network = if own_network {
        "a new one"
    } else {
        "NONE: the host's own network"
    };
    vec![
        line(Step::PidNamespace, "a new one; ends with its first process"),
        line(Step::MountNamespace, "a new one"),
        line(Step::NetNamespace, network),
        line(Step::IpcNamespace, "a new one"),
        line(Step::UtsNamespace, "a new one, host name `airlock`"),
        line(Step::CgroupNamespace, "a new one"),
    ]
}

fn host_path(path: &HostPath) -> String {
    let access = if path.writable {
        "read-write"
    } else {
        "read-only"
    };
    let mapped = path
        .owner
        .map(|owner| format!(", owner {} kept by idmap", owner.uid))
        .unwrap_or_default();
    format!(
        "{} at {}, {access}{mapped}",
        path.host.to_string_lossy(),
        path.inside.to_string_lossy()
    )
}

fn shown(limits: &Limits) -> String {
    let cpus = if limits.cpus.is_some() {
        machine::processors(limits).to_string()
    } else {
        "all".to_owned()
    };
    format!(
        "memory {}, CPUs {cpus}: in /proc/meminfo, cpuinfo and stat, and in /sys",
        limits.memory
    )
}

/// Only where there is a limit of CPUs.
fn affinity(plan: &ProgramPlan) -> Option<Line> {
    plan.cpus.map(|count| {
        line(
            Step::Affinity,
            format!("CPUs {count}: a hint to programs, not a limit"),
        )
    })
}

pub(crate) fn of_program(plan: &ProgramPlan) -> Vec<Line> {
    let ids = plan.ids;
    let limits = plan
        .rlimits
        .iter()
        .map(|limit| format!("{}={}", rlimit_name(limit.resource), limit.soft));
    let limits: Vec<_> = limits
        .chain(plan.nice.map(|nice| format!("stands back by {nice}")))
        .collect();
    let join = |texts: &[std::ffi::CString]| -> String {
        let shown: Vec<_> = texts
            .iter()
            .map(|text| text.to_string_lossy().into_owned())
            .collect();
        shown.join(" ")
    };
    let errand = plan.errand.as_ref();
    let names: Vec<_> = errand
        .iter()
        .flat_map(|errand| &errand.env)
        .filter_map(|line| {
            line.to_str()
                .ok()?
                .split_once('=')
                .map(|(name, _)| name.to_owned())
        })
        .collect();
    let own_users = plan.steps.has(Step::EnterUserNamespace).then(|| {
        line(
            Step::EnterUserNamespace,
            format!(
                "uid {} inside, {} in the launcher's",
                ids.uid, ids.outer_uid
            ),
        )
    });
    let before = [
        line(
            Step::Credentials,
            format!(
                "uid {} gid {}, no supplementary groups where the kernel allows",
                ids.uid, ids.gid
            ),
        ),
        line(
            Step::NoCapabilities,
            "bounding, ambient, effective, permitted, inheritable: all empty",
        ),
        line(Step::NoNewPrivileges, "set-id programs gain nothing"),
        line(
            Step::Descriptors,
            "0, 1, 2 and nothing else; a session of its own",
        ),
        line(
            Step::PathRules,
            format!(
                "Landlock {}: writes only below {}",
                super::probe::landlock_version(),
                join(&plan.writable)
            ),
        ),
        line(Step::ResourceLimits, limits.join(" ")),
    ];
    let after = [
        line(
            Step::SyscallFilter,
            format!("{} instructions", init::filter::program().len()),
        ),
        line(Step::EmptyEnvironment, names.join(" ")),
        line(
            Step::Exec,
            errand.map(|errand| join(&errand.argv)).unwrap_or_default(),
        ),
    ];
    own_users
        .into_iter()
        .chain(before)
        .chain(affinity(plan))
        .chain(after)
        .collect()
}

fn held_by(enforcer: Enforcer) -> &'static str {
    match enforcer {
        Enforcer::CgroupV2 => "by cgroup v2",
        Enforcer::CgroupV1 => "by cgroup v1",
        Enforcer::Rlimit => "for each process by resource limits",
        Enforcer::Nothing => "by nothing",
    }
}

fn rlimit_name(resource: u32) -> &'static str {
    match resource {
        0 => "cpu",
        1 => "fsize",
        2 => "data",
        3 => "stack",
        4 => "core",
        6 => "nproc",
        7 => "nofile",
        8 => "memlock",
        11 => "sigpending",
        12 => "msgqueue",
        13 => "nice",
        14 => "rtprio",
        _ => "other",
    }
}
