//! Selects the changes that a commit applies to the folder, and orders the steps.
//!
//! ```text
//! compare ─ choose ─ refuse, or plan: removals (deepest first) ─ additions (outermost first) ─ permissions of folders
//! ```
//!
//! A commit acts as the owner of the folder: new files belong to the owner, and what the owner may
//! not do is not done.

use super::{
    CommitOptions,
    diff::{AssessedChange, ChangeKind, LayerChange},
    mtimes::ModificationTimes,
    plan::{Action, ExpectedFile, PlanStep},
    tree::{self, FileKind},
};
use crate::record;
use rustix::fs::OFlags;
use spec::HoldReason;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

/// The prefix of temporary names, which a program's own names may not have.
pub(super) const DRAFT: &str = ".airlock-commit-";
const DRAFT_FILE: &str = "draft";

/// A change that was not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnappliedChange {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
    /// Whether `force` would commit it.
    pub conflict: bool,
    /// Why it is held back.
    pub why: Option<HoldReason>,
}

/// The random prefix of a layer's temporary names, recorded before it is first used.
pub(super) fn draft_name(layer: impl AsFd) -> io::Result<String> {
    let chosen = format!("{DRAFT}{}", record::fresh_id());
    match tree::open(
        &layer,
        DRAFT_FILE,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
    ) {
        Ok(file) => {
            File::from(file).write_all(chosen.as_bytes())?;
            return Ok(chosen);
        }
        Err(known) if known.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let mut name = String::new();
    let file = File::from(tree::open(&layer, DRAFT_FILE, OFlags::RDWR)?);
    file.take(256).read_to_string(&mut name)?;
    let whole = name
        .strip_prefix(DRAFT)
        .is_some_and(|id| spec::Id::new(id).is_ok() && id.len() == 26);
    if !whole {
        // The process that wrote it was killed before it used it.
        let file = File::from(tree::open(
            &layer,
            DRAFT_FILE,
            OFlags::WRONLY | OFlags::TRUNC,
        )?);
        (&file).write_all(chosen.as_bytes())?;
        return Ok(chosen);
    }
    Ok(name)
}

/// The selected changes, and the others.
#[derive(Debug, Default)]
pub(super) struct Selection<'a> {
    /// Sorted by path.
    pub(super) wanted: Vec<&'a AssessedChange>,
    /// Changes that cannot be committed, and selected paths without a change.
    pub(super) left: Vec<UnappliedChange>,
    /// Changes that were not selected.
    pub(super) others: Vec<&'a Path>,
}

/// Selects among the changes of a layer.
pub(super) fn choose<'a>(assessed: &'a [AssessedChange], options: &CommitOptions) -> Selection<'a> {
    let mut choice = Selection::default();
    let all: BTreeSet<_> = options.only.iter().map(PathBuf::as_path).collect();
    let mut missing = all.clone();
    for above in assessed.iter().flat_map(|one| one.change.path.ancestors()) {
        missing.remove(above);
    }
    let filter = CommitFilter {
        options,
        exact: all.difference(&missing).copied().collect(),
    };
    for one in assessed {
        let change = &one.change;
        if !filter.wants(change) {
            choice.others.push(&change.path);
            continue;
        }
        match filter.obstacle(change) {
            Some(left) => choice.left.push(left),
            None => choice.wanted.push(one),
        }
    }
    choice
        .left
        .extend(missing.into_iter().map(|path| UnappliedChange {
            path: path.to_owned(),
            reason: "the program changed nothing there".to_owned(),
            conflict: false,
            why: None,
        }));
    choice
}

/// Unreadable folders, as far as they are selected.
pub(super) fn unknown<'a>(
    unknown: &'a [(PathBuf, String)],
    options: &'a CommitOptions,
) -> impl Iterator<Item = UnappliedChange> + 'a {
    let only = &options.only;
    let is_asked = move |path: &Path| {
        let mut only = only.iter();
        only.len() == 0 || only.any(|it| it.starts_with(path) || path.starts_with(it))
    };
    let unknown = unknown.iter().filter(move |(path, _)| is_asked(path));
    unknown.map(|(path, reason)| UnappliedChange {
        path: path.clone(),
        reason: reason.clone(),
        conflict: false,
        why: Some(HoldReason::Unreadable),
    })
}

