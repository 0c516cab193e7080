//! Quotas of tenants, which let one node serve many users who do not know each other.

use crate::{Size, Time};
use std::collections::BTreeMap;

/// The quota of a tenant. Where a field is empty, only the limits of the whole node apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Concurrent runs, those of jobs included.
    pub runs: Option<usize>,
    /// Concurrent sandboxes.
    pub sandboxes: Option<usize>,
    /// Waiting and running jobs.
    pub jobs: Option<u64>,
    /// CPU time a day (UTC).
    pub cpu_day: Option<Time>,
    /// Bytes of artifacts and of layers over workspaces.
    pub storage: Option<Size>,
    /// Memory of its runs and sandboxes together, by their limits.
    pub memory: Option<Size>,
    /// The share of a busy node in proportion to other tenants: twice the weight starts twice the
    /// jobs.
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

/// The quotas of all tenants. The doors account for money.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantQuotas {
    /// Quotas by the name of the tenant.
    pub named: BTreeMap<String, Quota>,
    /// The quota of each other tenant.
    pub other: Quota,
    /// The memory of tenants whose quota has none.
    pub default_memory: Option<Size>,
}

impl TenantQuotas {
    /// The quota of a tenant.
    pub fn quota(&self, tenant: &str) -> &Quota {
        self.named.get(tenant).unwrap_or(&self.other)
    }

    /// The memory of its runs and sandboxes together.
    pub fn memory(&self, tenant: &str) -> Option<Size> {
        self.quota(tenant).memory.or(self.default_memory)
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
        let tenants = TenantQuotas {
            named: [("acme".to_owned(), acme.clone())].into(),
            other: other.clone(),
            default_memory: "1G".parse().ok(),
        };
        assert_eq!(
            (tenants.quota("acme"), tenants.quota("else")),
            (&acme, &other)
        );
        let memory = ["acme", "else"].map(|name| tenants.memory(name));
        assert_eq!(memory, ["2G".parse().ok(), "1G".parse().ok()]);
    }
}
