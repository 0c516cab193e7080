//! Disk budgets for output logs: of a session, of an owner, and of the engine. An owner gets no
//! more than a fixed share, and no more than half of what the others leave, so that there is always
//! some for the next one. On a disk that is almost full no log grows: the rest is for the database.

use super::LogState;
use crate::disk_space;
use spec::Id;
use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// The limit for all logs of an engine, unless this fraction of the disk is less.
const MAX_TOTAL_BYTES: u64 = 16 << 30;
const DISK_FRACTION: u64 = 4;
/// The fraction of that limit that one owner may have.
const OWNER_FRACTION: u64 = 4;

/// The disk budget of an engine.
#[derive(Debug)]
pub(crate) struct DiskBudget {
    folder: PathBuf,
    most: u64,
    spent: Mutex<u64>,
    owners: Mutex<HashMap<Option<Id>, Weak<LogBudget>>>,
}

/// The budget of a session or an owner.
#[derive(Debug)]
pub(crate) struct LogBudget {
    most: u64,
    spent: Mutex<BudgetState>,
    within: BudgetParent,
}

/// The budget that a budget is a part of.
#[derive(Debug)]
enum BudgetParent {
    #[cfg(test)]
    Nothing,
    Owner(Arc<LogBudget>),
    DiskBudget(Arc<DiskBudget>),
}

#[derive(Debug, Default)]
struct BudgetState {
    bytes: u64,
    /// Logs that have ended, the oldest first.
    ended: VecDeque<Weak<LogState>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DiskBudget {
    /// The budget for logs in this folder.
    pub(crate) fn of(folder: PathBuf) -> Arc<DiskBudget> {
        let size =
            rustix::fs::statvfs(&folder).map_or(u64::MAX, |found| found.f_blocks * found.f_frsize);
        DiskBudget::with(folder, MAX_TOTAL_BYTES.min(size / DISK_FRACTION))
    }

    pub(super) fn with(folder: PathBuf, most: u64) -> Arc<DiskBudget> {
        Arc::new(DiskBudget {
            folder,
            most,
            spent: Mutex::default(),
            owners: Mutex::default(),
        })
    }

    /// The budget of one owner.
    pub(crate) fn owner(self: &Arc<DiskBudget>, owner: Option<&Id>) -> Arc<LogBudget> {
        let mut owners = locked(&self.owners);
        let owner = owner.cloned();
        if let Some(budget) = owners.get(&owner).and_then(Weak::upgrade) {
            return budget;
        }
        owners.retain(|_, budget| budget.strong_count() > 0);
        let budget = LogBudget::new(
            self.most / OWNER_FRACTION,
            BudgetParent::DiskBudget(self.clone()),
        );
        owners.insert(owner, Arc::downgrade(&budget));
        budget
    }

    /// Reserves `bytes` for an owner that has `has` bytes already.
    fn take(&self, has: u64, bytes: u64) -> bool {
        let mut spent = locked(&self.spent);
        let others = spent.saturating_sub(has);
        let fits = has.saturating_add(bytes) <= self.most.saturating_sub(others) / 2;
        *spent += if fits { bytes } else { 0 };
        fits
    }

    fn release(&self, bytes: u64) {
        let mut spent = locked(&self.spent);
        *spent = spent.saturating_sub(bytes);
    }
}

impl LogBudget {
    fn new(most: u64, within: BudgetParent) -> Arc<LogBudget> {
        Arc::new(LogBudget {
            most,
            spent: Mutex::default(),
            within,
        })
    }

    /// A budget of `most` bytes within an owner's.
    pub(crate) fn of(owner: Arc<LogBudget>, most: u64) -> Arc<LogBudget> {
        LogBudget::new(most, BudgetParent::Owner(owner))
    }

    /// A budget of `most` bytes without a parent.
    #[cfg(test)]
    pub(super) fn alone(most: u64) -> Arc<LogBudget> {
        LogBudget::new(most, BudgetParent::Nothing)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        locked(&self.spent).bytes
    }

    fn is_short(&self) -> bool {
        match &self.within {
            #[cfg(test)]
            BudgetParent::Nothing => false,
            BudgetParent::Owner(owner) => owner.is_short(),
            BudgetParent::DiskBudget(disk) => disk_space::is_short(&disk.folder),
        }
    }

    /// Reserves bytes, and forgets ended logs if it has to.
    pub(super) fn take(&self, bytes: u64) -> bool {
        !self.is_short() && self.reserve(bytes)
    }

    fn reserve(&self, bytes: u64) -> bool {
        if !self.reserve_own(bytes) {
            return false;
        }
        match &self.within {
            BudgetParent::Owner(owner) if !owner.reserve(bytes) => {
                self.release_own(bytes);
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
            // Without holding the lock: the forgotten log gives its bytes back.
            if oldest.upgrade().is_some_and(|oldest| !oldest.forget()) {
                busy.push(oldest);
            }
        };
        busy.into_iter()
            .rev()
            .for_each(|log| locked(&self.spent).ended.push_front(log));
        taken
    }

    fn fits(&self, has: u64, bytes: u64) -> bool {
        let fits = has.saturating_add(bytes) <= self.most;
        match &self.within {
            BudgetParent::DiskBudget(disk) => fits && disk.take(has, bytes),
            _ => fits,
        }
    }

    pub(super) fn release(&self, bytes: u64) {
        self.release_own(bytes);
        if let BudgetParent::Owner(owner) = &self.within {
            owner.release(bytes);
        }
    }

    fn release_own(&self, bytes: u64) {
        let mut spent = locked(&self.spent);
        spent.bytes = spent.bytes.saturating_sub(bytes);
        if let BudgetParent::DiskBudget(disk) = &self.within {
            disk.release(bytes);
        }
    }

    /// Marks a log as ended, so that it can be forgotten for others.
    pub(super) fn ended(&self, log: &Weak<LogState>) {
        let mut spent = locked(&self.spent);
        // Only when the queue is full, so that the cost per log stays constant.
        if spent.ended.len() == spent.ended.capacity() {
            spent.ended.retain(|log| log.strong_count() > 0);
        }
        spent.ended.push_back(log.clone());
        drop(spent);
        if let BudgetParent::Owner(owner) = &self.within {
            owner.ended(log);
        }
    }
}
