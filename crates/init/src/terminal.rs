//! Terminals of a sandbox: a devpts of its own, and pseudo-terminals in it. The host's terminal is
//! never inside, so no program of the sandbox can type into it or change it.

use crate::{
    plan::Ids,
    protocol::{self, Report},
    step::Step,
    template::{self, failure},
};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Pseudo-terminals of one sandbox. The kernel has a few thousand for the whole machine.
const MAX_TERMINALS: u32 = 16;

/// Mounts a devpts at `/dev/pts`; returns a descriptor opened through the mount point, so that
/// programs find their terminals by name.
pub(crate) fn mount(ids: Ids) -> io::Result<OwnedFd> {
    let [most, uid, gid] = [MAX_TERMINALS, ids.outer_uid, ids.outer_gid]
        .map(|number| CString::new(number.to_string()));
    let most = most?;
    let uid = uid?;
    let gid = gid?;
    let options = [
        (c"ptmxmode", c"0666"),
        (c"mode", c"0600"),
        (c"max", &most),
        (c"uid", &uid),
        (c"gid", &gid),
    ];
    let space = template::new_device_file_system(c"devpts", &options)?;
    template::attach(&space, &CWD, c"/dev/pts")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(CWD, c"/dev/pts", flags, Mode::empty())?)
}

/// Opens a pseudo-terminal; returns its master.
pub(crate) fn open(space: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::openat(space, c"ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&ours)?;
    Ok(ours)
}

/// Sends the master to the engine, or the reason of the failure.
pub(crate) fn answer(to: &OwnedFd, opened: io::Result<OwnedFd>) {
    // Without a reader nothing waits for it.
    _ = match opened {
        Ok(terminal) => protocol::send(to, &Report::Terminal, &[terminal.as_fd()]),
        Err(error) => protocol::send(
            to,
            &Report::Failed(failure(Step::Terminal, "ptmx")(error)),
            &[],
        ),
    };
}
