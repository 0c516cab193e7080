//! What the layers of one owner take on the disk together. What each takes is written down beside it, when it is made and
//! when its box is gone: to measure all of them again for every box would take longer than to make it.

use super::{LayerError, Opened, base::NotCopied, failed, open_layers, tree};
use crate::room;
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

/// Bytes that the layers of one owner may take together before he gets another.
pub(super) const MOST_OWNED_BYTES: u64 = 64 << 30;
const ROOM: &str = "room";
/// How long a layer of a key's is kept that nobody uses, compares at its end, or commits.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Writes down what a layer takes.
pub(super) fn note(layer: impl AsFd, bytes: u64) -> io::Result<()> {
    let file = tree::open(layer, ROOM, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    File::from(file).write_all(bytes.to_string().as_bytes())
}

/// What was written down; nothing of a layer that is older than this.
pub(super) fn noted(layer: impl AsFd) -> u64 {
    let mut text = String::new();
    let read = tree::open(layer, ROOM, OFlags::RDONLY)
        .and_then(|file| File::from(file).take(32).read_to_string(&mut text));
    read.ok().and_then(|_| text.parse().ok()).unwrap_or(0)
}

/// What the layers of an owner take.
pub(super) fn sum(state: &Path, owner: Option<&str>) -> Result<u64, LayerError> {
    let names = tree::names(&open_layers(state, false)?).map_err(failed("list the workspaces"))?;
    let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
    ids.map(|id| match Opened::open(state, &id) {
        Ok(layer) if layer.about.owner.as_deref() == owner => Ok(noted(&layer.layer)),
        // Another's, or one that went meanwhile.
        Ok(_) | Err(LayerError::Absent { .. }) => Ok(0),
        // It might be his, and large.
        Err(error) => Err(error),
    })
    .try_fold(0, |sum: u64, room| Ok(sum.saturating_add(room?)))
}

/// The layers that are being made, by state folder and owner: what they take is written down nowhere yet. Whoever serves
/// several owners makes all of their layers in one process.
static MAKING: Mutex<BTreeMap<Whose, Made>> = Mutex::new(BTreeMap::new());

type Whose = (PathBuf, Option<String>);

/// What layers of one owner take that are being made, and that were while others still are.
#[derive(Debug, Default)]
struct Made {
    now: u64,
    before: u64,
    count: usize,
}

/// A layer that is being made.
#[derive(Debug)]
pub(super) struct Growing {
    whose: Whose,
    /// What others took that had been made by when this one was begun.
    before: u64,
    own: AtomicU64,
}

fn making() -> MutexGuard<'static, BTreeMap<Whose, Made>> {
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Growing {
    /// To be begun before it is asked what his layers take: whatever is made later is known here.
    pub(super) fn begin(state: &Path, owner: Option<&str>) -> Growing {
        let whose = (state.to_owned(), owner.map(str::to_owned));
        let mut making = making();
        let made = making.entry(whose.clone()).or_default();
        made.count += 1;
        Growing {
            before: made.before,
            whose,
            own: AtomicU64::new(0),
        }
    }

    /// It takes so much by now; gives what it takes with all others that are not written down yet.
    pub(super) fn to(&self, room: u64) -> u64 {
        let mut making = making();
        let Some(made) = making.get_mut(&self.whose) else {
            return room;
        };
        let last = self.own.swap(room, Ordering::Relaxed);
        made.now = made.now.saturating_sub(last).saturating_add(room);
        made.now
            .saturating_add(made.before.saturating_sub(self.before))
    }

    /// It is made, and what it takes is written down.
    pub(super) fn stays(self) {
        if let Some(made) = making().get_mut(&self.whose) {
            made.before = made.before.saturating_add(self.own.load(Ordering::Relaxed));
        }
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let mut making = making();
        if let Some(made) = making.get_mut(&self.whose) {
            made.now = made.now.saturating_sub(self.own.load(Ordering::Relaxed));
            made.count = made.count.saturating_sub(1);
            if made.count == 0 {
                making.remove(&self.whose);
            }
        }
    }
}

/// Whether a copy that takes so much may become larger, where so much was taken before.
pub(super) fn fits(state: &Path, before: u64, copy: u64) -> Result<(), NotCopied> {
    if before.saturating_add(copy) >= MOST_OWNED_BYTES {
        let most = MOST_OWNED_BYTES >> 30;
        return Err(NotCopied::NoRoom(format!(
            "workspaces of one owner take no more than {most} GiB together"
        )));
    }
    match room::is_short(state) {
        true => Err(NotCopied::NoRoom(
            "the disk of the state folder has too little room".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Whether a layer was made for a key and then forgotten. What the command line made stays until its user says.
pub(super) fn is_forgotten(opened: &Opened) -> bool {
    let touched = [".", ROOM].map(|name| {
        let found = tree::open(&opened.layer, name, OFlags::RDONLY);
        found.and_then(|file| File::from(file).metadata()?.modified())
    });
    let last = touched.into_iter().filter_map(Result::ok).max();
    let age = last.and_then(|last| SystemTime::now().duration_since(last).ok());
    opened.about.owner.is_some() && age.is_some_and(|age| age > KEPT_FOR)
}
