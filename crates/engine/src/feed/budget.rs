//! What feeds may have on the disk: those of a session, those of one owner, and all of an engine. Nobody has more than his
//! share, nor more than half of what the others leave: so there is always some for whoever comes next. Where the disk has
//! too little room nothing grows at all; what is left is the database's.

use super::Shared;
use crate::room;
use spec::Id;
use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// What all feeds of an engine may have, unless this part of their disk is less.
const MOST_OF_ALL: u64 = 16 << 30;
const PART_OF_DISK: u64 = 4;
/// What one owner may have of that.
const SHARE: u64 = 4;

/// The disk of an engine's feeds.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    most: u64,
    spent: Mutex<u64>,
    owners: Mutex<HashMap<Option<Id>, Weak<Budget>>>,
}

/// What several feeds may have on the disk together.
#[derive(Debug)]
pub(crate) struct Budget {
    most: u64,
    spent: Mutex<Spent>,
    within: Within,
}

/// What a budget is a part of.
#[derive(Debug)]
enum Within {
    #[cfg(test)]
    Nothing,
    Owner(Arc<Budget>),
    Disk(Arc<Disk>),
}

#[derive(Debug, Default)]
struct Spent {
    bytes: u64,
    /// Those that nobody writes to any more, the oldest first.
    ended: VecDeque<Weak<Shared>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// The one with this folder.
    pub(crate) fn of(folder: PathBuf) -> Arc<Disk> {
        let size =
            rustix::fs::statvfs(&folder).map_or(u64::MAX, |found| found.f_blocks * found.f_frsize);
        Disk::with(folder, MOST_OF_ALL.min(size / PART_OF_DISK))
    }

    pub(super) fn with(folder: PathBuf, most: u64) -> Arc<Disk> {
        Arc::new(Disk {
            folder,
            most,
            spent: Mutex::default(),
            owners: Mutex::default(),
        })
    }

    /// What the feeds of one owner may have together.
    pub(crate) fn owner(self: &Arc<Disk>, owner: Option<&Id>) -> Arc<Budget> {
        let mut owners = locked(&self.owners);
        let owner = owner.cloned();
        if let Some(budget) = owners.get(&owner).and_then(Weak::upgrade) {
            return budget;
        }
        owners.retain(|_, budget| budget.strong_count() > 0);
        let budget = Budget::new(self.most / SHARE, Within::Disk(self.clone()));
        owners.insert(owner, Arc::downgrade(&budget));
        budget
    }

    /// Takes so much for one who has this much already.
    fn take(&self, has: u64, bytes: u64) -> bool {
        let mut spent = locked(&self.spent);
        let others = spent.saturating_sub(has);
        let fits = has.saturating_add(bytes) <= self.most.saturating_sub(others) / 2;
        *spent += if fits { bytes } else { 0 };
        fits
    }

    fn give_back(&self, bytes: u64) {
        let mut spent = locked(&self.spent);
        *spent = spent.saturating_sub(bytes);
    }
}

impl Budget {
    fn new(most: u64, within: Within) -> Arc<Budget> {
        Arc::new(Budget {
            most,
            spent: Mutex::default(),
            within,
        })
    }

    /// So many bytes of an owner's.
    pub(crate) fn of(owner: Arc<Budget>, most: u64) -> Arc<Budget> {
        Budget::new(most, Within::Owner(owner))
    }

    /// So many bytes, whoever else has some.
    #[cfg(test)]
    pub(super) fn alone(most: u64) -> Arc<Budget> {
        Budget::new(most, Within::Nothing)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        locked(&self.spent).bytes
    }

    fn is_short(&self) -> bool {
        match &self.within {
            #[cfg(test)]
            Within::Nothing => false,
            Within::Owner(owner) => owner.is_short(),
            Within::Disk(disk) => room::is_short(&disk.folder),
        }
    }

    /// Takes so much, at the cost of those that have ended.
    pub(super) fn take(&self, bytes: u64) -> bool {
        !self.is_short() && self.reserve(bytes)
    }

    fn reserve(&self, bytes: u64) -> bool {
        if !self.reserve_own(bytes) {
            return false;
        }
        match &self.within {
            Within::Owner(owner) if !owner.reserve(bytes) => {
                self.give_back_own(bytes);
                false
            }
            _ => true,
        }
    }

    fn reserve_own(&self, bytes: u64) -> bool {
        let mut busy = Vec::new();
        let taken = loop {
            let oldest = {
                let mut spent = locked(&self.spent);
                if self.fits(spent.bytes, bytes) {
                    spent.bytes += bytes;
                    break true;
                }
                spent.ended.pop_front()
            };
            let Some(oldest) = oldest else { break false };
            // Without our lock: it gives back what it had.
            if oldest.upgrade().is_some_and(|oldest| !oldest.forget()) {
                busy.push(oldest);
            }
        };
        busy.into_iter()
            .rev()
            .for_each(|feed| locked(&self.spent).ended.push_front(feed));
        taken
    }

    fn fits(&self, has: u64, bytes: u64) -> bool {
        let fits = has.saturating_add(bytes) <= self.most;
        match &self.within {
            Within::Disk(disk) => fits && disk.take(has, bytes),
            _ => fits,
        }
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.give_back_own(bytes);
        if let Within::Owner(owner) = &self.within {
            owner.give_back(bytes);
        }
    }

    fn give_back_own(&self, bytes: u64) {
        let mut spent = locked(&self.spent);
        spent.bytes = spent.bytes.saturating_sub(bytes);
        if let Within::Disk(disk) = &self.within {
            disk.give_back(bytes);
        }
    }

    /// Nobody writes to this one any more: it can be forgotten for others.
    pub(super) fn ended(&self, feed: &Weak<Shared>) {
        let mut spent = locked(&self.spent);
        // Every now and then, so that each costs little however many there are.
        if spent.ended.len() == spent.ended.capacity() {
            spent.ended.retain(|feed| feed.strong_count() > 0);
        }
        spent.ended.push_back(feed.clone());
        drop(spent);
        if let Within::Owner(owner) = &self.within {
            owner.ended(feed);
        }
    }
}
