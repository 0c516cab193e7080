//! The thread of an audit: makes sure of what was written, marks how far that is, writes what had to wait, and removes
//! what is too old.

use super::{
    Entry, NAME,
    file::{Shared, State},
    marks::{Beginning, Mark},
};
use crate::Upkeep;
use std::{
    io,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// How long a line may be without being surely on the disk.
const BETWEEN_SYNCS: Duration = Duration::from_millis(500);
const BETWEEN_MARKS: Duration = Duration::from_secs(5);
const BETWEEN_REMOVALS: Duration = Duration::from_secs(3600);

/// Until its owner is gone.
pub(super) fn work(shared: &Shared) {
    let (mut marked, mut removed) = (Instant::now(), None::<Instant>);
    loop {
        if removed.is_none_or(|last| last.elapsed() > BETWEEN_REMOVALS) {
            removed = Some(Instant::now());
            // What cannot be removed now is an hour from now.
            _ = remove_old(shared);
        }
        let over = wait(shared);
        shared.try_again();
        if over || marked.elapsed() >= BETWEEN_MARKS {
            marked = Instant::now();
            sync_and_mark(shared);
        } else {
            sync(shared);
        }
        if over {
            return;
        }
    }
}

/// Until it is time, or somebody waits; whether the owner is gone.
fn wait(shared: &Shared) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = |state: &mut State| !state.over && (state.waiters == 0 || state.synced.is_none());
    let waited = shared.wanted.wait_timeout_while(state, BETWEEN_SYNCS, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.over
}

/// Makes sure of what was written, and marks how far that is.
pub(super) fn sync_and_mark(shared: &Shared) {
    if let Some(mark) = sync(shared) {
        // A mark that is missing makes less certain, and nothing wrong; the next one says as much.
        _ = shared.marks.mark(NAME, &mark, journal::now());
    }
}

/// Makes sure of what was written until now; none if that has failed, after which nothing is sure.
fn sync(shared: &Shared) -> Option<Mark> {
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let (file, mark, synced) = {
        let state = lock();
        let head = state.writer.head();
        let mark = Mark { part: state.writer.part(), n: head.n, hash: head.hash };
        (Arc::clone(&state.writer.file), mark, state.synced?)
    };
    if synced >= mark.n {
        return Some(mark);
    }
    let done = rustix::fs::fdatasync(&*file);
    let mut state = lock();
    state.synced = done.is_ok().then_some(mark.n);
    if let Err(error) = done {
        state.trouble = Some(format!("the audit cannot be made to last: {error}"));
    }
    shared.lasting.notify_all();
    state.synced.map(|_| mark)
}

/// None while somebody copies the state folder: what was copied of the database tells of files that are still to be copied.
pub(super) fn alone(shared: &Shared) -> io::Result<Option<Upkeep>> {
    match shared.folder.path(NAME, 1).ancestors().nth(2) {
        Some(state) => Upkeep::alone(state),
        None => Ok(None),
    }
}

/// Removes whole files whose every line is older than they are kept, and the oldest of those beyond the bytes that are kept.
fn remove_old(shared: &Shared) -> io::Result<()> {
    let Some(_alone) = alone(shared)? else { return Ok(()) };
    let beginnings: Vec<Beginning> = shared.marks.beginnings(NAME)?;
    let parts = shared.folder.segments()?.remove(NAME).unwrap_or_default();
    let sizes: Vec<u64> =
        parts.iter().map(|part| shared.folder.size(NAME, *part).unwrap_or_default()).collect();
    let mut bytes: u64 = sizes.iter().sum();
    let keep_ms = u64::try_from(shared.settings.keep_for.as_millis()).unwrap_or(u64::MAX);
    let oldest = journal::now().saturating_sub(keep_ms);
    // The last is never removed.
    for (index, pair) in parts.windows(2).enumerate() {
        let next = beginnings.iter().find(|beginning| beginning.part == pair[1]);
        let Some(next) = next else { return Ok(()) };
        let rule = match (next.began_ms < oldest, bytes > shared.settings.keep_bytes) {
            (true, _) => "audit.keep_for",
            (false, true) => "audit.keep_bytes",
            (false, false) => return Ok(()),
        };
        remove(shared, pair[0], next, rule)?;
        bytes -= sizes[index];
    }
    Ok(())
}

/// The line first, then the mark, then the file: whoever dies between leaves it to the next.
fn remove(shared: &Shared, part: u32, next: &Beginning, rule: &str) -> io::Result<()> {
    let about = format!("file {part}, up to line {}", next.n);
    shared.note_removal(&Entry { what: "audit.remove", rule, about: &about, ..Entry::default() })?;
    shared.marks.remove(NAME, part, journal::now())?;
    shared.folder.remove(NAME, part)
}

impl Shared {
    /// Without waiting for the disk: that is this very thread's to make sure of.
    fn note_removal(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, entry).map(drop)
    }
}
