//! Per-tenant locks for work that takes much CPU or memory: tenants do not wait for each other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::OwnedMutexGuard;

/// A lock for each tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl TenantLocks {
    /// Waits for the tenant's lock, and holds it until the guard is dropped.
    pub(crate) async fn lock(&self, tenant: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Removes unused locks.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(tenant.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_tenant_waits_for_itself_and_for_nobody_else() {
        let waits = TenantLocks::default();
        let first = waits.lock("her").await;
        let hour = Duration::from_secs(3600);
        let second = tokio::time::timeout(hour, waits.lock("her")).await;
        assert!(second.is_err(), "she is at it");
        drop(waits.lock("him").await);
        drop(first);
        drop(waits.lock("her").await);
        drop(waits.lock("him").await);
        assert_eq!(waits.0.lock().unwrap().len(), 1, "others are forgotten");
    }
}
