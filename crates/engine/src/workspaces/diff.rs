//! What a program changed in its layer, and for each change what stands against taking it over: it has no place in a
//! folder, or the folder has changed there, too.

use super::{
    base::{Base, Entry},
    commit::DRAFT,
    tree::{self, Kind, Seen, Version, Walked},
};
use rustix::fs::OFlags;
use sandbox::native::protect;
use spec::ProtectedNames;
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{fd::BorrowedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// The largest file that is taken over.
pub(super) const MOST_FILE_BYTES: u64 = 4 << 30;
/// Some clocks of file systems stand still for this long: two versions within it may look alike.
const TICK_NANOSECONDS: i128 = 20_000_000;

/// What happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// It is new.
    Added,
    /// A file has other contents, or a link another target.
    Changed,
    /// It is gone.
    Removed,
    /// It is now something else: a folder instead of a file, say.
    Replaced,
    /// Only its permissions are others.
    Mode,
}

/// One change of a program's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Relative to the workspace; any bytes, as the program chose them.
    pub path: PathBuf,
    /// What happened.
    pub what: What,
    /// What it is now; what it was, if it is gone.
    pub kind: Kind,
    /// Its permissions now.
    pub mode: u32,
    /// The size of a file now.
    pub size_bytes: u64,
    /// Where a link points now. Never followed.
    pub target: Option<OsString>,
    /// Why it is never taken over.
    pub left_out: Option<String>,
    /// Why it is taken over only by force.
    pub conflict: Option<String>,
}

/// What came of comparing.
#[derive(Debug)]
pub(super) struct Compared {
    /// Sorted by path.
    pub(super) changes: Vec<Change>,
    /// Folders that could not be looked into, and why.
    pub(super) unknown: Vec<(PathBuf, String)>,
}

/// Everything there is to compare.
pub(super) struct Sides<'a> {
    pub(super) base: &'a Base,
    pub(super) layer: BorrowedFd<'a>,
    /// The folder itself, where it can be had.
    pub(super) folder: Option<BorrowedFd<'a>>,
    pub(super) protected: &'a ProtectedNames,
}

