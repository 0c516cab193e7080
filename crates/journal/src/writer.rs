//! Appends to a journal: one `write` a line, unless the line may be deferred until the next one.

use crate::{
    ChainHead, JournalDir,
    line::{Hash, LineWriter},
};
use std::{
    fs::File,
    io,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Bytes of deferred lines.
const MAX_PENDING_BYTES: usize = 16 << 10;

/// Appends to the last file of a journal, which the caller has locked and read.
#[derive(Debug)]
pub struct JournalWriter {
    /// The name of the journal in errors.
    label: &'static str,
    /// The file.
    pub file: Arc<File>,
    part: u32,
    length: u64,
    n: u64,
    hash: Hash,
    line: Vec<u8>,
    /// Deferred lines, which a crash may lose.
    pending: Vec<u8>,
    /// Why the journal cannot be written any more.
    broken: Option<String>,
}

impl JournalWriter {
    /// Continues in the file `part`, which was read and checked up to `head`.
    pub fn new(label: &'static str, file: File, part: u32, head: ChainHead) -> JournalWriter {
        JournalWriter {
            label,
            file: Arc::new(file),
            part,
            length: head.offset,
            n: head.n,
            hash: head.hash,
            line: Vec::new(),
            pending: Vec::new(),
            broken: None,
        }
    }

    /// The end of the journal, which the next line will follow.
    pub fn head(&self) -> ChainHead {
        ChainHead {
            n: self.n,
            hash: self.hash,
            offset: self.length,
        }
    }

    /// The number of the file.
    pub fn part(&self) -> u32 {
        self.part
    }

    /// The written bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Appends a line and returns its number. A deferred line is written together with the next one
    /// that is not.
    pub fn write(
        &mut self,
        kind: &str,
        deferred: bool,
        write_members: impl FnOnce(&mut LineWriter<'_>),
    ) -> io::Result<u64> {
        if let Some(why) = &self.broken {
            return Err(io::Error::other(why.clone()));
        }
        let mut line = LineWriter::begin(&mut self.line, self.n + 1, now_ms(), kind);
        write_members(&mut line);
        let hash = line.seal(&self.hash);
        let before = self.pending.len();
        self.pending.extend_from_slice(&self.line);
        let is_due = !deferred || self.pending.len() > MAX_PENDING_BYTES;
        if is_due && let Err(error) = self.flush() {
            self.pending.truncate(before);
            return Err(error);
        }
        self.n += 1;
        self.hash = hash;
        Ok(self.n)
    }

    /// Writes deferred lines.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&*self.file, &self.pending));
        match written {
            Ok(count) if count == self.pending.len() => {
                self.length += count as u64;
                self.pending.clear();
                Ok(())
            }
            failed => Err(self.undo(failed.err().map(io::Error::from))),
        }
    }

    /// Removes half a line, behind which no line could be read.
    fn undo(&mut self, cause: Option<io::Error>) -> io::Error {
        let label = self.label;
        if let Err(error) = rustix::fs::ftruncate(&*self.file, self.length) {
            self.broken = Some(format!(
                "the {label} ends in half a line that cannot be taken back: {error}"
            ));
        }
        cause.unwrap_or_else(|| {
            io::Error::other(format!(
                "the {label} took only half a line: its disk is full"
            ))
        })
    }

    /// Continues the chain in the next file, whose first line follows the last one of this file.
    /// With `sync`, this file is durable before the next one has a name, and then that name is.
    pub fn next_file(&mut self, folder: &JournalDir, name: &str, sync: bool) -> io::Result<()> {
        self.flush()?;
        if sync {
            rustix::fs::fdatasync(&*self.file)?;
        }
        let file = folder.make_file(name, self.part + 1)?;
        if sync {
            folder.sync()?;
        }
        self.file = Arc::new(file);
        self.part += 1;
        self.length = 0;
        Ok(())
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
