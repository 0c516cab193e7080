//! How far the clocks of agents are behind ours. A request whose timestamp is old is one that nobody waits for, or one of an
//! agent whose clock is slow, and nothing in it says which. But what waited at the broker is old by more or less, while a slow
//! clock makes everything old, and for long: the least age of all that an agent sent in the last minutes is by its clock.
//!
//! Nothing is believed before an agent was heard for a while: after an outage all that is left of it comes at once, and old.

use std::collections::HashMap;

/// Agents whose clocks are known. Of more nothing is learned; their timestamps are taken as they are.
const MOST: usize = 1024;
/// For so long an agent must have been heard.
const HEARD_MS: u64 = 30_000;
/// What was seen in this span counts, and in the one before it.
const SPAN_MS: u64 = 300_000;

#[derive(Debug, Default)]
pub(super) struct Clocks {
    agents: HashMap<String, Agent>,
}

#[derive(Clone, Copy, Debug)]
struct Agent {
    first_ms: u64,
    /// When the span of now began, the least age in it, and in the one before.
    since_ms: u64,
    least: u64,
    before: u64,
}

impl Clocks {
    /// When something was sent, by our clock.
    pub(super) fn by_ours(&mut self, agent: &str, sent_ms: u64, now_ms: u64) -> u64 {
        let age = now_ms.saturating_sub(sent_ms);
        if self.agents.len() >= MOST && !self.agents.contains_key(agent) {
            self.agents.retain(|_, known| known.is_fresh(now_ms));
            if self.agents.len() >= MOST {
                return sent_ms;
            }
        }
        let new = Agent {
            first_ms: now_ms,
            since_ms: now_ms,
            least: age,
            before: u64::MAX,
        };
        let known = self.agents.entry(agent.to_owned()).or_insert(new);
        if !known.is_fresh(now_ms) {
            *known = new;
        }
        sent_ms.saturating_add(known.behind(age, now_ms))
    }
}

impl Agent {
    /// Our own clock may have gone back.
    fn is_fresh(&self, now_ms: u64) -> bool {
        (self.since_ms..self.since_ms.saturating_add(2 * SPAN_MS)).contains(&now_ms)
    }

    fn behind(&mut self, age: u64, now_ms: u64) -> u64 {
        if now_ms - self.since_ms >= SPAN_MS {
            (self.since_ms, self.before, self.least) = (now_ms, self.least, age);
        }
        self.least = self.least.min(age);
        let is_known = now_ms.saturating_sub(self.first_ms) >= HEARD_MS;
        if is_known {
            self.least.min(self.before)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_000_000_000;
    const SLOW: u64 = 3_600_000;

    #[test]
    fn a_slow_clock_is_known_after_a_while_and_a_mended_one_at_once() {
        let mut clocks = Clocks::default();
        assert_eq!(
            clocks.by_ours("a", NOW - SLOW, NOW),
            NOW - SLOW,
            "it may be an old message"
        );
        let later = NOW + HEARD_MS;
        assert_eq!(clocks.by_ours("a", later - SLOW, later), later);
        assert_eq!(
            clocks.by_ours("a", later - SLOW - 7000, later),
            later - 7000,
            "one that waited"
        );
        assert_eq!(
            clocks.by_ours("b", later - SLOW, later),
            later - SLOW,
            "of others nothing is known"
        );
        assert_eq!(clocks.by_ours("a", later, later), later);
        assert_eq!(clocks.by_ours("a", later - SLOW, later), later - SLOW);
    }

    #[test]
    fn what_is_left_of_an_outage_is_old() {
        let mut clocks = Clocks::default();
        for age in (0..100_u64).rev().map(|number| number * 60_000) {
            assert_eq!(clocks.by_ours("a", NOW - age, NOW), NOW - age);
        }
        let later = NOW + HEARD_MS;
        assert_eq!(
            clocks.by_ours("a", later - SLOW, later),
            later - SLOW,
            "it has been seen to be right"
        );
        // After a silence nobody knows.
        let later = NOW + 3 * SPAN_MS;
        assert_eq!(clocks.by_ours("a", later - SLOW, later), later - SLOW);
    }

    #[test]
    fn a_clock_that_becomes_slow_is_known_when_the_last_right_time_is_long_ago() {
        let mut clocks = Clocks::default();
        clocks.by_ours("a", NOW, NOW);
        let ours = |clocks: &mut Clocks, minute: u64| {
            let now = NOW + minute * 60_000;
            now - clocks.by_ours("a", now - SLOW, now)
        };
        assert!((1..10).all(|minute| ours(&mut clocks, minute) == SLOW));
        assert!((10..30).all(|minute| ours(&mut clocks, minute) == 0));
    }

    #[test]
    fn there_are_only_so_many() {
        let mut clocks = Clocks::default();
        for number in 0..2 * MOST {
            clocks.by_ours(&number.to_string(), NOW, NOW);
        }
        assert_eq!(clocks.agents.len(), MOST);
        clocks.by_ours("new", NOW, NOW + 2 * SPAN_MS);
        assert_eq!(clocks.agents.len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_becomes_older_nor_newer_than_now(
            steps in prop::collection::vec((0..3_u8, 0..2 * NOW, 0..2 * NOW), 0..50),
        ) {
            let mut clocks = Clocks::default();
            for (agent, sent, now) in steps {
                let ours = clocks.by_ours(&agent.to_string(), sent, now);
                prop_assert!(sent <= ours && ours <= now.max(sent));
            }
        }
    }
}
