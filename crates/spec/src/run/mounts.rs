//! Host folders and volumes that are mounted inside.

use super::{SpecError, error::shown, invalid};
use crate::{Id, InsidePath};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Mounts or volumes of one request.
const MAX_MOUNTS: usize = 64;

/// A host path that is mounted inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path on the host.
    pub host: PathBuf,
    /// The mount point inside.
    pub inside: InsidePath,
    /// Whether the program may write it.
    pub access: Access,
}

/// A volume of a container engine that is mounted inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name in the engine.
    pub name: Id,
    /// The mount point inside.
    pub inside: InsidePath,
    /// Whether the program may write it.
    pub access: Access,
}

/// Whether a mount is writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The program may only read it.
    ReadOnly,
    /// The program may write it.
    ReadWrite,
}

pub(super) fn check_mounts(texts: &[OsString]) -> Result<Vec<Mount>, SpecError> {
    if texts.len() > MAX_MOUNTS {
        return Err(invalid(
            format!("more than {MAX_MOUNTS} mounts"),
            "mount a common parent folder instead",
        ));
    }
    let mounts = texts
        .iter()
        .map(|text| mount(text))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    match mounts.iter().find(|mount| !seen.insert(&mount.inside)) {
        Some(repeated) => Err(invalid(
            format!(
                "`{}` is mounted twice",
                shown(repeated.inside.as_path().as_os_str())
            ),
            "give each --mount its own place inside",
        )),
        None => Ok(mounts),
    }
}

pub(super) fn check_volumes(
    texts: &[OsString],
    mounts: &[Mount],
) -> Result<Vec<Volume>, SpecError> {
    if texts.len() > MAX_MOUNTS {
        return Err(invalid(
            format!("more than {MAX_MOUNTS} volumes"),
            "use fewer",
        ));
    }
    let volumes = texts
        .iter()
        .map(|text| volume(text))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen: BTreeSet<_> = mounts.iter().map(|mount| &mount.inside).collect();
    match volumes.iter().find(|volume| !seen.insert(&volume.inside)) {
        Some(repeated) => Err(invalid(
            format!(
                "`{}` is mounted twice",
                shown(repeated.inside.as_path().as_os_str())
            ),
            "give each --mount and --volume its own place inside",
        )),
        None => Ok(volumes),
    }
}

/// `NAME:INSIDE[:ro|rw]`.
fn volume(text: &OsStr) -> Result<Volume, SpecError> {
    let Mount {
        host,
        inside,
        access,
    } = mount(text)?;
    let name = host.to_str().unwrap_or("\u{fffd}");
    let name = Id::new(name)
        .map_err(|bad| invalid(bad, "write --volume NAME:INSIDE, or NAME:INSIDE:rw"))?;
    Ok(Volume {
        name,
        inside,
        access,
    })
}

/// `HOST:INSIDE[:ro|rw]`. Split from the right, so that a colon in the host path needs no escape.
pub(super) fn mount(text: &OsStr) -> Result<Mount, SpecError> {
    let hint = "write --mount HOST:INSIDE, or HOST:INSIDE:rw to make it writable";
    let bytes = text.as_bytes();
    let (body, access) = match bytes {
        [body @ .., b':', b'r', b'w'] => (body, Access::ReadWrite),
        [body @ .., b':', b'r', b'o'] => (body, Access::ReadOnly),
        body => (body, Access::ReadOnly),
    };
    let bad = || invalid(format!("`{}` is not a mount", shown(text)), hint);
    let colon = body
        .iter()
        .rposition(|byte| *byte == b':')
        .ok_or_else(bad)?;
    let (host, inside) = (&body[..colon], &body[colon + 1..]);
    if host.is_empty() {
        return Err(bad());
    }
    let inside = InsidePath::new(Path::new(OsStr::from_bytes(inside))).map_err(|why| {
        invalid(
            why,
            "give --mount a place of its own inside, such as HOST:/data",
        )
    })?;
    Ok(Mount {
        host: PathBuf::from(OsStr::from_bytes(host)),
        inside,
        access,
    })
}
