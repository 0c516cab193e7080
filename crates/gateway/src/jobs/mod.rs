//! Jobs: queued runs that survive a restart of the server. A job is stored when it is accepted,
//! started by the scheduler, and run again after a crash if the request says so.
//!
//! | file | contents |
//! |---|---|
//! | `validate.rs` | validation of a request, when accepted and again at each start |
//! | `routes.rs`, `events.rs`, `view.rs` | HTTP routes, event stream, JSON view |
//! | `scheduler.rs`, `fair_queue.rs` | which job starts next |
//! | `attempt.rs` | one attempt, from its start to its end |
//! | `change.rs`, `dependents.rs` | consequences of a state change: audit, webhooks, waiters, dependent jobs |
//! | `agent.rs`, `webhook.rs` | agents as runs; webhook notifications |
//!
//! A new field of `JobOrder` is validated in `validate.rs` and stored by `store/src/jobs/add.rs`.

pub(crate) mod agent;
mod attempt;
mod change;
mod dependents;
mod events;
mod fair_queue;
mod routes;
mod scheduler;
mod validate;
mod view;
pub(crate) mod webhook;

pub(crate) use change::{
    cancel_all, record_attempt_end, record_lost_attempt, settle_unfinished, write_audit,
};
pub(crate) use dependents::propagate;
pub(crate) use routes::routes;
pub(crate) use scheduler::schedule;

use crate::{
    Gateway,
    wire::{Quantity, RunOrder},
};
use serde::{Deserialize, Serialize};
use spec::JobQueueLimits;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};
use store::jobs::QueueLimits;
use tokio::sync::{Notify, watch};
use utoipa::ToSchema;

/// Limit of stored job specs and results in bytes, and the same for one tenant.
const MAX_BYTES: u64 = 16 << 30;
const MAX_BYTES_PER_TENANT: u64 = MAX_BYTES / 4;
/// How long the result of a disk check is cached.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of finished jobs between two prunings.
const PRUNE_EVERY: u64 = 256;

/// In-memory state of jobs; queued jobs are only in the database.
#[derive(Debug)]
pub(crate) struct Jobs {
    bounds: JobQueueLimits,
    /// Maximum number of concurrently running jobs.
    slots: usize,
    /// Names this server in the leases of jobs.
    lease_owner: String,
    /// Wakes the scheduler.
    wake: Notify,
    /// A job has ended, and dependents may follow.
    dependents_ready: Notify,
    /// Time and result of the last disk check.
    disk_check: Mutex<Option<(Instant, bool)>>,
    /// Jobs that are being started, with their tenants, until the database has them as running; at
    /// most one per slot.
    starting: Mutex<HashMap<String, String>>,
    /// Slots in use per tenant; tenants without one are not in the map.
    slots_by_tenant: Mutex<HashMap<String, usize>>,
    /// Jobs with event readers.
    watched: Mutex<HashMap<String, watch::Sender<()>>>,
    ended: AtomicU64,
}

impl Jobs {
    pub(crate) fn new(bounds: JobQueueLimits) -> Jobs {
        let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
        let slots = bounds.slots.unwrap_or_else(|| (2 * cores()).max(4));
        Jobs {
            bounds,
            slots,
            lease_owner: engine::fresh_id().to_string(),
            wake: Notify::new(),
            dependents_ready: Notify::new(),
            disk_check: Mutex::default(),
            starting: Mutex::default(),
            slots_by_tenant: Mutex::default(),
            watched: Mutex::default(),
            ended: AtomicU64::new(0),
        }
    }

    fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the scheduler.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Number of jobs that are being started.
    pub(crate) fn starting(&self) -> usize {
        Jobs::locked(&self.starting).len()
    }

    /// Number of free slots.
    fn free_slots(&self) -> usize {
        self.slots
            .saturating_sub(Jobs::locked(&self.slots_by_tenant).values().sum())
    }

    /// Notifies when the job changes.
    fn watch(&self, id: &str) -> watch::Receiver<()> {
        let mut watched = Jobs::locked(&self.watched);
        // Entries without readers are removed here.
        watched.retain(|_, changes| changes.receiver_count() > 0);
        watched
            .entry(id.to_owned())
            .or_insert_with(|| watch::Sender::new(()))
            .subscribe()
    }

    fn notify(&self, id: &str) {
        if let Some(changes) = Jobs::locked(&self.watched).get(id) {
            changes.send_replace(());
        }
    }
}

impl Gateway {
    /// Whether the disk has space for the result of a job, cached briefly.
    fn has_disk_space_for_jobs(&self) -> bool {
        let mut disk_check = Jobs::locked(&self.jobs().disk_check);
        match *disk_check {
            Some((at, had)) if at.elapsed() < DISK_CHECK_INTERVAL => had,
            _ => {
                let has = self.check_disk_space().is_ok();
                *disk_check = Some((Instant::now(), has));
                has
            }
        }
    }

    /// Job limits of this tenant.
    fn job_limits(&self, tenant: &str) -> QueueLimits {
        let bounds = &self.jobs().bounds;
        QueueLimits {
            queued: bounds.queued,
            queued_per_tenant: bounds.queued_per_tenant,
            jobs: self.quota(tenant).jobs,
            bytes: MAX_BYTES,
            bytes_per_tenant: MAX_BYTES_PER_TENANT,
        }
    }
}

/// Removes expired and excess jobs, on a blocking thread.
pub(crate) async fn prune(gateway: &Gateway) {
    let most = gateway.jobs().bounds.keep_jobs;
    let pruned = gateway
        .query_database(move |database| database.prune_jobs(engine::now().0, most, MAX_BYTES / 2));
    // Retried next time; the failure is already logged.
    _ = pruned.await;
}

/// A job: what to run, when, and what to do if it does not succeed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobOrder {
    /// What to run; or an `agent`.
    pub(crate) run: Option<RunOrder>,
    /// The agent to run.
    pub(crate) agent: Option<agent::AgentOrder>,
    /// What it is called; need not be its alone.
    pub(crate) name: Option<String>,
    /// To find it by: at most 32, 4 KiB as JSON.
    pub(crate) labels: BTreeMap<String, String>,
    /// -100 to 100; higher ones of a tenant start first.
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) priority: i32,
    /// RFC 3339, UTC, at most 366 days ahead.
    pub(crate) not_before: Option<String>,
    /// What to do if it does not succeed.
    pub(crate) retries: Option<RetryOrder>,
    /// What to do if the server ends before it: `rerun`, or `lost` unless said.
    pub(crate) on_lost: Option<OnLost>,
    /// Jobs that must have succeeded before. If one ends otherwise, this is cancelled.
    pub(crate) after: Vec<String>,
    /// Whom to tell.
    pub(crate) webhook: Option<webhook::WebhookOrder>,
    /// How long it is remembered once it has ended.
    pub(crate) keep_for: Option<Quantity>,
}

/// Tries after the first.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetryOrder {
    /// So many at most.
    #[schema(maximum = 100)]
    pub(crate) most: u32,
    /// After these ends: `failed`, `timed_out`, `oom_killed`, `lost`; all of them unless said.
    pub(crate) on: Option<Vec<String>>,
    /// Before the first of them; doubles each time, up to an hour. 10s unless said.
    pub(crate) pause: Option<Quantity>,
}

/// What to do with a job whose server ended before it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnLost {
    /// Run it again, at most ten times.
    Rerun,
    /// It is `lost`: nobody knows how far it came.
    #[default]
    Lost,
}
