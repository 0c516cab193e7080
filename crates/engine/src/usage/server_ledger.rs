//! The ledger of a server or of `airlock proxy`: daily segments, what was spent today, and damaged
//! segments that are set aside.

use super::{JournalProblem, LEDGER, UsageError, UsageProjection, open_at};
use doors::{
    budget::BudgetManager,
    ledger::{self, ChainHead, Durability, Ledger, OWNER_SEGMENT, RecoveredUsage},
};
use spec::Day;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::{DatabaseError, UpkeepLock, usage::SegmentProgress};

/// The length of each server segment, in bytes of all its files; a segment has new lines only if it
/// is longer.
pub fn segment_lengths(state: &Path) -> io::Result<BTreeMap<String, u64>> {
    let own = ledger::segments(&state.join(LEDGER))?
        .into_iter()
        .filter(|(name, _)| is_server_segment(name));
    own.map(|(name, files)| {
        let bytes = files
            .iter()
            .map(|file| Ok(std::fs::metadata(file)?.len()))
            .sum::<io::Result<u64>>()?;
        Ok((name, bytes))
    })
    .collect()
}

/// Whether a segment belongs to an owner of the state folder's budgets.
fn is_server_segment(name: &str) -> bool {
    name == OWNER_SEGMENT || ledger::is_daily_segment(name)
}

/// Switches the ledger to the segment of a day. A ledger that is at a later day stays there, so
/// that no day is opened twice.
pub fn begin_day(
    till: &BudgetManager,
    state: &Path,
    durability: Durability,
    today: Day,
) -> io::Result<()> {
    let name = ledger::daily_segment(today);
    if *till.ledger().name() < *name {
        till.switch_ledger(Arc::new(Ledger::open(
            &state.join(LEDGER),
            &name,
            durability,
        )?));
    }
    Ok(())
}

/// The server segments that were set aside.
#[derive(Debug, Default)]
pub struct SetAsideReport {
    /// The names of the segments.
    pub segments: Vec<String>,
    /// The folder of their files; none if there were none.
    pub place: Option<PathBuf>,
}

impl UsageProjection {
    /// The first problem of a server segment that has fewer or other lines than were copied. Of
    /// past days only the length is compared. Damaged lines are reported when the ledger is opened.
    pub fn check(&self, today: Day) -> Result<Option<JournalProblem>, UsageError> {
        let failed = |source| self.failed(source);
        let there = ledger::segments(&self.folder).map_err(failed)?;
        for (name, progress) in self.server_segments()? {
            let files = there.get(&name).map(Vec::as_slice).unwrap_or_default();
            let whole = name == OWNER_SEGMENT
                || ledger::may_hold_usage_of(&self.folder, &name, today).map_err(failed)?;
            let problem = if whole {
                self.find_missing(&name, files, progress)?
            } else {
                self.shrank(&name, files, progress)?
            };
            if problem.is_some() {
                return Ok(problem);
            }
        }
        Ok(None)
    }

    /// The progress of the server segments, without those that are being retired.
    fn server_segments(&self) -> Result<BTreeMap<String, SegmentProgress>, DatabaseError> {
        let mut known = self.usage.segments()?;
        let going = self.usage.retiring_segments()?;
        known.retain(|name, _| is_server_segment(name) && !going.contains(name));
        Ok(known)
    }

    fn shrank(
        &self,
        name: &str,
        files: &[PathBuf],
        progress: SegmentProgress,
    ) -> Result<Option<JournalProblem>, UsageError> {
        let Some(file) = files.get(progress.part as usize - 1) else {
            return self.find_missing(name, files, progress);
        };
        Ok(open_at(
            file,
            ChainHead {
                offset: progress.offset,
                ..ChainHead::default()
            },
        )
        .err())
    }

    /// What tenants spent today, by the daily segments. Open reservations are settled as lost, so
    /// their owner must be gone.
    pub fn spent_today(&self, today: Day) -> Result<RecoveredUsage, UsageError> {
        let failed = |source| self.failed(source);
        let going = self.usage.retiring_segments()?;
        let there = ledger::segments(&self.folder).map_err(failed)?;
        let names: Vec<_> = there
            .into_keys()
            .filter(|name| ledger::is_daily_segment(name) && !going.contains(name))
            .collect();
        ledger::recover_past_usage(&self.folder, &names, today).map_err(failed)
    }

    /// Moves the damaged server segments beside the ledger, and forgets their progress: the next
    /// segment of that name starts anew. Their sums up to the damage stay; reservations that were
    /// open there are never settled and count in full.
    pub fn set_aside(&self, now_ms: u64) -> Result<SetAsideReport, UsageError> {
        let failed = |source| self.failed(source);
        let place = self
            .folder
            .with_file_name(format!("{LEDGER}-aside-{now_ms}"));
        let state = self.folder.parent().unwrap_or(&self.folder);
        let Some(_alone) = UpkeepLock::try_exclusive(state).map_err(failed)? else {
            return Err(failed(io::Error::other("the state folder is being copied")));
        };
        let mut aside = SetAsideReport::default();
        for name in self.damaged_segments()? {
            // The intact lines up to the damage count.
            self.copy_live_segments([&name])?;
            if ledger::set_aside(&self.folder, &name, &place).map_err(failed)? {
                aside.place = Some(place.clone());
            }
            // After a crash here the segment is known and missing, and can be set aside again.
            self.usage.set_segment_aside(&name, now_ms)?;
            aside.segments.push(name);
        }
        Ok(aside)
    }

    /// The server segments that prevent a start, or would if it read all of them.
    fn damaged_segments(&self) -> Result<Vec<String>, UsageError> {
        let failed = |source| self.failed(source);
        let known = self.server_segments()?;
        let going = self.usage.retiring_segments()?;
        let there = ledger::segments(&self.folder).map_err(failed)?;
        let names: BTreeSet<&String> = known.keys().chain(there.keys()).collect();
        let mut wrong = Vec::new();
        for name in names
            .into_iter()
            .filter(|name| is_server_segment(name) && !going.contains(name))
        {
            let files = there.get(name).map(Vec::as_slice).unwrap_or_default();
            let lacks = known
                .get(name)
                .map(|progress| self.find_missing(name, files, *progress))
                .transpose()?;
            if lacks.flatten().is_some()
                || ledger::verify_segment(&self.folder, name)
                    .map_err(failed)?
                    .is_some()
            {
                wrong.push(name.clone());
            }
        }
        Ok(wrong)
    }
}

#[cfg(test)]
#[path = "server_ledger_tests.rs"]
mod tests;
