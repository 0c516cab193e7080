//! What tenants use today: known here at once, and written down every few seconds and with each end, so that it outlasts
//! the server. One that is killed forgets what it had not written: a few seconds of CPU time.

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
    served::{DayUse, Served},
};

/// Between two looks at what goes on.
const BETWEEN_COUNTS: Duration = Duration::from_secs(3);

/// What tenants use today.
#[derive(Debug)]
pub(crate) struct Days(Mutex<Today>, tokio::sync::Mutex<()>);

#[derive(Debug)]
struct Today {
    day: Day,
    used: HashMap<String, DayUse>,
    /// CPU time that is counted, but not written yet.
    unwritten: HashMap<(String, Day), u64>,
}

/// How much CPU time of something was counted already. Whoever counts takes what is new, so that nothing counts twice.
#[derive(Debug, Default)]
pub(crate) struct Counted(AtomicU64);

impl Counted {
    /// What is new, now that it has used so much.
    pub(crate) fn up_to(&self, cpu_ms: u64) -> u64 {
        cpu_ms.saturating_sub(self.0.fetch_max(cpu_ms, Ordering::Relaxed))
    }
}

impl Days {
    /// As they were written down.
    pub(crate) fn open(served: &Served) -> Result<Days, DatabaseError> {
        let day = Day::of(engine::now());
        let used = served.day(day)?;
        let today = Today {
            day,
            used,
            unwritten: HashMap::new(),
        };
        Ok(Days(Mutex::new(today), tokio::sync::Mutex::default()))
    }

    fn today(&self) -> MutexGuard<'_, Today> {
        let mut today = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Day::of(engine::now());
        // A clock that is put back gives nothing back.
        if now > today.day {
            today.day = now;
            today.used.clear();
        }
        today
    }

    /// What a tenant has used of today.
    pub(crate) fn used(&self, tenant: &str) -> DayUse {
        self.today().used.get(tenant).copied().unwrap_or_default()
    }

    /// Counts what somebody writes down himself; the day that it belongs to.
    pub(crate) fn count(&self, tenant: &str, more: DayUse) -> Day {
        let mut today = self.today();
        let used = today.used.entry(tenant.to_owned()).or_default();
        used.runs = used.runs.saturating_add(more.runs);
        used.sandboxes = used.sandboxes.saturating_add(more.sandboxes);
        used.cpu_ms = used.cpu_ms.saturating_add(more.cpu_ms);
        today.day
    }

    /// Counts CPU time that is written down soon.
    fn count_later(&self, tenant: &str, cpu_ms: u64) {
        if cpu_ms > 0 {
            let day = self.count(tenant, DayUse::cpu(cpu_ms));
            self.put_back([((tenant.to_owned(), day), cpu_ms)]);
        }
    }

    /// Whether something of a day is counted that could not be written yet: its sums will become more.
    pub(crate) fn are_unwritten(&self) -> bool {
        !self.today().unwritten.is_empty()
    }

    fn put_back(&self, unwritten: impl IntoIterator<Item = ((String, Day), u64)>) {
        let mut today = self.today();
        for (whose, cpu_ms) in unwritten {
            *today.unwritten.entry(whose).or_default() += cpu_ms;
        }
    }
}

impl Gateway {
    /// Every few seconds, what goes on has used more.
    pub(crate) async fn count_days(self) {
        loop {
            tokio::time::sleep(BETWEEN_COUNTS).await;
            self.count_now().await;
        }
    }

    /// Counts what goes on, and writes it down; after whoever is writing now, so that what he writes is there.
    pub(crate) async fn count_now(&self) {
        let _alone = self.days().1.lock().await;
        for (tenant, cpu_ms) in self
            .runs()
            .newly_used()
            .into_iter()
            .chain(self.sandboxes_newly_used())
        {
            self.days().count_later(&tenant, cpu_ms);
        }
        let unwritten = std::mem::take(&mut self.days().today().unwritten);
        if unwritten.is_empty() {
            return;
        }
        let all = unwritten.clone();
        let written = self.writer().write(move |writing| {
            all.iter().try_for_each(|((tenant, day), cpu_ms)| {
                writing.add_to_day(tenant, *day, DayUse::cpu(*cpu_ms))
            })
        });
        if written.await.is_err() {
            self.days().put_back(unwritten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counts_twice_however_it_is_looked_at() {
        let counted = Counted::default();
        assert_eq!(
            [
                counted.up_to(5),
                counted.up_to(3),
                counted.up_to(5),
                counted.up_to(9)
            ],
            [5, 0, 0, 4]
        );
    }

    #[test]
    fn what_could_not_be_written_is_written_with_what_comes_and_a_new_day_begins_with_nothing() {
        let today = Today {
            day: Day(1),
            used: HashMap::new(),
            unwritten: HashMap::new(),
        };
        let days = Days(Mutex::new(today), tokio::sync::Mutex::default());
        days.0
            .lock()
            .unwrap()
            .used
            .insert("acme".to_owned(), DayUse::cpu(7));
        assert_eq!(
            days.used("acme"),
            DayUse::default(),
            "it is not the second day of 1970 any more"
        );
        days.count_later("acme", 4);
        let unwritten = std::mem::take(&mut days.today().unwritten);
        days.count_later("acme", 2);
        days.put_back(unwritten);
        assert_eq!(
            days.today().unwritten.values().copied().collect::<Vec<_>>(),
            [6]
        );
        assert_eq!(days.used("acme"), DayUse::cpu(6));
    }
}
