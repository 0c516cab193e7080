//! Cases that the list of the suite does not have.

use crate::{
    Case, Control, Finding, NOT_A_USERS, Outcome, POWER, Peer, Trouble, case, oracle,
    world::{Ground, Place, each, mount},
};
use engine::Step;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spec::{Enforcer, LimitName, RunRequest};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

pub(crate) const CASES: &[Case] = &[
    case(
        "X1",
        "writing a protected file by its second name",
        second_name,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "X2",
        "a way around the filter: calls of 32-bit programs",
        foreign_call,
        Control::Without(&[Step::SyscallFilter]),
        Peer::Runs,
    ),
    case(
        "X3",
        "limits put on the first process of the box",
        limit_keeper,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "X4",
        "taking all inotify instances of the user",
        inotify,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "X5",
        "a set-id program left in the workspace",
        set_id_left,
        Control::Without(&[Step::SyscallFilter]),
        Peer::Runs,
    ),
    case(
        "X6",
        "pending signals and locked memory, counted for whoever starts the box",
        quotas,
        Control::Without(&[Step::ResourceLimits]),
        Peer::Runs,
    ),
    case(
        "X7",
        "real-time scheduling, a better priority",
        scheduling,
        Control::WithoutAsRoot(POWER, NOT_A_USERS),
        Peer::Runs,
    ),
    case(
        "X8",
        "huge pages, which no memory limit counts",
        huge_pages,
        Control::Without(&[Step::SyscallFilter]),
        Peer::Runs,
    ),
    case(
        "X12",
        "file locks, which no memory limit counts",
        file_locks,
        Control::WithoutCgroups(&[]),
        Peer::Runs,
    ),
    case(
        "X13",
        "packet filters, and locks that nobody could count",
        uncounted,
        Control::Without(&[Step::SyscallFilter]),
        Peer::Runs,
    ),
];

/// It cannot be prevented, so it must be told. The control: the name is not protected, and nothing is told.
fn second_name(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    let file = workspace.join(".envrc");
    fs::write(&file, "of the host")?;
    ground.give(&file)?;
    fs::hard_link(&file, workspace.join("second"))?;
    let allow_protected = if ground.is_control() {
        vec![".envrc".into()]
    } else {
        Vec::new()
    };
    let attack = ground.attack("write-places", ["/workspace/second"]);
    let request = RunRequest {
        workspace: Some(workspace),
        allow_protected,
        ..attack
    };
    let report = ground.run(request)?.finished()?;
    if fs::read_to_string(&file)? == "of the host" {
        return Ok(Finding::Nothing);
    }
    let notes = report.result.map(|result| result.notes).unwrap_or_default();
    let told = notes.into_iter().find(|note| note.contains(".envrc"));
    Ok(told.map_or_else(
        || Finding::Escape("`.envrc` was written".to_owned()),
        Finding::Reported,
    ))
}

/// The filter ends the process.
fn foreign_call(ground: &Ground<'_>) -> Outcome {
    let report = ground.run(ground.attack("foreign-call", [""; 0]))?;
    let signal = report.result.as_ref().and_then(|result| result.signal);
    match (signal, ground.is_control()) {
        (Some(libc::SIGSYS), _) => Ok(Finding::Nothing),
        (Some(_), true) => Err(Trouble::Missing(
            "a kernel that runs 32-bit programs".to_owned(),
        )),
        _ => Ok(report.finished()?.claims()),
    }
}

fn limit_keeper(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("limit-keeper", [""; 0]))?;
    let limited = oracle::first_processes(held.process()?)
        .into_iter()
        .any(|pid| {
            let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
            let line = limits
                .lines()
                .find_map(|line| line.strip_prefix("Max msgqueue size"));
            line.is_some_and(|line| line.split_whitespace().next() == Some("1"))
        });
    held.finish()?;
    Ok(match limited {
        true => Finding::Escape("the first process of the box was limited".to_owned()),
        false => Finding::Nothing,
    })
}