impl Sides<'_> {
    /// The changes, sorted by path, and folders that could not be looked into.
    pub(super) fn compare(&self) -> io::Result<Compared> {
        let walked = tree::walk(self.layer)?;
        let newest = self
            .base
            .values()
            .map(|entry| nanoseconds(entry.copy.changed))
            .max()
            .unwrap_or(0);
        let obeyed = self.obeyed_by_links();
        let names: BTreeSet<&PathBuf> = self.base.keys().chain(walked.entries.keys()).collect();
        let mut changes = Vec::new();
        for path in names {
            let change = match (self.base.get(path), walked.entries.get(path)) {
                (None, Some(now)) => Some((What::Added, now.clone())),
                (Some(was), None) => self.removed(path, was, &walked),
                (Some(was), Some(now)) => self
                    .differs(path, was, now, newest)
                    .map(|what| (what, now.clone())),
                (None, None) => None,
            };
            changes.extend(change.map(|(what, now)| self.change(path, what, now, &obeyed)));
        }
        self.leave_out(&mut changes);
        for change in &mut changes {
            change.conflict = self.conflict(change);
        }
        Ok(Compared {
            changes,
            unknown: walked.unknown.into_iter().collect(),
        })
    }

    fn removed(&self, path: &Path, was: &Entry, walked: &Walked) -> Option<(What, Seen)> {
        let unknown = path
            .ancestors()
            .any(|above| walked.unknown.contains_key(above));
        // What was never shown cannot have been removed.
        let shown = was.kind != Kind::Other;
        let target = Some(was.target.clone()).filter(|_| was.kind == Kind::Link);
        let gone = Seen {
            kind: was.kind,
            mode: was.mode,
            version: was.base,
            target,
        };
        (shown && !unknown).then_some((What::Removed, gone))
    }

    fn differs(&self, path: &Path, was: &Entry, now: &Seen, newest: i128) -> Option<What> {
        // What stands for something hidden, untouched.
        if was.kind == Kind::Other && was.copy != Version::default() && now.version == was.copy {
            return None;
        }
        if was.kind != now.kind || was.kind == Kind::Other {
            return Some(What::Replaced);
        }
        let changed = match now.kind {
            Kind::File => self.has_other_contents(path, was, now, newest),
            Kind::Link => now.target.as_ref() != Some(&was.target),
            Kind::Folder | Kind::Other => false,
        };
        match (changed, now.kind != Kind::Link && now.mode != was.mode) {
            (true, _) => Some(What::Changed),
            (false, true) => Some(What::Mode),
            (false, false) => None,
        }
    }

    fn has_other_contents(&self, path: &Path, was: &Entry, now: &Seen, newest: i128) -> bool {
        let untouched = now.version == was.copy;
        let certain = newest - nanoseconds(was.copy.changed) > TICK_NANOSECONDS;
        if untouched && certain {
            return false;
        }
        if now.version.size != was.copy.size {
            return true;
        }
        // The folder is the other copy, as long as nobody changed it.
        let other = self.folder.filter(|folder| {
            tree::look(folder, path)
                .ok()
                .flatten()
                .is_some_and(|found| found.version == was.base)
        });
        match other {
            Some(folder) => !same_contents(self.layer, folder, path).unwrap_or(false),
            None => !untouched,
        }
    }

    fn change(&self, path: &Path, what: What, now: Seen, obeyed: &BTreeSet<PathBuf>) -> Change {
        let size_bytes = if now.kind == Kind::File {
            now.version.size
        } else {
            0
        };
        let left_out = self
            .reason_to_leave_out(path, what, &now)
            .or_else(|| leads_here(path, what, now.kind, obeyed));
        let Seen {
            kind, mode, target, ..
        } = now;
        Change {
            path: path.to_owned(),
            what,
            kind,
            mode,
            size_bytes,
            target,
            left_out,
            conflict: None,
        }
    }

    fn reason_to_leave_out(&self, path: &Path, what: What, now: &Seen) -> Option<String> {
        if let Some(reason) = self.protected(path) {
            return Some(reason);
        }
        if let Some(above) = self.repository_above(path) {
            let above = above.to_string_lossy().escape_debug().to_string();
            return Some(format!("`{above}` is a git repository"));
        }
        if what == What::Removed {
            return None;
        }
        if self.makes_repository(path) {
            return Some("it makes a git repository of its folder".to_owned());
        }
        if path
            .iter()
            .any(|part| part.as_bytes().starts_with(DRAFT.as_bytes()))
        {
            return Some(format!("names that begin with `{DRAFT}` are Airlock's own"));
        }
        match now.kind {
            Kind::Other => Some("it is a pipe, a socket or a device".to_owned()),
            Kind::Link => self.link_reason(path, now.target.as_deref().unwrap_or_default()),
            Kind::File if now.version.size > MOST_FILE_BYTES => {
                Some(format!("it is larger than {} GiB", MOST_FILE_BYTES >> 30))
            }
            Kind::File | Kind::Folder => None,
        }
    }

    /// What may not stay in a mounted workspace is not taken over either.
    fn protected(&self, path: &Path) -> Option<String> {
        let hit = protect::protects(path, self.protected)?;
        Some(format!("`{}` is protected: {}", hit.name, hit.reason))
    }

    /// Why a link is not taken over, if it is not. It may lead through one of the owner's, which may lead anywhere.
    fn link_reason(&self, path: &Path, target: &OsStr) -> Option<String> {
        self.link_reason_by_words(path, target).or_else(|| {
            let inside = protect::resolve_inside(path, target)?;
            inside.ancestors().find_map(|above| {
                let link = self.base.get(above).filter(|it| it.kind == Kind::Link)?;
                self.link_reason_by_words(above, &link.target)
            })
        })
    }

    fn link_reason_by_words(&self, path: &Path, target: &OsStr) -> Option<String> {
        let below = protect::find_below(path, self.protected);
        if let Some(hit) = below.filter(|_| !self.protected.allows(path)) {
            return Some(format!(
                "it is a link where `{}` begins, which is protected",
                hit.name
            ));
        }
        let Some(inside) = protect::resolve_inside(path, target) else {
            return Some("it is a link that could lead out of the folder".to_owned());
        };
        let hit = protect::protects(&inside, self.protected)?;
        Some(format!(
            "it is a link to `{}`, which is protected",
            hit.name
        ))
    }

    /// Whether this is one of the names by which git takes a folder for a repository that was none.
    fn makes_repository(&self, path: &Path) -> bool {
        let is_part = path.file_name().is_some_and(|name| {
            let mut parts = protect::REPOSITORY.iter();
            parts.any(|part| name.eq_ignore_ascii_case(part))
        });
        let has = |name: &str| {
            let path = path.with_file_name(name);
            matches!(tree::look(self.layer, &path), Ok(Some(_)))
        };
        is_part && !self.protected.allows(path) && protect::is_repository(has)
    }

    /// The bare repository of the folder's owner in which a path lies. All of it is as good as a `.git`.
    fn repository_above<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let mut above = path.ancestors().skip(1);
        let above = above.find(|folder| {
            let has = |name: &str| self.base.contains_key(&folder.join(name));
            !folder.as_os_str().is_empty() && protect::is_repository(has)
        });
        above.filter(|_| !self.protected.allows(path))
    }

    /// What protected links of the folder lead to: by their words, and as they are now.
    fn obeyed_by_links(&self) -> BTreeSet<PathBuf> {
        let links = self.base.iter().filter(|(path, entry)| {
            entry.kind == Kind::Link && protect::protects(path, self.protected).is_some()
        });
        let targets = links.flat_map(|(path, entry)| {
            let now = self.folder;
            let now = now.and_then(|folder| protect::target_inside(folder, path));
            [protect::resolve_inside(path, &entry.target), now]
        });
        let targets = targets.flatten();
        let targets = targets.filter(|it| !self.protected.allows(it));
        targets.collect()
    }

    /// What lies in a folder that is left out has no place either.
    fn leave_out(&self, changes: &mut [Change]) {
        let mut out: Option<PathBuf> = None;
        for change in changes {
            match &out {
                Some(above) if change.path.starts_with(above) && change.what != What::Removed => {
                    change
                        .left_out
                        .get_or_insert("the folder it is in is left out".to_owned());
                }
                _ if change.left_out.is_some() && change.what != What::Removed => {
                    out = Some(change.path.clone());
                }
                _ => {}
            }
        }
    }

    /// What the folder has there that the program did not see. That it is already as the program left it is no conflict:
    /// an earlier attempt may have come this far.
    pub(super) fn conflict(&self, change: &Change) -> Option<String> {
        let folder = self.folder?;
        let now = match tree::look(folder, &change.path) {
            Ok(now) => now,
            Err(source) => return Some(format!("it cannot be looked at in the folder: {source}")),
        };
        let was = self.base.get(&change.path);
        if self.is_done(folder, change, now.as_ref()) {
            return None;
        }
        match (was, now) {
            (None, None) => None,
            (None, Some(_)) => Some("it appeared in the folder meanwhile".to_owned()),
            (Some(_), None) if change.what == What::Replaced => None,
            (Some(_), None) => Some("it was removed from the folder meanwhile".to_owned()),
            (Some(was), Some(now)) if !is_still(was, &now) => {
                Some("it was changed in the folder meanwhile".to_owned())
            }
            (Some(was), Some(_)) => self.held(folder, change, was),
        }
    }

    /// A folder that shall go, but holds what the program did not see.
    fn held(&self, folder: BorrowedFd<'_>, change: &Change, was: &Entry) -> Option<String> {
        if was.kind != Kind::Folder || !matches!(change.what, What::Removed | What::Replaced) {
            return None;
        }
        let listed = tree::open(folder, &change.path, OFlags::RDONLY | OFlags::DIRECTORY);
        let names = match listed.and_then(|listed| tree::names(&listed)) {
            Ok(names) => names,
            Err(source) => return Some(format!("it cannot be read in the folder: {source}")),
        };
        let unseen = names.into_iter().find(|name| {
            self.base
                .get(&change.path.join(name))
                .is_none_or(|entry| entry.kind == Kind::Other)
        })?;
        let unseen = unseen.to_string_lossy().escape_debug().to_string();
        Some(format!(
            "it holds `{unseen}`, which the program has not seen"
        ))
    }

    /// Whether the folder already has it as the program left it.
    pub(super) fn is_done(
        &self,
        folder: BorrowedFd<'_>,
        change: &Change,
        now: Option<&Seen>,
    ) -> bool {
        let Some(now) = now else {
            return change.what == What::Removed;
        };
        if change.what == What::Removed || now.kind != change.kind {
            return false;
        }
        match change.kind {
            Kind::Folder => change.what == What::Added || now.mode == change.mode,
            Kind::Link => now.target == change.target,
            Kind::File => {
                now.mode == change.mode
                    && now.version.size == change.size_bytes
                    && same_contents(self.layer, folder, &change.path).unwrap_or(false)
            }
            Kind::Other => false,
        }
    }
}

