//! The metadata of committed files: permissions, mtime, and a limited number of `user.` extended
//! attributes.

use super::tree;
use rustix::{
    fs::{Mode, OFlags, Timespec, Timestamps, UTIME_OMIT},
    io::Errno,
};
use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The most attributes of a file, and the longest value.
const MAX_COUNT: usize = 16;
const MAX_BYTES: usize = 4096;
/// The most bytes of all names, which is the kernel's limit.
const MAX_NAMES: usize = 64 << 10;
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// The names of all visible attributes, NUL-terminated.
fn names(file: impl AsFd) -> io::Result<Vec<u8>> {
    let mut names = vec![0; 1024];
    loop {
        match rustix::fs::flistxattr(&file, &mut names[..]) {
            Ok(length) => {
                names.truncate(length);
                return Ok(names);
            }
            Err(Errno::RANGE) if names.len() < MAX_NAMES => {
                names.resize(MAX_NAMES, 0);
            }
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(source) => return Err(source.into()),
        }
    }
}

fn each(names: &[u8]) -> impl Iterator<Item = &CStr> {
    let names = names.split_inclusive(|byte| *byte == 0);
    names.filter_map(|name| CStr::from_bytes_with_nul(name).ok())
}

/// The overlay's own attributes are not the user's.
fn is_users(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.starts_with(b"user.") && !name.starts_with(b"user.overlay.")
}

/// Whether a file has only attributes that are kept: then the file itself may be moved.
pub(super) fn has_only_kept(file: impl AsFd) -> io::Result<bool> {
    let names = names(&file)?;
    if names.is_empty() {
        return Ok(true);
    }
    if each(&names).count() > MAX_COUNT || !each(&names).all(is_users) {
        return Ok(false);
    }
    for name in each(&names) {
        let mut nothing: [u8; 0] = [];
        if rustix::fs::fgetxattr(&file, name, &mut nothing)? > MAX_BYTES {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Copies the attributes that are kept; returns the number of the user's attributes that are not.
pub(super) fn copy(from: impl AsFd, to: impl AsFd) -> io::Result<usize> {
    let names = names(&from)?;
    let (mut kept, mut beyond) = (0, 0);
    for name in each(&names).filter(|name| is_users(name)) {
        let mut value = vec![0; MAX_BYTES];
        let length = match rustix::fs::fgetxattr(&from, name, &mut value[..]) {
            Ok(length) if kept < MAX_COUNT => length,
            Ok(_) | Err(Errno::RANGE) => {
                beyond += 1;
                continue;
            }
            // It was removed meanwhile.
            Err(Errno::NODATA) => continue,
            Err(source) => return Err(source.into()),
        };
        let set =
            rustix::fs::fsetxattr(&to, name, &value[..length], rustix::fs::XattrFlags::empty());
        match set {
            Ok(()) => kept += 1,
            // The folder's file system has no attributes, or no space for them.
            Err(Errno::OPNOTSUPP | Errno::NOSPC) => beyond += 1,
            Err(source) => return Err(source.into()),
        }
    }
    Ok(beyond)
}

/// Sets permissions; the set-group-ID bit of a folder is the host's and stays.
pub(super) fn set_folder_mode(folder: &OwnedFd, mode: u32) -> io::Result<()> {
    let found = rustix::fs::fstat(folder)?.st_mode & 0o7777;
    let wanted = mode | (found & 0o2000);
    if found != wanted {
        rustix::fs::fchmod(folder, Mode::from_raw_mode(wanted))?;
    }
    Ok(())
}

/// Sets the mtime and keeps the atime.
pub(super) fn set_modified(file: impl AsFd, (seconds, nanoseconds): (i64, i64)) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds as _,
            tv_nsec: nanoseconds as _,
        },
    };
    Ok(rustix::fs::futimens(file, &times)?)
}

/// Whether new files in a folder get a default ACL.
pub(super) fn has_default_acl(folder: &OwnedFd) -> io::Result<bool> {
    let folder = tree::open(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut nothing: [u8; 0] = [];
    match rustix::fs::fgetxattr(&folder, DEFAULT_ACL, &mut nothing) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(source) => Err(source.into()),
    }
}
