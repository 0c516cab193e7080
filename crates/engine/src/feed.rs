//! What a program writes, kept for whoever comes late or comes again: two streams of bytes with offsets. Within a
//! bound; what is older than that is forgotten, and a reader is told so by the offset that he gets.
//!
//! Little output stays in memory. More goes to a file without a name, written round and round. Feeds share budgets of the
//! disk: those that ended first are forgotten first, and one that cannot grow any more keeps its newest.

mod budget;

pub(crate) use budget::{Budget, Disk};

use rustix::fs::{Mode, OFlags};
use spec::Stream;
use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// What of a stream is kept in memory; most programs write less.
const SMALL: u64 = 64 << 10;
/// What one answer can have at most, whatever is asked for.
const LARGEST_PIECE: usize = 1 << 20;

/// A piece of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins: later than what was asked for if that is forgotten.
    pub from: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The output of one program. Cheap to clone; all clones are the same feed.
#[derive(Clone, Debug)]
pub struct Feed {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    streams: [Mutex<Kept>; 2],
    progress: watch::Sender<Progress>,
    budget: Option<Arc<Budget>>,
}

/// How far a feed is.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    lengths: [u64; 2],
    ended: bool,
}

/// What is kept of one stream: the bytes from `oldest` to `total`.
#[derive(Debug)]
struct Kept {
    most: u64,
    /// Where the file is made once it is needed; without one everything stays in memory.
    folder: Option<PathBuf>,
    oldest: u64,
    total: u64,
    memory: VecDeque<u8>,
    file: Option<File>,
    budget: Option<Arc<Budget>>,
    /// What it has of the budget.
    taken: u64,
}

impl Shared {
    /// False if somebody is reading it just now; whoever asks holds the lock of another feed, and does not wait.
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

fn locked(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// Keeps the newest `most` bytes of each stream, in memory.
    pub fn new(most: u64) -> Feed {
        Feed::kept_in(most, None, None)
    }

    /// The same, with what is more than little in files without a name in this folder, whoever else has some there.
    #[cfg(test)]
    fn in_folder(most: u64, folder: &Path) -> Feed {
        Feed::kept_in(most, Some(folder.to_owned()), None)
    }

    /// The same, within what it and others may have together.
    pub(crate) fn within(budget: &Arc<Budget>, most: u64, folder: &Path) -> Feed {
        Feed::kept_in(most, Some(folder.to_owned()), Some(budget.clone()))
    }

    fn kept_in(most: u64, folder: Option<PathBuf>, budget: Option<Arc<Budget>>) -> Feed {
        let kept = || Mutex::new(Kept::new(most.max(1), folder.clone(), budget.clone()));
        let streams = [kept(), kept()];
        Feed {
            shared: Arc::new(Shared {
                streams,
                progress: watch::Sender::default(),
                budget,
            }),
        }
    }

    fn stream(&self, stream: Stream) -> MutexGuard<'_, Kept> {
        locked(&self.shared.streams[place(stream)])
    }

    /// Adds the first `count` bytes of a buffer and gives it back. What goes to the disk is written off the event loop;
    /// whoever awaits one before the next keeps the order.
    pub async fn append_from(&self, stream: Stream, buffer: Vec<u8>, count: usize) -> Vec<u8> {
        if !self.stream(stream).needs_disk(count) {
            self.append(stream, &buffer[..count]);
            return buffer;
        }
        let feed = self.clone();
        let written = tokio::task::spawn_blocking(move || {
            feed.append(stream, &buffer[..count]);
            buffer
        });
        // Only a runtime that ends does not carry it out: then nobody reads it, either.
        written.await.unwrap_or_else(|_| vec![0; count.max(1)])
    }

    /// Adds what was written.
    pub fn append(&self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut kept = self.stream(stream);
        kept.append(bytes);
        // Still under the lock: whoever hears of a length can read up to it, and lengths only grow.
        self.shared
            .progress
            .send_modify(|progress| progress.lengths[place(stream)] = kept.total);
    }

    /// Nothing more will come.
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

    /// What is there of a stream from an offset on, at most so much of it. An offset that has not been reached yet gives
    /// nothing, from where the stream is.
    pub fn read(&self, stream: Stream, from: u64, most: usize) -> Piece {
        self.stream(stream).read(from, most.min(LARGEST_PIECE))
    }

    /// Whether nothing more will come.
    pub fn has_ended(&self) -> bool {
        self.shared.progress.borrow().ended
    }

    /// How much was ever written: to standard output, and to standard error.
    pub fn lengths(&self) -> [u64; 2] {
        self.shared.progress.borrow().lengths
    }

    /// From where on each stream can still be read.
    pub fn oldest(&self) -> [u64; 2] {
        [Stream::Stdout, Stream::Stderr].map(|stream| self.stream(stream).oldest)
    }

