//! A terminal for the box: a pseudo-terminal file system of its own, and one terminal in it.
//! The host's terminal is never inside, so nothing in the box can type into it or change it.

use crate::{plan::Ids, template};
use rustix::fs::{CWD, Mode, OFlags};
use std::{ffi::CString, io, os::fd::OwnedFd};

/// Terminals in one box: its own, and some for programs that make more. The kernel has a few thousand for all.
const MOST: u32 = 16;

/// Mounts the file system at `/dev/pts` and opens a terminal there; its other end is the program's.
pub(crate) fn open(ids: Ids) -> io::Result<OwnedFd> {
    let [most, uid, gid] =
        [MOST, ids.outer_uid, ids.outer_gid].map(|number| CString::new(number.to_string()));
    let (most, uid, gid) = (most?, uid?, gid?);
    let options =
        [(c"ptmxmode", c"0666"), (c"mode", c"0600"), (c"max", &most), (c"uid", &uid), (c"gid", &gid)];
    let space = template::make_with_devices(c"devpts", &options)?;
    template::attach(&space, &CWD, c"/dev/pts")?;
    // Through the place where it is mounted, so that programs find their terminal by its name.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let ours = rustix::fs::openat(CWD, c"/dev/pts/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&ours)?;
    Ok(ours)
}
