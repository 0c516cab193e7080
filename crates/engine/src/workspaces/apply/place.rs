//! Puts files into their place in the folder, and removes the old one if it is the expected one.

use super::{
    super::{
        diff::{APPEARED, CHANGED, REMOVED, WRITTEN},
        plan::{ExpectedFile, PlanStep},
        tree::{self, FileKind, FileState},
    },
    Apply, StepError, UNSEEN, conflict, gone_or_replaced, remove_old,
};
use ::fs::Dir;
use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};
use sandbox::native::{FileLease, LeaseKind};
use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, OwnedFd},
};

impl Apply<'_> {
    /// Puts a new file from beside a place into it, and removes it if that fails.
    pub(super) fn place_own(
        &self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), StepError> {
        let placed = self.place_new(step, above, name);
        placed.inspect_err(|_| self.discard_new(above))
    }

    /// The earlier error says more; the next attempt removes what stays.
    pub(super) fn discard_new(&self, above: &OwnedFd) {
        _ = self.clear_new(above);
    }

    fn place_new(&self, step: &PlanStep, above: &OwnedFd, name: &OsStr) -> Result<(), StepError> {
        let new = self.plan.new_name();
        if step.before.is_none() {
            return self.place_file(step, above, name, (above, new));
        }
        // From here on the file is complete, and after an exchange the name may hold the host's
        // file.
        let swap = self.plan.swap_name(self.number);
        let here = Dir::from_fd(above.as_fd());
        here.rename_new(new, &here, &swap)?;
        let own = tree::stat_name(above.as_fd(), &swap)?.version.inode;
        let placed = self.place_file(step, above, name, (above, &swap));
        if placed.is_err() && tree::stat_name(above.as_fd(), &swap)?.version.inode == own {
            here.rename_new(&swap, &here, new)?;
        }
        placed
    }

    pub(super) fn place_file(
        &self,
        step: &PlanStep,
        above: &OwnedFd,
        name: &OsStr,
        (from, new): (&OwnedFd, &OsStr),
    ) -> Result<(), StepError> {
        let Some(was) = &step.before else {
            let placed = Dir::from_fd(from).rename_new(new, &Dir::from_fd(above), name);
            return placed.map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => conflict(APPEARED),
                _ => StepError::Failed(error),
            });
        };
        self.guarded(was, above, name, || {
            let flags = RenameFlags::EXCHANGE;
            match rustix::fs::renameat_with(from, new, above, name, flags) {
                Ok(()) => {}
                Err(Errno::INVAL | Errno::NOSYS) => {
                    return self.place_without_exchange(was, above, name, (from, new));
                }
                Err(Errno::NOENT) => return Err(conflict(REMOVED)),
                Err(source) => return Err(source.into()),
            }
            let old = tree::stat_name(from.as_fd(), new)?;
            let removed = match was.is_same(&old) {
                true => remove_old(from.as_fd(), new, old.kind),
                false => Err(conflict(CHANGED)),
            };
            if removed.is_err() {
                rustix::fs::renameat_with(from, new, above, name, flags)?;
            }
            removed
        })
    }

    /// Some file systems (NFS) cannot exchange. When the type changes, there is a moment in which
    /// nothing is there.
    fn place_without_exchange(
        &self,
        was: &ExpectedFile,
        above: &OwnedFd,
        name: &OsStr,
        (from, new): (&OwnedFd, &OsStr),
    ) -> Result<(), StepError> {
        let now = tree::stat_name(above.as_fd(), name)?;
        if !was.is_same(&now) {
            return Err(conflict(CHANGED));
        }
        let comes = tree::stat_name(from.as_fd(), new)?;
        if now.kind == FileKind::Folder || comes.kind == FileKind::Folder {
            remove_old(above.as_fd(), name, now.kind)?;
        }
        Ok(rustix::fs::renameat(from, new, above, name)?)
    }

    /// Runs `act` on an existing file while a lease keeps others from opening it for writing; fails
    /// if a process has it open for writing, or if it is not the expected file.
    pub(super) fn guarded<T>(
        &self,
        was: &ExpectedFile,
        above: &OwnedFd,
        name: &OsStr,
        act: impl FnOnce() -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        match was.kind {
            FileKind::Link | FileKind::Other => return act(),
            FileKind::Folder => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let folder = tree::open(above, name, flags).map_err(gone_or_replaced)?;
                return match Dir::from_fd(&folder).is_empty()? {
                    true => act(),
                    false => Err(conflict(UNSEEN)),
                };
            }
            FileKind::File if self.plan.head.force => return act(),
            FileKind::File => {}
        }
        let file = match tree::open(above, name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => file,
            Err(closed) if closed.kind() == io::ErrorKind::PermissionDenied => return act(),
            Err(busy) if busy.kind() == io::ErrorKind::WouldBlock => {
                return Err(conflict(WRITTEN));
            }
            Err(source) => return Err(gone_or_replaced(source)),
        };
        let lease = match FileLease::take(file.as_fd(), LeaseKind::Read) {
            Err(busy) if busy.kind() == io::ErrorKind::WouldBlock => {
                return Err(conflict(WRITTEN));
            }
            // For another user's file, or without lease support, that is not known.
            lease => lease.ok(),
        };
        let found = FileState::of(&rustix::fs::fstat(&file)?, None);
        if !self.is_still(was, &found) {
            return Err(conflict(CHANGED));
        }
        let done = act();
        drop(lease);
        done
    }
}
