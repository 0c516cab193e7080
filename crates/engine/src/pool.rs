//! What is made ahead of runs: whole boxes whose program only has to be named, and cgroups for boxes that also need
//! something of the host's. Each serves one run and is never used again.
//!
//! ```text
//! run ── take ──▶ a parked box │ a berth │ nothing: the cold path
//!   └── wanted ──▶ filler (one task an engine) ── makes one after the other, within the bound
//! ```

use crate::{
    Inner, making,
    record::{self, Record},
};
use sandbox::{
    Sandbox, SandboxError,
    native::{Berth, NativeBox},
};
use spec::{Pool, SandboxSpec};
use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Kinds of runs that are kept ready at once; the one not asked for the longest makes room.
const MOST_KINDS: usize = 4;
/// Namespaces kept ready by one launcher: about 90 KiB each.
const MOST_NAMESPACES: usize = 32;
/// A program that may have fewer files open could not take its errand.
const FEWEST_FILES: u32 = 16;

/// Whether runs of this kind can have a whole sandbox made ahead.
fn parks(pool: &Pool, spec: &SandboxSpec) -> bool {
    pool.parked > 0
        && !spec.stays
        && spec.workspace.is_none()
        && spec.mounts.is_empty()
        && spec.doors.is_empty()
        && spec.tty.is_none()
        && spec.limits.open_files >= FEWEST_FILES
}

/// Whether another run of this kind is to be expected. A file that a door shows inside is called by the run's name, and so
/// is a git folder: each such run would be a kind of its own, and drive the others out.
fn returns(spec: &SandboxSpec, state: &Path) -> bool {
    let doors = state.join("doors");
    let of_run = |mount: &spec::Mount| mount.host.starts_with(&doors);
    spec.git.is_empty() && !spec.mounts.iter().any(of_run)
}

/// How many are kept ready for runs of this kind.
fn depth(pool: &Pool, spec: &SandboxSpec) -> usize {
    if parks(pool, spec) {
        pool.parked
    } else {
        pool.berths
    }
}

/// How many namespaces of each sort a launcher keeps ready.
pub(crate) fn namespaces(pool: &Pool) -> u32 {
    pool.parked.max(pool.berths).min(MOST_NAMESPACES) as u32
}

/// What a run got that was made ahead, with the record that holds it.
pub(crate) struct Taken {
    pub(crate) record: Record,
    pub(crate) made: Made,
}

pub(crate) enum Made {
    Parked(Box<NativeBox>),
    Berth(Box<Berth>),
}

struct Kind {
    spec: SandboxSpec,
    ready: Vec<Taken>,
    /// Making one failed; the next run of the kind says why, and tries again.
    failed: bool,
}

#[derive(Default)]
struct Stock {
    /// The one asked for last is last.
    kinds: Vec<Kind>,
    filling: bool,
    closed: bool,
}

