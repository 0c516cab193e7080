//! The pool of an engine: warm sandboxes, whose program only has to be named, and cgroups for
//! sandboxes that also need something of the host. Each item serves one run and is never reused.
//!
//! ```text
//! run ── take ──▶ warm sandbox │ cgroup │ nothing: the cold path
//!   └── wanted ──▶ filler (one task per engine) ── creates one after the other, within the limit
//! ```

use crate::{
    Inner, provision,
    record::{self, Record},
};
use sandbox::{
    Sandbox, SandboxError,
    native::{CgroupReservation, NativeSandbox},
};
use spec::{PoolSettings, SandboxSpec};
use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// The kinds of runs that are prepared for at once; the least recently used one makes room.
const MAX_KINDS: usize = 4;
/// The namespaces that a launcher keeps ready: about 90 KiB each.
const MAX_NAMESPACES: usize = 32;
/// With a lower RLIMIT_NOFILE the prepared child could not receive its argv.
const MIN_OPEN_FILES: u32 = 16;

/// Whether runs of this kind can use a warm sandbox.
fn can_be_warm(pool: &PoolSettings, spec: &SandboxSpec) -> bool {
    pool.warm_sandboxes > 0
        && !spec.outlives_programs
        && spec.workspace.is_none()
        && spec.mounts.is_empty()
        && spec.doors.is_empty()
        && spec.tty.is_none()
        && spec.limits.open_files >= MIN_OPEN_FILES
}

/// Whether another run of this kind is to be expected. The names of door files and git folders
/// contain the run's id: each such run would be a kind of its own and evict the others.
fn can_recur(spec: &SandboxSpec, state: &Path) -> bool {
    let doors = state.join("doors");
    let of_run = |mount: &spec::Mount| mount.host.starts_with(&doors);
    spec.git.is_empty() && !spec.mounts.iter().any(of_run)
}

/// The number of items that are kept ready for this kind.
fn depth(pool: &PoolSettings, spec: &SandboxSpec) -> usize {
    if can_be_warm(pool, spec) {
        pool.warm_sandboxes
    } else {
        pool.prepared_namespaces
    }
}

/// The number of namespaces of each sort that a launcher keeps ready.
pub(crate) fn namespaces(pool: &PoolSettings) -> u32 {
    pool.warm_sandboxes
        .max(pool.prepared_namespaces)
        .min(MAX_NAMESPACES) as u32
}

/// A pool item and the record of its host resources.
pub(crate) struct PoolItem {
    pub(crate) record: Record,
    pub(crate) made: PoolItemKind,
}

pub(crate) enum PoolItemKind {
    Warm(Box<NativeSandbox>),
    Cgroup(Box<CgroupReservation>),
}

struct RunKind {
    spec: SandboxSpec,
    ready: Vec<PoolItem>,
    /// Creating one failed; the next run of the kind reports why, and the pool tries again.
    failed: bool,
}

#[derive(Default)]
struct PoolState {
    /// The most recently used one is last.
    kinds: Vec<RunKind>,
    filling: bool,
    closed: bool,
}

/// The pool of one engine.
pub(crate) struct SandboxPool {
    settings: PoolSettings,
    state: Mutex<PoolState>,
    /// Notified whenever a filler is done.
    filled: Notify,
}

