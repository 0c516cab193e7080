//! What a program writes, kept for whoever comes late or comes again: two streams of bytes with offsets. Within a
//! bound; what is older than that is forgotten, and a reader is told so by the offset that he gets.
//!
//! Little output stays in memory. More goes to a file without a name, written round and round.

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
}

impl Feed {
    /// Keeps the newest `most` bytes of each stream, in memory.
    pub fn new(most: u64) -> Feed {
        Feed::kept_in(most, None)
    }

    /// The same, with what is more than little in files without a name in this folder.
    pub fn in_folder(most: u64, folder: &Path) -> Feed {
        Feed::kept_in(most, Some(folder.to_owned()))
    }

    fn kept_in(most: u64, folder: Option<PathBuf>) -> Feed {
        let kept = || Mutex::new(Kept::new(most.max(1), folder.clone()));
        let progress = watch::Sender::default();
        Feed { shared: Arc::new(Shared { streams: [kept(), kept()], progress }) }
    }

    fn stream(&self, stream: Stream) -> MutexGuard<'_, Kept> {
        self.shared.streams[place(stream)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was written.
    pub fn append(&self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut kept = self.stream(stream);
        kept.append(bytes);
        // Still under the lock: whoever hears of a length can read up to it, and lengths only grow.
        self.shared.progress.send_modify(|progress| progress.lengths[place(stream)] = kept.total);
    }

    /// Nothing more will come.
    pub fn end(&self) {
        self.shared.progress.send_modify(|progress| progress.ended = true);
    }

    /// What is there of a stream from an offset on, at most so much of it. An offset that has not been reached yet gives
    /// nothing, from where the stream is.
    pub fn read(&self, stream: Stream, from: u64, most: usize) -> Piece {
        self.stream(stream).read(from, most.min(LARGEST_PIECE))
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
        let more = |progress: &Progress| progress.lengths[0] > seen[0] || progress.lengths[1] > seen[1];
        let mut progress = self.shared.progress.subscribe();
        let found = progress.wait_for(|progress| progress.ended || more(progress)).await;
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
    fn new(most: u64, folder: Option<PathBuf>) -> Kept {
        Kept { most, folder, oldest: 0, total: 0, memory: VecDeque::new(), file: None }
    }

    fn append(&mut self, bytes: &[u8]) {
        let fits = self.memory.len() as u64 + bytes.len() as u64 <= SMALL.min(self.most);
        if self.file.is_none() && !fits {
            self.spill();
        }
        match &self.file {
            Some(_) => self.write(bytes),
            None => self.remember(bytes),
        }
    }

    /// Moves what is there into a file. Where none can be had, memory keeps as much as is little, and the rest is
    /// forgotten early: readers see that by their offsets.
    fn spill(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        let Ok(file) = nameless(&folder) else {
            self.most = self.most.min(SMALL);
            return;
        };
        self.file = Some(file);
        let memory = Vec::from(std::mem::take(&mut self.memory));
        self.total = self.oldest;
        self.write(&memory);
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
            return Piece { from, bytes: self.memory.range(begin..begin + count).copied().collect() };
        };
        let mut bytes = vec![0; count];
        let read = around(from, count, self.most)
            .into_iter()
            .try_for_each(|(at, part)| file.read_exact_at(&mut bytes[part], at));
        match read {
            Ok(()) => Piece { from, bytes },
            Err(_) => Piece { from: self.total, bytes: Vec::new() },
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
    let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    std::fs::remove_file(&path)?;
    Ok(File::from(file))
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