/// The stock of one engine.
pub(crate) struct Pools {
    settings: Pool,
    stock: Mutex<Stock>,
    /// Told whenever a filler is done.
    filled: Notify,
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pools")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Pools {
    pub(crate) fn new(settings: Pool) -> Pools {
        Pools {
            settings,
            stock: Mutex::default(),
            filled: Notify::new(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.settings.parked > 0 || self.settings.berths > 0
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something ready for a run of this kind. More of the kind is wanted from now on.
    fn take(&self, spec: &SandboxSpec) -> (Option<Taken>, Vec<Taken>) {
        let spec = spec.kind();
        let mut stock = self.stock();
        let place = stock.kinds.iter().position(|kind| kind.spec == spec);
        let mut kind = match place {
            Some(place) => stock.kinds.remove(place),
            None => Kind {
                spec,
                ready: Vec::new(),
                failed: false,
            },
        };
        kind.failed = false;
        let mut unwanted = Vec::new();
        let found = loop {
            match kind.ready.pop() {
                // It may have died in its sleep.
                Some(Taken {
                    record,
                    made: Made::Parked(sandbox),
                }) if !sandbox.is_quiet() => {
                    unwanted.push(Taken {
                        record,
                        made: Made::Parked(sandbox),
                    });
                }
                found => break found,
            }
        };
        stock.kinds.push(kind);
        if stock.kinds.len() > MOST_KINDS {
            unwanted.extend(stock.kinds.remove(0).ready);
        }
        (found, unwanted)
    }

    /// The kind that lacks one most recently asked for; none when all that may be is there.
    fn lacking(&self) -> Option<SandboxSpec> {
        let mut stock = self.stock();
        let total: usize = stock.kinds.iter().map(|kind| kind.ready.len()).sum();
        let most = (self.settings.memory.0 / Pool::PARKED_BYTES.0) as usize;
        let room = total < most && !stock.closed;
        let lacks =
            |kind: &&Kind| !kind.failed && kind.ready.len() < depth(&self.settings, &kind.spec);
        let found = stock
            .kinds
            .iter()
            .rev()
            .find(lacks)
            .filter(|_| room)
            .map(|kind| kind.spec.clone());
        // Under the same lock as the answer: whoever takes something next starts another filler.
        stock.filling = found.is_some();
        found
    }

    /// Whether the caller has to start the filler.
    fn begin_filling(&self) -> bool {
        let mut stock = self.stock();
        !stock.closed && !std::mem::replace(&mut stock.filling, true)
    }

    /// Gives back what came too late to be kept.
    fn keep(&self, spec: &SandboxSpec, made: Result<Taken, SandboxError>) -> Option<Taken> {
        let mut stock = self.stock();
        let closed = stock.closed;
        match (stock.kinds.iter_mut().find(|kind| kind.spec == *spec), made) {
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
        self.stock().closed
    }

    fn close(&self) -> Vec<Taken> {
        let mut stock = self.stock();
        stock.closed = true;
        // Whoever waits for a filler would wait for ever.
        self.filled.notify_waiters();
        stock.kinds.drain(..).flat_map(|kind| kind.ready).collect()
    }
}

/// What is ready for this run, if anything.
pub(crate) fn take(engine: &Arc<Inner>, spec: &SandboxSpec) -> Option<Taken> {
    if !engine.pools.is_on() || !returns(spec, &engine.state) {
        return None;
    }
    let (found, unwanted) = engine.pools.take(spec);
    for one in unwanted {
        engine.behind(give_back(one));
    }
    found
}

/// After a run: clears up behind it, then makes more. Not before, when it would be in the way of the run itself.
pub(crate) fn restock(engine: &Arc<Inner>, sandbox: Box<dyn Sandbox>, records: Vec<Record>) {
    let after = engine.clone();
    engine.behind(async move {
        // What could not be removed is left for the sweep.
        making::leave(sandbox, records).await;
        if after.pools.begin_filling() {
            fill(after).await;
        }
    });
}

/// Makes more, behind whatever else is done.
pub(crate) fn refill(engine: &Arc<Inner>) {
    if engine.pools.begin_filling() {
        engine.behind(fill(engine.clone()));
    }
}

/// Makes everything that is wanted, one after the other.
pub(crate) async fn fill(engine: Arc<Inner>) {
    while let Some(spec) = engine.pools.lacking() {
        // Where a file system does not answer, the other kinds and the end of the engine must not wait for it. The
        // record of what was begun stays, for the sweep.
        let made = tokio::time::timeout(making::LONGEST_START, make(&engine, &spec)).await;
        let made = made.unwrap_or(Err(SandboxError::Died));
        if let Some(late) = engine.pools.keep(&spec, made) {
            give_back(late).await;
        }
    }
    engine.pools.filled.notify_waiters();
}

/// Makes the pool ready for runs of this kind and waits until it is.
pub(crate) async fn warm(engine: &Arc<Inner>, spec: &SandboxSpec) {
    if let Some(unused) = take(engine, spec) {
        // Asked for only to say that the kind is wanted.
        if let Some(late) = engine.pools.keep(&spec.kind(), Ok(unused)) {
            give_back(late).await;
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
            // Not in this task, which may be dropped at any time: a filler must come to its end.
            engine.behind(fill(engine.clone()));
        }
        // Somebody else who is at it may have begun before we came.
        filled.await;
    }
}

async fn make(engine: &Inner, spec: &SandboxSpec) -> Result<Taken, SandboxError> {
    let id = record::fresh_id();
    let taken = engine.records.take(&id, &engine.native, &engine.containers);
    let record = taken.map_err(|source| SandboxError::Look {
        path: engine.records.folder(),
        source,
    })?;
    let made = match parks(&engine.pools.settings, spec) {
        true => engine
            .native
            .park(&id, spec)
            .await
            .map(|sandbox| Made::Parked(Box::new(sandbox))),
        false => engine
            .native
            .berth(&id, spec)
            .await
            .map(|berth| Made::Berth(Box::new(berth))),
    };
    match made {
        Ok(made) => Ok(Taken { record, made }),
        Err(error) => {
            // A record that stays is swept.
            _ = record.abandon(&engine.native);
            Err(error)
        }
    }
}

/// Ends what nobody used. What cannot be removed now, the sweep finds by its record.
async fn give_back(unused: Taken) {
    let released = match unused.made {
        Made::Parked(mut sandbox) => {
            sandbox.end().await;
            sandbox.release().await
        }
        Made::Berth(berth) => berth.release().await,
    };
    if !released.left_over {
        // A record that stays is swept.
        _ = unused.record.close();
    }
}

/// Ends everything that was made ahead.
pub(crate) async fn close(engine: &Inner) {
    for unused in engine.pools.close() {
        give_back(unused).await;
    }
}