impl std::fmt::Debug for SandboxPool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pools")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl SandboxPool {
    pub(crate) fn new(settings: PoolSettings) -> SandboxPool {
        SandboxPool {
            settings,
            state: Mutex::default(),
            filled: Notify::new(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.settings.warm_sandboxes > 0 || self.settings.prepared_namespaces > 0
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an item for this kind of run, and marks the kind as wanted. Also returns items that
    /// are to be released.
    fn take(&self, spec: &SandboxSpec) -> (Option<PoolItem>, Vec<PoolItem>) {
        let spec = spec.pool_key();
        let mut state = self.state();
        let place = state.kinds.iter().position(|kind| kind.spec == spec);
        let mut kind = match place {
            Some(place) => state.kinds.remove(place),
            None => RunKind {
                spec,
                ready: Vec::new(),
                failed: false,
            },
        };
        kind.failed = false;
        let mut unwanted = Vec::new();
        let found = loop {
            match kind.ready.pop() {
                // The sandbox may have died while it waited.
                Some(PoolItem {
                    record,
                    made: PoolItemKind::Warm(sandbox),
                }) if !sandbox.is_quiet() => {
                    unwanted.push(PoolItem {
                        record,
                        made: PoolItemKind::Warm(sandbox),
                    });
                }
                found => break found,
            }
        };
        state.kinds.push(kind);
        if state.kinds.len() > MAX_KINDS {
            unwanted.extend(state.kinds.remove(0).ready);
        }
        (found, unwanted)
    }

    /// The most recently used kind that lacks an item; none if the pool is full.
    fn next_kind_to_fill(&self) -> Option<SandboxSpec> {
        let mut state = self.state();
        let total: usize = state.kinds.iter().map(|kind| kind.ready.len()).sum();
        let most = (self.settings.memory.0 / PoolSettings::WARM_SANDBOX_BYTES.0) as usize;
        let room = total < most && !state.closed;
        let lacks =
            |kind: &&RunKind| !kind.failed && kind.ready.len() < depth(&self.settings, &kind.spec);
        let found = state
            .kinds
            .iter()
            .rev()
            .find(lacks)
            .filter(|_| room)
            .map(|kind| kind.spec.clone());
        // Under the same lock as the answer: the next taker starts another filler.
        state.filling = found.is_some();
        found
    }

    /// Whether the caller has to start the filler.
    fn begin_filling(&self) -> bool {
        let mut state = self.state();
        !state.closed && !std::mem::replace(&mut state.filling, true)
    }

    /// Adds a new item; returns it if it came too late.
    fn add(&self, spec: &SandboxSpec, made: Result<PoolItem, SandboxError>) -> Option<PoolItem> {
        let mut state = self.state();
        let closed = state.closed;
        match (state.kinds.iter_mut().find(|kind| kind.spec == *spec), made) {
            (Some(kind), Ok(made)) if !closed => {
                kind.ready.push(made);
                None
            }
            (Some(kind), Err(_)) => {
                kind.failed = true;
                None
            }
            (_, made) => made.ok(),
        }
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn close(&self) -> Vec<PoolItem> {
        let mut state = self.state();
        state.closed = true;
        // Waiters for a filler would wait forever.
        self.filled.notify_waiters();
        state.kinds.drain(..).flat_map(|kind| kind.ready).collect()
    }
}

/// An item for this run, if there is one.
pub(crate) fn take(engine: &Arc<Inner>, spec: &SandboxSpec) -> Option<PoolItem> {
    if !engine.pools.is_on() || !can_recur(spec, &engine.state) {
        return None;
    }
    let (found, unwanted) = engine.pools.take(spec);
    for one in unwanted {
        engine.spawn_background(release_item(one));
    }
    found
}

/// Releases a sandbox after its run and refills the pool. In the background, so that the run does
/// not wait.
pub(crate) fn restock(engine: &Arc<Inner>, sandbox: Box<dyn Sandbox>, records: Vec<Record>) {
    let after = engine.clone();
    engine.spawn_background(async move {
        // What could not be removed is left for the sweep.
        provision::release_sandbox(sandbox, records).await;
        if after.pools.begin_filling() {
            fill(after).await;
        }
    });
}

/// Refills the pool in the background.
pub(crate) fn refill(engine: &Arc<Inner>) {
    if engine.pools.begin_filling() {
        engine.spawn_background(fill(engine.clone()));
    }
}

/// Creates all wanted items, one after the other.
pub(crate) async fn fill(engine: Arc<Inner>) {
    while let Some(spec) = engine.pools.next_kind_to_fill() {
        // A file system that does not answer must not block the other kinds and the end of the
        // engine. The record of the unfinished item stays for the sweep.
        let made = tokio::time::timeout(provision::START_TIMEOUT, make(&engine, &spec)).await;
        let made = made.unwrap_or(Err(SandboxError::Died));
        if let Some(late) = engine.pools.add(&spec, made) {
            release_item(late).await;
        }
    }
    engine.pools.filled.notify_waiters();
}

/// Fills the pool for runs of this kind and waits until it is full.
pub(crate) async fn warm(engine: &Arc<Inner>, spec: &SandboxSpec) {
    if let Some(unused) = take(engine, spec) {
        // Taken only to mark the kind as wanted.
        if let Some(late) = engine.pools.add(&spec.pool_key(), Ok(unused)) {
            release_item(late).await;
        }
    }
    let mut ours = false;
    while !ours {
        let filled = engine.pools.filled.notified();
        if engine.pools.is_closed() {
            return;
        }
        ours = engine.pools.begin_filling();
        if ours {
            // In a task of its own: this future may be dropped, and a filler must finish.
            engine.spawn_background(fill(engine.clone()));
        }
        // Another filler may have started before.
        filled.await;
    }
}

async fn make(engine: &Inner, spec: &SandboxSpec) -> Result<PoolItem, SandboxError> {
    let id = record::fresh_id();
    let taken = engine.records.take(&id, &engine.native, &engine.containers);
    let record = taken.map_err(|source| SandboxError::Look {
        path: engine.records.folder(),
        source,
    })?;
    let made = if can_be_warm(&engine.pools.settings, spec) {
        engine
            .native
            .create_warm(&id, spec)
            .await
            .map(|sandbox| PoolItemKind::Warm(Box::new(sandbox)))
    } else {
        engine
            .native
            .reserve_cgroups(&id, spec)
            .await
            .map(|reservation| PoolItemKind::Cgroup(Box::new(reservation)))
    };
    match made {
        Ok(made) => Ok(PoolItem { record, made }),
        Err(error) => {
            // A record that stays is found by the sweep.
            _ = record.abandon(&engine.native);
            Err(error)
        }
    }
}

/// Releases an unused item. The sweep finds by its record what could not be removed.
async fn release_item(unused: PoolItem) {
    let released = match unused.made {
        PoolItemKind::Warm(mut sandbox) => {
            sandbox.end().await;
            sandbox.release().await
        }
        PoolItemKind::Cgroup(reservation) => reservation.release().await,
    };
    if !released.left_over {
        // A record that stays is found by the sweep.
        _ = unused.record.close();
    }
}

/// Releases all items.
pub(crate) async fn close(engine: &Inner) {
    for unused in engine.pools.close() {
        release_item(unused).await;
    }
}
