//! Reads a ledger line by line and believes none that does not follow from the one before.

use super::line::Row;
use journal::{Fault, Head};
use std::io::BufRead;

/// Reads lines from one file of a segment.
#[derive(Debug)]
pub struct Reader<R>(journal::Reader<R>);

impl<R: BufRead> Reader<R> {
    /// Reads on from `head`; the source stands there.
    pub fn new(source: R, head: Head) -> Reader<R> {
        Reader(journal::Reader::new(source, head))
    }

    /// What was read and believed.
    pub fn head(&self) -> Head {
        self.0.head()
    }

    /// The number of the line that was read last, since this reader began.
    pub fn line(&self) -> u64 {
        self.0.line()
    }

    /// The next line; none at the end.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, Fault> {
        self.0.next_record()
    }
}
