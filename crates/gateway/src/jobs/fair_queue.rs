//! Start-time fair queueing among tenants. Each start advances its tenant's virtual time by the
//! unit cost divided by its weight, and the tenant with the smallest start time is next. A new
//! tenant starts at the current virtual time: idling earns nothing, and many jobs of one tenant
//! delay others by at most one turn.

use std::collections::HashMap;

/// Virtual cost of a start for a tenant of weight one.
const UNIT_COST: u64 = 1 << 32;

/// The virtual time of each tenant.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// Virtual start time of the last start.
    virtual_time: u64,
    /// Next virtual start time of a tenant if it is ahead of `virtual_time`, and the number of its
    /// last start.
    next: HashMap<String, (u64, u64)>,
    started: u64,
}

impl FairQueue {
    /// The virtual start time; ties go to the tenant that started longest ago.
    fn virtual_start(&self, tenant: &str) -> (u64, u64) {
        let (next, last) = self.next.get(tenant).copied().unwrap_or_default();
        (next.max(self.virtual_time), last)
    }

    /// Sorts tenants by their turn.
    pub(super) fn order(&self, mut tenants: Vec<String>) -> Vec<String> {
        tenants.sort_by(|one, two| {
            (self.virtual_start(one), one).cmp(&(self.virtual_start(two), two))
        });
        tenants
    }

    /// Charges a start to the tenant.
    pub(super) fn charge(&mut self, tenant: &str, weight: u32) {
        self.virtual_time = self.virtual_start(tenant).0;
        self.started += 1;
        let next = self
            .virtual_time
            .saturating_add(UNIT_COST / u64::from(weight.max(1)));
        self.next.insert(tenant.to_owned(), (next, self.started));
        // Tenants that are not ahead need no entry.
        let virtual_time = self.virtual_time;
        self.next.retain(|_, (next, _)| *next > virtual_time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_slots(fair: &mut FairQueue, tenants: &[(&str, u32)], count: usize) -> String {
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
            request_slots(&mut FairQueue::default(), &[("a", 1), ("b", 1)], 6),
            "ababab"
        );
        let mixed = request_slots(&mut FairQueue::default(), &[("a", 2), ("b", 1)], 9);
        assert_eq!(mixed.matches('a').count(), 6, "{mixed}");
        assert_eq!(
            request_slots(&mut FairQueue::default(), &[("a", 0)], 2),
            "aa"
        );
    }

    #[test]
    fn who_comes_late_is_next_and_has_no_credit() {
        let mut fair = FairQueue::default();
        assert_eq!(
            request_slots(&mut fair, &[("noisy", 1)], 3),
            "noisynoisynoisy"
        );
        assert_eq!(
            request_slots(&mut fair, &[("late", 1), ("noisy", 1)], 4),
            "latenoisylatenoisy"
        );
        assert!(fair.next.len() <= 2);
    }

    #[test]
    fn nobody_is_remembered_who_is_not_ahead() {
        let mut fair = FairQueue::default();
        for name in 0..1000 {
            fair.charge(&name.to_string(), 1);
        }
        fair.charge("a", 1);
        fair.charge("a", 1);
        assert_eq!(fair.next.len(), 1);
    }
}
