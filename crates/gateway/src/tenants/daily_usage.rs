//! Usage of tenants on the current day: counted in memory, and stored every few seconds and with
//! each end, so that it survives a restart. A crash loses a few seconds of CPU time.

use crate::Gateway;
use spec::Day;
use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use store::{
    DatabaseError,
    server_database::{ServerDatabase, TenantActivity},
};

/// Interval of counting active work.
const COUNT_INTERVAL: Duration = Duration::from_secs(3);

/// Usage per tenant on the current day.
#[derive(Debug)]
pub(crate) struct DailyUsage(Mutex<CurrentDay>, tokio::sync::Mutex<()>);

#[derive(Debug)]
struct CurrentDay {
    day: Day,
    used: HashMap<String, TenantActivity>,
    /// CPU time that is counted but not stored.
    unwritten: HashMap<(String, Day), u64>,
}

/// CPU time that is already counted. Each call takes only what is new, so that nothing is counted
/// twice.
#[derive(Debug, Default)]
pub(crate) struct HighWaterMark(AtomicU64);

impl HighWaterMark {
    /// Advances to this total and returns the difference.
    pub(crate) fn advance_to(&self, cpu_ms: u64) -> u64 {
        cpu_ms.saturating_sub(self.0.fetch_max(cpu_ms, Ordering::Relaxed))
    }
}

impl DailyUsage {
    /// Loads the stored usage.
    pub(crate) fn open(database: &ServerDatabase) -> Result<DailyUsage, DatabaseError> {
        let day = Day::of(engine::now());
        let used = database.tenant_activity(day)?;
        let today = CurrentDay {
            day,
            used,
            unwritten: HashMap::new(),
        };
        Ok(DailyUsage(Mutex::new(today), tokio::sync::Mutex::default()))
    }

    fn today(&self) -> MutexGuard<'_, CurrentDay> {
        let mut today = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Day::of(engine::now());
        // A clock that is set back gives no quota back.
        if now > today.day {
            today.day = now;
            today.used.clear();
        }
        today
    }

    /// Usage of a tenant on the current day.
    pub(crate) fn used(&self, tenant: &str) -> TenantActivity {
        self.today().used.get(tenant).copied().unwrap_or_default()
    }

    /// Counts usage that the caller stores; returns the day that it belongs to.
    pub(crate) fn count(&self, tenant: &str, more: TenantActivity) -> Day {
        let mut today = self.today();
        let used = today.used.entry(tenant.to_owned()).or_default();
        used.runs = used.runs.saturating_add(more.runs);
        used.sandboxes = used.sandboxes.saturating_add(more.sandboxes);
        used.cpu_ms = used.cpu_ms.saturating_add(more.cpu_ms);
        today.day
    }

    /// Counts CPU time that is stored later.
    fn count_later(&self, tenant: &str, cpu_ms: u64) {
        if cpu_ms > 0 {
            let day = self.count(tenant, TenantActivity::cpu_time(cpu_ms));
            self.add_unwritten([((tenant.to_owned(), day), cpu_ms)]);
        }
    }

    /// Whether counted CPU time is not stored yet: sums of a past day may still grow.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.today().unwritten.is_empty()
    }

    fn add_unwritten(&self, unwritten: impl IntoIterator<Item = ((String, Day), u64)>) {
        let mut today = self.today();
        for (tenant_day, cpu_ms) in unwritten {
            *today.unwritten.entry(tenant_day).or_default() += cpu_ms;
        }
    }
}

impl Gateway {
    /// Counts the CPU time of active work at an interval.
    pub(crate) async fn count_daily_usage(self) {
        loop {
            tokio::time::sleep(COUNT_INTERVAL).await;
            self.count_usage_now().await;
        }
    }

    /// Counts the CPU time of active work and stores it; serialized, so that an earlier write is
    /// complete on return.
    pub(crate) async fn count_usage_now(&self) {
        let _alone = self.daily_usage().1.lock().await;
        for (tenant, cpu_ms) in self
            .runs()
            .take_new_cpu_time()
            .into_iter()
            .chain(self.take_new_sandbox_cpu_time())
        {
            self.daily_usage().count_later(&tenant, cpu_ms);
        }
        let unwritten = std::mem::take(&mut self.daily_usage().today().unwritten);
        if unwritten.is_empty() {
            return;
        }
        let all = unwritten.clone();
        let written = self.writer().write(move |transaction| {
            all.iter().try_for_each(|((tenant, day), cpu_ms)| {
                transaction.add_tenant_activity(tenant, *day, TenantActivity::cpu_time(*cpu_ms))
            })
        });
        if written.await.is_err() {
            self.daily_usage().add_unwritten(unwritten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counts_twice_however_it_is_looked_at() {
        let counted = HighWaterMark::default();
        assert_eq!(
            [
                counted.advance_to(5),
                counted.advance_to(3),
                counted.advance_to(5),
                counted.advance_to(9)
            ],
            [5, 0, 0, 4]
        );
    }

    #[test]
    fn what_could_not_be_written_is_written_with_what_comes_and_a_new_day_begins_with_nothing() {
        let today = CurrentDay {
            day: Day(1),
            used: HashMap::new(),
            unwritten: HashMap::new(),
        };
        let daily_usage = DailyUsage(Mutex::new(today), tokio::sync::Mutex::default());
        daily_usage
            .0
            .lock()
            .unwrap()
            .used
            .insert("acme".to_owned(), TenantActivity::cpu_time(7));
        assert_eq!(
            daily_usage.used("acme"),
            TenantActivity::default(),
            "it is not the second day of 1970 any more"
        );
        daily_usage.count_later("acme", 4);
        let unwritten = std::mem::take(&mut daily_usage.today().unwritten);
        daily_usage.count_later("acme", 2);
        daily_usage.add_unwritten(unwritten);
        assert_eq!(
            daily_usage
                .today()
                .unwritten
                .values()
                .copied()
                .collect::<Vec<_>>(),
            [6]
        );
        assert_eq!(daily_usage.used("acme"), TenantActivity::cpu_time(6));
    }
}
