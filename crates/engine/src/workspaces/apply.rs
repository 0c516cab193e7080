//! Applies a plan to the folder. Each step is done already, can be done, or conflicts: a conflict
//! is left and reported.
//!
//! ```text
//! nothing there:    new file ─ rename without replacing ─▶ path
//! something there:  new file ◀─ exchange ─▶ old file ─ is it the expected one? ─ yes ─▶ removed
//!                                                                              └ no ──▶ exchanged back, a conflict
//! ```
//!
//! An existing file is never overwritten by a rename: it is exchanged out of its place and compared
//! there, so that a last-moment change of the host is not lost. New files are created beside their
//! place, or moved out of the layer.

mod place;
mod recovery;

use super::{
    base::{Baseline, BaselineEntry},
    commit::UnappliedChange,
    diff::{APPEARED, CHANGED, ChangeKind, LayerChange, REMOVED, same_contents},
    plan::{Action, ExpectedFile, Plan, PlanStep},
    tree::{self, FileKind, FileState, PathLookup, Version},
    xattrs::{self, has_default_acl, set_folder_mode, set_modified},
};
use crate::sparse;
use ::fs::Dir;
use rustix::{
    fs::{AtFlags, Mode, OFlags, Stat},
    io::Errno,
};
use sandbox::native::{FileLease, LeaseKind};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    rc::Rc,
};

const UNSEEN: &str = "it holds something that the program has not seen";
const NO_FOLDER: &str = "the folder that it belongs into is not there: make it, then commit again";

/// The result of applying a plan.
#[derive(Debug, Default)]
pub(super) struct ApplyOutcome {
    /// Sorted by path.
    pub(super) applied: Vec<LayerChange>,
    pub(super) left: Vec<UnappliedChange>,
    /// Whether data was written that would exist nowhere else once the layer is removed.
    pub(super) has_copied: bool,
    /// The number of extended attributes that were not copied.
    pub(super) attributes_left: usize,
}

/// Why a step was not done.
enum StepError {
    /// The folder has another version.
    Conflict(String),
    /// An I/O error.
    Failed(io::Error),
}

impl From<io::Error> for StepError {
    fn from(source: io::Error) -> StepError {
        StepError::Failed(source)
    }
}

impl From<Errno> for StepError {
    fn from(source: Errno) -> StepError {
        StepError::Failed(source.into())
    }
}

fn conflict(reason: &str) -> StepError {
    StepError::Conflict(reason.to_owned())
}

/// A plan that is being applied.
pub(super) struct Apply<'a> {
    plan: &'a Plan,
    top: BorrowedFd<'a>,
    folder_top: BorrowedFd<'a>,
    layer: PathLookup<'a>,
    folder: PathLookup<'a>,
    /// The owner of moved files.
    owner: (u32, u32),
    /// Whether the plan was interrupted by a crash.
    resumes: bool,
    /// The number of the current step.
    number: usize,
    /// Inodes with several names in the folder: removing one name changes their ctime.
    linked: BTreeSet<u64>,
    /// The facts of the last target folder.
    place: Option<(Rc<OwnedFd>, TargetFolder)>,
    outcome: ApplyOutcome,
}

/// What a file must match to be moved into a folder.
#[derive(Clone, Copy)]
struct TargetFolder {
    device: u64,
    group: u32,
    /// New files get a default ACL there.
    has_default_acl: bool,
}

/// The state of a path after its step.
struct AppliedFile {
    version: Version,
    /// The version of a file that stays in the layer; none if it was moved.
    copy: Option<Version>,
}

