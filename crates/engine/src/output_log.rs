//! The output log of one program: two streams of bytes that can be read again by offset. It keeps
//! the newest bytes within a limit; a reader sees a gap by the offset that it gets back.
//!
//! A small log stays in memory. A larger one goes to an unlinked file that is used as a ring
//! buffer. Logs share disk budgets: those that ended first are forgotten first, and a log that
//! cannot grow keeps its newest bytes.

mod disk_budget;

pub(crate) use disk_budget::{DiskBudget, LogBudget};

use rustix::fs::{Mode, OFlags};
use spec::StdStream;
use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// The bytes of a stream that are kept in memory; most programs write less.
const MAX_MEMORY_BYTES: u64 = 64 << 10;
/// The most bytes that one read returns.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// A part of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputChunk {
    /// The offset of its first byte: later than requested if the requested bytes are gone.
    pub from: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The output of one program. Cheap to clone; all clones are the same log.
#[derive(Clone, Debug)]
pub struct OutputLog {
    shared: Arc<LogState>,
}

#[derive(Debug)]
struct LogState {
    streams: [Mutex<StreamLog>; 2],
    progress: watch::Sender<LogProgress>,
    budget: Option<Arc<LogBudget>>,
}

/// How much was written, and whether the log has ended.
#[derive(Clone, Copy, Debug, Default)]
struct LogProgress {
    lengths: [u64; 2],
    ended: bool,
}

/// The kept part of one stream: the bytes from `oldest` to `total`.
#[derive(Debug)]
struct StreamLog {
    most: u64,
    /// The folder for the file, once one is needed; without a folder everything stays in memory.
    folder: Option<PathBuf>,
    oldest: u64,
    total: u64,
    memory: VecDeque<u8>,
    file: Option<File>,
    budget: Option<Arc<LogBudget>>,
    /// The bytes that it has taken from the budget.
    taken: u64,
}

impl LogState {
    /// Drops the kept bytes; false if a reader has a lock. The caller holds the lock of another log
    /// and must not wait.
    fn forget(&self) -> bool {
        let streams = self.streams.each_ref().map(|stream| stream.try_lock());
        let mut free = true;
        for stream in streams {
            match stream {
                Ok(mut kept) => kept.forget(),
                Err(_) => free = false,
            }
        }
        free
    }
}

