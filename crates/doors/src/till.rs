//! Money that holds: reserve the worst case, settle the real one. All levels (session, tenant, day) or none.

use crate::ledger::{Call, Ledger, Outcome};
use spec::{Budget, Money};
use std::sync::Arc;

/// Accounts and the ledger they are written to. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Till {
    _ledger: Arc<Ledger>,
}

/// One account: a run, a session, a tenant.
#[derive(Clone, Debug)]
pub struct Account {}

/// What an account and those above it still have. `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Room {
    pub money: Option<Money>,
    pub tokens: Option<u64>,
}

/// The worst case of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Claim {
    pub money: Money,
    pub tokens: u64,
}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// For good, or until the named window ends: `run_usd`, `tokens`, `requests`, `tenant_day_usd`, …
    Spent {
        /// Which limit.
        limit: &'static str,
        /// What is left of the money.
        left: Option<Money>,
        /// Seconds until it begins anew.
        resets_in: Option<u64>,
    },
    /// Too many at once, or in this minute: trying again helps.
    Busy {
        /// Which limit.
        limit: &'static str,
        /// Seconds to wait.
        wait: u64,
    },
    /// The ledger cannot be written, so nothing may be spent.
    Ledger(String),
}

/// What an account has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Used {
    pub calls: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub money: Money,
    pub overrun: Money,
    /// Held by calls under way.
    pub held: Money,
}

/// A reservation, written down. Dropped without being settled it counts in full.
#[derive(Debug)]
pub struct Hold {
    /// What was reserved.
    pub claim: Claim,
}

/// An account's name and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Terms {
    pub name: String,
    pub budget: Budget,
    /// Of each day (UTC).
    pub day: Option<Money>,
    /// Requests in each minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens in each minute.
    pub tokens_per_minute: Option<u64>,
}

impl Till {
    /// A till that writes to this ledger.
    pub fn new(ledger: Arc<Ledger>) -> Till {
        Till { _ledger: ledger }
    }

    /// Opens an account below another. What recovery found spent under this name is spent.
    pub fn account(&self, _terms: Terms, _above: Option<&Account>) -> Account {
        Account {}
    }

    /// Reserves what `worst` says is the worst case, given the room there is; the record is written when this
    /// returns. `worst` may claim less than it wished (a lower cap of output), or nothing at all. One lock: of many
    /// at once, each sees what the others hold.
    pub async fn reserve(
        &self,
        _account: &Account,
        _call: Call,
        worst: impl FnOnce(Room) -> Option<Claim> + Send,
    ) -> Result<Hold, Refused> {
        let spent = Refused::Spent { limit: "run_usd", left: None, resets_in: None };
        worst(Room::default()).map(|claim| Hold { claim }).ok_or(spent)
    }

    /// What an account has used.
    pub fn used(&self, _account: &Account) -> Used {
        Used::default()
    }
}

impl Hold {
    /// The real bill instead of the worst one.
    pub fn settle(self, _outcome: Outcome) {}
}