/// Sorts by path and removes duplicates.
pub(super) fn sort(left: &mut Vec<UnappliedChange>) {
    left.sort_by(|one, other| one.path.cmp(&other.path));
    left.dedup_by(|later, earlier| later.path == earlier.path);
}

/// The selection of a commit.
struct CommitFilter<'a> {
    options: &'a CommitOptions,
    exact: BTreeSet<&'a Path>,
}

impl CommitFilter<'_> {
    fn wants(&self, change: &LayerChange) -> bool {
        self.options.only.is_empty()
            || self.exact.contains(&*change.path)
            || (!self.options.exactly && self.is_below(change))
            || self.is_needed(change)
    }

    fn is_below(&self, change: &LayerChange) -> bool {
        let mut above = change.path.ancestors().skip(1);
        above.any(|above| self.exact.contains(above))
    }

    /// Whether a selected path is in a folder that the program created.
    fn is_needed(&self, change: &LayerChange) -> bool {
        let is_made = change.kind == FileKind::Folder
            && matches!(change.what, ChangeKind::Added | ChangeKind::Replaced);
        is_made && self.exact.iter().any(|it| it.starts_with(&change.path))
    }

    /// Whether the user selected this very name with `force`, although it is held back. A link to a
    /// protected name is not selected by its own name.
    fn is_forced(&self, change: &LayerChange) -> bool {
        let can_be = matches!(
            change.why,
            Some(HoldReason::ProtectedName | HoldReason::LinkOut)
        );
        let is_named = self.exact.contains(&*change.path) || self.is_needed(change);
        self.options.force && can_be && is_named
    }

    fn obstacle(&self, change: &LayerChange) -> Option<UnappliedChange> {
        let left = |reason: &String, conflict| UnappliedChange {
            path: change.path.clone(),
            reason: reason.clone(),
            conflict,
            why: change.why,
        };
        match (&change.left_out, &change.conflict) {
            (Some(reason), _) if !self.is_forced(change) => Some(left(reason, false)),
            (_, Some(reason)) if !self.options.force => Some(left(reason, true)),
            _ => None,
        }
    }
}

/// The steps for the selected changes, in order.
pub(super) fn steps(wanted: &[&AssessedChange], times: &ModificationTimes<'_>) -> Vec<PlanStep> {
    let is_removed = |one: &&&AssessedChange| one.change.what == ChangeKind::Removed;
    let mut steps = Vec::with_capacity(wanted.len());
    for one in wanted.iter().filter(is_removed).rev() {
        let mut step = PlanStep::of(&one.change, Action::Remove);
        step.before = one.found.as_ref().map(ExpectedFile::of);
        steps.push(step);
    }
    let mut closing = Vec::new();
    for one in wanted.iter().filter(|one| !is_removed(one)) {
        let action = if one.is_done {
            Action::Keep
        } else {
            Action::Put
        };
        let mut step = PlanStep::of(&one.change, action);
        step.before = one.found.as_ref().map(ExpectedFile::of);
        step.source = one.source;
        step.modified = times.choose(one);
        if needs_closing(one) {
            let mut last = step.clone();
            last.action = Action::Close;
            closing.push(last);
        }
        steps.push(step);
    }
    steps.extend(closing.into_iter().rev());
    steps
}

/// Whether a folder gets its permissions last: they are the only change, or they would lock its
/// owner out.
fn needs_closing(one: &AssessedChange) -> bool {
    let change = &one.change;
    let is_open = change.mode & 0o700 == 0o700;
    change.kind == FileKind::Folder && !one.is_done && (change.what == ChangeKind::Mode || !is_open)
}
