//! Reads a journal line by line and checks that each line follows the one before.

use crate::line::{self, Hash, MAX_LINE_BYTES};
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// The end of the checked part of a journal, which the next line must follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// The number of its last line.
    pub n: u64,
    /// The hash of its last line.
    pub hash: Hash,
    /// Its bytes in this file.
    pub offset: u64,
}

/// Why a line is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ReadFault {
    /// The file ends within the line: its writer died, or is about to write the rest.
    #[error("the file ends within it")]
    Torn,
    /// The line is not what was written.
    #[error("{0}")]
    Broken(&'static str),
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// A record with the number of its line.
pub trait NumberedRecord {
    /// The number of the line.
    fn n(&self) -> u64;
}

/// Reads and checks the lines of one file of a journal.
#[derive(Debug)]
pub struct JournalReader<R> {
    source: R,
    text: Vec<u8>,
    head: ChainHead,
    line: u64,
}

impl<R: BufRead> JournalReader<R> {
    /// Continues behind `head`, where the source must stand.
    pub fn new(source: R, head: ChainHead) -> JournalReader<R> {
        JournalReader {
            source,
            text: Vec::new(),
            head,
            line: 0,
        }
    }

    /// The end of the checked part.
    pub fn head(&self) -> ChainHead {
        self.head
    }

    /// The lines that this reader has read.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next line; none at the end.
    pub fn next_record<'a, T: NumberedRecord + Deserialize<'a>>(
        &'a mut self,
    ) -> Result<Option<T>, ReadFault> {
        self.text.clear();
        (&mut self.source)
            .take(MAX_LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut self.text)?;
        if self.text.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        if !self.text.ends_with(b"\n") {
            return Err(self.endless()?);
        }
        let text = &self.text[..self.text.len() - 1];
        let hash = line::check(text, &self.head.hash).map_err(ReadFault::Broken)?;
        let row: T =
            serde_json::from_slice(text).map_err(|_| ReadFault::Broken("it is no record"))?;
        if row.n() != self.head.n + 1 {
            return Err(ReadFault::Broken("its number does not follow"));
        }
        self.head = ChainHead {
            n: row.n(),
            hash,
            offset: self.head.offset + self.text.len() as u64,
        };
        Ok(Some(row))
    }

    /// Classifies a line without a line break. It is torn, unless it is too long, or complete but
    /// for another byte in place of the line break. Data that a power failure lost reads as zeros,
    /// of any length.
    fn endless(&mut self) -> Result<ReadFault, io::Error> {
        let (zeros, whole) = match self.text.split_last() {
            Some((0, _)) => (true, false),
            Some((_, text)) => (false, line::check(text, &self.head.hash).is_ok()),
            None => (false, false),
        };
        if whole {
            return Ok(ReadFault::Broken("its end was changed"));
        }
        let fits = self.text.len() <= MAX_LINE_BYTES || zeros && self.only_zeros_follow()?;
        Ok(if fits {
            ReadFault::Torn
        } else {
            ReadFault::Broken("it is too long")
        })
    }

    fn only_zeros_follow(&mut self) -> io::Result<bool> {
        loop {
            let next = self.source.fill_buf()?;
            let length = next.len();
            if length == 0 || next.iter().any(|byte| *byte != 0) {
                return Ok(length == 0);
            }
            self.source.consume(length);
        }
    }
}
