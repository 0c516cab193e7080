//! Whose turn it is among tenants: start-time fair queueing. Each start moves its tenant back by one turn, divided by its
//! weight; the one who is furthest ahead is next. Who comes anew begins where the others are: idling earns nothing, and a
//! crowd of jobs delays nobody else's by more than the turn that is under way.

use std::collections::HashMap;

/// One turn of a tenant of weight one.
const TURN: u64 = 1 << 32;

/// How far everybody is.
#[derive(Debug, Default)]
pub(super) struct Fair {
    /// Where the last start was.
    now: u64,
    /// Where the next start of a tenant is, if that is not now; and which start its last one was.
    next: HashMap<String, (u64, u64)>,
    started: u64,
}

impl Fair {
    /// Of two at the same place the one who has waited longer is first.
    fn place(&self, tenant: &str) -> (u64, u64) {
        let (next, last) = self.next.get(tenant).copied().unwrap_or_default();
        (next.max(self.now), last)
    }

    /// Those that could start something, in the order of their turns.
    pub(super) fn order(&self, mut tenants: Vec<String>) -> Vec<String> {
        tenants.sort_by(|one, two| (self.place(one), one).cmp(&(self.place(two), two)));
        tenants
    }

    /// This tenant has had a turn.
    pub(super) fn charge(&mut self, tenant: &str, weight: u32) {
        self.now = self.place(tenant).0;
        self.started += 1;
        let next = self.now.saturating_add(TURN / u64::from(weight.max(1)));
        self.next.insert(tenant.to_owned(), (next, self.started));
        // Who is not ahead of the others need not be remembered.
        let now = self.now;
        self.next.retain(|_, (next, _)| *next > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(fair: &mut Fair, tenants: &[(&str, u32)], count: usize) -> String {
        let names = || tenants.iter().map(|(name, _)| (*name).to_owned()).collect();
        let weight = |tenant: &str| tenants.iter().find(|(name, _)| *name == tenant).unwrap().1;
        let turn = |_| {
            let first = fair.order(names()).remove(0);
            fair.charge(&first, weight(&first));
            first
        };
        (0..count).map(turn).collect()
    }

    #[test]
    fn everybody_has_turns_by_weight() {
        assert_eq!(
            turns(&mut Fair::default(), &[("a", 1), ("b", 1)], 6),
            "ababab"
        );
        let mixed = turns(&mut Fair::default(), &[("a", 2), ("b", 1)], 9);
        assert_eq!(mixed.matches('a').count(), 6, "{mixed}");
        assert_eq!(turns(&mut Fair::default(), &[("a", 0)], 2), "aa");
    }

    #[test]
    fn who_comes_late_is_next_and_has_no_credit() {
        let mut fair = Fair::default();
        assert_eq!(turns(&mut fair, &[("noisy", 1)], 3), "noisynoisynoisy");
        assert_eq!(
            turns(&mut fair, &[("late", 1), ("noisy", 1)], 4),
            "latenoisylatenoisy"
        );
        assert!(fair.next.len() <= 2);
    }

    #[test]
    fn nobody_is_remembered_who_is_not_ahead() {
        let mut fair = Fair::default();
        for name in 0..1000 {
            fair.charge(&name.to_string(), 1);
        }
        fair.charge("a", 1);
        fair.charge("a", 1);
        assert_eq!(fair.next.len(), 1);
    }
}
