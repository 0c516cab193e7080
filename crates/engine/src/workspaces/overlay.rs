//! Reads the upper layer of an overlayfs mount: what the program wrote, removed and moved. Removals
//! and moves are recorded by the kernel in extended attributes that no program inside can set.
//!
//! ```text
//! file, link, folder     as the program left it            device 0:0        removed (whiteout)
//! folder + opaque        hides the lower folder            folder + redirect shows another lower folder
//! ```

use super::{
    base::{Baseline, BaselineEntry},
    tree::{self, FileKind, FileState, TreeContents, Version},
};
use crate::sparse;
use rustix::{
    fs::{Mode, OFlags, XattrFlags},
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// The longest attribute value.
const MAX_XATTR_BYTES: usize = 4096;
/// The temporary name of a copy-up. A program's own names may not have this prefix.
const MOVED: &str = ".airlock-commit-moved";
/// Set to test whether attributes are supported.
const TRIAL_XATTR: &str = "user.airlock";

/// The xattr namespace of the overlay's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XattrNamespace {
    /// `trusted.`, which only the host's root can set.
    Trusted,
    /// `user.`, which the kernel hides from programs.
    User,
}

impl XattrNamespace {
    /// The namespace of layers that this process creates.
    pub(super) fn ours() -> XattrNamespace {
        if rustix::process::geteuid().is_root() {
            XattrNamespace::Trusted
        } else {
            XattrNamespace::User
        }
    }

    fn opaque(self) -> &'static str {
        match self {
            XattrNamespace::Trusted => "trusted.overlay.opaque",
            XattrNamespace::User => "user.overlay.opaque",
        }
    }

    fn redirect(self) -> &'static str {
        match self {
            XattrNamespace::Trusted => "trusted.overlay.redirect",
            XattrNamespace::User => "user.overlay.redirect",
        }
    }
}

/// The contents of the upper layer.
#[derive(Debug, Default)]
pub(super) struct UpperLayer {
    /// What the program created, changed or moved, by its current path.
    pub(super) walked: TreeContents,
    /// The paths of the folder that were removed.
    pub(super) removed: BTreeSet<PathBuf>,
    /// Moved paths whose contents are still in the folder, with their old paths.
    pub(super) moved: BTreeMap<PathBuf, PathBuf>,
    /// Moved paths that cannot be copied up, and why.
    pub(super) stuck: BTreeMap<PathBuf, String>,
    /// Whether the kernel can move folders of the lower layer: then one may be in a folder that
    /// could not be read.
    pub(super) moves_folders: bool,
}

impl UpperLayer {
    /// Why a removed path must stay in the folder: a moved path still has its contents there.
    pub(super) fn reason_to_stay(&self, path: &Path, base: &Baseline) -> Option<&'static str> {
        let mut stuck = self.stuck.keys().filter_map(|new| self.moved.get(new));
        if stuck.any(|old| old.starts_with(path)) {
            return Some("what the program moved from here cannot be copied");
        }
        let is_folder = |above: &&Path| {
            let was = base.get(*above).map(|entry| entry.kind);
            was == Some(FileKind::Folder) && self.removed.contains(*above)
        };
        let may_be_moved = self.moves_folders
            && !self.walked.unknown.is_empty()
            && path.ancestors().find(is_folder).is_some();
        may_be_moved.then_some("it may have been moved into a folder that cannot be looked into")
    }
}

/// What a folder of the upper layer shows of the lower one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LowerSource {
    /// Nothing.
    Nothing,
    /// The contents of this folder.
    Folder(PathBuf),
}

/// Reads the upper layer. An error only if its top cannot be read.
pub(super) fn read(
    top: BorrowedFd<'_>,
    base: &Baseline,
    notes: XattrNamespace,
) -> io::Result<UpperLayer> {
    let mut walked = tree::walk(top)?;
    let mut reader = OverlayReader {
        base,
        lowers: BTreeMap::from([(PathBuf::new(), LowerSource::Folder(PathBuf::new()))]),
        hidden: BTreeSet::new(),
        upper: UpperLayer {
            moves_folders: notes == XattrNamespace::Trusted,
            ..UpperLayer::default()
        },
    };
    for (path, seen) in &walked.entries {
        let lower = match seen.kind {
            FileKind::Folder => reader.lower(top, path, notes)?,
            _ => LowerSource::Nothing,
        };
        reader.record_entry(path, seen, lower);
    }
    walked.entries.retain(|_, seen| !seen.is_whiteout);
    let moved = reader.find_moved();
    let OverlayReader { mut upper, .. } = reader;
    for (path, old) in moved {
        let Some(entry) = base.get(&old) else {
            continue;
        };
        walked.entries.insert(path.clone(), as_seen(entry));
        upper.moved.insert(path, old);
    }
    upper
        .removed
        .retain(|path| !walked.entries.contains_key(path));
    upper.walked = walked;
    Ok(upper)
}

fn as_seen(entry: &BaselineEntry) -> FileState {
    FileState {
        kind: entry.kind,
        mode: entry.mode,
        version: entry.base,
        target: Some(entry.target.clone()).filter(|_| entry.kind == FileKind::Link),
        is_whiteout: false,
    }
}

