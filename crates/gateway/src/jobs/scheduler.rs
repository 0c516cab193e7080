//! The one task that starts jobs. Where a slot is free it looks whose turn it is: the tenant by [`Fair`], of that tenant the
//! highest priority, of those the oldest. Nothing is asked again and again: it is woken when a job is accepted, ends or is
//! released, when a run of anybody ends, and when the next `not_before` or pause is over.
//!
//! Jobs may run for ever, and turns alone would let the first who comes take every slot. So an eighth of them, and at least
//! one, is only for tenants that have none.
//!
//! Rows of jobs that wait are never in memory, and each look is answered by indexes. Starts are written down by the tasks of
//! their tries, several at once, so that one wait for the disk serves all of them.

use super::{Jobs, attempt, fair::Fair};
use crate::{Gateway, problem::Answer};
use std::{collections::HashMap, time::Duration};
use tokio::sync::watch;

/// Those whose time has come, in one transaction.
const MOST_DUE: u32 = 1000;
/// The clock of the machine may be set while we sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// How long nothing is tried when the database cannot be had.
const PAUSE: Duration = Duration::from_secs(1);

/// A job whose turn it is. Nobody else picks it until this is dropped, and then the database says that it runs.
#[derive(Debug)]
pub(super) struct Picked {
    gateway: Gateway,
    pub(super) id: String,
}

impl Drop for Picked {
    fn drop(&mut self) {
        Jobs::locked(&self.gateway.jobs().starting).remove(&self.id);
        self.gateway.jobs().wake();
    }
}

/// A slot that a tenant has until this is dropped.
#[derive(Debug)]
struct Slot {
    gateway: Gateway,
    tenant: String,
}

impl Slot {
    fn take(gateway: &Gateway, tenant: &str) -> Slot {
        *Jobs::locked(&gateway.jobs().taken)
            .entry(tenant.to_owned())
            .or_default() += 1;
        Slot {
            gateway: gateway.clone(),
            tenant: tenant.to_owned(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = Jobs::locked(&self.gateway.jobs().taken);
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
        }
        taken.retain(|_, count| *count > 0);
        drop(taken);
        self.gateway.jobs().wake();
    }
}

/// Starts jobs until the server is told to stop.
pub(crate) async fn schedule(gateway: Gateway, mut stop: watch::Receiver<bool>) {
    let mut fair = Fair::default();
    loop {
        let (picked, slot) = tokio::select! {
            picked = next(&gateway, &mut fair) => picked,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        begin(picked, slot);
    }
}

fn begin(picked: Picked, slot: Slot) {
    let gateway = picked.gateway.clone();
    tokio::spawn(async move {
        attempt::carry_out(gateway, picked).await;
        drop(slot);
    });
}

/// Waits for the next.
async fn next(gateway: &Gateway, fair: &mut Fair) -> (Picked, Slot) {
    loop {
        // What wakes us from here on is not missed: it is remembered until we wait.
        let sleep = match look(gateway, fair).await {
            Ok(Look::Found(picked, slot)) => return (picked, slot),
            Ok(Look::Until(due)) => until(due),
            Err(_) => PAUSE,
        };
        tokio::select! {
            () = gateway.jobs().wake.notified() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

fn until(due: Option<u64>) -> Duration {
    let left = due.map(|due| Duration::from_millis(due.saturating_sub(engine::now().0)));
    left.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
}

enum Look {
    Found(Picked, Slot),
    /// There is none before this moment.
    Until(Option<u64>),
}

async fn look(gateway: &Gateway, fair: &mut Fair) -> Answer<Look> {
    if gateway.jobs().free() == 0 {
        return Ok(Look::Until(None));
    }
    let asked = || gateway.look_up(|served| Ok((served.next_due()?, served.active_tenants()?)));
    let (mut due, mut tenants) = asked().await?;
    let now = engine::now().0;
    if due.is_some_and(|due| due <= now) {
        // A power cut may take it back: then it is due again.
        let moved = gateway
            .writer()
            .write(move |writing| writing.due_jobs(now, MOST_DUE))
            .await?;
        moved.iter().for_each(|id| gateway.jobs().tell(id));
        (due, tenants) = asked().await?;
    }
    if !tenants.is_empty() && !gateway.has_room_for_jobs() {
        let next = now.saturating_add(PAUSE.as_millis() as u64);
        return Ok(Look::Until(Some(due.map_or(next, |due| due.min(next)))));
    }
    let tenants = fair.order(with_room(gateway, tenants));
    let taken = Jobs::locked(&gateway.jobs().starting).clone();
    let first = gateway
        .look_up(move |served| {
            for tenant in tenants {
                let own = taken.values().filter(|of| **of == tenant).count();
                let next = served.next_jobs(&tenant, own + 1)?;
                if let Some(id) = next.into_iter().find(|id| !taken.contains_key(id)) {
                    return Ok(Some((id, tenant)));
                }
            }
            Ok(None)
        })
        .await?;
    let Some((id, tenant)) = first else {
        return Ok(Look::Until(due));
    };
    fair.charge(&tenant, gateway.quota(&tenant).weight);
    let slot = Slot::take(gateway, &tenant);
    Jobs::locked(&gateway.jobs().starting).insert(id.clone(), tenant);
    Ok(Look::Found(
        Picked {
            gateway: gateway.clone(),
            id,
        },
        slot,
    ))
}

/// Those that may have one more slot and run. Whoever is at his bound is passed over, and keeps nobody waiting.
fn with_room(gateway: &Gateway, mut tenants: Vec<String>) -> Vec<String> {
    let mut counts: HashMap<String, usize> = gateway.runs().by_tenant();
    for tenant in Jobs::locked(&gateway.jobs().starting).values() {
        *counts.entry(tenant.clone()).or_default() += 1;
    }
    if counts.values().sum::<usize>() >= gateway.bounds().runs {
        return Vec::new();
    }
    let (slots, free) = (gateway.jobs().slots, gateway.jobs().free());
    let taken = Jobs::locked(&gateway.jobs().taken).clone();
    tenants.retain(|tenant| {
        may_take(slots, free, taken.contains_key(tenant))
            && counts.get(tenant).copied().unwrap_or(0) < gateway.most_runs(tenant)
            && gateway.has_cpu(tenant).is_ok()
    });
    tenants
}

/// Whoever has some leaves an eighth free, for those who have none.
fn may_take(slots: usize, free: usize, has_some: bool) -> bool {
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
                .take_while(|own| may_take(slots, slots - own, *own > 0))
                .count()
        };
        assert_eq!([1, 2, 4, 16, 64].map(most), [1, 1, 3, 14, 56]);
        assert!(may_take(4, 1, false) && !may_take(4, 1, true) && !may_take(4, 0, false));
    }
}
