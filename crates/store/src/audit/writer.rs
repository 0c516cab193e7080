//! The writer of the audit log.

use super::{
    AuditEntry, FOLDER, NAME,
    checkpoints::{Checkpoints, SegmentStart},
    verify::{self, Verifier},
};
use crate::UpkeepLock;
use journal::{Durability, Hash, JournalDir, JournalProblem, JournalWriter, MAX_FILE_BYTES};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Name of the log in messages.
const LOG_NAME: &str = "audit";
/// Maximum queue of event records while the disk is full.
const MAX_PENDING: usize = 10_000;
const DAY_MS: u64 = 86_400_000;
/// How long to wait for the lock, which a verification takes for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Settings of the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// Durability of a record before the recorded action continues.
    pub durability: Durability,
    /// Minimum retention of records.
    pub keep_for: Duration,
    /// Bytes beyond which the oldest files are removed, however recent they are.
    pub keep_bytes: u64,
    /// Size at which the next file is started.
    pub file_bytes: u64,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings {
            durability: Durability::Process,
            keep_for: Duration::from_secs(90 * 24 * 3600),
            keep_bytes: 16 << 30,
            file_bytes: MAX_FILE_BYTES,
        }
    }
}

/// A record with owned fields, for queues.
#[derive(Clone, Debug, Default)]
pub struct OwnedAuditEntry {
    /// Kind of the record.
    pub what: String,
    /// The decision.
    pub decision: super::Decision,
    /// Tenant.
    pub tenant: String,
    /// API key of the request.
    pub key: String,
    /// Run or sandbox.
    pub run: String,
    /// Task that it belongs to.
    pub task: String,
    /// Job that it belongs to.
    pub job: String,
    /// Rule that decided.
    pub rule: String,
    /// Detail.
    pub about: String,
}

impl OwnedAuditEntry {
    /// Borrows the fields.
    pub fn entry(&self) -> AuditEntry<'_> {
        AuditEntry {
            what: &self.what,
            decision: self.decision,
            tenant: &self.tenant,
            key: &self.key,
            run: &self.run,
            task: &self.task,
            job: &self.job,
            rule: &self.rule,
            about: &self.about,
        }
    }
}

impl From<&AuditEntry<'_>> for OwnedAuditEntry {
    fn from(entry: &AuditEntry<'_>) -> OwnedAuditEntry {
        /// Longer fields are cut.
        const MAX_FIELD_BYTES: usize = 512;
        let text = |text: &str| {
            text[..text.floor_char_boundary(MAX_FIELD_BYTES.min(text.len()))].to_owned()
        };
        OwnedAuditEntry {
            what: text(entry.what),
            decision: entry.decision,
            tenant: text(entry.tenant),
            key: text(entry.key),
            run: text(entry.run),
            task: text(entry.task),
            job: text(entry.job),
            rule: text(entry.rule),
            about: text(entry.about),
        }
    }
}

#[derive(Debug)]
pub(super) struct AuditWriter {
    pub(super) folder: JournalDir,
    pub(super) checkpoints: Checkpoints,
    pub(super) settings: AuditSettings,
    pub(super) state: Mutex<WriterState>,
    /// Signalled when records are synced, or when syncing has failed.
    pub(super) sync_done: Condvar,
    /// Signalled when a caller waits for a sync, and at the end.
    pub(super) sync_requested: Condvar,
    /// Signalled when a file was started, and at the end.
    pub(super) segment_started: Condvar,
    /// One sync at a time: a record is durable only after everything before it.
    pub(super) syncing: Mutex<()>,
    /// Held for the lifetime of the log.
    _lock: File,
}

#[derive(Debug)]
pub(super) struct WriterState {
    pub(super) writer: JournalWriter,
    /// Day of the current file, since 1970.
    day: u64,
    /// The record up to which everything is synced; or why a sync has failed: then nothing is
    /// certain until the next start reads the files.
    pub(super) synced: Result<u64, String>,
    pending: VecDeque<OwnedAuditEntry>,
    dropped: u64,
    /// Why the last record could not be written.
    pub(super) write_error: Option<String>,
    /// Files that were started and are not in the database yet. A record may be appended within a
    /// transaction of that database, so the writer must not wait for it.
    pub(super) new_segments: Vec<NewSegment>,
    /// Number of callers that wait for a sync.
    pub(super) waiters: usize,
    /// The log is being closed.
    pub(super) closed: bool,
}

