//! The layer of an ordinary user's overlay on a workspace: the kernel refuses to rename a folder
//! there if it shows one of the lower folder. Root's overlays record the origin of such a folder
//! instead.

use super::super::UPPER;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// By this attribute a folder of the layer hides the lower folder.
const OPAQUE: &str = "user.overlay.opaque";

#[derive(Debug)]
pub(super) struct OverlayLayer {
    upper: OwnedFd,
    lower: OwnedFd,
}

impl OverlayLayer {
    /// None if it cannot be read: then the kernel alone decides.
    pub(super) fn open(folder: &Path, layer: &Path) -> Option<OverlayLayer> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(layer, flags, Mode::empty()).ok()?;
        Some(OverlayLayer {
            upper: rustix::fs::openat(top, UPPER, flags, Mode::empty()).ok()?,
            lower: rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?,
        })
    }

    /// Whether an existing folder shows one of the lower folder; none if that is unclear.
    pub(super) fn shows_lower(&self, path: &Path) -> Option<bool> {
        let mut above = self.upper.try_clone().ok()?;
        for name in path.components() {
            above = match open(&above, name.as_ref(), OFlags::RDONLY) {
                Ok(folder) if is_opaque(&folder)? => return Some(false),
                Ok(folder) => folder,
                Err(Errno::NOENT) => break,
                Err(_) => return None,
            };
        }
        match open(&self.lower, path, OFlags::PATH) {
            Ok(_) => Some(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Some(false),
            Err(_) => None,
        }
    }
}

fn open(from: &OwnedFd, path: &Path, how: OFlags) -> Result<OwnedFd, Errno> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(from, path, flags, Mode::empty(), resolve)
}

fn is_opaque(folder: impl AsFd) -> Option<bool> {
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(folder, OPAQUE, &mut value[..]) {
        Ok(length) => Some(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Some(false),
        Err(_) => None,
    }
}
