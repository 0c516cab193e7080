//! The ledger of a server, or of the doors by themselves: what was spent today, day by day, and what of it cannot be believed.

use super::{Books, LEDGER, Problem, UsageError, open_at};
use doors::{
    ledger::{self, Durability, Found, Head, Ledger, OWNER},
    till::Till,
};
use spec::Day;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use store::{DatabaseError, Upkeep, usage::Progress};

/// How long each segment of a server is, in bytes of all its files: it says more than before only if this is more.
pub fn lengths(state: &Path) -> io::Result<BTreeMap<String, u64>> {
    let own = ledger::segments(&state.join(LEDGER))?
        .into_iter()
        .filter(|(name, _)| is_own(name));
    own.map(|(name, files)| {
        let bytes = files
            .iter()
            .map(|file| Ok(std::fs::metadata(file)?.len()))
            .sum::<io::Result<u64>>()?;
        Ok((name, bytes))
    })
    .collect()
}

/// Whether a segment is of those who own the money of a state folder.
fn is_own(name: &str) -> bool {
    name == OWNER || ledger::is_of_day(name)
}

/// Has a till write to the ledger of a day from now on. If it writes to that of a later one it stays there: no day comes twice.
pub fn begin_day(till: &Till, state: &Path, durability: Durability, today: Day) -> io::Result<()> {
    let name = ledger::of_day(today);
    if *till.ledger().name() < *name {
        till.write_to(Arc::new(Ledger::open(
            &state.join(LEDGER),
            &name,
            durability,
        )?));
    }
    Ok(())
}

/// What was put aside of a server's ledger.
#[derive(Debug, Default)]
pub struct Aside {
    /// Which.
    pub segments: Vec<String>,
    /// Where their files are; none if there were none.
    pub place: Option<PathBuf>,
}

impl Books {
    /// What is wrong with a server's ledger that says less than was read from it before, or other things. Of days that are over
    /// only the length is looked at. What is broken in itself is named by whoever takes it over.
    pub fn check(&self, today: Day) -> Result<Option<Problem>, UsageError> {
        let failed = |source| self.failed(source);
        let there = ledger::segments(&self.folder).map_err(failed)?;
        for (name, progress) in self.own()? {
            let files = there.get(&name).map(Vec::as_slice).unwrap_or_default();
            let whole =
                name == OWNER || ledger::tells_of(&self.folder, &name, today).map_err(failed)?;
            let problem = match whole {
                true => self.lacks(&name, files, progress)?,
                false => self.shrank(&name, files, progress)?,
            };
            if problem.is_some() {
                return Ok(problem);
            }
        }
        Ok(None)
    }

    /// How far a server's segments were read, but for those that are being taken away.
    fn own(&self) -> Result<BTreeMap<String, Progress>, DatabaseError> {
        let (mut known, going) = (self.usage.segments()?, self.usage.retiring()?);
        known.retain(|name, _| is_own(name) && !going.contains(name));
        Ok(known)
    }

    fn shrank(
        &self,
        name: &str,
        files: &[PathBuf],
        progress: Progress,
    ) -> Result<Option<Problem>, UsageError> {
        let Some(file) = files.get(progress.part as usize - 1) else {
            return self.lacks(name, files, progress);
        };
        Ok(open_at(
            file,
            Head {
                offset: progress.offset,
                ..Head::default()
            },
        )
        .err())
    }

    /// What tenants spent today by the ledgers of days. What is open in them is settled as lost, so their owner must be gone.
    pub fn past(&self, today: Day) -> Result<Found, UsageError> {
        let failed = |source| self.failed(source);
        let going = self.usage.retiring()?;
        let there = ledger::segments(&self.folder).map_err(failed)?;
        let names: Vec<_> = there
            .into_keys()
            .filter(|name| ledger::is_of_day(name) && !going.contains(name))
            .collect();
        ledger::past(&self.folder, &names, today).map_err(failed)
    }

    /// Puts those segments of a server that cannot be believed beside the ledger, and forgets how far they were read: whoever takes
    /// their names next begins anew. What they said up to the damage stays in the sums; what was open there is never settled, and
    /// counts in full.
    pub fn set_aside(&self, now_ms: u64) -> Result<Aside, UsageError> {
        let failed = |source| self.failed(source);
        let place = self
            .folder
            .with_file_name(format!("{LEDGER}-aside-{now_ms}"));
        let state = self.folder.parent().unwrap_or(&self.folder);
        let Some(_alone) = Upkeep::alone(state).map_err(failed)? else {
            return Err(failed(io::Error::other("the state folder is being copied")));
        };
        let mut aside = Aside::default();
        for name in self.unbelieved()? {
            // What can be believed, up to the damage, counts.
            self.follow([&name])?;
            if ledger::set_aside(&self.folder, &name, &place).map_err(failed)? {
                aside.place = Some(place.clone());
            }
            // Should we end here, it is known and not there, and can be set aside again.
            self.usage.set_aside(&name, now_ms)?;
            aside.segments.push(name);
        }
        Ok(aside)
    }

    /// A server's segments that keep it from starting, or would if it read all of them.
    fn unbelieved(&self) -> Result<Vec<String>, UsageError> {
        let failed = |source| self.failed(source);
        let (known, going) = (self.own()?, self.usage.retiring()?);
        let there = ledger::segments(&self.folder).map_err(failed)?;
        let names: BTreeSet<&String> = known.keys().chain(there.keys()).collect();
        let mut wrong = Vec::new();
        for name in names
            .into_iter()
            .filter(|name| is_own(name) && !going.contains(name))
        {
            let files = there.get(name).map(Vec::as_slice).unwrap_or_default();
            let lacks = known
                .get(name)
                .map(|progress| self.lacks(name, files, *progress))
                .transpose()?;
            if lacks.flatten().is_some()
                || ledger::believe(&self.folder, name)
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
#[path = "own_tests.rs"]
mod tests;
