//! The disk quota of an owner's layers. The size of each layer is recorded when it is created and
//! when its sandbox is gone: measuring all of them for every sandbox would take longer than
//! creating one.

use super::{LayerError, OpenLayer, base::CreateError, failed, open_layers, tree};
use crate::disk_space;
use rustix::fs::OFlags;
use spec::Id;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// The quota of one owner.
pub(super) const MAX_OWNER_BYTES: u64 = 64 << 30;
const SIZE_FILE: &str = "room";
/// How long an unused layer of a key is kept.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Records the size of a layer.
pub(super) fn write_size(layer: impl AsFd, bytes: u64) -> io::Result<()> {
    let file = tree::open(
        layer,
        SIZE_FILE,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
    )?;
    File::from(file).write_all(bytes.to_string().as_bytes())
}

/// The recorded size; 0 for a layer that is older than this record.
pub(super) fn read_size(layer: impl AsFd) -> u64 {
    let mut text = String::new();
    let read = tree::open(layer, SIZE_FILE, OFlags::RDONLY)
        .and_then(|file| File::from(file).take(32).read_to_string(&mut text));
    read.ok().and_then(|_| text.parse().ok()).unwrap_or(0)
}

/// The size of an owner's layers.
pub(super) fn sum(state: &Path, owner: Option<&str>) -> Result<u64, LayerError> {
    let names = tree::names(&open_layers(state, false)?).map_err(failed("list the workspaces"))?;
    let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
    ids.map(|id| match OpenLayer::open(state, &id) {
        Ok(layer) if layer.info.owner.as_deref() == owner => Ok(read_size(&layer.layer)),
        // Another owner's, or removed meanwhile.
        Ok(_) | Err(LayerError::Absent { .. }) => Ok(0),
        // It may be the owner's, and large.
        Err(error) => Err(error),
    })
    .try_fold(
        0,
        |sum: u64, disk_bytes| Ok(sum.saturating_add(disk_bytes?)),
    )
}

/// Layers that are being created, by state folder and owner: their sizes are not recorded yet. A
/// server with several owners creates all layers in one process.
static PENDING: Mutex<BTreeMap<QuotaKey, PendingLayers>> = Mutex::new(BTreeMap::new());

type QuotaKey = (PathBuf, Option<String>);

/// The sizes of an owner's unrecorded layers, and of those that were recorded while others are
/// being created.
#[derive(Debug, Default)]
struct PendingLayers {
    now: u64,
    before: u64,
    count: usize,
}

/// The quota reservation of a layer that is being created.
#[derive(Debug)]
pub(super) struct LayerReservation {
    key: QuotaKey,
    /// The size of other layers that were recorded before this reservation began.
    before: u64,
    own: AtomicU64,
}

fn pending_by_owner() -> MutexGuard<'static, BTreeMap<QuotaKey, PendingLayers>> {
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LayerReservation {
    /// To be called before the recorded sizes are summed: later layers are counted here.
    pub(super) fn begin(state: &Path, owner: Option<&str>) -> LayerReservation {
        let key = (state.to_owned(), owner.map(str::to_owned));
        let mut pending_by_owner = pending_by_owner();
        let pending = pending_by_owner.entry(key.clone()).or_default();
        pending.count += 1;
        LayerReservation {
            before: pending.before,
            key,
            own: AtomicU64::new(0),
        }
    }

    /// Sets the size of this layer; returns its size together with all others that are not in the
    /// sum.
    pub(super) fn grow_to(&self, disk_bytes: u64) -> u64 {
        let mut pending_by_owner = pending_by_owner();
        let Some(pending) = pending_by_owner.get_mut(&self.key) else {
            return disk_bytes;
        };
        let last = self.own.swap(disk_bytes, Ordering::Relaxed);
        pending.now = pending.now.saturating_sub(last).saturating_add(disk_bytes);
        pending
            .now
            .saturating_add(pending.before.saturating_sub(self.before))
    }

    /// The layer is complete, and its size is recorded.
    pub(super) fn mark_recorded(self) {
        if let Some(pending) = pending_by_owner().get_mut(&self.key) {
            pending.before = pending
                .before
                .saturating_add(self.own.load(Ordering::Relaxed));
        }
    }
}

impl Drop for LayerReservation {
    fn drop(&mut self) {
        let mut pending_by_owner = pending_by_owner();
        if let Some(pending) = pending_by_owner.get_mut(&self.key) {
            pending.now = pending.now.saturating_sub(self.own.load(Ordering::Relaxed));
            pending.count = pending.count.saturating_sub(1);
            if pending.count == 0 {
                pending_by_owner.remove(&self.key);
            }
        }
    }
}

/// Whether a copy of this size may grow, beside `before` bytes of other layers.
pub(super) fn check_quota(state: &Path, before: u64, copy: u64) -> Result<(), CreateError> {
    if before.saturating_add(copy) >= MAX_OWNER_BYTES {
        let most = MAX_OWNER_BYTES >> 30;
        return Err(CreateError::NoRoom(format!(
            "workspaces of one owner take no more than {most} GiB together"
        )));
    }
    match disk_space::is_short(state) {
        true => Err(CreateError::NoRoom(
            "the disk of the state folder has too little room".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Whether a layer of a key has expired. Layers of the command line do not expire.
pub(super) fn is_expired(opened: &OpenLayer) -> bool {
    let touched = [".", SIZE_FILE].map(|name| {
        let found = tree::open(&opened.layer, name, OFlags::RDONLY);
        found.and_then(|file| File::from(file).metadata()?.modified())
    });
    let last = touched.into_iter().filter_map(Result::ok).max();
    let age = last.and_then(|last| SystemTime::now().duration_since(last).ok());
    opened.info.owner.is_some() && age.is_some_and(|age| age > RETENTION)
}
