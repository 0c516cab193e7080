//! Landlock: path rules as a second barrier behind the mounts, enforced by another part of the
//! kernel. Allocates nothing: it runs in a vfork child.

use crate::{
    plan::LandlockScope,
    sys::{self, LandlockAttr},
};
use rustix::fs::{CWD, Mode, OFlags};
use std::{
    ffi::{CStr, CString},
    io,
};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const FIRST_VERSION: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// Abstract sockets and signals outside the domain.
const SOCKETS: u64 = 1;
const SIGNALS: u64 = 1 << 1;

/// The access rights that this Landlock ABI version handles, and the size of its struct.
fn handled(version: u32, landlock_scope: LandlockScope) -> (LandlockAttr, usize) {
    let files = FIRST_VERSION
        | if version >= 2 { REFER } else { 0 }
        | if version >= 3 { TRUNCATE } else { 0 }
        | if version >= 5 { IOCTL_DEV } else { 0 };
    // Every program has a domain of its own. Where it may reach other programs of its sandbox,
    // namespaces keep it from all other processes.
    let scoped = match landlock_scope {
        _ if version < 6 => 0,
        LandlockScope::Isolated => SOCKETS | SIGNALS,
        LandlockScope::Signals => SOCKETS,
        LandlockScope::SignalsAndSockets => 0,
    };
    // Older kernels refuse a struct that is longer than theirs.
    let size = match version {
        0..=3 => 8,
        4..=5 => 16,
        _ => 24,
    };
    (
        LandlockAttr {
            files,
            net: 0,
            scoped,
        },
        size,
    )
}

/// Allows reading everywhere, writing below `writable` and to the devices of the sandbox, nothing
/// else.
pub(crate) fn restrict(
    version: u32,
    writable: &[CString],
    landlock_scope: LandlockScope,
) -> io::Result<()> {
    let (handled, size) = handled(version, landlock_scope);
    let all = handled.files;
    let ruleset = sys::landlock_ruleset(&handled, size)?;
    allow(&ruleset, c"/", EXECUTE | READ_FILE | READ_DIR)?;
    // Programs name their threads and change settings there; other files refuse by their mode.
    allow(
        &ruleset,
        c"/proc",
        READ_FILE | READ_DIR | (WRITE_FILE | TRUNCATE) & all,
    )?;
    // `/dev` holds only files of ours: the plain devices, and terminals where the sandbox has them.
    // One rule for each would take as long as entering all namespaces.
    allow(
        &ruleset,
        c"/dev",
        (READ_FILE | READ_DIR | WRITE_FILE | TRUNCATE | IOCTL_DEV) & all,
    )?;
    for path in writable {
        allow(&ruleset, path, all)?;
    }
    sys::landlock_restrict(&ruleset)
}

/// A rule for a file may only name rights of files, so it is narrowed for a mounted file.
fn allow(ruleset: &std::os::fd::OwnedFd, path: &CStr, access: u64) -> io::Result<()> {
    const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
    let below = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&below)?.st_mode);
    let access = if kind.is_dir() {
        access
    } else {
        access & FILE_RIGHTS
    };
    sys::landlock_allow(ruleset, &below, access)
}
