//! Group B: interfaces of the kernel, and processes.

use crate::{Case, Control, Outcome, Peer, case, oracle, world::Ground};
use engine::Step;

pub(crate) const CASES: &[Case] = &[case(
    "B34",
    "io_uring, which no filter sees into",
    io_uring,
    Control::Without(&[Step::SyscallFilter]),
    Peer::Runs,
)];

fn io_uring(ground: &Ground<'_>) -> Outcome {
    let held = ground.hold(ground.attack("io-uring", [""; 0]))?;
    Ok(oracle::holds(held.process()?, "io_uring"))
}
