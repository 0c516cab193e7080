//! What all tenants have together, whatever keys they use. None has more of it than its share, nor more than half of what
//! the others leave: two of them do not take everything from whoever comes next.

use crate::Problem;
use http::StatusCode;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// So much for all, and so much of it for one tenant.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    most_of_one: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<String, usize>,
}

/// Which bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// That of all tenants together.
    All(usize),
    /// That of this one.
    One(usize),
}

impl Full {
    /// As an answer: a tenant, or all of them together, have at most so many of what is named.
    pub(crate) fn problem(self, what: &str, hint: &str) -> Problem {
        let (status, whose, most) = match self {
            Full::One(most) => (StatusCode::TOO_MANY_REQUESTS, "a tenant has", most),
            Full::All(most) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "all tenants together have",
                most,
            ),
        };
        let title = format!("{whose} at most {most} {what}");
        Problem::new(status, "quota_exceeded", title, Some(hint.to_owned()))
    }
}

/// What a tenant has taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    taken: Arc<Mutex<Taken>>,
    key: String,
    amount: usize,
}

fn locked(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    pub(crate) fn new(most: usize, most_of_one: usize) -> Shares {
        Shares {
            most,
            most_of_one,
            taken: Arc::default(),
        }
    }

    /// Nothing yet, for this tenant.
    pub(crate) fn of(&self, key: &str) -> Share {
        Share {
            taken: self.taken.clone(),
            key: key.to_owned(),
            amount: 0,
        }
    }

    /// So much more.
    pub(crate) fn add(&self, share: &mut Share, more: usize) -> Result<(), Full> {
        let mut taken = locked(&self.taken);
        let has = taken.of.get(&share.key).copied().unwrap_or(0);
        let left = self.most.saturating_sub(taken.all - has);
        let most = self.most_of_one.min(left.div_ceil(2));
        let own = has.saturating_add(more);
        if own > most {
            let is_for_others = has == 0 && own <= self.most_of_one;
            return Err(if is_for_others {
                Full::All(self.most)
            } else {
                Full::One(most)
            });
        }
        taken.all += more;
        taken.of.insert(share.key.clone(), own);
        share.amount += more;
        Ok(())
    }
}

impl Share {
    /// Gives back all but so much.
    pub(crate) fn shrink_to(&mut self, amount: usize) {
        let back = self.amount.saturating_sub(amount);
        self.amount -= back;
        let mut taken = locked(&self.taken);
        taken.all -= back;
        // Keys come and go: one that has nothing is not remembered.
        let left = taken.of.get(&self.key).map_or(0, |own| own - back);
        match left {
            0 => drop(taken.of.remove(&self.key)),
            _ => drop(taken.of.insert(self.key.clone(), left)),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_share_and_the_others_theirs() {
        let shares = Shares::new(20, 6);
        let [mut her, mut his, mut again] = ["her", "him", "her"].map(|key| shares.of(key));
        assert_eq!(shares.add(&mut her, 5), Ok(()));
        assert_eq!(
            shares.add(&mut again, 2),
            Err(Full::One(6)),
            "together with what she has already"
        );
        assert_eq!(shares.add(&mut again, 1), Ok(()));
        assert_eq!(shares.add(&mut his, 6), Ok(()));
        his.shrink_to(4);
        assert_eq!(shares.add(&mut his, 2), Ok(()));
        drop(her);
        assert_eq!(
            shares.add(&mut again, 5),
            Ok(()),
            "what is given back can be taken"
        );
        drop((again, his));
        assert!(locked(&shares.taken).of.is_empty() && locked(&shares.taken).all == 0);
    }

    #[test]
    fn nobody_has_more_than_half_of_what_the_others_leave() {
        let shares = Shares::new(100, 100);
        let names: Vec<_> = (0..9).map(|number| number.to_string()).collect();
        let mut taken: Vec<_> = names.iter().map(|name| shares.of(name)).collect();
        for share in &mut taken {
            while shares.add(share, 1).is_ok() {}
        }
        assert_eq!(shares.add(&mut shares.of("more"), 1), Err(Full::All(100)));
        assert_eq!(shares.add(&mut shares.of("0"), 1), Err(Full::One(25)));
        let amounts: Vec<_> = taken.iter().map(|share| share.amount).collect();
        assert_eq!(amounts, [50, 25, 13, 6, 3, 2, 1, 0, 0]);
    }
}
