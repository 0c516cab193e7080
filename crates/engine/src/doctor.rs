//! `airlock doctor`: what this host can enforce, by asking the kernel and by running a real
//! sandbox.

use crate::Engine;
use sandbox::native::{InvokingUser, probe};
use spec::{Barrier, Enforcer, Policy, RunRequest, RunResult, Status};
use std::fs;

/// One check.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Check {
    /// The name, e.g. `user namespaces`.
    pub name: String,
    /// The result.
    pub state: CheckState,
    /// The details.
    pub detail: String,
    /// The names of the barriers that depend on it.
    pub barriers: Vec<&'static str>,
    /// The one command that fixes it, if there is anything to fix.
    pub remedy: Option<String>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// Available.
    Good,
    /// Runs work, but without these barriers or with a weaker form of them.
    Weaker,
    /// No run is possible.
    Missing,
}

/// The oldest kernel with everything that containment needs (RLIMIT_NPROC per user namespace came
/// last).
const MIN_KERNEL: (u32, u32) = (5, 14);

pub(crate) async fn examine(engine: &Engine) -> Vec<Check> {
    let trial = trial(engine).await;
    let mut checks = vec![kernel(), namespaces(engine, &trial), landlock()];
    checks.extend(
        engine
            .inner
            .native
            .cgroups()
            .findings()
            .into_iter()
            .map(limit_check),
    );
    checks.push(sandbox_check(&trial));
    checks.push(container_engine(engine).await);
    checks
}

fn check(name: &str, state: CheckState, detail: impl Into<String>, barriers: &[Barrier]) -> Check {
    let barriers = barriers.iter().map(|barrier| barrier.name()).collect();
    Check {
        name: name.to_owned(),
        state,
        detail: detail.into(),
        barriers,
        remedy: None,
    }
}

fn kernel() -> Check {
    let release = probe::kernel_release();
    let (major, minor) = MIN_KERNEL;
    match probe::kernel_version(&release) {
        Some(version) if version >= MIN_KERNEL => check("kernel", CheckState::Good, release, &[]),
        _ => Check {
            remedy: Some(format!(
                "install a kernel of version {major}.{minor} or newer"
            )),
            ..check(
                "kernel",
                CheckState::Missing,
                format!("{release}, older than {major}.{minor}"),
                &[],
            )
        },
    }
}

const NAMESPACE_BARRIERS: [Barrier; 7] = [
    Barrier::OwnUser,
    Barrier::OwnPid,
    Barrier::OwnMount,
    Barrier::OwnNet,
    Barrier::OwnIpc,
    Barrier::OwnUts,
    Barrier::OwnCgroup,
];

fn namespaces(engine: &Engine, trial: &RunResult) -> Check {
    let who = match engine.inner.native.invoking_user() {
        InvokingUser::Root(ids) => format!(
            "as root; programs are nobody outside (ids from {} on)",
            ids.first
        ),
        InvokingUser::User => "as an ordinary user; programs are this user outside".to_owned(),
    };
    let works = NAMESPACE_BARRIERS
        .iter()
        .all(|barrier| trial.barriers.contains(barrier));
    if works {
        check("namespaces", CheckState::Good, who, &NAMESPACE_BARRIERS)
    } else {
        Check {
            remedy: Some(namespace_remedy()),
            ..check(
                "namespaces",
                CheckState::Missing,
                format!("cannot be made {who}"),
                &NAMESPACE_BARRIERS,
            )
        }
    }
}

/// The usual causes, by how many distributions have them.
fn namespace_remedy() -> String {
    let reads =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let setting = if reads("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    } else if reads(
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
    ) {
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    } else if reads("/proc/sys/user/max_user_namespaces", "0") {
        "sudo sysctl -w user.max_user_namespaces=10000"
    } else {
        "in a container, start it with: --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
    };
    setting.to_owned()
}

fn landlock() -> Check {
    let barriers = [Barrier::PathRules];
    match probe::landlock_version() {
        0 => Check {
            remedy: Some(
                "boot with landlock in the kernel's lsm= list (Linux 5.13 or newer)".to_owned(),
            ),
            ..check(
                "Landlock",
                CheckState::Weaker,
                "the kernel has none",
                &barriers,
            )
        },
        version @ 1..=5 => {
            let detail = format!(
                "version {version}; abstract sockets and signals are scoped from version 6 on"
            );
            check("Landlock", CheckState::Good, detail, &barriers)
        }
        version => check(
            "Landlock",
            CheckState::Good,
            format!("version {version}"),
            &barriers,
        ),
    }
}

fn limit_check(finding: sandbox::native::cgroup::CgroupFinding) -> Check {
    let barrier = match finding.limit {
        "memory" => Barrier::MemoryLimit,
        "pids" => Barrier::PidsLimit,
        _ => Barrier::CpuLimit,
    };
    let by = match finding.enforcer {
        Enforcer::CgroupV2 => "by cgroup v2",
        Enforcer::CgroupV1 => "by cgroup v1",
        Enforcer::Rlimit => "for each process by resource limits",
        Enforcer::Nothing => "by nothing",
    };
    // Counted per user namespace, of which every sandbox has its own: as strong as a cgroup limit.
    let by_namespace = barrier == Barrier::PidsLimit && finding.enforcer == Enforcer::Rlimit;
    let by = if by_namespace {
        "by a resource limit that counts the whole box"
    } else {
        by
    };
    let good = by_namespace || matches!(finding.enforcer, Enforcer::CgroupV2 | Enforcer::CgroupV1);
    let state = if good {
        CheckState::Good
    } else {
        CheckState::Weaker
    };
    let (detail, remedy) = match &finding.obstacle {
        Some((why, remedy)) if !good => (format!("{by}: {why}"), Some((*remedy).to_owned())),
        _ => (by.to_owned(), None),
    };
    Check {
        remedy,
        ..check(
            &format!("{} limit", finding.limit),
            state,
            detail,
            &[barrier],
        )
    }
}

/// A missing container engine is not an error: only `--backend docker` and `podman` need one.
async fn container_engine(engine: &Engine) -> Check {
    let detail = match engine
        .inner
        .containers
        .identify(spec::Backend::Container)
        .await
    {
        Ok((name, socket)) => format!("{name} at {}", socket.display()),
        Err(_) => "none answers; only --backend docker and podman need one".to_owned(),
    };
    check("containers", CheckState::Good, detail, &[])
}

/// A minimal sandbox, which needs no more of the host than every run does.
async fn trial(engine: &Engine) -> RunResult {
    let command = ["sh", "-c", "exit 0"].map(Into::into).into();
    let spec = Policy::default().admit(RunRequest {
        command,
        ..RunRequest::default()
    });
    engine.run(spec.expect("a plain request is admitted")).await
}

fn sandbox_check(trial: &RunResult) -> Check {
    if trial.status == Status::Succeeded {
        let detail = format!("made, ran and removed in {} ms", trial.duration_ms);
        return check("a sandbox", CheckState::Good, detail, &[]);
    }
    let error = trial.error.as_ref();
    let detail = error.map_or_else(
        || format!("the trial ended with {}", trial.exit_status),
        |e| e.message.clone(),
    );
    let remedy = error.and_then(|error| error.hint.clone());
    Check {
        remedy,
        ..check("a sandbox", CheckState::Missing, detail, &[])
    }
}
