//! Puts the mounts of protected and hidden names back after a host tool has detached them: it
//! replaced the file by a rename, or removed the folder. Runs in a child of the launcher that is
//! born in the sandbox's pid namespace.
//!
//! ```text
//! programs stopped ─ mount namespace joined ─ each name mounted ─ programs go on ─ answer
//! ```

use crate::{
    pid1,
    plan::{RemountName, RemountPlan},
    protocol::{self, RemountedName, Report},
    step::Step,
    sys,
    template::failure,
};
use rustix::{
    fs::{CWD, FileType},
    thread::{ThreadNameSpaceType, move_into_thread_name_spaces},
    time::{ClockId, clock_gettime},
};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// The time that a rename may take after its first half is visible: half a second in all.
const MAX_TRIES: u32 = 2500;
const RETRY_AFTER: Duration = Duration::from_micros(200);

/// Runs the child to its end.
pub(crate) fn run(plan: &RemountPlan, mounts: BorrowedFd<'_>, answer: &OwnedFd) -> ! {
    let done = pid1::close_all_except(&[mounts, answer.as_fd()]).and_then(|()| {
        sys::stop_all();
        let done = remount(plan, mounts);
        sys::continue_all();
        done
    });
    // An engine that has closed its end has ended the sandbox, or is about to.
    _ = match done {
        Ok(mounted) => protocol::send(answer, &Report::Remounted(mounted), &[]),
        Err(error) => {
            let failed = failure(Step::Workspace, "protected names")(error);
            protocol::send(answer, &Report::Failed(failed), &[])
        }
    };
    sys::exit(0)
}

/// Returns the names that exist and are read-only again.
fn remount(plan: &RemountPlan, mounts: BorrowedFd<'_>) -> io::Result<Vec<RemountedName>> {
    move_into_thread_name_spaces(mounts, ThreadNameSpaceType::empty())?;
    let workspace = pid1::beneath(&CWD, c"/workspace")?;
    let mut mounted = Vec::new();
    for (number, name) in (0..).zip(&plan.names) {
        if mount(&workspace, name)? {
            mounted.push(look(&workspace, &name.path, number)?);
        }
    }
    Ok(mounted)
}

/// The state of the file, before a program continues and writes it through a descriptor that it
/// opened meanwhile.
fn look(workspace: &OwnedFd, path: &CStr, number: u32) -> io::Result<RemountedName> {
    let found = rustix::fs::fstat(pid1::beneath(workspace, path)?)?;
    let changed = (found.st_ctime as u64, found.st_ctime_nsec as u64);
    // A change in the same clock tick would not be visible.
    let is_over = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec as u64, now.tv_nsec as u64) > changed
    };
    for _ in 0..MAX_TRIES {
        if is_over() {
            break;
        }
        std::thread::sleep(RETRY_AFTER);
    }
    Ok(RemountedName {
        number,
        inode: found.st_ino,
        changed_seconds: changed.0,
        changed_nanoseconds: changed.1,
    })
}

/// Returns whether the name exists and is mounted now. The mount table changes before a rename or
/// removal is complete: until then the name leads to the old file, on which the kernel refuses
/// mounts.
fn mount(workspace: &OwnedFd, name: &RemountName) -> io::Result<bool> {
    for _ in 0..MAX_TRIES {
        let Some(place) = find(workspace, &name.path) else {
            return Ok(false);
        };
        let mounted = if name.hidden {
            pid1::hide(&place, pid1::NOTHING)
        } else {
            pid1::protect(&place)
        };
        match mounted {
            Ok(()) => return Ok(true),
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => std::thread::sleep(RETRY_AFTER),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// A symbolic link cannot be mounted onto itself; it is checked when the sandbox ends.
fn find(workspace: &OwnedFd, path: &CStr) -> Option<OwnedFd> {
    let place = pid1::beneath(workspace, path).ok()?;
    let found = rustix::fs::fstat(&place).ok()?;
    (FileType::from_raw_mode(found.st_mode) != FileType::Symlink).then_some(place)
}
