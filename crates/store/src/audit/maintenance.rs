//! The maintenance threads of the audit log: one syncs records and writes queued ones; one stores
//! checkpoints in the database and removes old files.

use super::{
    AuditEntry, NAME,
    checkpoints::{Checkpoint, SegmentStart},
    verify,
    writer::{AuditWriter, WriterState},
};
use crate::UpkeepLock;
use std::{
    fs::File,
    io,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// Maximum time that a record stays unsynced.
const SYNC_INTERVAL: Duration = Duration::from_millis(500);
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a failed write to the database.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const REMOVAL_INTERVAL: Duration = Duration::from_secs(3600);

/// Syncs records and writes queued ones until the log is closed. Never waits for the database: a
/// caller that appends within a database transaction may wait for this thread.
pub(super) fn sync_loop(shared: &AuditWriter) {
    loop {
        let closed = wait(shared);
        shared.retry_pending();
        sync(shared);
        if closed {
            return;
        }
    }
}

/// Stores checkpoints and removes old files until the log is closed.
pub(super) fn retention_loop(shared: &AuditWriter) {
    let mut removed = None::<Instant>;
    loop {
        if removed.is_none_or(|last| last.elapsed() > REMOVAL_INTERVAL) {
            removed = Some(Instant::now());
            // A failed removal is tried again an hour later.
            _ = remove_old(shared);
        }
        if wait_for_segment(shared) {
            return;
        }
        if sync_and_checkpoint(shared).is_err() {
            std::thread::sleep(RETRY_DELAY);
        }
    }
}

/// Waits for the interval or for a caller. Returns whether the log is closed.
fn wait(shared: &AuditWriter) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle =
        |state: &mut WriterState| !state.closed && (state.waiters == 0 || state.synced.is_err());
    let waited = shared
        .sync_requested
        .wait_timeout_while(state, SYNC_INTERVAL, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.closed
}

/// Waits for the interval or for a new file. Returns whether the log is closed.
fn wait_for_segment(shared: &AuditWriter) -> bool {
    let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = |state: &mut WriterState| {
        !state.closed && (state.new_segments.is_empty() || state.synced.is_err())
    };
    let waited = shared
        .segment_started
        .wait_timeout_while(state, CHECKPOINT_INTERVAL, idle);
    waited.unwrap_or_else(PoisonError::into_inner).0.closed
}

/// Syncs, then stores how far: first the starts of files, then the checkpoint. If one is missing,
/// the proof is weaker and nothing is wrong; the next checkpoint covers it.
pub(super) fn sync_and_checkpoint(shared: &AuditWriter) -> io::Result<()> {
    let Some(checkpoint) = sync(shared) else {
        return Ok(());
    };
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let sure: Vec<SegmentStart> = lock()
        .new_segments
        .iter()
        .filter(|new_segments| new_segments.before.is_none())
        .map(|new_segments| new_segments.segment_start)
        .collect();
    for segment_start in sure {
        shared.checkpoints.add_segment(NAME, &segment_start)?;
        lock()
            .new_segments
            .retain(|new_segments| new_segments.segment_start.part != segment_start.part);
    }
    shared
        .checkpoints
        .save(NAME, &checkpoint, journal::now_ms())
}

/// Syncs all records written so far; `None` if that has failed: then nothing is certain.
fn sync(shared: &AuditWriter) -> Option<Checkpoint> {
    let lock = || shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let _one = shared
        .syncing
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let (older, file, checkpoint, synced) = {
        let state = lock();
        let head = state.writer.head();
        let checkpoint = Checkpoint {
            part: state.writer.part(),
            n: head.n,
            hash: head.hash,
        };
        let older: Vec<_> = state
            .new_segments
            .iter()
            .filter_map(|new_segments| new_segments.before.clone())
            .collect();
        (
            older,
            Arc::clone(&state.writer.file),
            checkpoint,
            *state.synced.as_ref().ok()?,
        )
    };
    if synced >= checkpoint.n && older.is_empty() {
        return Some(checkpoint);
    }
    let done = sync_files(shared, &older, &file);
    let mut state = lock();
    if done.is_ok() {
        let sure = state
            .new_segments
            .iter_mut()
            .filter(|new_segments| new_segments.segment_start.part <= checkpoint.part);
        sure.for_each(|new_segments| new_segments.before = None);
    }
    let why =
        |error| format!("the audit cannot be synced to disk until the server restarts: {error}");
    state.synced = done.map(|()| checkpoint.n).map_err(why);
    shared.sync_done.notify_all();
    state.synced.is_ok().then_some(checkpoint)
}

/// Syncs the files in the order of their records, then the directory entries of new ones.
fn sync_files(shared: &AuditWriter, older: &[Arc<File>], last: &File) -> io::Result<()> {
    older
        .iter()
        .try_for_each(|file| rustix::fs::fdatasync(&**file))?;
    if !older.is_empty() {
        shared.folder.sync()?;
    }
    Ok(rustix::fs::fdatasync(last)?)
}

/// `None` while a backup runs: its copy of the database names files that it has not copied yet.
pub(super) fn try_exclusive(shared: &AuditWriter) -> io::Result<Option<UpkeepLock>> {
    match shared.folder.path(NAME, 1).ancestors().nth(2) {
        Some(state) => UpkeepLock::try_exclusive(state),
        None => Ok(None),
    }
}

/// Removes files whose records are all older than the retention, and the oldest beyond the byte
/// limit.
pub(super) fn remove_old(shared: &AuditWriter) -> io::Result<()> {
    let Some(_alone) = try_exclusive(shared)? else {
        return Ok(());
    };
    let segment_starts: Vec<SegmentStart> = shared.checkpoints.segment_starts(NAME)?;
    let parts = shared.folder.segments()?.remove(NAME).unwrap_or_default();
    let sizes: Vec<u64> = parts
        .iter()
        .map(|part| shared.folder.size(NAME, *part).unwrap_or_default())
        .collect();
    let mut bytes: u64 = sizes.iter().sum();
    let keep_ms = u64::try_from(shared.settings.keep_for.as_millis()).unwrap_or(u64::MAX);
    let oldest = journal::now_ms().saturating_sub(keep_ms);
    // The last file is never removed.
    for (index, pair) in parts.windows(2).enumerate() {
        let [this, next] = [pair[0], pair[1]].map(|part| {
            let known = segment_starts
                .iter()
                .find(|segment_start| segment_start.part == part);
            known.map_or_else(
                || verify::read_segment_start(&shared.folder, NAME, part),
                |known| Ok(*known),
            )
        });
        let this = this?;
        let next = next?;
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
fn remove(
    shared: &AuditWriter,
    this: &SegmentStart,
    next: &SegmentStart,
    rule: &str,
) -> io::Result<()> {
    let about = format!("file {}, up to line {}", this.part, next.n);
    shared.append_removal(&AuditEntry {
        what: "audit.remove",
        rule,
        about: &about,
        ..AuditEntry::default()
    })?;
    // Without these rows, verification would report the file as missing.
    shared.checkpoints.add_segment(NAME, this)?;
    shared.checkpoints.add_segment(NAME, next)?;
    shared
        .checkpoints
        .mark_removed(NAME, this.part, journal::now_ms())?;
    shared.folder.remove(NAME, this.part)
}

impl AuditWriter {
    /// Appends without waiting for the sync, which is this thread's own task.
    fn append_removal(&self, entry: &AuditEntry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut state, entry).map(drop)
    }
}