/// A file that was started.
#[derive(Debug)]
pub(super) struct NewSegment {
    pub(super) segment_start: SegmentStart,
    /// The previous file, until it is synced.
    pub(super) before: Option<Arc<File>>,
}

impl AuditWriter {
    pub(super) fn open(state: &Path, settings: AuditSettings) -> io::Result<AuditWriter> {
        let folder = JournalDir::make(&state.join(FOLDER))?;
        let lock = take_lock(&folder)?;
        let checkpoints = Checkpoints::open(state)?;
        let parts = folder.segments()?.remove(NAME).unwrap_or_default();
        let segment_starts = checkpoints.segment_starts(NAME)?;
        let checkpoint = checkpoints.latest(NAME)?;
        let check = Verifier {
            folder: &folder,
            name: NAME,
            parts: &parts,
            segment_starts: &segment_starts,
            checkpoint,
        };
        let end = check.newest().map_err(io::Error::other)?;
        let part = end.part.max(1);
        for later in parts.iter().filter(|later| **later > part) {
            folder.remove(NAME, *later)?;
        }
        let file = folder.make_file(NAME, part)?;
        if end.torn {
            rustix::fs::ftruncate(&file, end.head.offset)?;
        }
        folder.sync()?;
        let first = SegmentStart {
            part,
            n: 0,
            hash: Hash::default(),
            began_ms: journal::now_ms(),
            removed: false,
        };
        for segment_start in end
            .segment_starts
            .iter()
            .chain(parts.is_empty().then_some(&first))
        {
            checkpoints.add_segment(NAME, segment_start)?;
        }
        let began = end
            .segment_starts
            .last()
            .map_or_else(journal::now_ms, |segment_start| segment_start.began_ms);
        let synced = Ok(checkpoint.map_or(0, |checkpoint| checkpoint.n));
        let state = WriterState {
            writer: JournalWriter::new(LOG_NAME, file, part, end.head),
            day: began / DAY_MS,
            synced,
            pending: VecDeque::new(),
            dropped: 0,
            write_error: None,
            new_segments: Vec::new(),
            waiters: 0,
            closed: false,
        };
        let shared = AuditWriter {
            folder,
            checkpoints,
            settings,
            state: Mutex::new(state),
            sync_done: Condvar::new(),
            sync_requested: Condvar::new(),
            segment_started: Condvar::new(),
            syncing: Mutex::new(()),
            _lock: lock,
        };
        shared.remove_marked_segments(&segment_starts, &parts)?;
        Ok(shared)
    }

    /// Completes removals of a process that died before it removed the marked files.
    fn remove_marked_segments(
        &self,
        segment_starts: &[SegmentStart],
        parts: &[u32],
    ) -> io::Result<()> {
        // If a backup holds the lock, the next start tries again.
        let Some(_alone) = super::maintenance::try_exclusive(self)? else {
            return Ok(());
        };
        for segment_start in segment_starts
            .iter()
            .filter(|of| of.removed && parts.contains(&of.part))
        {
            self.folder.remove(NAME, segment_start.part)?;
        }
        Ok(())
    }

    pub(super) fn append(&self, entry: &AuditEntry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self
            .write_pending(&mut state)
            .and_then(|()| self.write(&mut state, entry));
        state.write_error = written.as_ref().err().map(ToString::to_string);
        let n = written?;
        match self.settings.durability {
            Durability::Process => Ok(()),
            Durability::Power => self.last(state, n),
        }
    }