/// Why a change is not taken over that would give a protected link another target.
fn leads_here(path: &Path, what: What, kind: Kind, obeyed: &BTreeSet<PathBuf>) -> Option<String> {
    let is_folder = kind == Kind::Folder && !matches!(what, What::Removed | What::Replaced);
    let mut obeyed = obeyed.iter();
    let is_obeyed = obeyed.any(|it| path.starts_with(it) || (!is_folder && it.starts_with(path)));
    is_obeyed.then(|| "a link with a protected name leads to it".to_owned())
}

/// Whether the folder has an entry as it was when the layer was made.
fn is_still(was: &Entry, now: &Seen) -> bool {
    was.kind == now.kind
        && match now.kind {
            Kind::File => was.base == now.version,
            Kind::Folder => was.mode == now.mode,
            Kind::Link => now.target.as_ref() == Some(&was.target),
            Kind::Other => false,
        }
}

/// Compares two regular files of the same path.
fn same_contents(one: BorrowedFd<'_>, other: BorrowedFd<'_>, path: &Path) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let (one, other) = (
        tree::open(one, path, flags)?,
        tree::open(other, path, flags)?,
    );
    let found = [rustix::fs::fstat(&one)?, rustix::fs::fstat(&other)?];
    if found.iter().any(|found| tree::kind(found) != Kind::File)
        || found[0].st_size != found[1].st_size
    {
        return Ok(false);
    }
    // No more than it had: it may grow.
    let size = found[0].st_size as u64;
    let (mut one, mut other) = (File::from(one).take(size), File::from(other).take(size));
    let (mut left, mut right) = (vec![0; 128 << 10], vec![0; 128 << 10]);
    loop {
        let (count, same) = (fill(&mut one, &mut left)?, fill(&mut other, &mut right)?);
        if count != same || left[..count] != right[..same] {
            return Ok(false);
        }
        if count == 0 {
            return Ok(true);
        }
    }
}

fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(again) if again.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(source),
        }
    }
    Ok(filled)
}

fn nanoseconds((seconds, nanoseconds): (i64, i64)) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}
