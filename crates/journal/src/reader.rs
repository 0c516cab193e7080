//! Reads a journal line by line and believes none that does not follow from the one before.

use crate::line::{self, Hash, LONGEST};
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// How far a journal was read: what the next line must follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Head {
    /// Lines before.
    pub n: u64,
    pub hash: Hash,
    /// Bytes of this file before.
    pub offset: u64,
}

/// Why a line is not believed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file ends within it: its writer died, or is about to write the rest.
    #[error("the file ends within it")]
    Torn,
    /// It is not what was written here.
    #[error("{0}")]
    Broken(&'static str),
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// What a line says has its number.
pub trait Numbered {
    /// The number of the line.
    fn n(&self) -> u64;
}

/// Reads lines from one file of a journal.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    text: Vec<u8>,
    head: Head,
    line: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads on from `head`; the source stands there.
    pub fn new(source: R, head: Head) -> Reader<R> {
        Reader {
            source,
            text: Vec::new(),
            head,
            line: 0,
        }
    }

    /// What was read and believed.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The number of the line that was read last, since this reader began.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next line; none at the end.
    pub fn next_record<'a, T: Numbered + Deserialize<'a>>(
        &'a mut self,
    ) -> Result<Option<T>, Fault> {
        self.text.clear();
        (&mut self.source)
            .take(LONGEST as u64 + 1)
            .read_until(b'\n', &mut self.text)?;
        if self.text.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        if !self.text.ends_with(b"\n") {
            return Err(self.endless()?);
        }
        let text = &self.text[..self.text.len() - 1];
        let hash = line::check(text, &self.head.hash).map_err(Fault::Broken)?;
        let row: T = serde_json::from_slice(text).map_err(|_| Fault::Broken("it is no record"))?;
        if row.n() != self.head.n + 1 {
            return Err(Fault::Broken("its number does not follow"));
        }
        self.head = Head {
            n: row.n(),
            hash,
            offset: self.head.offset + self.text.len() as u64,
        };
        Ok(Some(row))
    }

    /// A line without an end is a torn one, unless it is too long for that, or whole but for a byte that was put in
    /// the place of its end. What a power loss kept from the disk reads as zeros, however many.
    fn endless(&mut self) -> Result<Fault, io::Error> {
        let (zeros, whole) = match self.text.split_last() {
            Some((0, _)) => (true, false),
            Some((_, text)) => (false, line::check(text, &self.head.hash).is_ok()),
            None => (false, false),
        };
        if whole {
            return Ok(Fault::Broken("its end was changed"));
        }
        let fits = self.text.len() <= LONGEST || zeros && self.only_zeros_follow()?;
        Ok(if fits {
            Fault::Torn
        } else {
            Fault::Broken("it is too long")
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
