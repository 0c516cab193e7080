//! For tests that look at everything below their process: it adopts what is orphaned there, and the tests of one
//! process take turns.

use crate::host;
use rustix::process::{Pid, WaitOptions};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

static TURN: Mutex<()> = Mutex::new(());

/// Takes the turn, and becomes the parent of whatever is orphaned below us.
pub fn take_turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .expect("we can adopt orphans");
    turn
}

fn own() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Reaps orphans that have ended. What a `Child` stands for must be waited for before.
pub fn reap() {
    for pid in host::zombies_of(own()) {
        // Somebody else may have been faster.
        _ = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
    }
}

/// The living processes below us.
pub fn below_us() -> BTreeSet<i32> {
    host::descendants(own())
}
