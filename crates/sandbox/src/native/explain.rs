//! A plan in words, for `--explain`.

use super::{
    MissingBarrier, NativeBackend, Program, SandboxError, barriers, fake_proc, plan, probe, root,
};
use init::{
    plan::{HostPath, InterceptPlan, ProgramPlan, RootEntryKind, TemplatePlan},
    step::Step,
};
use spec::{Enforcer, Id, Limits, SandboxSpec};
use std::{collections::BTreeMap, fmt::Write};

/// One line: a step and what it will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainLine {
    /// The name of the step.
    pub step: &'static str,
    /// The details.
    pub detail: String,
}

fn line(step: Step, detail: impl Into<String>) -> ExplainLine {
    ExplainLine {
        step: step.name(),
        detail: detail.into(),
    }
}

impl NativeBackend {
    /// What a run would do, step by step, without doing it.
    pub fn explain(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        program: &Program,
    ) -> Result<Vec<ExplainLine>, SandboxError> {
        let template = root::plan(spec, self.steps, &self.hidden)?;
        let who = plan::ProgramIdentity::new(spec, self.invoking_user, name, None);
        let sandbox = plan::sandbox_plan(spec, self.steps, who, &[], false)?;
        let findings = self.cgroups.findings();
        let enforcers = findings
            .iter()
            .map(|finding| (finding.limit, finding.enforcer))
            .collect();
        self.check_planned(spec, sandbox.own_network, &enforcers)?;
        let last = plan::program_plan(Some(program), spec, self.steps, who.ids, &enforcers)?;
        let mut lines: Vec<_> = findings
            .iter()
            .map(|finding| ExplainLine {
                step: "cgroup",
                detail: format!("{} {}", finding.limit, held_by(finding.enforcer)),
            })
            .collect();
        lines.extend(of_template(&template));
        lines.extend(namespaces(sandbox.own_network));
        let limits = &spec.limits;
        lines.push(line(
            Step::Proc,
            "a proc of the sandbox's own; keys, kernel symbols and settings masked or read-only",
        ));
        lines.push(line(Step::ShowLimits, describe_limits(limits)));
        lines.push(line(
            Step::Scratch,
            format!(
                "tmpfs of {} for /tmp, /dev/shm, home and a fresh workspace",
                limits.scratch()
            ),
        ));
        if !sandbox.writable_folders.is_empty() {
            let all: Vec<_> = sandbox
                .writable_folders
                .iter()
                .map(|path| path.to_string_lossy())
                .collect();
            lines.push(line(
                Step::Scratch,
                format!("a writable layer over {}, gone afterwards", all.join(" ")),
            ));
        }
        lines.push(match &sandbox.workspace {
            Some(path) => line(Step::Workspace, host_path(path)),
            None => line(Step::Workspace, "fresh and empty, gone afterwards"),
        });
        lines.extend(
            sandbox
                .mounts
                .iter()
                .map(|mount| line(Step::Mounts, host_path(mount))),
        );
        let doors: Vec<_> = sandbox
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
            if sandbox.own_network {
                doors
            } else {
                "none; the host's network".to_owned()
            },
        ));
        lines.extend(sandbox.intercept.as_ref().map(intercept));
        if sandbox.terminal {
            lines.push(line(
                Step::Terminal,
                "a devpts of the sandbox's own; one terminal of it is 0, 1 and 2",
            ));
        }
        lines.extend(program_plan(&last));
        Ok(lines)
    }
}

impl NativeBackend {
    /// Refuses a required barrier that would be missing even if every step succeeds.
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
        let standing = barriers::standing(steps, spec, enforcers, self.invoking_user);
        match spec.required.iter().find(|it| !standing.contains(it)) {
            None => Ok(()),
            Some(barrier) => {
                Err(MissingBarrier::new(barrier.name(), super::why_missing(*barrier, None)).into())
            }
        }
    }
}

/// What happens to connections that no program sent to a door.
pub(crate) fn intercept(plan: &InterceptPlan) -> ExplainLine {
    let ports: Vec<_> = plan.ports.iter().map(u16::to_string).collect();
    let ports = match plan.redirect_port {
        Some(to) => format!(
            "every port, by a redirect to {to} (without nf_tables {})",
            ports.join(", ")
        ),
        None => format!("port {}", ports.join(", ")),
    };
    let dns_port = plan.dns_port;
    line(
        Step::TransparentProxy,
        format!("connections to {ports} go to the egress door; DNS at 127.0.0.1:{dns_port}"),
    )
}

fn of_template(template: &TemplatePlan) -> Vec<ExplainLine> {
    let mut bound = String::new();
    for place in template
        .entries
        .iter()
        .filter(|place| matches!(place.kind, RootEntryKind::Bind | RootEntryKind::HostOverlay))
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

fn namespaces(own_network: bool) -> Vec<ExplainLine> {
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

fn describe_limits(limits: &Limits) -> String {
    let cpus = if limits.cpus.is_some() {
        fake_proc::processors(limits).to_string()
    } else {
        "all".to_owned()
    };
    format!(
        "memory {}, CPUs {cpus}: in /proc/meminfo, cpuinfo and stat, and in /sys",
        limits.memory
    )
}

/// Only with a CPU limit.
fn affinity(plan: &ProgramPlan) -> Option<ExplainLine> {
    plan.cpus.map(|count| {
        line(
            Step::Affinity,
            format!("CPUs {count}: a hint to programs, not a limit"),
        )
    })
}

pub(crate) fn program_plan(plan: &ProgramPlan) -> Vec<ExplainLine> {
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
    let exec_args = plan.exec_args.as_ref();
    let names: Vec<_> = exec_args
        .iter()
        .flat_map(|exec_args| &exec_args.env)
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
            format!("{} instructions", init::seccomp::program().len()),
        ),
        line(Step::EmptyEnvironment, names.join(" ")),
        line(
            Step::Exec,
            exec_args
                .map(|exec_args| join(&exec_args.argv))
                .unwrap_or_default(),
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
