//! Clock skew of agents. An old timestamp means that nobody waits for the request any more, or that
//! the agent's clock is slow. Requests that waited at the broker vary in age, while a slow clock
//! makes every request old: the minimum age in the last minutes is attributed to the clock.
//!
//! Nothing is attributed before an agent has been observed for a while, because after an outage all
//! queued requests arrive at once, and old.

use std::collections::HashMap;

/// Agents that are tracked. Timestamps of further agents are used as they are.
const MAX_AGENTS: usize = 1024;
/// An agent must have been observed for this long.
const WARM_UP_MS: u64 = 30_000;
/// Length of a window; the current and the previous one count.
const WINDOW_MS: u64 = 300_000;

#[derive(Debug, Default)]
pub(super) struct ClockSkew {
    agents: HashMap<String, Agent>,
}

#[derive(Clone, Copy, Debug)]
struct Agent {
    first_ms: u64,
    /// Begin of the current window, its minimum age, and that of the previous window.
    since_ms: u64,
    least: u64,
    before: u64,
}

impl ClockSkew {
    /// The time of sending by our clock.
    pub(super) fn estimate_local_time(&mut self, agent: &str, sent_ms: u64, now_ms: u64) -> u64 {
        let age = now_ms.saturating_sub(sent_ms);
        if self.agents.len() >= MAX_AGENTS && !self.agents.contains_key(agent) {
            self.agents.retain(|_, known| known.is_fresh(now_ms));
            if self.agents.len() >= MAX_AGENTS {
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
    /// Our own clock may have been set back.
    fn is_fresh(&self, now_ms: u64) -> bool {
        (self.since_ms..self.since_ms.saturating_add(2 * WINDOW_MS)).contains(&now_ms)
    }

    fn behind(&mut self, age: u64, now_ms: u64) -> u64 {
        if now_ms - self.since_ms >= WINDOW_MS {
            self.since_ms = now_ms;
            self.before = self.least;
            self.least = age;
        }
        self.least = self.least.min(age);
        let is_known = now_ms.saturating_sub(self.first_ms) >= WARM_UP_MS;
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
        let mut clocks = ClockSkew::default();
        assert_eq!(
            clocks.estimate_local_time("a", NOW - SLOW, NOW),
            NOW - SLOW,
            "it may be an old message"
        );
        let later = NOW + WARM_UP_MS;
        assert_eq!(clocks.estimate_local_time("a", later - SLOW, later), later);
        assert_eq!(
            clocks.estimate_local_time("a", later - SLOW - 7000, later),
            later - 7000,
            "one that waited"
        );
        assert_eq!(
            clocks.estimate_local_time("b", later - SLOW, later),
            later - SLOW,
            "of others nothing is known"
        );
        assert_eq!(clocks.estimate_local_time("a", later, later), later);
        assert_eq!(
            clocks.estimate_local_time("a", later - SLOW, later),
            later - SLOW
        );
    }

    #[test]
    fn what_is_left_of_an_outage_is_old() {
        let mut clocks = ClockSkew::default();
        for age in (0..100_u64).rev().map(|number| number * 60_000) {
            assert_eq!(clocks.estimate_local_time("a", NOW - age, NOW), NOW - age);
        }
        let later = NOW + WARM_UP_MS;
        assert_eq!(
            clocks.estimate_local_time("a", later - SLOW, later),
            later - SLOW,
            "it has been seen to be right"
        );
        // After a silence nobody knows.
        let later = NOW + 3 * WINDOW_MS;
        assert_eq!(
            clocks.estimate_local_time("a", later - SLOW, later),
            later - SLOW
        );
    }

    #[test]
    fn a_clock_that_becomes_slow_is_known_when_the_last_right_time_is_long_ago() {
        let mut clocks = ClockSkew::default();
        clocks.estimate_local_time("a", NOW, NOW);
        let ours = |clocks: &mut ClockSkew, minute: u64| {
            let now = NOW + minute * 60_000;
            now - clocks.estimate_local_time("a", now - SLOW, now)
        };
        assert!((1..10).all(|minute| ours(&mut clocks, minute) == SLOW));
        assert!((10..30).all(|minute| ours(&mut clocks, minute) == 0));
    }

    #[test]
    fn there_are_only_so_many() {
        let mut clocks = ClockSkew::default();
        for number in 0..2 * MAX_AGENTS {
            clocks.estimate_local_time(&number.to_string(), NOW, NOW);
        }
        assert_eq!(clocks.agents.len(), MAX_AGENTS);
        clocks.estimate_local_time("new", NOW, NOW + 2 * WINDOW_MS);
        assert_eq!(clocks.agents.len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_becomes_older_nor_newer_than_now(
            steps in prop::collection::vec((0..3_u8, 0..2 * NOW, 0..2 * NOW), 0..50),
        ) {
            let mut clocks = ClockSkew::default();
            for (agent, sent, now) in steps {
                let ours = clocks.estimate_local_time(&agent.to_string(), sent, now);
                prop_assert!(sent <= ours && ours <= now.max(sent));
            }
        }
    }
}
