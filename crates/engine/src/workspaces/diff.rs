//! Compares a layer with its baseline and its folder: finds the program's changes, and for each one
//! whether it must be left out, or conflicts with a change of the folder.

use super::{
    base::{Baseline, BaselineEntry},
    commit::DRAFT,
    overlay::UpperLayer,
    tree::{self, FileKind, FileState, PathLookup, TreeContents, Version},
};
use rustix::fs::OFlags;
use sandbox::native::{FileLease, LeaseKind, protect};
use spec::{HoldReason, ProtectedNames};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// The largest file that is committed.
pub(super) const MAX_COMMIT_FILE_BYTES: u64 = 4 << 30;
/// The granularity of file system timestamps: two versions within it may look alike.
const TICK_NANOSECONDS: i128 = 20_000_000;

/// Reasons of conflicts.
pub(super) const APPEARED: &str = "it appeared in the folder meanwhile";
pub(super) const REMOVED: &str = "it was removed from the folder meanwhile";
pub(super) const CHANGED: &str = "it was changed in the folder meanwhile";
pub(super) const WRITTEN: &str =
    "it is open for writing in the folder: close it there, then commit again";

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// A file has other contents, or a link has another target.
    Changed,
    /// It was removed.
    Removed,
    /// It has another type, such as a folder instead of a file.
    Replaced,
    /// Only its permissions differ.
    Mode,
}

/// A change of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerChange {
    /// Relative to the workspace; any bytes, as the program chose them.
    pub path: PathBuf,
    /// What happened.
    pub what: ChangeKind,
    /// The new type; the old one, if it was removed.
    pub kind: FileKind,
    /// The new permissions.
    pub mode: u32,
    /// The new size of a file.
    pub size_bytes: u64,
    /// The new target of a link, which is never followed.
    pub target: Option<OsString>,
    /// Why it is never committed.
    pub left_out: Option<String>,
    /// The reason as a code, if it has one.
    pub why: Option<HoldReason>,
    /// Why it is committed only with `force`.
    pub conflict: Option<String>,
}

/// A change with the facts by which it was assessed.
#[derive(Debug)]
pub(super) struct AssessedChange {
    pub(super) change: LayerChange,
    /// The version in the layer.
    pub(super) source: Version,
    /// The state in the folder.
    pub(super) found: Option<FileState>,
    /// Whether the folder has the program's version already.
    pub(super) is_done: bool,
}

/// The result of a comparison.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Sorted by path.
    pub(super) assessed: Vec<AssessedChange>,
    /// Unreadable folders, and why.
    pub(super) unknown: Vec<(PathBuf, String)>,
}

/// Why a change is left out.
struct LeaveOutReason {
    why: Option<HoldReason>,
    words: String,
}

fn protected(words: impl Into<String>) -> LeaveOutReason {
    LeaveOutReason {
        why: Some(HoldReason::ProtectedName),
        words: words.into(),
    }
}

/// The inputs of a comparison.
pub(super) struct Comparer<'a> {
    pub(super) base: &'a Baseline,
    pub(super) layer: BorrowedFd<'a>,
    /// The upper layer of an overlay; none for a copy.
    pub(super) upper: Option<&'a UpperLayer>,
    /// The folder, if it is available.
    pub(super) folder: Option<BorrowedFd<'a>>,
    pub(super) protected: &'a ProtectedNames,
}