    /// Whether appending waits for the disk.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.settings.durability == Durability::Power
    }

    /// One sync serves all waiting callers.
    fn last(&self, mut state: std::sync::MutexGuard<'_, WriterState>, n: u64) -> io::Result<()> {
        state.waiters += 1;
        self.sync_requested.notify_one();
        while state.synced.as_ref().is_ok_and(|synced| *synced < n) {
            state = self
                .sync_done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiters -= 1;
        state
            .synced
            .as_ref()
            .map(drop)
            .map_err(|why| io::Error::other(why.clone()))
    }

    pub(super) fn append_event(&self, entry: &AuditEntry<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self
            .write_pending(&mut state)
            .and_then(|()| self.write(&mut state, entry));
        state.write_error = written.as_ref().err().map(ToString::to_string);
        match written {
            Ok(_) => {}
            Err(_) if state.pending.len() < MAX_PENDING => state.pending.push_back(entry.into()),
            Err(_) => state.dropped += 1,
        }
    }

    /// Tells the threads to end.
    pub(super) fn finish(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .closed = true;
        self.sync_requested.notify_one();
        self.segment_started.notify_one();
    }

    /// Retries the queued records.
    pub(super) fn retry_pending(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.pending.is_empty() || state.dropped > 0 {
            let written = self.write_pending(&mut state);
            state.write_error = written.err().map(|error| error.to_string());
        }
    }

    fn write_pending(&self, state: &mut WriterState) -> io::Result<()> {
        while let Some(append) = state.pending.pop_front() {
            if let Err(error) = self.write(state, &append.entry()) {
                state.pending.push_front(append);
                return Err(error);
            }
        }
        if state.dropped > 0 {
            let about = format!(
                "{} records of events were dropped because the queue was full",
                state.dropped
            );
            self.write(
                state,
                &AuditEntry {
                    what: "audit.left_out",
                    about: &about,
                    ..AuditEntry::default()
                },
            )?;
            state.dropped = 0;
        }
        Ok(())
    }

    pub(super) fn write(&self, state: &mut WriterState, entry: &AuditEntry<'_>) -> io::Result<u64> {
        let today = journal::now_ms() / DAY_MS;
        if state.writer.length() >= self.settings.file_bytes
            || today > state.day && state.writer.length() > 0
        {
            self.next_file(state)?;
            state.day = today;
        }
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_')
        };
        let known =
            !entry.what.is_empty() && entry.what.len() <= 64 && entry.what.bytes().all(allowed);
        state
            .writer
            .write(if known { entry.what } else { "unknown" }, false, |line| {
                line.text("decision", entry.decision.name())
                    .text("tenant", entry.tenant)
                    .text("key", entry.key)
                    .text("run", entry.run)
                    .text("task", entry.task)
                    .text("job", entry.job)
                    .text("rule", entry.rule)
                    .text("about", entry.about);
            })
    }

    /// Continues in the next file without waiting for the disk or the database: the maintenance
    /// threads store its row and the checkpoint.
    fn next_file(&self, state: &mut WriterState) -> io::Result<()> {
        let head = state.writer.head();
        let before = Arc::clone(&state.writer.file);
        state.writer.next_file(&self.folder, NAME, false)?;
        let part = state.writer.part();
        let began_ms = journal::now_ms();
        let segment_start = SegmentStart {
            part,
            n: head.n,
            hash: head.hash,
            began_ms,
            removed: false,
        };
        state.new_segments.push(NewSegment {
            segment_start,
            before: Some(before),
        });
        self.segment_started.notify_one();
        Ok(())
    }
}

fn take_lock(folder: &JournalDir) -> io::Result<File> {
    let lock = folder.lock_file(NAME)?;
    let until = Instant::now() + LOCK_TIMEOUT;
    while !journal::try_lock(&lock)? {
        if Instant::now() > until {
            return Err(io::Error::other("the audit is locked by another process"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(lock)
}

/// Whether a process is writing the log now.
pub(super) fn is_locked(folder: &JournalDir) -> bool {
    folder
        .lock_file(NAME)
        .and_then(|file| journal::try_lock(&file))
        .is_ok_and(|free| !free)
}

/// Moves a log that fails verification aside, so that a new one can start. Returns its new path.
pub fn set_aside(state: &Path) -> io::Result<Option<PathBuf>> {
    let Some(folder) = verify::open_existing(&state.join(FOLDER))? else {
        Checkpoints::open(state)?.clear(NAME)?;
        return Ok(None);
    };
    let _lock = take_lock(&folder)?;
    let Some(_alone) = UpkeepLock::try_exclusive(state)? else {
        return Err(io::Error::other("a backup of the state folder is running"));
    };
    let place = state.join(format!("{FOLDER}-aside-{}", journal::now_ms()));
    std::fs::rename(state.join(FOLDER), &place)?;
    Checkpoints::open(state)?.clear(NAME)?;
    let audit = super::AuditLog::open(state)?;
    let about = place
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    audit.append(&AuditEntry {
        what: "audit.set_aside",
        about: &about,
        ..AuditEntry::default()
    })?;
    Ok(Some(place))
}

impl From<JournalProblem> for super::verify::VerifyError {
    fn from(problem: JournalProblem) -> Self {
        super::verify::VerifyError::Problem(problem)
    }
}
