//! What one tenant may have at a time and in a day, so that a node can serve many who do not know each other.

use crate::{Size, Time};
use std::collections::BTreeMap;

/// What a tenant may have. What is left away is bounded by what all have together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Runs at once, those of jobs among them.
    pub runs: Option<usize>,
    /// Sandboxes at once.
    pub sandboxes: Option<usize>,
    /// Jobs that wait or run.
    pub jobs: Option<u64>,
    /// CPU time of a day (UTC).
    pub cpu_day: Option<Time>,
    /// Bytes of artifacts and of layers of workspaces.
    pub storage: Option<Size>,
    /// How much of a busy node is its, beside others: twice the weight, twice the turns.
    pub weight: u32,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota {
            runs: None,
            sandboxes: None,
            jobs: None,
            cpu_day: None,
            storage: None,
            weight: 1,
        }
    }
}

/// The quotas of all tenants. Money is counted at the doors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants {
    /// By name.
    pub named: BTreeMap<String, Quota>,
    /// For each of those that are not named.
    pub other: Quota,
}

impl Tenants {
    /// What this tenant may have.
    pub fn quota(&self, tenant: &str) -> &Quota {
        self.named.get(tenant).unwrap_or(&self.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_the_quota_of_its_name_or_that_of_all_others() {
        let acme = Quota {
            runs: Some(2),
            ..Quota::default()
        };
        let other = Quota {
            runs: Some(1),
            ..Quota::default()
        };
        let tenants = Tenants {
            named: [("acme".to_owned(), acme.clone())].into(),
            other: other.clone(),
        };
        assert_eq!(
            (tenants.quota("acme"), tenants.quota("else")),
            (&acme, &other)
        );
    }
}
