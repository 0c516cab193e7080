//! The maintenance threads of the audit log: one syncs records and writes queued ones; one stores
//! checkpoints in the database and removes old files.

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

/// Maximum time that a record stays unsynced.
const BETWEEN_SYNCS: Duration = Duration::from_millis(500);
const BETWEEN_MARKS: Duration = Duration::from_secs(5);
/// Pause after a failed write to the database.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
const BETWEEN_REMOVALS: Duration = Duration::from_secs(3600);

/// Syncs records and writes queued ones until the log is closed. Never waits for the database: a
/// caller that appends within a database transaction may wait for this thread.
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

/// Stores checkpoints and removes old files until the log is closed.
pub(super) fn keep(shared: &Shared) {
    let mut removed = None::<Instant>;
    loop {
        if removed.is_none_or(|last| last.elapsed() > BETWEEN_REMOVALS) {
            removed = Some(Instant::now());
            // A failed removal is tried again an hour later.
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

/// Waits for the interval or for a caller. Returns whether the log is closed.
fn wait(shared: &Shared) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = |state: &mut State| !state.over && (state.waiters == 0 || state.synced.is_err());
    let waited = shared.wanted.wait_timeout_while(state, BETWEEN_SYNCS, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.over
}

/// Waits for the interval or for a new file. Returns whether the log is closed.
fn wait_for_file(shared: &Shared) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle =
        |state: &mut State| !state.over && (state.opened.is_empty() || state.synced.is_err());
    let waited = shared.begun.wait_timeout_while(state, BETWEEN_MARKS, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.over
}

/// Syncs, then stores how far: first the starts of files, then the checkpoint. If one is missing,
/// the proof is weaker and nothing is wrong; the next checkpoint covers it.
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
    shared.marks.mark(NAME, &mark, journal::now())
}

/// Syncs all records written so far; `None` if that has failed: then nothing is certain.
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
        |error| format!("the audit cannot be synced to disk until the server restarts: {error}");
    state.synced = done.map(|()| mark.n).map_err(why);
    shared.lasting.notify_all();
    state.synced.is_ok().then_some(mark)
}

/// Syncs the files in the order of their records, then the directory entries of new ones.
fn sync_files(shared: &Shared, older: &[Arc<File>], last: &File) -> io::Result<()> {
    older
        .iter()
        .try_for_each(|file| rustix::fs::fdatasync(&**file))?;
    if !older.is_empty() {
        shared.folder.sync()?;
    }
    Ok(rustix::fs::fdatasync(last)?)
}

/// `None` while a backup runs: its copy of the database names files that it has not copied yet.
pub(super) fn alone(shared: &Shared) -> io::Result<Option<Upkeep>> {
    match shared.folder.path(NAME, 1).ancestors().nth(2) {
        Some(state) => Upkeep::alone(state),
        None => Ok(None),
    }
}

/// Removes files whose records are all older than the retention, and the oldest beyond the byte
/// limit.
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
    let oldest = journal::now().saturating_sub(keep_ms);
    // The last file is never removed.
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

/// Record first, then the database, then the file: after a crash the next start completes the
/// removal.
fn remove(shared: &Shared, this: &Beginning, next: &Beginning, rule: &str) -> io::Result<()> {
    let about = format!("file {}, up to line {}", this.part, next.n);
    shared.note_removal(&Entry {
        what: "audit.remove",
        rule,
        about: &about,
        ..Entry::default()
    })?;
    // Without these rows, verification would report the file as missing.
    shared.marks.begin(NAME, this)?;
    shared.marks.begin(NAME, next)?;
    shared.marks.remove(NAME, this.part, journal::now())?;
    shared.folder.remove(NAME, this.part)
}

impl Shared {
    /// Appends without waiting for the sync, which is this thread's own task.
    fn note_removal(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, entry).map(drop)
    }
}
