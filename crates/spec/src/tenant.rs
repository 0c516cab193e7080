//! What one tenant may have at a time and in a day, so that a node can serve many who do not know each other.
//!
//! Read in `app/src/config/doors.rs`, enforced in `gateway/src/tenants.rs`, shown in `gateway/src/tenants/quota.rs`.

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
    /// What its runs and sandboxes may use of the machine's memory together, by their limits.
    pub memory: Option<Size>,
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
            memory: None,
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
    /// The memory of those whose quota does not say it.
    pub usual_memory: Option<Size>,
}

impl Tenants {
    /// What this tenant may have.
    pub fn quota(&self, tenant: &str) -> &Quota {
        self.named.get(tenant).unwrap_or(&self.other)
    }

    /// What its runs and sandboxes may use of the machine's memory together.
    pub fn memory(&self, tenant: &str) -> Option<Size> {
        self.quota(tenant).memory.or(self.usual_memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_the_quota_of_its_name_or_that_of_all_others() {
        let acme = Quota {
            runs: Some(2),
            memory: "2G".parse().ok(),
            ..Quota::default()
        };
        let other = Quota {
            runs: Some(1),
            ..Quota::default()
        };
        let tenants = Tenants {
            named: [("acme".to_owned(), acme.clone())].into(),
            other: other.clone(),
            usual_memory: "1G".parse().ok(),
        };
        assert_eq!(
            (tenants.quota("acme"), tenants.quota("else")),
            (&acme, &other)
        );
        let memory = ["acme", "else"].map(|name| tenants.memory(name));
        assert_eq!(memory, ["2G".parse().ok(), "1G".parse().ok()]);
    }
}