fn locked(kept: &Mutex<StreamLog>) -> MutexGuard<'_, StreamLog> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutputLog {
    /// A log that keeps the newest `most` bytes of each stream in memory.
    pub fn new(most: u64) -> OutputLog {
        OutputLog::with_limits(most, None, None)
    }

    /// A log that spills to unlinked files in this folder, without a budget.
    #[cfg(test)]
    fn in_folder(most: u64, folder: &Path) -> OutputLog {
        OutputLog::with_limits(most, Some(folder.to_owned()), None)
    }

    /// A log that spills to unlinked files in this folder, within a budget.
    pub(crate) fn within(budget: &Arc<LogBudget>, most: u64, folder: &Path) -> OutputLog {
        OutputLog::with_limits(most, Some(folder.to_owned()), Some(budget.clone()))
    }

    fn with_limits(
        most: u64,
        folder: Option<PathBuf>,
        budget: Option<Arc<LogBudget>>,
    ) -> OutputLog {
        let kept = || Mutex::new(StreamLog::new(most.max(1), folder.clone(), budget.clone()));
        let streams = [kept(), kept()];
        OutputLog {
            shared: Arc::new(LogState {
                streams,
                progress: watch::Sender::default(),
                budget,
            }),
        }
    }

    fn stream(&self, stream: StdStream) -> MutexGuard<'_, StreamLog> {
        locked(&self.shared.streams[index_of(stream)])
    }

    /// Appends the first `count` bytes of a buffer and returns the buffer. Disk writes run on a
    /// blocking thread; a caller that awaits each call keeps the order.
    pub async fn append_from(&self, stream: StdStream, buffer: Vec<u8>, count: usize) -> Vec<u8> {
        if !self.stream(stream).needs_disk(count) {
            self.append(stream, &buffer[..count]);
            return buffer;
        }
        let log = self.clone();
        let written = tokio::task::spawn_blocking(move || {
            log.append(stream, &buffer[..count]);
            buffer
        });
        // Only a runtime that shuts down drops the write, and then there is no reader either.
        written.await.unwrap_or_else(|_| vec![0; count.max(1)])
    }

    /// Appends bytes to a stream.
    pub fn append(&self, stream: StdStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut kept = self.stream(stream);
        kept.append(bytes);
        // Still under the lock: a reader that sees a length can read up to it, and lengths only
        // grow.
        self.shared
            .progress
            .send_modify(|progress| progress.lengths[index_of(stream)] = kept.total);
    }

    /// Ends the log: no more output will come.
    pub fn end(&self) {
        let first = self
            .shared
            .progress
            .send_if_modified(|progress| !std::mem::replace(&mut progress.ended, true));
        let has_some = || {
            self.shared
                .streams
                .iter()
                .any(|stream| locked(stream).taken > 0)
        };
        if let Some(budget) = self.shared.budget.as_ref().filter(|_| first && has_some()) {
            budget.ended(&Arc::downgrade(&self.shared));
        }
    }

    /// Reads up to `most` bytes of a stream from an offset on. An offset beyond the end gives an
    /// empty chunk at the end.
    pub fn read(&self, stream: StdStream, from: u64, most: usize) -> OutputChunk {
        self.stream(stream).read(from, most.min(MAX_CHUNK_BYTES))
    }

    /// Whether the log has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.progress.borrow().ended
    }

    /// The total bytes written to standard output and to standard error.
    pub fn lengths(&self) -> [u64; 2] {
        self.shared.progress.borrow().lengths
    }

    /// The offset of the oldest readable byte of each stream.
    pub fn oldest(&self) -> [u64; 2] {
        [StdStream::Stdout, StdStream::Stderr].map(|stream| self.stream(stream).oldest)
    }

    /// Waits until a stream is longer than in `seen`; false once the log has ended.
    pub async fn wait_for_more(&self, seen: [u64; 2]) -> bool {
        let more =
            |progress: &LogProgress| progress.lengths[0] > seen[0] || progress.lengths[1] > seen[1];
        let mut progress = self.shared.progress.subscribe();
        let found = progress
            .wait_for(|progress| progress.ended || more(progress))
            .await;
        // The sender lives in this log.
        found.is_ok_and(|progress| more(&progress))
    }
}

fn index_of(stream: StdStream) -> usize {
    match stream {
        StdStream::Stdout => 0,
        StdStream::Stderr => 1,
    }
}

impl StreamLog {
    fn new(most: u64, folder: Option<PathBuf>, budget: Option<Arc<LogBudget>>) -> StreamLog {
        StreamLog {
            most,
            folder,
            oldest: 0,
            total: 0,
            memory: VecDeque::new(),
            file: None,
            budget,
            taken: 0,
        }
    }

    fn fits_memory(&self, count: usize) -> bool {
        self.memory.len() as u64 + count as u64 <= MAX_MEMORY_BYTES.min(self.most)
    }

    fn needs_disk(&self, count: usize) -> bool {
        self.file.is_some() || (self.folder.is_some() && !self.fits_memory(count))
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.file.is_none() && !self.fits_memory(bytes.len()) {
            self.spill();
        }
        self.grow(bytes.len() as u64);
        match &self.file {
            Some(_) => self.append_to_file(bytes),
            None => self.append_to_memory(bytes),
        }
    }

    /// Moves the bytes from memory to a file. Without a file, memory keeps its limit and older
    /// bytes are dropped; readers see that by their offsets.
    fn spill(&mut self) {
        let Some(folder) = self.folder.take() else {
            return;
        };
        let room = self
            .budget
            .as_ref()
            .is_none_or(|budget| budget.take(MAX_MEMORY_BYTES));
        let Some(file) = room.then(|| unnamed_file(&folder).ok()).flatten() else {
            if let Some(budget) = self.budget.as_ref().filter(|_| room) {
                budget.release(MAX_MEMORY_BYTES);
            }
            self.most = self.most.min(MAX_MEMORY_BYTES);
            return;
        };
        self.taken = if self.budget.is_some() {
            MAX_MEMORY_BYTES
        } else {
            0
        };
        self.file = Some(file);
        let memory = Vec::from(std::mem::take(&mut self.memory));
        self.total = self.oldest;
        self.append_to_file(&memory);
    }

