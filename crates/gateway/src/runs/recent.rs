//! Runs that just ended, kept at hand with all of their output for readers that come again: so many, so large together, so
//! long. Whoever has the most of them loses the oldest first.

use super::live::Live;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

const MOST: usize = 1024;
const MOST_BYTES: u64 = 64 << 20;
const LONGEST: Duration = Duration::from_secs(300);

/// The oldest first.
#[derive(Debug, Default)]
pub(super) struct Recents {
    runs: VecDeque<Recent>,
    bytes: u64,
    /// How many each owner has of these, and of how many bytes.
    shares: HashMap<String, (usize, u64)>,
}

#[derive(Debug)]
struct Recent {
    since: Instant,
    bytes: u64,
    live: Arc<Live>,
}

impl Recents {
    pub(super) fn find(&self, id: &str) -> Option<&Arc<Live>> {
        self.runs
            .iter()
            .rev()
            .map(|recent| &recent.live)
            .find(|live| live.id.as_str() == id)
    }

    /// One that holds so many bytes; others are forgotten for it.
    pub(super) fn add(&mut self, live: Arc<Live>, bytes: u64) {
        self.bytes += bytes;
        let (count, sum) = self.shares.entry(live.owner.clone()).or_default();
        (*count, *sum) = (*count + 1, *sum + bytes);
        self.runs.push_back(Recent {
            since: Instant::now(),
            bytes,
            live,
        });
        while let Some(index) = self.over() {
            self.forget(index);
        }
    }

    /// Which of them is to be forgotten now.
    fn over(&self) -> Option<usize> {
        if self
            .runs
            .front()
            .is_some_and(|oldest| oldest.since.elapsed() >= LONGEST)
        {
            return Some(0);
        }
        let most = match (self.bytes > MOST_BYTES, self.runs.len() > MOST) {
            (true, _) => self.shares.iter().max_by_key(|(_, (_, bytes))| *bytes),
            (false, true) => self.shares.iter().max_by_key(|(_, (count, _))| *count),
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
        if let Some((count, bytes)) = self.shares.get_mut(&recent.live.owner) {
            (*count, *bytes) = (count.saturating_sub(1), bytes.saturating_sub(recent.bytes));
            if *count == 0 {
                self.shares.remove(&recent.live.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owners_ended_runs_push_out_his_own_and_nobody_elses() {
        let mut recents = Recents::default();
        let live = |owner: &str, id: &str| {
            Arc::new(Live::new(
                spec::Id::new(id).unwrap(),
                owner,
                engine::Feed::new(1),
            ))
        };
        let known =
            |recents: &Recents| ["q", "first", "second"].map(|id| recents.find(id).is_some());
        recents.add(live("quiet", "q"), MOST_BYTES / 8);
        recents.add(live("loud", "first"), MOST_BYTES / 2);
        assert_eq!(
            known(&recents),
            [true, true, false],
            "the positive control: both fit"
        );
        recents.add(live("loud", "second"), MOST_BYTES / 2);
        assert_eq!(known(&recents), [true, false, true], "by bytes");
        (0..MOST).for_each(|number| recents.add(live("loud", &format!("l{number}")), 0));
        assert_eq!(known(&recents), [true, false, false], "by their number");
        assert_eq!((recents.runs.len(), recents.shares.len()), (MOST, 2));
    }
}
