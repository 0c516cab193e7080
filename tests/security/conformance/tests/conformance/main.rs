//! Proofs of containment. Each runs a program in a real sandbox and compares what came of it; each denial has a
//! positive control, mostly the same attempt in a sandbox that lacks the one step.
//!
//! ```text
//! as root ── proofs ─▶ the same binary again as an ordinary user ── proofs
//! as a user ── proofs
//! ```
//!
//! All of them twice: in sandboxes made when they are needed, and (unless `AIRLOCK_UNPOOLED` is set) in those that an
//! engine made ahead. Then again in containers of a Docker and a Podman that are started for it, and as a user in those
//! of his own Podman; `containers.rs` says which not, and why. Their controls are boxes of our own.
//!
//! Environment: `AIRLOCK_PROBE` (path of the probe; else beside this binary), `AIRLOCK_EXPECT_CGROUP` (v1, v2 or
//! none; else found out) and `AIRLOCK_EXPECT_USER_CGROUP` (the same for the run as a user), `AIRLOCK_EXPECT_IDMAP`
//! (yes or no: whether root's folders can be idmapped; else found out), `AIRLOCK_EXPECT_REDIRECT` (yes or no: whether
//! the kernel has nf_tables; yes unless told), `AIRLOCK_TEST_USER` (`airlock-test` unless told, made if absent; `none` for
//! root alone), `AIRLOCK_TEST_FOLDER` (`/var/tmp` unless told).
//! `AIRLOCK_BACKENDS` (of native, docker, podman; all unless told), `AIRLOCK_FULL` (every row of every proof in containers,
//! too).
//! Arguments run only the proofs whose name contains one of them. Needs `sh`, `cat` and `busybox` (static); no python.

mod barriers;
mod containers;
mod denials;
mod files;
mod images;
mod lifetime;
mod limits;
mod machine;
mod network;
mod processes;
mod programs;
mod runner;
mod staying;
mod syscalls;
mod terminal;
mod transparent_proxy;
mod workspaces;
mod world;

use runner::Proof;

/// How many proofs there are as root and as an ordinary user. A proof that is lost must not go unnoticed.
const PROOFS: usize = 158;

fn all() -> Vec<Proof> {
    [
        barriers::proofs(),
        limits::proofs(),
        machine::proofs(),
        syscalls::proofs(),
        terminal::proofs(),
        programs::proofs(),
        lifetime::proofs(),
        processes::proofs(),
        files::proofs(),
        workspaces::proofs(),
        images::proofs(),
        network::proofs(),
        transparent_proxy::proofs(),
        denials::proofs(),
        staying::proofs(),
    ]
    .concat()
}

fn main() {
    // SAFETY: there is no other thread yet.
    unsafe { std::env::set_var(barriers::CANARY, "leaked") };
    std::process::exit(runner::run(&all(), PROOFS));
}
