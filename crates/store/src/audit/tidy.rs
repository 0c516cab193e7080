//! The threads of an audit: one makes sure of what was written, and writes what had to wait; one tells the database how far
//! that is, and removes what is too old.

use super::{
    Entry, NAME,
    file::{Shared, State},
    marks::{Beginning, Mark},
    verify,
};
use crate::Upkeep;
use std::{
    fs::File,
    io,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// How long a line may be without being surely on the disk.
const BETWEEN_SYNCS: Duration = Duration::from_millis(500);
const BETWEEN_MARKS: Duration = Duration::from_secs(5);
/// How long a database that does not take it is left alone.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
const BETWEEN_REMOVALS: Duration = Duration::from_secs(3600);

/// Makes sure of lines and writes those that had to wait, until its owner is gone. Never waits for the database: whoever
/// writes a line within a transaction may wait for this.
pub(super) fn work(shared: &Shared) {
    loop {
        let over = wait(shared);
        shared.try_again();
        sync(shared);
        if over {
            return;
        }
    }
}

/// Tells the database how far it is, and removes what is too old, until its owner is gone.
pub(super) fn keep(shared: &Shared) {
    let mut removed = None::<Instant>;
    loop {
        if removed.is_none_or(|last| last.elapsed() > BETWEEN_REMOVALS) {
            removed = Some(Instant::now());
            // What cannot be removed now is an hour from now.
            _ = remove_old(shared);
        }
        if wait_for_file(shared) {
            return;
        }
        if sync_and_mark(shared).is_err() {
            std::thread::sleep(AFTER_FAILURE);
        }
    }
}

/// Until it is time, or somebody waits; whether the owner is gone.
fn wait(shared: &Shared) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = |state: &mut State| !state.over && (state.waiters == 0 || state.synced.is_err());
    let waited = shared.wanted.wait_timeout_while(state, BETWEEN_SYNCS, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.over
}

/// Until it is time for a mark, or a file was begun; whether the owner is gone.
fn wait_for_file(shared: &Shared) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle =
        |state: &mut State| !state.over && (state.opened.is_empty() || state.synced.is_err());
    let waited = shared.begun.wait_timeout_while(state, BETWEEN_MARKS, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.over
}

/// Makes sure of what was written, and marks how far that is: first where files begin, then the last line. What is missing
/// makes less certain, and nothing wrong; the next one says as much.
pub(super) fn sync_and_mark(shared: &Shared) -> io::Result<()> {
    let Some(mark) = sync(shared) else {
        return Ok(());
    };
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let sure: Vec<Beginning> = lock()
        .opened
        .iter()
        .filter(|opened| opened.before.is_none())
        .map(|opened| opened.beginning)
        .collect();
    for beginning in sure {
        shared.marks.begin(NAME, &beginning)?;
        lock()
            .opened
            .retain(|opened| opened.beginning.part != beginning.part);
    }
    shared.marks.mark(NAME, &mark, journal::now_ms())
}

/// Makes sure of what was written until now; none if that has failed, after which nothing is sure.
fn sync(shared: &Shared) -> Option<Mark> {
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let _one = shared
        .syncing
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let (older, file, mark, synced) = {
        let state = lock();
        let head = state.writer.head();
        let mark = Mark {
            part: state.writer.part(),
            n: head.n,
            hash: head.hash,
        };
        let older: Vec<_> = state
            .opened
            .iter()
            .filter_map(|opened| opened.before.clone())
            .collect();
        (
            older,
            Arc::clone(&state.writer.file),
            mark,
            *state.synced.as_ref().ok()?,
        )
    };
    if synced >= mark.n && older.is_empty() {
        return Some(mark);
    }
    let done = sync_files(shared, &older, &file);
    let mut state = lock();
    if done.is_ok() {
        let sure = state
            .opened
            .iter_mut()
            .filter(|opened| opened.beginning.part <= mark.part);
        sure.for_each(|opened| opened.before = None);
    }
    let why =
        |error| format!("the audit cannot be made to last until the server starts again: {error}");
    state.synced = done.map(|()| mark.n).map_err(why);
    shared.lasting.notify_all();
    state.synced.is_ok().then_some(mark)
}

/// In the order of their lines, with the names of those that were begun.
fn sync_files(shared: &Shared, older: &[Arc<File>], last: &File) -> io::Result<()> {
    older
        .iter()
        .try_for_each(|file| rustix::fs::fdatasync(&**file))?;
    if !older.is_empty() {
        shared.folder.sync()?;
    }
    Ok(rustix::fs::fdatasync(last)?)
}

/// None while somebody copies the state folder: what was copied of the database tells of files that are still to be copied.
pub(super) fn alone(shared: &Shared) -> io::Result<Option<Upkeep>> {
    match shared.folder.path(NAME, 1).ancestors().nth(2) {
        Some(state) => Upkeep::alone(state),
        None => Ok(None),
    }
}

/// Removes whole files whose every line is older than they are kept, and the oldest of those beyond the bytes that are kept.
pub(super) fn remove_old(shared: &Shared) -> io::Result<()> {
    let Some(_alone) = alone(shared)? else {
        return Ok(());
    };
    let beginnings: Vec<Beginning> = shared.marks.beginnings(NAME)?;
    let parts = shared.folder.segments()?.remove(NAME).unwrap_or_default();
    let sizes: Vec<u64> = parts
        .iter()
        .map(|part| shared.folder.size(NAME, *part).unwrap_or_default())
        .collect();
    let mut bytes: u64 = sizes.iter().sum();
    let keep_ms = u64::try_from(shared.settings.keep_for.as_millis()).unwrap_or(u64::MAX);
    let oldest = journal::now_ms().saturating_sub(keep_ms);
    // The last is never removed.
    for (index, pair) in parts.windows(2).enumerate() {
        let [this, next] = [pair[0], pair[1]].map(|part| {
            let known = beginnings.iter().find(|beginning| beginning.part == part);
            known.map_or_else(
                || verify::first_of(&shared.folder, NAME, part),
                |known| Ok(*known),
            )
        });
        let (this, next) = (this?, next?);
        let rule = match (next.began_ms < oldest, bytes > shared.settings.keep_bytes) {
            (true, _) => "audit.keep_for",
            (false, true) => "audit.keep_bytes",
            (false, false) => return Ok(()),
        };
        remove(shared, &this, &next, rule)?;
        bytes -= sizes[index];
    }
    Ok(())
}

/// The line first, then the marks, then the file: whoever dies between leaves it to the next.
fn remove(shared: &Shared, this: &Beginning, next: &Beginning, rule: &str) -> io::Result<()> {
    let about = format!("file {}, up to line {}", this.part, next.n);
    shared.note_removal(&Entry {
        what: "audit.remove",
        rule,
        about: &about,
        ..Entry::default()
    })?;
    // Without them nobody would believe that it was removed by us, or what follows.
    shared.marks.begin(NAME, this)?;
    shared.marks.begin(NAME, next)?;
    shared.marks.remove(NAME, this.part, journal::now_ms())?;
    shared.folder.remove(NAME, this.part)
}

impl Shared {
    /// Without waiting for the disk: that is this very thread's to make sure of.
    fn note_removal(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, entry).map(drop)
    }
}
