//! Cleans up after a step that a crash interrupted, before it is repeated.
//!
//! ```text
//! draft        an incomplete file                               removed
//! draft-swap-N the replaced file, or a copy of the new one      removed
//!              a last-moment change of the host                 exchanged back, a conflict
//! the layer    what a moved file was exchanged with             removed, or exchanged back
//! ```

use super::{
    super::{
        diff::{CHANGED, same_files},
        plan::{Action, PlanStep},
        tree::{self, FileKind, FileState},
    },
    Apply, StepError, changed_twice, conflict, remove_old,
};
use ::fs::Dir;
use rustix::{
    fs::{AtFlags, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
};

impl Apply<'_> {
    /// Removes an incomplete file, and an exchanged one if it is known to be the replaced file or a
    /// copy. Otherwise it is a last-moment change of the host, and is put back.
    pub(super) fn clear_drafts(
        &mut self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), StepError> {
        self.clear_new(above)?;
        let swap = self.plan.swap_name(self.number);
        let Some(found) = tree::try_stat_name(above.as_fd(), &swap)? else {
            return Ok(());
        };
        let is_old = step.before.is_some_and(|was| was.is_same(&found));
        if is_old || self.is_own(step, above, &swap, &found) {
            match remove_old(above.as_fd(), &swap, found.kind) {
                Err(StepError::Conflict(_)) => {}
                done => return done,
            }
        }
        let here = Dir::from_fd(above.as_fd());
        match tree::try_stat_name(above.as_fd(), name)? {
            None => here.rename_new(&swap, &here, name)?,
            Some(now) if self.is_own(step, above, name, &now) => {
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(above, &swap, above, name, flags)?;
                remove_old(above.as_fd(), &swap, now.kind)?;
            }
            Some(_) => return Err(changed_twice(&swap)),
        }
        Err(conflict(CHANGED))
    }

    /// Whether a file is what the step puts there.
    fn is_own(&self, step: &PlanStep, above: &OwnedFd, name: &OsStr, found: &FileState) -> bool {
        if step.action != Action::Put || found.kind != step.kind {
            return false;
        }
        match found.kind {
            FileKind::Link => found.target.as_deref() == Some(&step.target),
            FileKind::Folder => true,
            FileKind::File => self.is_copy(step, above, name),
            FileKind::Other => false,
        }
    }

    fn is_copy(&self, step: &PlanStep, above: &OwnedFd, name: &OsStr) -> bool {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let draft = tree::open(above, name, flags);
        let source = tree::open(self.top, step.path(), flags);
        match (draft, source) {
            (Ok(draft), Ok(source)) => same_files(draft, source).unwrap_or(false),
            _ => false,
        }
    }

    /// An exchange with a moved file left the replaced one in the layer, whatever has its place
    /// now.
    pub(super) fn clear_exchanged(
        &mut self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), StepError> {
        if !self.plan.head.moves || step.kind != FileKind::File || step.before.is_none() {
            return Ok(());
        }
        let (Some(from), _) = self.layer.above(step.path())? else {
            return Ok(());
        };
        let Some(old) = tree::try_stat_name(from.as_fd(), name)? else {
            return Ok(());
        };
        let is_others = old.version.inode != step.source.inode;
        if is_others && step.before.is_some_and(|was| was.is_same(&old)) {
            return remove_old(from.as_fd(), name, old.kind);
        }
        let now = tree::try_stat_name(above.as_fd(), name)?;
        if now.is_none_or(|now| now.version.inode != step.source.inode) {
            return Ok(());
        }
        rustix::fs::renameat_with(&from, name, above, name, RenameFlags::EXCHANGE)?;
        Err(conflict(CHANGED))
    }

    pub(super) fn clear_new(&self, above: &OwnedFd) -> Result<(), StepError> {
        let new = self.plan.new_name();
        match rustix::fs::unlinkat(above, new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => Ok(rustix::fs::unlinkat(above, new, AtFlags::REMOVEDIR)?),
            Err(source) => Err(source.into()),
        }
    }
}