/// More than the quota of a box, less than what a user has.
const MOST_INSTANCES: usize = 40;

fn inotify(ground: &Ground<'_>) -> Outcome {
    if ground.containers().is_some() {
        let why = "quotas of a user namespace of its own, which no container engine sets";
        return Err(Trouble::Missing(why.to_owned()));
    }
    let held = ground.hold(ground.attack("inotify", ["60"]))?;
    let open = oracle::descriptors(held.process()?);
    held.finish()?;
    let count = open
        .iter()
        .filter(|(_, name)| name.contains("inotify"))
        .count();
    Ok(match count > MOST_INSTANCES {
        true => Finding::Escape(format!("{count} instances")),
        false => Finding::Nothing,
    })
}

/// On a file of the workspace's owner it would lend that owner's rights to everybody. The control is a mount: in a
/// workspace what passes the filter is cleared at the end.
fn set_id_left(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    let request = match ground.is_control() {
        false => RunRequest {
            workspace: Some(workspace.clone()),
            ..ground.attack("set-id-left", ["/workspace"])
        },
        true => {
            let mut request = ground.attack("set-id-left", ["/given"]);
            request.mounts.push(mount(&workspace, "/given", "rw"));
            request
        }
    };
    ground.run(request)?.finished()?;
    let lends = |path: &Path| {
        let found = fs::symlink_metadata(path);
        // An empty one, too: root writes to it later and the bits stay.
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o6000 != 0)
    };
    let left = fs::read_dir(&workspace)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| lends(path));
    Ok(left.map_or(Finding::Nothing, |path| {
        Finding::Escape(format!("`{}` has set-id bits", path.display()))
    }))
}

/// More than the share of a box, less than what would be missed.
const MOST_SIGNALS: u64 = 700;
const MOST_LOCKED_KIB: u64 = 256;
const LOCKED_KIB: u64 = 1024;