impl<'a> Apply<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        layer: BorrowedFd<'a>,
        folder: BorrowedFd<'a>,
        owner: (u32, u32),
        resumes: bool,
    ) -> Apply<'a> {
        let mut seen = BTreeSet::new();
        let olds = plan.steps.iter().filter_map(|step| step.before);
        let olds = olds.filter(|old| old.kind == FileKind::File);
        let linked = olds.filter(|old| !seen.insert(old.version.inode));
        let linked = linked.map(|old| old.version.inode).collect();
        Apply {
            plan,
            top: layer,
            folder_top: folder,
            layer: PathLookup::beneath(layer),
            folder: PathLookup::beneath(folder),
            owner,
            resumes,
            number: 0,
            linked,
            place: None,
            outcome: ApplyOutcome::default(),
        }
    }

    /// Applies all steps, and updates the baseline.
    pub(super) fn run(mut self, base: &mut Baseline) -> ApplyOutcome {
        self.run_steps(&self.plan.steps, base);
        let by_path = |one: &LayerChange, other: &LayerChange| one.path.cmp(&other.path);
        self.outcome.applied.sort_by(by_path);
        self.outcome
    }

    /// Applies these steps, which are the first of the plan, in order.
    pub(super) fn run_steps(&mut self, steps: &[PlanStep], base: &mut Baseline) {
        for (number, step) in steps.iter().enumerate() {
            self.number = number;
            let done = match step.action {
                Action::Keep => self.keep(step),
                Action::Remove => self.remove(step).map(|()| None),
                Action::Put => self.put(step),
                Action::Close => {
                    if let Err(trouble) = self.close(step) {
                        self.stays_open(step, base);
                        self.record_failure(step.path(), trouble);
                    }
                    continue;
                }
            };
            match done {
                Ok(put) => {
                    match put {
                        Some(put) => base.insert(step.path().to_owned(), entry(step, put)),
                        None => base.remove(step.path()),
                    };
                    self.outcome.applied.push(step.change());
                }
                Err(trouble) => self.record_failure(step.path(), trouble),
            }
        }
    }

    /// A folder that did not get its permissions: they stay a change of the layer.
    fn stays_open(&mut self, step: &PlanStep, base: &mut Baseline) {
        let applied = &mut self.outcome.applied;
        applied.retain(|change| change.path != step.path());
        if let Some(entry) = base.get_mut(step.path()) {
            let was = step.before.filter(|_| step.what == ChangeKind::Mode);
            entry.mode = was.map_or(step.mode | 0o700, |was| was.mode);
        }
    }

    fn record_failure(&mut self, path: &Path, trouble: StepError) {
        let (reason, conflict) = match trouble {
            StepError::Conflict(reason) => (reason, true),
            StepError::Failed(source) => (source.to_string(), false),
        };
        self.outcome.left.push(UnappliedChange {
            path: path.to_owned(),
            reason,
            conflict,
            why: None,
        });
    }

    fn keep(&mut self, step: &PlanStep) -> Result<Option<AppliedFile>, StepError> {
        match (self.folder.try_stat(step.path())?, &step.before) {
            (None, None) => Ok(None),
            (Some(now), Some(was)) if self.is_still(was, &now) => Ok(Some(AppliedFile {
                version: now.version,
                copy: Some(step.source),
            })),
            _ => Err(conflict(CHANGED)),
        }
    }

    /// Whether the folder has the version that it had when the plan was made.
    fn is_still(&self, was: &ExpectedFile, now: &FileState) -> bool {
        let mut expected = was.version;
        if self.linked.contains(&was.version.inode) {
            expected.changed = now.version.changed;
        }
        match was.kind {
            // The contents of the folder are steps of their own.
            FileKind::Folder => was.is_same(now),
            FileKind::File | FileKind::Link | FileKind::Other => {
                was.kind == now.kind && expected == now.version
            }
        }
    }

    fn remove(&mut self, step: &PlanStep) -> Result<(), StepError> {
        let (Some(above), name) = self.folder.above(step.path())? else {
            return Ok(());
        };
        if self.resumes {
            self.clear_drafts(step, &above, name)?;
        }
        let Some(now) = tree::try_stat_name(above.as_fd(), name)? else {
            return Ok(());
        };
        let was = step.before.ok_or_else(|| conflict(APPEARED))?;
        if !self.is_still(&was, &now) {
            return Err(conflict(CHANGED));
        }
        if now.kind == FileKind::Folder {
            return remove_folder(above.as_fd(), name);
        }
        let aside = self.plan.swap_name(self.number);
        self.guarded(&was, &above, name, || {
            let here = Dir::from_fd(above.as_fd());
            here.rename_new(name, &here, &aside)?;
            let taken = tree::stat_name(above.as_fd(), &aside)?;
            if was.is_same(&taken) {
                return Ok(rustix::fs::unlinkat(&above, &*aside, AtFlags::empty())?);
            }
            match here.rename_new(&aside, &here, name) {
                Ok(()) => Err(conflict(CHANGED)),
                Err(_) => Err(changed_twice(&aside)),
            }
        })
    }

    fn put(&mut self, step: &PlanStep) -> Result<Option<AppliedFile>, StepError> {
        let (above, name) = self.folder.above(step.path())?;
        let above = above.ok_or_else(|| conflict(NO_FOLDER))?;
        if self.resumes {
            self.clear_drafts(step, &above, name)?;
            self.clear_exchanged(step, &above, name)?;
        }
        let now = tree::try_stat_name(above.as_fd(), name)?;
        if let Some(now) = &now
            && self.is_after(step, now)
        {
            return Ok(Some(self.found_after(step, now)?));
        }
        if self.resumes && self.is_gone_from_layer(step)? {
            // It was moved, and changed in the folder since.
            return Ok(None);
        }
        match (&step.before, &now) {
            (None, Some(_)) => return Err(conflict(APPEARED)),
            (Some(_), None) => return Err(conflict(REMOVED)),
            (Some(was), Some(now)) if !self.is_still(was, now) => return Err(conflict(CHANGED)),
            (None, None) | (Some(_), Some(_)) => {}
        }
        match (step.kind, step.what) {
            (FileKind::File, ChangeKind::Mode) => self.set_mode(step, &above, name).map(Some),
            (FileKind::File, _) => self.put_file(step, &above, name).map(Some),
            (FileKind::Link, _) => self.put_link(step, &above, name).map(Some),
            (FileKind::Folder, ChangeKind::Mode) => self.found(step, &above, name).map(Some),
            (FileKind::Folder, _) => self.put_folder(step, &above, name).map(Some),
            (FileKind::Other, _) => Err(Errno::INVAL.into()),
        }
    }

    /// Whether the folder has the final version already.
    fn is_after(&self, step: &PlanStep, now: &FileState) -> bool {
        if now.kind != step.kind {
            return false;
        }
        match step.kind {
            FileKind::Folder => true,
            FileKind::Link => now.target.as_deref() == Some(&step.target),
            FileKind::File if step.what == ChangeKind::Mode => {
                let is_same = step.before.is_some_and(|was| was.is_same(now));
                is_same && now.mode == step.mode
            }
            FileKind::File if self.resumes => {
                let is_moved = self.plan.head.moves && now.version.inode == step.source.inode;
                let is_like_it = now.mode == step.mode && now.version.size == step.size;
                (is_moved && is_like_it)
                    || (is_like_it
                        && now.version.modified == step.modified
                        && same_contents(self.top, self.folder_top, step.path()).unwrap_or(false))
            }
            // Compared when the plan was made.
            FileKind::File | FileKind::Other => false,
        }
    }

    fn found_after(&mut self, step: &PlanStep, now: &FileState) -> Result<AppliedFile, StepError> {
        let in_layer = self.layer.try_stat(step.path())?;
        let copy = in_layer.map(|seen| seen.version);
        let version = now.version;
        // A copy must be written to disk before the layer forgets its file.
        self.outcome.has_copied |= copy.is_some() && step.kind == FileKind::File;
        Ok(AppliedFile { version, copy })
    }

    /// Whether the file was moved out of the layer already.
    fn is_gone_from_layer(&mut self, step: &PlanStep) -> Result<bool, StepError> {
        let may_be =
            self.plan.head.moves && step.kind == FileKind::File && step.what != ChangeKind::Mode;
        Ok(may_be && self.layer.try_stat(step.path())?.is_none())
    }

    fn found(
        &mut self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<AppliedFile, StepError> {
        let version = tree::stat_name(above.as_fd(), name)?.version;
        let copy = Some(step.source);
        Ok(AppliedFile { version, copy })
    }

    fn set_mode(
        &mut self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<AppliedFile, StepError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = tree::open(above, name, flags).map_err(gone_or_replaced)?;
        let found = FileState::of(&rustix::fs::fstat(&file)?, None);
        match &step.before {
            Some(was) if self.is_still(was, &found) => {}
            _ => return Err(conflict(CHANGED)),
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(step.mode))?;
        let version = Version::of(&rustix::fs::fstat(&file)?);
        let copy = Some(step.source);
        Ok(AppliedFile { version, copy })
    }

    fn put_link(
        &mut self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<AppliedFile, StepError> {
        let new = self.plan.new_name();
        if step.before.is_none() {
            match rustix::fs::symlinkat(&*step.target, above, name) {
                Err(Errno::EXIST) => return Err(conflict(APPEARED)),
                made => made?,
            }
            return self.found(step, above, name);
        }
        self.clear_new(above)?;
        rustix::fs::symlinkat(&*step.target, above, new)?;
        self.place_own(step, above, name)?;
        self.found(step, above, name)
    }

    fn put_folder(
        &mut self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<AppliedFile, StepError> {
        // Writable for the owner until everything below it is done.
        let mode = step.mode | 0o700;
        let at = match step.before {
            None => name,
            Some(_) => {
                self.clear_new(above)?;
                self.plan.new_name()
            }
        };
        match rustix::fs::mkdirat(above, at, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => return Err(conflict(APPEARED)),
            made => made?,
        }
        let made = tree::open(above, at, OFlags::RDONLY | OFlags::DIRECTORY)?;
        set_folder_mode(&made, mode)?;
        if step.before.is_some() {
            self.place_own(step, above, name)?;
        }
        let version = Version::of(&rustix::fs::fstat(&made)?);
        let copy = Some(step.source);
        Ok(AppliedFile { version, copy })
    }

    /// Sets the final permissions of a folder.
    fn close(&mut self, step: &PlanStep) -> Result<(), StepError> {
        let (Some(above), name) = self.folder.above(step.path())? else {
            return Err(conflict(REMOVED));
        };
        let now = tree::try_stat_name(above.as_fd(), name)?;
        let now = now.ok_or_else(|| conflict(REMOVED))?;
        if now.kind != FileKind::Folder {
            return Err(conflict(CHANGED));
        }
        if now.mode == step.mode {
            return Ok(());
        }
        if let Some(was) = step.before.filter(|_| step.what == ChangeKind::Mode)
            && !(was.is_same(&now) && was.mode == now.mode)
        {
            return Err(conflict(CHANGED));
        }
        let folder = tree::open(&above, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if rustix::fs::fstat(&folder)?.st_ino != now.version.inode {
            return Err(conflict("it was replaced meanwhile"));
        }
        Ok(set_folder_mode(&folder, step.mode)?)
    }
}

/// Files: moved out of the layer, or copied.
impl Apply<'_> {
    fn put_file(
        &mut self,
        step: &PlanStep,
        above: &Rc<OwnedFd>,
        name: &OsStr,
    ) -> Result<AppliedFile, StepError> {
        let (from, _) = self.layer.above(step.path())?;
        let from = from.ok_or(Errno::NOENT)?;
        let source = tree::open(&from, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
        if self.plan.head.moves
            && let Some(version) = self.move_file(step, &from, &source, (above, name))?
        {
            let copy = None;
            return Ok(AppliedFile { version, copy });
        }
        self.copy_file(step, File::from(source), above, name)
    }

    /// Moves a file if the result equals a copy; returns none if it has to be copied.
    fn move_file(
        &mut self,
        step: &PlanStep,
        from: &OwnedFd,
        source: &OwnedFd,
        (above, name): (&Rc<OwnedFd>, &OsStr),
    ) -> Result<Option<Version>, StepError> {
        let place = self.place(above)?;
        let Ok(lease) = FileLease::take(source.as_fd(), LeaseKind::Write) else {
            return Ok(None);
        };
        let found = rustix::fs::fstat(source)?;
        if !self.may_move(step, &found, place) || !xattrs::has_only_kept(source)? {
            return Ok(None);
        }
        if found.st_mode & 0o7777 != step.mode {
            rustix::fs::fchmod(source, Mode::from_raw_mode(step.mode))?;
        }
        if Version::of(&found).modified != step.modified {
            set_modified(source, step.modified)?;
        }
        match self.place_file(step, above, name, (from, name)) {
            Err(StepError::Failed(error)) if only_copied(&error) => return Ok(None),
            placed => placed?,
        }
        let version = Version::of(&rustix::fs::fstat(source)?);
        drop(lease);
        Ok(Some(version))
    }

    fn may_move(&self, step: &PlanStep, found: &Stat, place: TargetFolder) -> bool {
        let version = Version::of(found);
        let is_planned = (version.inode, version.size) == (step.source.inode, step.size)
            && [step.source.modified, step.modified].contains(&version.modified);
        tree::kind(found) == FileKind::File
            && is_planned
            && found.st_nlink == 1
            && (found.st_uid, found.st_gid) == (self.owner.0, place.group)
            && found.st_dev == place.device
            && !place.has_default_acl
    }

    fn place(&mut self, above: &Rc<OwnedFd>) -> io::Result<TargetFolder> {
        if let Some((known, place)) = &self.place
            && Rc::ptr_eq(known, above)
        {
            return Ok(*place);
        }
        let found = rustix::fs::fstat(above)?;
        let sets_group = found.st_mode & 0o2000 != 0;
        let group = if sets_group {
            found.st_gid
        } else {
            self.owner.1
        };
        let place = TargetFolder {
            device: found.st_dev,
            group,
            // If the ACL cannot be read, there may be one.
            has_default_acl: has_default_acl(above).unwrap_or(true),
        };
        self.place = Some((above.clone(), place));
        Ok(place)
    }

    fn copy_file(
        &mut self,
        step: &PlanStep,
        source: File,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<AppliedFile, StepError> {
        let before = rustix::fs::fstat(&source)?;
        let is_planned = tree::kind(&before) == FileKind::File
            && before.st_size as u64 == step.size
            && before.st_ino == step.source.inode;
        if !is_planned {
            return Err(busy().into());
        }
        self.clear_new(above)?;
        let new = self.plan.new_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let draft = File::from(tree::open(above, new, flags)?);
        let copied = self.fill(step, &source, &draft).and_then(|()| {
            let after = Version::of(&rustix::fs::fstat(&source)?);
            if after != Version::of(&before) {
                return Err(busy());
            }
            Ok(after)
        });
        let placed = copied
            .map_err(StepError::from)
            .and_then(|copy| self.place_own(step, above, name).map(|()| copy));
        let copy = placed.inspect_err(|_| self.discard_new(above))?;
        self.outcome.has_copied = true;
        let version = Version::of(&rustix::fs::fstat(&draft)?);
        let copy = Some(copy);
        Ok(AppliedFile { version, copy })
    }

    fn fill(&mut self, step: &PlanStep, source: &File, draft: &File) -> io::Result<()> {
        if sparse::copy(source, draft, step.size, &|| true)? != step.size {
            return Err(busy());
        }
        self.outcome.attributes_left += xattrs::copy(source, draft)?;
        rustix::fs::fchmod(draft, Mode::from_raw_mode(step.mode))?;
        set_modified(draft, step.modified)
    }
}

/// Whether a file that cannot be moved may be copied: it is on another mount of the same device, or
/// the program closed its folder.
fn only_copied(error: &io::Error) -> bool {
    let error = Errno::from_io_error(error);
    matches!(error, Some(Errno::XDEV | Errno::ACCESS | Errno::PERM))
}

/// The error of opening a file that existed a moment ago.
fn gone_or_replaced(source: io::Error) -> StepError {
    match Errno::from_io_error(&source) {
        Some(Errno::NOENT) => conflict(REMOVED),
        Some(Errno::LOOP | Errno::NOTDIR) => conflict(CHANGED),
        _ => source.into(),
    }
}

fn changed_twice(earlier: &OsStr) -> StepError {
    StepError::Conflict(format!(
        "it was changed in the folder twice meanwhile: the earlier one is `{}` beside it",
        earlier.display()
    ))
}

fn entry(step: &PlanStep, put: AppliedFile) -> BaselineEntry {
    BaselineEntry {
        kind: step.kind,
        mode: step.mode,
        target: step.target.clone(),
        base: put.version,
        copy: put.copy.unwrap_or_default(),
        moved: put.copy.is_none(),
    }
}

fn remove_old(above: BorrowedFd<'_>, name: &OsStr, kind: FileKind) -> Result<(), StepError> {
    match kind {
        FileKind::Folder => remove_folder(above, name),
        FileKind::File | FileKind::Link | FileKind::Other => {
            Ok(rustix::fs::unlinkat(above, name, AtFlags::empty())?)
        }
    }
}

/// The contents were removed by earlier steps: if it is not empty, the kernel refuses.
fn remove_folder(above: BorrowedFd<'_>, name: &OsStr) -> Result<(), StepError> {
    match rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(conflict(UNSEEN)),
        Err(source) => Err(source.into()),
    }
}

fn busy() -> io::Error {
    io::Error::other("it is being written: pause or end what writes it, then commit again")
}
