//! Fair-share limiter of a resource that all tenants share. A tenant gets at most its own limit,
//! and at most half of what the other tenants leave, so that two tenants cannot use up everything.

use crate::Problem;
use http::StatusCode;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The total limit, and the limit of one tenant.
#[derive(Debug)]
pub(crate) struct FairShareLimiter {
    max: usize,
    max_per_tenant: usize,
    usage: Arc<Mutex<Usage>>,
}

#[derive(Debug, Default)]
struct Usage {
    all: usize,
    by_tenant: HashMap<String, usize>,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareExceeded {
    /// The total limit of all tenants.
    Total(usize),
    /// The limit of this tenant.
    Tenant(usize),
}

impl ShareExceeded {
    /// The refusal: a tenant, or all tenants together, have at most this many of `what`.
    pub(crate) fn problem(self, what: &str, hint: &str) -> Problem {
        let (status, whose, max) = match self {
            ShareExceeded::Tenant(max) => (StatusCode::TOO_MANY_REQUESTS, "a tenant has", max),
            ShareExceeded::Total(max) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "all tenants together have",
                max,
            ),
        };
        let title = format!("{whose} at most {max} {what}");
        Problem::new(status, "quota_exceeded", title, Some(hint.to_owned()))
    }
}

/// The amount that a tenant holds; released when dropped.
#[derive(Debug)]
pub(crate) struct FairShareGuard {
    usage: Arc<Mutex<Usage>>,
    key: String,
    amount: usize,
}

fn locked(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FairShareLimiter {
    pub(crate) fn new(max: usize, max_per_tenant: usize) -> FairShareLimiter {
        FairShareLimiter {
            max,
            max_per_tenant,
            usage: Arc::default(),
        }
    }

    /// The most that one tenant can have.
    pub(crate) fn max_per_tenant(&self) -> usize {
        self.max_per_tenant
    }

    /// An empty guard of this tenant.
    pub(crate) fn guard(&self, key: &str) -> FairShareGuard {
        FairShareGuard {
            usage: self.usage.clone(),
            key: key.to_owned(),
            amount: 0,
        }
    }

    /// Acquires `more` for the tenant of this guard.
    pub(crate) fn acquire(
        &self,
        share: &mut FairShareGuard,
        more: usize,
    ) -> Result<(), ShareExceeded> {
        let mut usage = locked(&self.usage);
        let has = usage.by_tenant.get(&share.key).copied().unwrap_or(0);
        let left = self.max.saturating_sub(usage.all - has);
        let max = self.max_per_tenant.min(left.div_ceil(2));
        let own = has.saturating_add(more);
        if own > max {
            let is_for_others = has == 0 && own <= self.max_per_tenant;
            return Err(if is_for_others {
                ShareExceeded::Total(self.max)
            } else {
                ShareExceeded::Tenant(max)
            });
        }
        usage.all += more;
        usage.by_tenant.insert(share.key.clone(), own);
        share.amount += more;
        Ok(())
    }
}

impl FairShareGuard {
    /// Releases everything above `amount`.
    pub(crate) fn shrink_to(&mut self, amount: usize) {
        let back = self.amount.saturating_sub(amount);
        self.amount -= back;
        let mut usage = locked(&self.usage);
        usage.all -= back;
        // Tenants that hold nothing are removed from the map: keys come and go.
        let left = usage.by_tenant.get(&self.key).map_or(0, |own| own - back);
        match left {
            0 => drop(usage.by_tenant.remove(&self.key)),
            _ => drop(usage.by_tenant.insert(self.key.clone(), left)),
        }
    }
}

impl Drop for FairShareGuard {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_share_and_the_others_theirs() {
        let shares = FairShareLimiter::new(20, 6);
        let [mut her, mut his, mut again] = ["her", "him", "her"].map(|key| shares.guard(key));
        assert_eq!(shares.acquire(&mut her, 5), Ok(()));
        assert_eq!(
            shares.acquire(&mut again, 2),
            Err(ShareExceeded::Tenant(6)),
            "together with what she has already"
        );
        assert_eq!(shares.acquire(&mut again, 1), Ok(()));
        assert_eq!(shares.acquire(&mut his, 6), Ok(()));
        his.shrink_to(4);
        assert_eq!(shares.acquire(&mut his, 2), Ok(()));
        drop(her);
        assert_eq!(
            shares.acquire(&mut again, 5),
            Ok(()),
            "what is given back can be taken"
        );
        drop((again, his));
        assert!(locked(&shares.usage).by_tenant.is_empty() && locked(&shares.usage).all == 0);
    }

    #[test]
    fn nobody_has_more_than_half_of_what_the_others_leave() {
        let shares = FairShareLimiter::new(100, 100);
        let names: Vec<_> = (0..9).map(|number| number.to_string()).collect();
        let mut usage: Vec<_> = names.iter().map(|name| shares.guard(name)).collect();
        for share in &mut usage {
            while shares.acquire(share, 1).is_ok() {}
        }
        assert_eq!(
            shares.acquire(&mut shares.guard("more"), 1),
            Err(ShareExceeded::Total(100))
        );
        assert_eq!(
            shares.acquire(&mut shares.guard("0"), 1),
            Err(ShareExceeded::Tenant(25))
        );
        let amounts: Vec<_> = usage.iter().map(|share| share.amount).collect();
        assert_eq!(amounts, [50, 25, 13, 6, 3, 2, 1, 0, 0]);
    }
}
