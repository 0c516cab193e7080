//! Group E: resources, and how boxes end.

use crate::{Case, Control, Found, Outcome, Peer, case, oracle, world::Ground};
use engine::Step;
use spec::{Maximum, RunRequest};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    case("E80", "a fork bomb", fork_bomb, Control::Given, Peer::Runs),
    case(
        "E83",
        "double fork, own session, deaf to signals",
        linger,
        Control::WithoutCgroups(&[Step::PidNamespace]),
        Peer::Runs,
    ),
];

/// What a box may have here; the control may have more than the bomb makes.
const PIDS: usize = 32;

fn fork_bomb(ground: &Ground<'_>) -> Outcome {
    let attack = ground.attack("fork", ["200"]);
    let pids = if ground.is_control() { 512 } else { PIDS as u32 };
    let limits = Maximum { pids: Some(pids), ..attack.limits.clone() };
    let held = ground.hold(RunRequest { limits, ..attack })?;
    let count = held.processes().len();
    held.finish()?;
    Ok(match count > PIDS {
        true => Found::Escape(format!("{count} processes at once")),
        false => Found::Nothing,
    })
}

/// How long after the end something of a box may still be seen.
const SOON: Duration = Duration::from_secs(1);

fn linger(ground: &Ground<'_>) -> Outcome {
    let attack = ground.attack("linger", ["4"]);
    let marker = attack.command[3].to_string_lossy().into_owned();
    ground.run(attack)?.finished()?;
    let end = Instant::now() + SOON;
    while !oracle::attacks_with(&marker).is_empty() {
        if Instant::now() > end {
            return Ok(Found::Escape("a process outlived its box".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Found::Nothing)
}
