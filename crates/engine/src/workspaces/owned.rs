//! What the layers of one owner take on the disk together. What each takes is written down beside it, when it is made and
//! when its box is gone: to measure all of them again for every box would take longer than to make it.

use super::{LayerError, Opened, base::NotCopied, failed, open_layers, tree};
use crate::room;
use rustix::fs::OFlags;
use spec::Id;
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    path::Path,
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
fn noted(layer: impl AsFd) -> u64 {
    let mut text = String::new();
    let read = tree::open(layer, ROOM, OFlags::RDONLY)
        .and_then(|file| File::from(file).take(32).read_to_string(&mut text));
    read.ok().and_then(|_| text.parse().ok()).unwrap_or(0)
}

/// What the layers of an owner take.
pub(super) fn sum(state: &Path, owner: Option<&str>) -> Result<u64, LayerError> {
    let names = tree::names(&open_layers(state, false)?).map_err(failed("list the workspaces"))?;
    let ids = names.iter().filter_map(|name| Id::new(name.to_str()?).ok());
    let layers = ids.filter_map(|id| Opened::open(state, &id).ok());
    let his = layers.filter(|layer| layer.about.owner.as_deref() == owner);
    Ok(his.fold(0, |sum: u64, layer| sum.saturating_add(noted(&layer.layer))))
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
        true => Err(NotCopied::NoRoom("the disk of the state folder has too little room".to_owned())),
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
