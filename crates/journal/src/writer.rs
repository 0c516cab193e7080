//! The end of a journal at which its owner writes: one write a line, unless the line may wait for company.

use crate::{
    Folder, Head,
    line::{Hash, Line},
};
use std::{
    fs::File,
    io,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Bytes of lines that may wait for the next write.
const MOST_WAITING: usize = 16 << 10;

/// Writes to the last file of a journal, which its maker has locked and read.
#[derive(Debug)]
pub struct Writer {
    /// What the journal is called in what is said of it.
    called: &'static str,
    /// Where lines go.
    pub file: Arc<File>,
    part: u32,
    length: u64,
    n: u64,
    hash: Hash,
    line: Vec<u8>,
    /// Lines that wait for the next write: only such as may be lost.
    waiting: Vec<u8>,
    /// Why nothing can be written any more.
    broken: Option<String>,
}

impl Writer {
    /// Goes on in the file `part`, of which everything up to `head` was read and believed.
    pub fn new(called: &'static str, file: File, part: u32, head: Head) -> Writer {
        Writer {
            called,
            file: Arc::new(file),
            part,
            length: head.offset,
            n: head.n,
            hash: head.hash,
            line: Vec::new(),
            waiting: Vec::new(),
            broken: None,
        }
    }

    /// What the next line will follow.
    pub fn head(&self) -> Head {
        Head {
            n: self.n,
            hash: self.hash,
            offset: self.length,
        }
    }

    /// The number of the file.
    pub fn part(&self) -> u32 {
        self.part
    }

    /// Bytes of the file that are written.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// One line; its number. If it may wait it is written with one that may not.
    pub fn write(
        &mut self,
        kind: &str,
        may_wait: bool,
        tell: impl FnOnce(&mut Line<'_>),
    ) -> io::Result<u64> {
        if let Some(why) = &self.broken {
            return Err(io::Error::other(why.clone()));
        }
        let mut line = Line::begin(&mut self.line, self.n + 1, now(), kind);
        tell(&mut line);
        let hash = line.seal(&self.hash);
        let before = self.waiting.len();
        self.waiting.extend_from_slice(&self.line);
        let is_due = !may_wait || self.waiting.len() > MOST_WAITING;
        if is_due && let Err(error) = self.flush() {
            self.waiting.truncate(before);
            return Err(error);
        }
        (self.n, self.hash) = (self.n + 1, hash);
        Ok(self.n)
    }

    /// Writes what still waits.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&*self.file, &self.waiting));
        match written {
            Ok(count) if count == self.waiting.len() => {
                self.length += count as u64;
                self.waiting.clear();
                Ok(())
            }
            failed => Err(self.undo(failed.err().map(io::Error::from))),
        }
    }

    /// Half a line must not stay: what is written after it could not be read.
    fn undo(&mut self, cause: Option<io::Error>) -> io::Error {
        let called = self.called;
        if let Err(error) = rustix::fs::ftruncate(&*self.file, self.length) {
            self.broken = Some(format!(
                "the {called} ends in half a line that cannot be taken back: {error}"
            ));
        }
        cause.unwrap_or_else(|| {
            io::Error::other(format!(
                "the {called} took only half a line: its disk is full"
            ))
        })
    }

    /// The chain goes on in the next file: its first line will follow from the last of this one. With `sync` this one
    /// outlasts the power before the next has a name, and that name does, too.
    pub fn next_file(&mut self, folder: &Folder, name: &str, sync: bool) -> io::Result<()> {
        self.flush()?;
        if sync {
            rustix::fs::fdatasync(&*self.file)?;
        }
        let file = folder.make_file(name, self.part + 1)?;
        if sync {
            folder.sync()?;
        }
        (self.file, self.part, self.length) = (Arc::new(file), self.part + 1, 0);
        Ok(())
    }
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
