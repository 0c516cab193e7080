//! Terminals for the box: a pseudo-terminal file system of its own, and terminals in it.
//! The host's terminal is never inside, so nothing in the box can type into it or change it.

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

/// Terminals in one box: its own, and some for programs that make more. The kernel has a few thousand for all.
const MAX_TERMINALS: u32 = 16;

/// Mounts the file system at `/dev/pts`; a handle of it, through the place where it is mounted, so that programs find
/// their terminals by name.
pub(crate) fn mount(ids: Ids) -> io::Result<OwnedFd> {
    let [most, uid, gid] = [MAX_TERMINALS, ids.outer_uid, ids.outer_gid]
        .map(|number| CString::new(number.to_string()));
    let (most, uid, gid) = (most?, uid?, gid?);
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

/// Opens a terminal there; its other end is the program's.
pub(crate) fn open(space: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::openat(space, c"ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&ours)?;
    Ok(ours)
}

/// Hands one out to whoever asked, or says why not.
pub(crate) fn answer(to: &OwnedFd, opened: io::Result<OwnedFd>) {
    // Nobody to tell means that nobody waits.
    _ = match opened {
        Ok(terminal) => protocol::send(to, &Report::Terminal, &[terminal.as_fd()]),
        Err(error) => protocol::send(
            to,
            &Report::Failed(failure(Step::Terminal, "ptmx")(error)),
            &[],
        ),
    };
}