/// Signals that wait for processes of our user.
fn pending() -> u64 {
    let told = oracle::status(std::process::id(), "SigQ").unwrap_or_default();
    told.split('/')
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

fn quotas(ground: &Ground<'_>) -> Outcome {
    let most = getrlimit(Resource::Memlock).maximum;
    if ground.is_control() && most.is_some_and(|most| most < LOCKED_KIB << 10) {
        return Err(Trouble::Missing(
            "a limit of locked memory of 1 MiB or more".to_owned(),
        ));
    }
    let before = pending();
    let held = ground.hold(ground.attack("quotas", [LOCKED_KIB.to_string()]))?;
    let signals = pending().saturating_sub(before);
    let locked = oracle::status(held.process()?, "VmLck").unwrap_or_default();
    let locked: u64 = locked.trim_end_matches("kB").trim().parse().unwrap_or(0);
    held.finish()?;
    let signals = Finding::when(
        signals > MOST_SIGNALS,
        &format!("{signals} signals of its starter's share"),
    );
    let locked = Finding::when(
        locked > MOST_LOCKED_KIB,
        &format!("{locked} KiB of locked memory"),
    );
    each(
        ground,
        [
            ("signals".to_owned(), signals),
            ("memory".to_owned(), locked),
        ],
    )
}

/// Where a caller may have these, as musicians do, a box must not inherit them.
fn scheduling(ground: &Ground<'_>) -> Outcome {
    let kinds = [(Resource::Rtprio, 50), (Resource::Nice, 40)];
    let before = kinds.map(|(kind, _)| (kind, getrlimit(kind)));
    for (kind, most) in kinds {
        // Refused, the attack has less to start from.
        _ = setrlimit(
            kind,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        );
    }
    let held = ground.hold(ground.attack("scheduling", [""; 0]));
    for (kind, limit) in before {
        _ = setrlimit(kind, limit);
    }
    let held = held?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", held.process()?))?;
    held.finish()?;
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let field = |place: usize| {
        fields
            .get(place)
            .and_then(|text| text.parse::<i64>().ok())
            .unwrap_or(0)
    };
    // Counted from the state, which is the third.
    let (nice, policy) = (field(16), field(38));
    let parts = [
        (
            "real-time".to_owned(),
            Finding::when([1, 2].contains(&policy), "it runs in real time"),
        ),
        (
            "priority".to_owned(),
            Finding::when(nice < 0, &format!("its nice value is {nice}")),
        ),
    ];
    // A scheduler of groups may refuse real time to whomever.
    match ground.is_control() {
        true => Ok(parts
            .into_iter()
            .fold(Finding::Nothing, |found, (_, next)| found.or(|| next))),
        false => each(ground, parts),
    }
}

/// Over the limit, and what the host counts of them.
const LOCKS: u64 = 60_000;

/// Without a cgroup nobody knows whose processes to look at.
fn file_locks(ground: &Ground<'_>) -> Outcome {
    if ground.containers().is_some() && !ground.world.root {
        let why = "the right to look into the processes of a container";
        return Err(Trouble::Missing(why.to_owned()));
    }
    let calm = ground.run(ground.attack("plant", [""; 0]))?.finished()?;
    let by = calm
        .result
        .and_then(|result| result.enforced_by.get("memory").copied());
    let counted = matches!(by, Some(Enforcer::CgroupV1 | Enforcer::CgroupV2));
    if !counted && ground.place == Place::Airlock {
        return Err(Trouble::Missing("a cgroup for the box".to_owned()));
    }
    // It stays long enough to be looked at on a busy machine.
    let seconds = if ground.place == Place::Airlock {
        15
    } else {
        1
    };
    let request = ground.attack("file-locks", [LOCKS.to_string(), seconds.to_string()]);
    let marker = request.command[3].to_string_lossy().into_owned();
    let is_over = AtomicBool::new(false);
    let (report, seen) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| most_locks(&marker, &is_over));
        let report = ground.run(request);
        is_over.store(true, Ordering::Relaxed);
        (report, counting.join().unwrap_or(0))
    });
    let result = report?.result;
    let named = result.is_some_and(|result| result.limits_hit.contains(&LimitName::Memory));
    match (named, seen >= LOCKS) {
        (true, _) => Ok(Finding::Nothing),
        (false, true) => Ok(Finding::Escape(format!("{seen} locks"))),
        (false, false) => Err(Trouble::Broken(format!("only {seen} locks were seen"))),
    }
}

/// The most locks that an attack was seen with.
fn most_locks(marker: &str, is_over: &AtomicBool) -> u64 {
    let mut most = 0;
    while !is_over.load(Ordering::Relaxed) {
        most = most.max(oracle::locks_of(&oracle::attacks_with(marker)));
        std::thread::sleep(Duration::from_millis(20));
    }
    most
}

fn uncounted(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("uncounted", [""; 0]))?;
    let names = [
        "a filter",
        "a choice by filter",
        "a lock of an open file",
        "a table of files for a thread",
        "a table of files for two",
    ];
    each(ground, held.finish()?.claims_of(&names))
}

const POOL: &str = "/proc/sys/vm/nr_hugepages";

fn free_huge_pages() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// On a machine of its own some are set aside for it.
fn huge_pages(ground: &Ground<'_>) -> Outcome {
    let pool = fs::read_to_string(POOL).unwrap_or_default();
    let may_reserve = ground.world.root && ground.world.settings.dangerously_harm_this_machine;
    if may_reserve {
        fs::write(POOL, "16")?;
    }
    let before = free_huge_pages();
    let found = if before < 4 {
        Err(Trouble::Missing(
            "huge pages that are set aside and free".to_owned(),
        ))
    } else {
        ground
            .hold(ground.attack("huge-pages", [""; 0]))
            .and_then(|held| {
                let taken = before.saturating_sub(free_huge_pages());
                held.finish()?;
                Ok(Finding::when(taken > 0, &format!("{taken} huge pages")))
            })
    };
    if may_reserve {
        fs::write(POOL, pool)?;
    }
    found
}