    /// Waits until there is more than this; false once nothing more will come.
    pub async fn grown(&self, seen: [u64; 2]) -> bool {
        let more =
            |progress: &Progress| progress.lengths[0] > seen[0] || progress.lengths[1] > seen[1];
        let mut progress = self.shared.progress.subscribe();
        let found = progress
            .wait_for(|progress| progress.ended || more(progress))
            .await;
        // Its sender lives in this very feed.
        found.is_ok_and(|progress| more(&progress))
    }
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Kept {
    fn new(most: u64, folder: Option<PathBuf>, budget: Option<Arc<Budget>>) -> Kept {
        Kept {
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

    fn stays_small(&self, count: usize) -> bool {
        self.memory.len() as u64 + count as u64 <= SMALL.min(self.most)
    }

    fn needs_disk(&self, count: usize) -> bool {
        self.file.is_some() || (self.folder.is_some() && !self.stays_small(count))
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.file.is_none() && !self.stays_small(bytes.len()) {
            self.spill();
        }
        self.grow(bytes.len() as u64);
        match &self.file {
            Some(_) => self.write(bytes),
            None => self.remember(bytes),
        }
    }

    /// Moves what is there into a file. Where none can be had, memory keeps as much as is little, and the rest is
    /// forgotten early: readers see that by their offsets.
    fn spill(&mut self) {
        let Some(folder) = self.folder.take() else {
            return;
        };
        let room = self.budget.as_ref().is_none_or(|budget| budget.take(SMALL));
        let Some(file) = room.then(|| nameless(&folder).ok()).flatten() else {
            if let Some(budget) = self.budget.as_ref().filter(|_| room) {
                budget.give_back(SMALL);
            }
            self.most = self.most.min(SMALL);
            return;
        };
        self.taken = if self.budget.is_some() { SMALL } else { 0 };
        self.file = Some(file);
        let memory = Vec::from(std::mem::take(&mut self.memory));
        self.total = self.oldest;
        self.write(&memory);
    }

    /// Takes what the file will have more. Where the budget is spent, it is written round from where it is now.
    fn grow(&mut self, more: u64) {
        let (Some(budget), Some(_)) = (&self.budget, &self.file) else {
            return;
        };
        let wanted = (self.total + more)
            .min(self.most)
            .saturating_sub(self.taken);
        match wanted == 0 || budget.take(wanted) {
            true => self.taken += wanted,
            // Nothing has been written over yet, or it would not grow.
            false => self.most = self.taken.max(self.total),
        }
    }

    /// Keeps nothing any more but how long it was.
    fn forget(&mut self) {
        (self.file, self.folder, self.memory) = (None, None, VecDeque::new());
        self.oldest = self.total;
        if let Some(budget) = &self.budget {
            budget.give_back(std::mem::take(&mut self.taken));
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let newest = &bytes[bytes.len().saturating_sub(self.most as usize)..];
        let over = (self.memory.len() + newest.len()).saturating_sub(self.most as usize);
        self.memory.drain(..over);
        self.memory.extend(newest);
        self.total += bytes.len() as u64;
        self.oldest = self.total - self.memory.len() as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(file) = &self.file else { return };
        let total = self.total + bytes.len() as u64;
        let newest = &bytes[bytes.len().saturating_sub(self.most as usize)..];
        let begin = total - newest.len() as u64;
        let written = around(begin, newest.len(), self.most)
            .into_iter()
            .try_for_each(|(at, part)| file.write_all_at(&newest[part], at));
        self.total = total;
        self.oldest = match written {
            Ok(()) => self.oldest.max(total.saturating_sub(self.most)),
            // A full disk: what is not there must not be read. A reader is told by his offset.
            Err(_) => total,
        };
    }

    fn read(&self, from: u64, most: usize) -> Piece {
        let from = from.clamp(self.oldest, self.total);
        let count = most.min((self.total - from) as usize);
        let Some(file) = &self.file else {
            let begin = (from - self.oldest) as usize;
            return Piece {
                from,
                bytes: self.memory.range(begin..begin + count).copied().collect(),
            };
        };
        let mut bytes = vec![0; count];
        let read = around(from, count, self.most)
            .into_iter()
            .try_for_each(|(at, part)| file.read_exact_at(&mut bytes[part], at));
        match read {
            Ok(()) => Piece { from, bytes },
            Err(_) => Piece {
                from: self.total,
                bytes: Vec::new(),
            },
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.give_back(self.taken);
        }
    }
}

/// Where so many bytes from an offset on lie in a file that is written round and round: at most twice in one piece.
fn around(offset: u64, count: usize, size: u64) -> [(u64, std::ops::Range<usize>); 2] {
    let at = offset % size;
    let first = count.min((size - at) as usize);
    [(at, 0..first), (0, first..count)]
}

/// A file that is gone with its last handle, however we end.
fn nameless(folder: &Path) -> io::Result<File> {
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
#[path = "feed_tests.rs"]
mod tests;
