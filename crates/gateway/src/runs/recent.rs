//! Recently finished runs, kept in memory with their output for readers that reconnect; limited by
//! number, size and age. The tenant with the most loses its oldest first.

use super::active::ActiveRun;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

const MAX_RUNS: usize = 1024;
const MAX_BYTES: u64 = 64 << 20;
const MAX_AGE: Duration = Duration::from_secs(300);

/// Ordered from oldest to newest.
#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    runs: VecDeque<RecentRun>,
    bytes: u64,
    /// Number of runs and bytes per owner.
    by_owner: HashMap<String, (usize, u64)>,
}

#[derive(Debug)]
struct RecentRun {
    since: Instant,
    bytes: u64,
    live: Arc<ActiveRun>,
}

impl RecentRuns {
    pub(super) fn find(&self, id: &str) -> Option<&Arc<ActiveRun>> {
        self.runs
            .iter()
            .rev()
            .map(|recent| &recent.live)
            .find(|live| live.id.as_str() == id)
    }

    /// Adds a run, and evicts others above the limits.
    pub(super) fn add(&mut self, live: Arc<ActiveRun>, bytes: u64) {
        self.bytes += bytes;
        let (count, sum) = self.by_owner.entry(live.owner.clone()).or_default();
        (*count, *sum) = (*count + 1, *sum + bytes);
        self.runs.push_back(RecentRun {
            since: Instant::now(),
            bytes,
            live,
        });
        while let Some(index) = self.run_to_evict() {
            self.forget(index);
        }
    }

    /// The run to evict now, if any.
    fn run_to_evict(&self) -> Option<usize> {
        if self
            .runs
            .front()
            .is_some_and(|oldest| oldest.since.elapsed() >= MAX_AGE)
        {
            return Some(0);
        }
        let most = match (self.bytes > MAX_BYTES, self.runs.len() > MAX_RUNS) {
            (true, _) => self.by_owner.iter().max_by_key(|(_, (_, bytes))| *bytes),
            (false, true) => self.by_owner.iter().max_by_key(|(_, (count, _))| *count),
            (false, false) => None,
        };
        let (owner, _) = most?;
        self.runs
            .iter()
            .position(|recent| recent.live.owner == *owner)
    }

    fn forget(&mut self, index: usize) {
        let Some(recent) = self.runs.remove(index) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(recent.bytes);
        if let Some((count, bytes)) = self.by_owner.get_mut(&recent.live.owner) {
            (*count, *bytes) = (count.saturating_sub(1), bytes.saturating_sub(recent.bytes));
            if *count == 0 {
                self.by_owner.remove(&recent.live.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owners_ended_runs_push_out_his_own_and_nobody_elses() {
        let mut recents = RecentRuns::default();
        let live = |owner: &str, id: &str| {
            Arc::new(ActiveRun::new(
                spec::Id::new(id).unwrap(),
                owner,
                engine::OutputLog::new(1),
            ))
        };
        let known =
            |recents: &RecentRuns| ["q", "first", "second"].map(|id| recents.find(id).is_some());
        recents.add(live("quiet", "q"), MAX_BYTES / 8);
        recents.add(live("loud", "first"), MAX_BYTES / 2);
        assert_eq!(
            known(&recents),
            [true, true, false],
            "the positive control: both fit"
        );
        recents.add(live("loud", "second"), MAX_BYTES / 2);
        assert_eq!(known(&recents), [true, false, true], "by bytes");
        (0..MAX_RUNS).for_each(|number| recents.add(live("loud", &format!("l{number}")), 0));
        assert_eq!(known(&recents), [true, false, false], "by their number");
        assert_eq!((recents.runs.len(), recents.by_owner.len()), (MAX_RUNS, 2));
    }
}
