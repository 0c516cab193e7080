//! The task that starts jobs. When a slot is free it picks the next tenant by [`FairQueue`], and of
//! that tenant the job with the highest priority, then the oldest. It does not poll: it is woken
//! when a job is accepted, ends or is released, when any run ends, and when the next `not_before`
//! or retry pause is over.
//!
//! Jobs may run forever, so fair queueing alone would let the first tenant take every slot. An
//! eighth of the slots, and at least one, is reserved for tenants that have none.
//!
//! Queued jobs are not held in memory, and each query is answered by an index. Attempts write their
//! starts concurrently, so that one fsync serves several of them.

use super::{Jobs, attempt, fair_queue::FairQueue};
use crate::{Gateway, problem::Answer};
use std::{collections::HashMap, time::Duration};
use tokio::sync::watch;

/// Due jobs that are moved per transaction.
const MAX_DUE: u32 = 1000;
/// Maximum sleep, because the system clock may be changed.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// Pause when the database is unavailable.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A job that is being started. It is not picked again until this is dropped; then the database has
/// it as running.
#[derive(Debug)]
pub(super) struct ClaimedJob {
    gateway: Gateway,
    pub(super) id: String,
}

impl Drop for ClaimedJob {
    fn drop(&mut self) {
        Jobs::locked(&self.gateway.jobs().starting).remove(&self.id);
        self.gateway.jobs().wake();
    }
}

/// A slot of a tenant; released when dropped.
#[derive(Debug)]
struct TenantSlot {
    gateway: Gateway,
    tenant: String,
}

impl TenantSlot {
    fn take(gateway: &Gateway, tenant: &str) -> TenantSlot {
        *Jobs::locked(&gateway.jobs().slots_by_tenant)
            .entry(tenant.to_owned())
            .or_default() += 1;
        TenantSlot {
            gateway: gateway.clone(),
            tenant: tenant.to_owned(),
        }
    }
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        let mut taken = Jobs::locked(&self.gateway.jobs().slots_by_tenant);
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
        }
        taken.retain(|_, count| *count > 0);
        drop(taken);
        self.gateway.jobs().wake();
    }
}

/// Starts jobs until `stop` is set.
pub(crate) async fn schedule(gateway: Gateway, mut stop: watch::Receiver<bool>) {
    let mut queue = FairQueue::default();
    loop {
        let (claimed, slot) = tokio::select! {
            claimed = next(&gateway, &mut queue) => claimed,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        spawn_attempt(claimed, slot);
    }
}

fn spawn_attempt(claimed: ClaimedJob, slot: TenantSlot) {
    let gateway = claimed.gateway.clone();
    tokio::spawn(async move {
        attempt::run_attempt(gateway, claimed).await;
        drop(slot);
    });
}

/// Waits for the next job.
async fn next(gateway: &Gateway, queue: &mut FairQueue) -> (ClaimedJob, TenantSlot) {
    loop {
        // A wake-up after this point is not lost: `Notify` stores it.
        let sleep = match find_next(gateway, queue).await {
            Ok(NextStart::Ready(claimed, slot)) => return (claimed, slot),
            Ok(NextStart::Until(due)) => sleep_until(due),
            Err(_) => RETRY_PAUSE,
        };
        tokio::select! {
            () = gateway.jobs().wake.notified() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

fn sleep_until(due: Option<u64>) -> Duration {
    let left = due.map(|due| Duration::from_millis(due.saturating_sub(engine::now().0)));
    left.unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
}

enum NextStart {
    Ready(ClaimedJob, TenantSlot),
    /// No job is ready before this time.
    Until(Option<u64>),
}

async fn find_next(gateway: &Gateway, queue: &mut FairQueue) -> Answer<NextStart> {
    if gateway.jobs().free_slots() == 0 {
        return Ok(NextStart::Until(None));
    }
    let read_queue = || {
        gateway.query_database(|database| Ok((database.next_due()?, database.active_tenants()?)))
    };
    let (mut due, mut tenants) = read_queue().await?;
    let now = engine::now().0;
    if due.is_some_and(|due| due <= now) {
        // Not durable: after power loss the job is due again.
        let moved = gateway
            .writer()
            .write(move |transaction| transaction.release_due_jobs(now, MAX_DUE))
            .await?;
        moved.iter().for_each(|id| gateway.jobs().notify(id));
        (due, tenants) = read_queue().await?;
    }
    if !tenants.is_empty() && !gateway.has_disk_space_for_jobs() {
        let next = now.saturating_add(RETRY_PAUSE.as_millis() as u64);
        return Ok(NextStart::Until(Some(
            due.map_or(next, |due| due.min(next)),
        )));
    }
    let tenants = queue.order(below_limits(gateway, tenants));
    let taken = Jobs::locked(&gateway.jobs().starting).clone();
    let first = gateway
        .query_database(move |database| {
            for tenant in tenants {
                let own = taken.values().filter(|of| **of == tenant).count();
                let next = database.next_jobs(&tenant, own + 1)?;
                if let Some(id) = next.into_iter().find(|id| !taken.contains_key(id)) {
                    return Ok(Some((id, tenant)));
                }
            }
            Ok(None)
        })
        .await?;
    let Some((id, tenant)) = first else {
        return Ok(NextStart::Until(due));
    };
    queue.charge(&tenant, gateway.quota(&tenant).weight);
    let slot = TenantSlot::take(gateway, &tenant);
    Jobs::locked(&gateway.jobs().starting).insert(id.clone(), tenant);
    Ok(NextStart::Ready(
        ClaimedJob {
            gateway: gateway.clone(),
            id,
        },
        slot,
    ))
}

/// The tenants that are below their limits. A tenant at its limit is skipped and delays nobody.
fn below_limits(gateway: &Gateway, mut tenants: Vec<String>) -> Vec<String> {
    let mut counts: HashMap<String, usize> = gateway.runs().by_tenant();
    for tenant in Jobs::locked(&gateway.jobs().starting).values() {
        *counts.entry(tenant.clone()).or_default() += 1;
    }
    if counts.values().sum::<usize>() >= gateway.bounds().runs {
        return Vec::new();
    }
    let slots = gateway.jobs().slots;
    let free = gateway.jobs().free_slots();
    let taken = Jobs::locked(&gateway.jobs().slots_by_tenant).clone();
    tenants.retain(|tenant| {
        may_take_slot(slots, free, taken.contains_key(tenant))
            && counts.get(tenant).copied().unwrap_or(0) < gateway.max_runs(tenant)
            && !gateway.is_out_of_memory(tenant)
            && gateway.check_cpu(tenant).is_ok()
    });
    tenants
}

/// A tenant with slots leaves an eighth free for tenants without one.
fn may_take_slot(slots: usize, free: usize, has_some: bool) -> bool {
    let left_free = if has_some { (slots / 8).max(1) } else { 0 };
    free > left_free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_what_is_for_those_who_have_none() {
        let most = |slots: usize| {
            (0..slots)
                .take_while(|own| may_take_slot(slots, slots - own, *own > 0))
                .count()
        };
        assert_eq!([1, 2, 4, 16, 64].map(most), [1, 1, 3, 14, 56]);
        assert!(
            may_take_slot(4, 1, false) && !may_take_slot(4, 1, true) && !may_take_slot(4, 0, false)
        );
    }
}
