//! Cases that the list of the suite does not have.

use crate::{Case, Control, Found, Outcome, POWER, Peer, Trouble, case, oracle, world::Ground};
use engine::Step;
use spec::RunRequest;
use std::fs;

pub(crate) const CASES: &[Case] = &[
    case("X1", "writing a protected file by its second name", second_name, Control::Given, Peer::Runs),
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
    case("X4", "taking all inotify instances of the user", inotify, Control::Without(POWER), Peer::Runs),
];

/// It cannot be prevented, so it must be told. The control: the name is not protected, and nothing is told.
fn second_name(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    let file = workspace.join(".envrc");
    fs::write(&file, "of the host")?;
    ground.give(&file)?;
    fs::hard_link(&file, workspace.join("second"))?;
    let allow_protected = if ground.is_control() { vec![".envrc".into()] } else { Vec::new() };
    let attack = ground.attack("write-places", ["/workspace/second"]);
    let request = RunRequest { workspace: Some(workspace), allow_protected, ..attack };
    let report = ground.run(request)?.finished()?;
    if fs::read_to_string(&file)? == "of the host" {
        return Ok(Found::Nothing);
    }
    let notes = report.result.map(|result| result.notes).unwrap_or_default();
    let told = notes.into_iter().find(|note| note.contains(".envrc"));
    Ok(told.map_or_else(|| Found::Escape("`.envrc` was written".to_owned()), Found::Reported))
}

/// The filter ends the process.
fn foreign_call(ground: &Ground<'_>) -> Outcome {
    let report = ground.run(ground.attack("foreign-call", [""; 0]))?;
    let signal = report.result.as_ref().and_then(|result| result.signal);
    match (signal, ground.is_control()) {
        (Some(libc::SIGSYS), _) => Ok(Found::Nothing),
        (Some(_), true) => Err(Trouble::Missing("a kernel that runs 32-bit programs".to_owned())),
        _ => Ok(report.finished()?.claims()),
    }
}

fn limit_keeper(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("limit-keeper", [""; 0]))?;
    let limited = oracle::first_processes(held.process()?).into_iter().any(|pid| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max msgqueue size"));
        line.is_some_and(|line| line.split_whitespace().next() == Some("1"))
    });
    held.finish()?;
    Ok(match limited {
        true => Found::Escape("the first process of the box was limited".to_owned()),
        false => Found::Nothing,
    })
}

/// More than the quota of a box, less than what a user has.
const MOST_INSTANCES: usize = 40;

fn inotify(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("inotify", ["60"]))?;
    let open = oracle::descriptors(held.process()?);
    held.finish()?;
    let count = open.iter().filter(|(_, name)| name.contains("inotify")).count();
    Ok(match count > MOST_INSTANCES {
        true => Found::Escape(format!("{count} instances")),
        false => Found::Nothing,
    })
}