    /// Reserves budget for a longer file. Once the budget is exhausted, the file becomes a ring
    /// buffer at its current size.
    fn grow(&mut self, more: u64) {
        let (Some(budget), Some(_)) = (&self.budget, &self.file) else {
            return;
        };
        let wanted = (self.total + more)
            .min(self.most)
            .saturating_sub(self.taken);
        if wanted == 0 || budget.take(wanted) {
            self.taken += wanted
        } else {
            // The ring has not wrapped yet, or the file would not grow.
            self.most = self.taken.max(self.total)
        }
    }

    /// Drops the bytes and keeps the length.
    fn forget(&mut self) {
        (self.file, self.folder, self.memory) = (None, None, VecDeque::new());
        self.oldest = self.total;
        if let Some(budget) = &self.budget {
            budget.release(std::mem::take(&mut self.taken));
        }
    }

    fn append_to_memory(&mut self, bytes: &[u8]) {
        let newest = &bytes[bytes.len().saturating_sub(self.most as usize)..];
        let over = (self.memory.len() + newest.len()).saturating_sub(self.most as usize);
        self.memory.drain(..over);
        self.memory.extend(newest);
        self.total += bytes.len() as u64;
        self.oldest = self.total - self.memory.len() as u64;
    }

    fn append_to_file(&mut self, bytes: &[u8]) {
        let Some(file) = &self.file else { return };
        let total = self.total + bytes.len() as u64;
        let newest = &bytes[bytes.len().saturating_sub(self.most as usize)..];
        let begin = total - newest.len() as u64;
        let written = ring_ranges(begin, newest.len(), self.most)
            .into_iter()
            .try_for_each(|(at, part)| file.write_all_at(&newest[part], at));
        self.total = total;
        self.oldest = match written {
            Ok(()) => self.oldest.max(total.saturating_sub(self.most)),
            // A full disk: bytes that were not written must not be read, and readers see the gap by
            // their offsets.
            Err(_) => total,
        };
    }

    fn read(&self, from: u64, most: usize) -> OutputChunk {
        let from = from.clamp(self.oldest, self.total);
        let count = most.min((self.total - from) as usize);
        let Some(file) = &self.file else {
            let begin = (from - self.oldest) as usize;
            return OutputChunk {
                from,
                bytes: self.memory.range(begin..begin + count).copied().collect(),
            };
        };
        let mut bytes = vec![0; count];
        let read = ring_ranges(from, count, self.most)
            .into_iter()
            .try_for_each(|(at, part)| file.read_exact_at(&mut bytes[part], at));
        match read {
            Ok(()) => OutputChunk { from, bytes },
            Err(_) => OutputChunk {
                from: self.total,
                bytes: Vec::new(),
            },
        }
    }
}

impl Drop for StreamLog {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.release(self.taken);
        }
    }
}

/// The at most two ranges of a ring file in which `count` bytes from an offset lie.
fn ring_ranges(offset: u64, count: usize, size: u64) -> [(u64, std::ops::Range<usize>); 2] {
    let at = offset % size;
    let first = count.min((size - at) as usize);
    [(at, 0..first), (0, first..count)]
}

/// A file without a name, which is gone with its last handle even after a crash.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        return Ok(File::from(file));
    }
    let path = folder.join(format!(".feed-{}", crate::record::fresh_id()));
    let file = rustix::fs::open(
        &path,
        flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW,
        mode,
    )?;
    std::fs::remove_file(&path)?;
    Ok(File::from(file))
}

#[cfg(test)]
#[path = "output_log_tests.rs"]
mod tests;