impl Comparer<'_> {
    /// Compares; the changes are sorted by path.
    pub(super) fn compare(&self) -> io::Result<Comparison> {
        let whole;
        let (walked, names): (&TreeContents, BTreeSet<&PathBuf>) = match self.upper {
            Some(upper) => {
                let walked = &upper.walked;
                (
                    walked,
                    walked.entries.keys().chain(&upper.removed).collect(),
                )
            }
            None => {
                whole = tree::walk(self.layer)?;
                (
                    &whole,
                    self.base.keys().chain(whole.entries.keys()).collect(),
                )
            }
        };
        let newest = self
            .base
            .values()
            .map(|entry| nanoseconds(entry.copy.changed))
            .max()
            .unwrap_or(0);
        let obeyed = self.obeyed_by_links();
        let mut assessed = Vec::new();
        for path in names {
            let change = match (self.base.get(path), walked.entries.get(path)) {
                (None, Some(now)) => Some((ChangeKind::Added, now.clone())),
                (Some(was), None) if was.moved => None,
                (Some(was), None) => self.removed(path, was, walked),
                (Some(was), Some(now)) => self
                    .differs(path, was, now, newest)
                    .map(|what| (what, now.clone())),
                (None, None) => None,
            };
            assessed.extend(change.map(|(what, now)| self.assess(path, what, now, &obeyed)));
        }
        self.leave_out(&mut assessed);
        hold_folders_of_held(&mut assessed);
        if let Some(folder) = self.folder {
            let mut lookup = PathLookup::beneath(folder);
            assessed
                .iter_mut()
                .for_each(|one| self.find_conflict(one, folder, &mut lookup));
        }
        Ok(Comparison {
            assessed,
            unknown: walked.unknown.clone().into_iter().collect(),
        })
    }

    fn removed(
        &self,
        path: &Path,
        was: &BaselineEntry,
        walked: &TreeContents,
    ) -> Option<(ChangeKind, FileState)> {
        let unknown = path
            .ancestors()
            .any(|above| walked.unknown.contains_key(above));
        // What was never visible cannot have been removed.
        let shown = was.kind != FileKind::Other;
        let target = Some(was.target.clone()).filter(|_| was.kind == FileKind::Link);
        let gone = FileState {
            kind: was.kind,
            mode: was.mode,
            version: was.base,
            target,
            is_whiteout: false,
        };
        (shown && !unknown).then_some((ChangeKind::Removed, gone))
    }

    fn differs(
        &self,
        path: &Path,
        was: &BaselineEntry,
        now: &FileState,
        newest: i128,
    ) -> Option<ChangeKind> {
        // An unchanged placeholder of a hidden file.
        if was.kind == FileKind::Other && was.copy != Version::default() && now.version == was.copy
        {
            return None;
        }
        if was.kind != now.kind || was.kind == FileKind::Other {
            return Some(ChangeKind::Replaced);
        }
        let changed = match now.kind {
            FileKind::File => self.has_other_contents(path, was, now, newest),
            FileKind::Link => now.target.as_ref() != Some(&was.target),
            FileKind::Folder | FileKind::Other => false,
        };
        match (changed, now.kind != FileKind::Link && now.mode != was.mode) {
            (true, _) => Some(ChangeKind::Changed),
            (false, true) => Some(ChangeKind::Mode),
            (false, false) => None,
        }
    }

    fn has_other_contents(
        &self,
        path: &Path,
        was: &BaselineEntry,
        now: &FileState,
        newest: i128,
    ) -> bool {
        let untouched = now.version == was.copy;
        let certain = newest - nanoseconds(was.copy.changed) > TICK_NANOSECONDS;
        if untouched && certain {
            return false;
        }
        let known = match was.copy == Version::default() {
            true => was.base,
            false => was.copy,
        };
        if now.version.size != known.size {
            return true;
        }
        // The folder has the original, as long as nobody changed it.
        let other = self.folder.filter(|folder| {
            tree::try_stat(folder, path)
                .ok()
                .flatten()
                .is_some_and(|found| found.version == was.base)
        });
        match other {
            Some(folder) => !same_contents(self.layer, folder, path).unwrap_or(false),
            None => !untouched,
        }
    }

    fn assess(
        &self,
        path: &Path,
        what: ChangeKind,
        now: FileState,
        obeyed: &BTreeSet<PathBuf>,
    ) -> AssessedChange {
        let size_bytes = if now.kind == FileKind::File {
            now.version.size
        } else {
            0
        };
        let reason = self
            .reason_to_leave_out(path, what, &now)
            .or_else(|| link_target_reason(path, what, now.kind, obeyed));
        let (left_out, why) = match reason {
            Some(reason) => (Some(reason.words), reason.why),
            None => (None, None),
        };
        let FileState {
            kind,
            mode,
            target,
            version,
            ..
        } = now;
        let change = LayerChange {
            path: path.to_owned(),
            what,
            kind,
            mode,
            size_bytes,
            target,
            left_out,
            why,
            conflict: None,
        };
        AssessedChange {
            change,
            source: version,
            found: None,
            is_done: false,
        }
    }

    fn reason_to_leave_out(
        &self,
        path: &Path,
        what: ChangeKind,
        now: &FileState,
    ) -> Option<LeaveOutReason> {
        if let Some(reason) = self.protected(path) {
            return Some(reason);
        }
        if let Some(above) = self.repository_above(path) {
            let above = above.to_string_lossy().escape_debug().to_string();
            return Some(protected(format!("`{above}` is a git repository")));
        }
        if let Some(reason) = self.cannot_be_copied(path, what) {
            return Some(reason);
        }
        if what == ChangeKind::Removed {
            return None;
        }
        if self.makes_repository(path) {
            return Some(protected("it makes a git repository of its folder"));
        }
        if path
            .iter()
            .any(|part| part.as_bytes().starts_with(DRAFT.as_bytes()))
        {
            let words = format!("names that begin with `{DRAFT}` are Airlock's own");
            return Some(LeaveOutReason { why: None, words });
        }
        match now.kind {
            FileKind::Other => Some(LeaveOutReason {
                why: Some(HoldReason::SpecialFile),
                words: "it is a pipe, a socket or a device".to_owned(),
            }),
            FileKind::Link => self.link_reason(path, now.target.as_deref().unwrap_or_default()),
            FileKind::File if now.version.size > MAX_COMMIT_FILE_BYTES => Some(LeaveOutReason {
                why: None,
                words: format!("it is larger than {} GiB", MAX_COMMIT_FILE_BYTES >> 30),
            }),
            FileKind::File | FileKind::Folder => None,
        }
    }

    /// The reason for a moved path whose contents are still in the folder: neither the new name can
    /// be added nor the old one removed.
    fn cannot_be_copied(&self, path: &Path, what: ChangeKind) -> Option<LeaveOutReason> {
        let upper = self.upper?;
        let words = match what {
            ChangeKind::Removed => upper.reason_to_stay(path, self.base)?.to_owned(),
            _ => {
                let old = upper.moved.get(path)?.to_string_lossy();
                let (old, why) = (old.escape_debug(), upper.stuck.get(path)?);
                format!("it was `{old}`, and cannot be copied from there: {why}")
            }
        };
        let why = Some(HoldReason::Unreadable);
        Some(LeaveOutReason { why, words })
    }

    /// What is protected in a mounted workspace is not committed either.
    fn protected(&self, path: &Path) -> Option<LeaveOutReason> {
        let hit = protect::protects(path, self.protected)?;
        Some(protected(format!(
            "`{}` is protected: {}",
            hit.name, hit.reason
        )))
    }

    /// Why a link is left out. It may lead through a link of the folder, which may lead anywhere.
    fn link_reason(&self, path: &Path, target: &OsStr) -> Option<LeaveOutReason> {
        self.link_reason_by_words(path, target).or_else(|| {
            let inside = protect::resolve_inside(path, target)?;
            inside.ancestors().find_map(|above| {
                let link = self
                    .base
                    .get(above)
                    .filter(|it| it.kind == FileKind::Link)?;
                self.link_reason_by_words(above, &link.target)
            })
        })
    }

    fn link_reason_by_words(&self, path: &Path, target: &OsStr) -> Option<LeaveOutReason> {
        let why = Some(HoldReason::LinkToProtected);
        let below = protect::find_below(path, self.protected);
        if let Some(hit) = below.filter(|_| !self.protected.allows(path)) {
            let words = format!(
                "it is a link where `{}` begins, which is protected",
                hit.name
            );
            return Some(LeaveOutReason { why, words });
        }
        let Some(inside) = protect::resolve_inside(path, target) else {
            return Some(LeaveOutReason {
                why: Some(HoldReason::LinkOut),
                words: "it is a link that could lead out of the folder".to_owned(),
            });
        };
        let hit = protect::protects(&inside, self.protected)?;
        let words = format!("it is a link to `{}`, which is protected", hit.name);
        Some(LeaveOutReason { why, words })
    }

    /// Whether the path is a name by which git takes its folder for a repository that was none.
    fn makes_repository(&self, path: &Path) -> bool {
        let is_part = path.file_name().is_some_and(|name| {
            let mut parts = protect::REPOSITORY.iter();
            parts.any(|part| name.eq_ignore_ascii_case(part))
        });
        let has = |name: &str| {
            let path = path.with_file_name(name);
            let below = self.upper.is_some() && self.base.contains_key(&path);
            below || matches!(tree::try_stat(self.layer, &path), Ok(Some(_)))
        };
        is_part && !self.protected.allows(path) && protect::is_repository(has)
    }

    /// The bare repository of the folder in which a path lies. All of it is protected like a
    /// `.git`.
    fn repository_above<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let mut above = path.ancestors().skip(1);
        let above = above.find(|folder| {
            let has = |name: &str| self.base.contains_key(&folder.join(name));
            !folder.as_os_str().is_empty() && protect::is_repository(has)
        });
        above.filter(|_| !self.protected.allows(path))
    }

    /// The targets of protected links in the folder: lexically, and as they resolve now.
    fn obeyed_by_links(&self) -> BTreeSet<PathBuf> {
        let links = self.base.iter().filter(|(path, entry)| {
            entry.kind == FileKind::Link && protect::protects(path, self.protected).is_some()
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

    /// Leaves out the contents of folders that are left out.
    fn leave_out(&self, assessed: &mut [AssessedChange]) {
        let mut out: Option<(PathBuf, Option<HoldReason>)> = None;
        let stay = assessed.iter_mut().map(|one| &mut one.change);
        for change in stay.filter(|change| change.what != ChangeKind::Removed) {
            let above = out
                .as_ref()
                .filter(|(above, _)| change.path.starts_with(above));
            match (above, &change.left_out) {
                (Some((_, why)), None) => {
                    change.left_out = Some("the folder it is in is left out".to_owned());
                    change.why = *why;
                }
                (None, Some(_)) => out = Some((change.path.clone(), change.why)),
                (Some(_), Some(_)) | (None, None) => {}
            }
        }
    }

    /// Compares a change with the folder. A path that is already as the program left it is no
    /// conflict: the host may have made the same change.
    fn find_conflict(
        &self,
        one: &mut AssessedChange,
        folder: BorrowedFd<'_>,
        lookup: &mut PathLookup<'_>,
    ) {
        let change = &one.change;
        match lookup.try_stat(&change.path) {
            Ok(found) => one.found = found,
            Err(source) => {
                let reason = format!("it cannot be looked at in the folder: {source}");
                one.change.conflict = Some(reason);
                return;
            }
        }
        let moved_away = self.moved_away(folder, &change.path);
        one.is_done = moved_away.is_none() && self.is_done(folder, change, one.found.as_ref());
        if !one.is_done {
            let conflict = moved_away.or_else(|| self.conflict(one, folder, lookup));
            one.change.conflict = conflict;
        }
    }

    /// How the folder differs from what the program saw.
    fn conflict(
        &self,
        one: &AssessedChange,
        folder: BorrowedFd<'_>,
        lookup: &mut PathLookup<'_>,
    ) -> Option<String> {
        let change = &one.change;
        match (self.base.get(&change.path), &one.found) {
            (None, None) => None,
            (None, Some(_)) => Some(APPEARED.to_owned()),
            (Some(_), None) if change.what == ChangeKind::Replaced => None,
            (Some(_), None) => Some(REMOVED.to_owned()),
            (Some(was), Some(now)) if !is_still(was, now) => Some(CHANGED.to_owned()),
            (Some(was), Some(now)) => self
                .unseen_contents(folder, change, was)
                .or_else(|| is_written(change, now, lookup).then(|| WRITTEN.to_owned())),
        }
    }

    /// The conflict of a moved path whose original was changed in the folder.
    fn moved_away(&self, folder: BorrowedFd<'_>, path: &Path) -> Option<String> {
        let old = self.upper?.moved.get(path)?;
        let was = self
            .base
            .get(old)
            .filter(|was| was.kind == FileKind::File)?;
        let now = tree::try_stat(folder, old).ok().flatten();
        let is_as_it_was = now.is_some_and(|now| is_still(was, &now));
        let old = old.to_string_lossy().escape_debug().to_string();
        (!is_as_it_was)
            .then(|| format!("it was `{old}`, which was changed in the folder meanwhile"))
    }

    /// The conflict of a folder that is to be removed but has contents that the program did not
    /// see.
    fn unseen_contents(
        &self,
        folder: BorrowedFd<'_>,
        change: &LayerChange,
        was: &BaselineEntry,
    ) -> Option<String> {
        if was.kind != FileKind::Folder
            || !matches!(change.what, ChangeKind::Removed | ChangeKind::Replaced)
        {
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
                .is_none_or(|entry| entry.kind == FileKind::Other)
        })?;
        let unseen = unseen.to_string_lossy().escape_debug().to_string();
        Some(format!(
            "it holds `{unseen}`, which the program has not seen"
        ))
    }

    /// Whether the folder has the program's version already.
    fn is_done(
        &self,
        folder: BorrowedFd<'_>,
        change: &LayerChange,
        now: Option<&FileState>,
    ) -> bool {
        let Some(now) = now else {
            return change.what == ChangeKind::Removed;
        };
        if change.what == ChangeKind::Removed || now.kind != change.kind {
            return false;
        }
        match change.kind {
            FileKind::Folder => change.what == ChangeKind::Added || now.mode == change.mode,
            FileKind::Link => now.target == change.target,
            FileKind::File => {
                let was = self.base.get(&change.path);
                // The comparison has found a difference already.
                let differs = change.what == ChangeKind::Changed
                    && was.is_some_and(|was| was.base == now.version);
                !differs
                    && now.mode == change.mode
                    && now.version.size == change.size_bytes
                    && same_contents(self.layer, folder, &change.path).unwrap_or(false)
            }
            FileKind::Other => false,
        }
    }
}

/// Leaves out the removal of folders in which something stays since its own removal is left out.
fn hold_folders_of_held(assessed: &mut [AssessedChange]) {
    let is_held =
        |change: &&LayerChange| change.what == ChangeKind::Removed && change.left_out.is_some();
    let mut held_in: BTreeMap<PathBuf, (PathBuf, Option<HoldReason>)> = BTreeMap::new();
    for held in assessed.iter().map(|one| &one.change).filter(is_held) {
        for folder in held.path.ancestors().skip(1) {
            // A folder that is listed has all folders above it listed, too.
            if held_in.contains_key(folder) {
                break;
            }
            held_in.insert(folder.to_owned(), (held.path.clone(), held.why));
        }
    }
    for change in assessed.iter_mut().map(|one| &mut one.change) {
        let goes = matches!(change.what, ChangeKind::Removed | ChangeKind::Replaced);
        let Some((held, why)) = held_in.get(&change.path).filter(|_| goes) else {
            continue;
        };
        if change.left_out.is_none() {
            let held = held.to_string_lossy().escape_debug().to_string();
            change.left_out = Some(format!("`{held}` in it is held back"));
            change.why = *why;
        }
    }
}

/// Whether a process has a file of the folder open for writing that the change replaces or removes.
/// For another user's file that is not known.
fn is_written(change: &LayerChange, now: &FileState, lookup: &mut PathLookup<'_>) -> bool {
    if now.kind != FileKind::File || change.what == ChangeKind::Mode {
        return false;
    }
    let Ok((Some(above), name)) = lookup.above(&change.path) else {
        return false;
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let is_blocked = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
    match tree::open(&above, name, flags) {
        Ok(file) => FileLease::take(file.as_fd(), LeaseKind::Read).is_err_and(is_blocked),
        Err(error) => is_blocked(error),
    }
}

/// The reason for a change that would retarget a protected link.
fn link_target_reason(
    path: &Path,
    what: ChangeKind,
    kind: FileKind,
    obeyed: &BTreeSet<PathBuf>,
) -> Option<LeaveOutReason> {
    let is_folder =
        kind == FileKind::Folder && !matches!(what, ChangeKind::Removed | ChangeKind::Replaced);
    let mut obeyed = obeyed.iter();
    let is_obeyed = obeyed.any(|it| path.starts_with(it) || (!is_folder && it.starts_with(path)));
    is_obeyed.then(|| protected("a link with a protected name leads to it"))
}

/// Whether the folder has an entry as it was in the baseline.
pub(super) fn is_still(was: &BaselineEntry, now: &FileState) -> bool {
    was.kind == now.kind
        && match now.kind {
            FileKind::File => was.base == now.version,
            FileKind::Folder => was.mode == now.mode,
            FileKind::Link => now.target.as_ref() == Some(&was.target),
            FileKind::Other => false,
        }
}

/// Whether two regular files at the same path have the same contents.
pub(super) fn same_contents(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    path: &Path,
) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    same_files(
        tree::open(one, path, flags)?,
        tree::open(other, path, flags)?,
    )
}

/// Whether two regular files have the same contents.
pub(super) fn same_files(one: OwnedFd, other: OwnedFd) -> io::Result<bool> {
    let found = [rustix::fs::fstat(&one)?, rustix::fs::fstat(&other)?];
    if found
        .iter()
        .any(|found| tree::kind(found) != FileKind::File)
        || found[0].st_size != found[1].st_size
    {
        return Ok(false);
    }
    // Up to the size at the start: the file may grow.
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