struct OverlayReader<'a> {
    base: &'a Baseline,
    /// The lower folders of the folders that were read so far.
    lowers: BTreeMap<PathBuf, LowerSource>,
    /// Paths that hide the lower layer.
    hidden: BTreeSet<PathBuf>,
    upper: UpperLayer,
}

impl OverlayReader<'_> {
    /// The lower folder of a folder.
    fn lower(
        &self,
        top: BorrowedFd<'_>,
        path: &Path,
        notes: XattrNamespace,
    ) -> io::Result<LowerSource> {
        let folder = tree::open(top, path, OFlags::RDONLY | OFlags::DIRECTORY);
        let folder = match folder {
            Ok(folder) => folder,
            // The program removed the owner's permissions: the folder is listed as unknown.
            Err(closed) if closed.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(LowerSource::Nothing);
            }
            Err(source) => return Err(source),
        };
        if read_xattr(&folder, notes.opaque())?.is_some() {
            return Ok(LowerSource::Nothing);
        }
        let redirect = read_xattr(&folder, notes.redirect())?;
        let above = path.parent().unwrap_or(Path::new(""));
        let Some(LowerSource::Folder(above)) = self.lowers.get(above) else {
            // Inside a folder that shows nothing, only an absolute redirect leads to a lower
            // folder.
            return Ok(match redirect.as_deref().and_then(absolute) {
                Some(old) => self.folder(old),
                None => LowerSource::Nothing,
            });
        };
        let old = match &redirect {
            Some(redirect) => {
                absolute(redirect).unwrap_or_else(|| above.join(OsStr::from_bytes(redirect)))
            }
            None => above.join(path.file_name().unwrap_or_default()),
        };
        Ok(self.folder(old))
    }

    fn folder(&self, old: PathBuf) -> LowerSource {
        let is_folder = self
            .base
            .get(&old)
            .is_some_and(|entry| entry.kind == FileKind::Folder);
        if is_folder {
            LowerSource::Folder(old)
        } else {
            LowerSource::Nothing
        }
    }

    /// Records what this entry removes of the lower layer.
    fn record_entry(&mut self, path: &Path, seen: &FileState, lower: LowerSource) {
        let shows_itself = lower == LowerSource::Folder(path.to_owned());
        if !shows_itself {
            let below = below(self.base, path).map(|(path, _)| path.to_owned());
            self.upper.removed.extend(below);
            if seen.is_whiteout && self.base.contains_key(path) {
                self.upper.removed.insert(path.to_owned());
            }
        }
        if seen.kind == FileKind::Folder {
            self.lowers.insert(path.to_owned(), lower);
        } else {
            self.hidden.insert(path.to_owned());
        }
    }

    /// What moved folders show of the lower layer, by its current path.
    fn find_moved(&self) -> Vec<(PathBuf, PathBuf)> {
        let mut found = Vec::new();
        for (new, lower) in &self.lowers {
            let LowerSource::Folder(old) = lower else {
                continue;
            };
            if old == new {
                continue;
            }
            for (path, _) in below(self.base, old) {
                let Ok(rest) = path.strip_prefix(old) else {
                    continue;
                };
                let now = new.join(rest);
                if self.shows(&now, path) {
                    found.push((now, path.clone()));
                }
            }
        }
        found
    }

    /// Whether a path shows this path of the lower layer: no entry above it hides it.
    fn shows(&self, now: &Path, old: &Path) -> bool {
        if self.lowers.contains_key(now) {
            return false;
        }
        let mut olds = old.ancestors();
        for above in now.ancestors() {
            let old = olds.next();
            if self.hidden.contains(above) {
                return false;
            }
            if let Some(lower) = self.lowers.get(above) {
                return old.is_some_and(|old| *lower == LowerSource::Folder(old.to_owned()));
            }
        }
        false
    }
}

/// Copies everything that was moved up into the layer, from the folder; returns what cannot be
/// copied, and why. A file that was changed in the folder meanwhile stays, unless `force`. Called
/// with the credentials of the folder's owner, once the sandbox is gone.
pub(super) fn copy_up(
    upper: &UpperLayer,
    base: &Baseline,
    layer: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    force: bool,
) -> BTreeMap<PathBuf, String> {
    let (mut folders, mut stuck) = (Vec::new(), BTreeMap::new());
    for (path, old) in &upper.moved {
        let Some(entry) = base.get(old) else {
            continue;
        };
        match copy_up_entry(old, entry, (layer, path), folder, force) {
            Ok(()) if entry.kind == FileKind::Folder => folders.push((path, entry.mode)),
            Ok(()) => {}
            Err(source) => _ = stuck.insert(path.clone(), source.to_string()),
        }
    }
    // Deepest first: a folder may be closed to its owner.
    for (path, mode) in folders.into_iter().rev() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let closed = tree::open(layer, path, flags)
            .and_then(|made| Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(mode))?));
        if let Err(source) = closed {
            stuck.insert(path.clone(), source.to_string());
        }
    }
    stuck
}

