//! Jobs: runs that outlast the server. Written down when they are accepted, run when their turn comes, and again after a
//! crash, if that is what was asked for.

//!
//! | file | what of it |
//! |---|---|
//! | `order.rs` | what is checked of a request, at once and again at every start |
//! | `routes.rs`, `events.rs`, `show.rs` | what clients ask and see |
//! | `scheduler.rs`, `fair.rs` | whose turn it is |
//! | `attempt.rs` | one try: from its turn to its end |
//! | `change.rs`, `behind.rs` | what follows when a job changes: the audit, webhooks, whoever watches; jobs behind it |
//! | `agent.rs`, `webhook.rs` | agents as runs, and whom to tell |

pub(crate) mod agent;
mod attempt;
mod behind;
mod change;
mod events;
mod fair;
mod order;
mod routes;
mod scheduler;
mod show;
pub(crate) mod webhook;

pub(crate) use behind::follow;
pub(crate) use change::{abandoned, cancel_all, ended, note, settle};
pub(crate) use routes::routes;
pub(crate) use scheduler::schedule;

use crate::{
    Gateway,
    wire::{Quantity, RunOrder},
};
use serde::{Deserialize, Serialize};
use spec::JobBounds;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};
use store::jobs::JobRoom;
use tokio::sync::{Notify, watch};
use utoipa::ToSchema;

/// Bytes of all orders and results that are kept, and those of one tenant.
const MOST_BYTES: u64 = 16 << 30;
const MOST_BYTES_OF_ONE: u64 = MOST_BYTES / 4;
/// Between two looks at the disk.
const LOOK_AT_DISK: Duration = Duration::from_secs(1);
/// Jobs that end between two looks for what is too old.
const PRUNED_EVERY: u64 = 256;

/// What a server knows of jobs beside the database: never those that wait.
#[derive(Debug)]
pub(crate) struct Jobs {
    bounds: JobBounds,
    /// How many run at once.
    slots: usize,
    /// Names this server in the leases of jobs.
    boot: String,
    /// Something has changed that the scheduler may have waited for.
    wake: Notify,
    /// A job has ended, and others may come after it.
    behind: Notify,
    /// When the disk was last looked at, and whether it had room.
    room: Mutex<Option<(Instant, bool)>>,
    /// Whose turn it is, until the database says that they run; each with its tenant. At most as many as there are slots.
    starting: Mutex<HashMap<String, String>>,
    /// How many slots each tenant has; those who have none are not among them.
    taken: Mutex<HashMap<String, usize>>,
    /// Jobs that somebody follows.
    watched: Mutex<HashMap<String, watch::Sender<()>>>,
    ended: AtomicU64,
}

impl Jobs {
    pub(crate) fn new(bounds: JobBounds) -> Jobs {
        let cores = || std::thread::available_parallelism().map_or(1, |count| count.get());
        let slots = bounds.slots.unwrap_or_else(|| (2 * cores()).max(4));
        Jobs {
            bounds,
            slots,
            boot: engine::fresh_id().to_string(),
            wake: Notify::new(),
            behind: Notify::new(),
            room: Mutex::default(),
            starting: Mutex::default(),
            taken: Mutex::default(),
            watched: Mutex::default(),
            ended: AtomicU64::new(0),
        }
    }

    fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the scheduler look again.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// How many are about to start.
    pub(crate) fn starting(&self) -> usize {
        Jobs::locked(&self.starting).len()
    }

    /// How many more could run now.
    fn free(&self) -> usize {
        self.slots
            .saturating_sub(Jobs::locked(&self.taken).values().sum())
    }

    /// Tells when the job changes.
    fn watch(&self, id: &str) -> watch::Receiver<()> {
        let mut watched = Jobs::locked(&self.watched);
        // Whoever stopped following is forgotten with the next who begins.
        watched.retain(|_, changes| changes.receiver_count() > 0);
        watched
            .entry(id.to_owned())
            .or_insert_with(|| watch::Sender::new(()))
            .subscribe()
    }

    fn tell(&self, id: &str) {
        if let Some(changes) = Jobs::locked(&self.watched).get(id) {
            changes.send_replace(());
        }
    }
}

impl Gateway {
    /// Whether the disk has room for what a job leaves, as of a moment ago.
    fn has_room_for_jobs(&self) -> bool {
        let mut room = Jobs::locked(&self.jobs().room);
        match *room {
            Some((at, had)) if at.elapsed() < LOOK_AT_DISK => had,
            _ => {
                let has = self.has_room().is_ok();
                *room = Some((Instant::now(), has));
                has
            }
        }
    }

    /// How many jobs this tenant may have.
    fn job_room(&self, tenant: &str) -> JobRoom {
        let bounds = &self.jobs().bounds;
        JobRoom {
            queued: bounds.queued,
            queued_of_one: bounds.queued_per_tenant,
            jobs: self.quota(tenant).jobs,
            bytes: MOST_BYTES,
            bytes_of_one: MOST_BYTES_OF_ONE,
        }
    }
}

/// Forgets what is too old or too much, off the event loop.
pub(crate) async fn forget(gateway: &Gateway) {
    let most = gateway.jobs().bounds.keep_jobs;
    let pruned =
        gateway.look_up(move |served| served.prune_jobs(engine::now().0, most, MOST_BYTES / 2));
    // What cannot be forgotten now is forgotten next time; why is said where it failed.
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
