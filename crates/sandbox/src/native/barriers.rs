//! Which barriers are in force: concluded from the reported steps, and from nothing else.

use super::plan::InvokingUser;
use init::step::{Step, Steps};
use spec::{Access, Barrier, Enforcer, Network, SandboxSpec};
use std::collections::BTreeMap;

/// The barriers that these steps and limits amount to.
pub(crate) fn standing(
    done: Steps,
    spec: &SandboxSpec,
    enforcers: &BTreeMap<&'static str, Enforcer>,
    invoking_user: InvokingUser,
) -> Vec<Barrier> {
    let grouped = |limit| {
        matches!(
            enforcers.get(limit),
            Some(Enforcer::CgroupV1 | Enforcer::CgroupV2)
        )
    };
    let own_net = done.has(Step::NetNamespace) && done.has(Step::JoinNamespaces);
    let alone = own_net && done.has(Step::Doors) && spec.internal_network.is_none();
    let joined = |step| done.has(step) && done.has(Step::JoinNamespaces);
    let stands = |barrier: &Barrier| match barrier {
        Barrier::OwnUser => done.has(Step::EnterUserNamespace),
        // A process is born into its pid namespace; there is nothing to join.
        Barrier::OwnPid => done.has(Step::PidNamespace),
        Barrier::OwnMount => joined(Step::MountNamespace),
        Barrier::OwnNet => own_net,
        Barrier::OwnIpc => joined(Step::IpcNamespace),
        Barrier::OwnUts => joined(Step::UtsNamespace),
        Barrier::OwnCgroup => joined(Step::CgroupNamespace),
        Barrier::NoNetwork => alone && spec.doors.is_empty() && spec.transparent_ports.is_none(),
        // A door to every public host is a way out.
        Barrier::DoorsOnly => alone && spec.network == Network::Doors && !spec.reaches_any_host,
        Barrier::ReadOnlyRoot => {
            done.has(Step::ReadOnlyRoot) && done.has(Step::Proc) && !spec.writable_root
        }
        Barrier::NoCapabilities => done.has(Step::NoCapabilities),
        Barrier::NoNewPrivileges => done.has(Step::NoNewPrivileges),
        Barrier::SyscallFilter => done.has(Step::SyscallFilter),
        Barrier::PathRules => done.has(Step::PathRules),
        Barrier::MemoryLimit => grouped("memory"),
        // Without a cgroup by RLIMIT_NPROC, which counts per user namespace: each sandbox has its
        // own.
        Barrier::PidsLimit => {
            grouped("pids")
                || (done.has(Step::ResourceLimits) && done.has(Step::EnterUserNamespace))
        }
        Barrier::CpuLimit => grouped("cpu"),
        Barrier::DiskLimit => done.has(Step::Scratch) && !writes_to_host(spec),
        Barrier::EmptyEnvironment => done.has(Step::EmptyEnvironment),
        // An ordinary user's program is that user; root's has the user of the credentials step.
        Barrier::NotHostRoot => invoking_user == InvokingUser::User || done.has(Step::Credentials),
        Barrier::OwnKernel => false,
    };
    Barrier::ALL.iter().copied().filter(stands).collect()
}

/// Nothing limits the size of a host folder.
fn writes_to_host(spec: &SandboxSpec) -> bool {
    let mounts = spec.mounts.iter().map(|mount| mount.access);
    let mut all = mounts.chain(spec.volumes.iter().map(|volume| volume.access));
    spec.workspace.is_some() || all.any(|access| access == Access::ReadWrite)
}

/// The barriers that every run requires. Limits and Landlock depend on the host: they are missing
/// only where it lacks them, which the result says.
pub(crate) fn insisted(spec: &SandboxSpec) -> Vec<Barrier> {
    let mut all = vec![
        Barrier::OwnUser,
        Barrier::OwnPid,
        Barrier::OwnMount,
        Barrier::OwnIpc,
        Barrier::OwnUts,
        Barrier::OwnCgroup,
        Barrier::NoCapabilities,
        Barrier::NoNewPrivileges,
        Barrier::SyscallFilter,
        Barrier::EmptyEnvironment,
        Barrier::NotHostRoot,
    ];
    if !spec.writable_root {
        all.push(Barrier::ReadOnlyRoot);
    }
    match spec.network {
        Network::None | Network::Doors | Network::Open if spec.internal_network.is_some() => {
            all.push(Barrier::OwnNet)
        }
        Network::None => all.extend([Barrier::OwnNet, Barrier::NoNetwork]),
        Network::Doors if !spec.reaches_any_host => {
            all.extend([Barrier::OwnNet, Barrier::DoorsOnly])
        }
        Network::Doors | Network::Open => all.push(Barrier::OwnNet),
        Network::Host => {}
    }
    all
}