fn copy_up_entry(
    old: &Path,
    entry: &BaselineEntry,
    (layer, path): (BorrowedFd<'_>, &Path),
    folder: BorrowedFd<'_>,
    force: bool,
) -> io::Result<()> {
    let (above, name) = tree::parent(layer, path)?;
    let made = match entry.kind {
        FileKind::Folder => rustix::fs::mkdirat(&above, name, Mode::RWXU),
        FileKind::Link => rustix::fs::symlinkat(&*entry.target, &above, name),
        FileKind::File => return copy_up_file(folder, old, entry, (&above, name), force),
        FileKind::Other => Ok(()),
    };
    match made {
        // An earlier attempt may have created it.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(source) => Err(source.into()),
    }
}

fn copy_up_file(
    folder: BorrowedFd<'_>,
    old: &Path,
    entry: &BaselineEntry,
    (above, name): (&OwnedFd, &OsStr),
    force: bool,
) -> io::Result<()> {
    let source = match tree::open(folder, old, OFlags::RDONLY | OFlags::NONBLOCK) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(()),
        source => File::from(source?),
    };
    let found = rustix::fs::fstat(&source)?;
    let is_same = Version::of(&found) == entry.base;
    if tree::kind(&found) != FileKind::File || !(is_same || force) {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let draft = File::from(tree::open(above, MOVED, flags)?);
    sparse::copy(&source, &draft, found.st_size as u64, &|| true)?;
    rustix::fs::fchmod(&draft, Mode::from_raw_mode(entry.mode))?;
    Ok(rustix::fs::renameat(above, MOVED, above, name)?)
}

/// The entries below a folder of the baseline.
fn below<'a>(
    base: &'a Baseline,
    folder: &Path,
) -> impl Iterator<Item = (&'a PathBuf, &'a BaselineEntry)> {
    let folder = folder.to_owned();
    base.range(folder.clone()..)
        .take_while({
            let folder = folder.clone();
            move |(path, _)| path.starts_with(&folder)
        })
        .filter(move |(path, _)| **path != folder)
}

/// An absolute redirect begins at the top of the layer.
fn absolute(redirect: &[u8]) -> Option<PathBuf> {
    let path = redirect.strip_prefix(b"/")?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

fn read_xattr(folder: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; MAX_XATTR_BYTES];
    match rustix::fs::fgetxattr(folder, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(source) => Err(source.into()),
    }
}

/// Whether the file system supports an upper layer.
pub(super) fn can_hold(folder: impl AsFd) -> Result<(), String> {
    let refused = |what: &str| Err(format!("{what} cannot hold an overlay's layer"));
    match rustix::fs::fstatfs(&folder).map(|found| found.f_type as u64 & 0xffff_ffff) {
        Ok(NFS) => return refused("NFS"),
        Ok(P9) => return refused("9p"),
        Ok(FAT | EXFAT) => return refused("FAT"),
        Ok(FUSE) => return refused("a file system in user space"),
        Ok(OVERLAY) => return refused("another overlay, like the disk of a container,"),
        Ok(_) => {}
        Err(source) => return Err(format!("its file system says nothing of itself: {source}")),
    }
    let tried = rustix::fs::fsetxattr(&folder, TRIAL_XATTR, b"", XattrFlags::empty())
        .and_then(|()| rustix::fs::fremovexattr(&folder, TRIAL_XATTR));
    tried.map_err(|source| format!("its file system takes no extended attributes: {source}"))
}

/// Whether every kernel that runs Airlock mounts an overlay over this folder. Kernels before 5.11 let
/// no ordinary user mount one.
pub(super) fn is_sure(folder: impl AsFd) -> bool {
    let found = rustix::fs::fstatfs(folder).map(|found| found.f_type as u64 & 0xffff_ffff);
    found.is_ok_and(is_common_lower) && (rustix::process::geteuid().is_root() || lets_users_mount())
}

/// Whether overlays are known to mount over a file system of this type. The kernel refuses those that
/// ignore letter case (FAT, exFAT, CIFS), and limits how deep overlays are stacked.
fn is_common_lower(file_system: u64) -> bool {
    [EXT, XFS, BTRFS, F2FS, TMPFS].contains(&file_system)
}

fn lets_users_mount() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    number().zip(number()) >= Some((5, 11))
}

const EXT: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const F2FS: u64 = 0xf2f5_2010;
const TMPFS: u64 = 0x0102_1994;
const NFS: u64 = 0x6969;
const P9: u64 = 0x0102_1997;
const FAT: u64 = 0x4d44;
const EXFAT: u64 = 0x2011_bab0;
const FUSE: u64 = 0x6573_5546;
const OVERLAY: u64 = 0x794c_7630;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_ignore_letter_case_are_copied_where_that_is_possible() {
        assert!(is_common_lower(EXT) && is_common_lower(TMPFS));
        for refused in [FAT, EXFAT, OVERLAY, 0xff53_4d42] {
            assert!(!is_common_lower(refused), "{refused:#x}");
        }
    }
}
