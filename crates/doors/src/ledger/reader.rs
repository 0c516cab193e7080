//! Reads a ledger record by record and verifies the hash chain.

use super::record::LedgerRecord;
use journal::{ChainHead, ReadFault};
use std::io::BufRead;

/// Reads the records of one segment file.
#[derive(Debug)]
pub struct LedgerReader<R>(journal::JournalReader<R>);

impl<R: BufRead> LedgerReader<R> {
    /// Continues at `head`; the source must be at its offset.
    pub fn new(source: R, head: ChainHead) -> LedgerReader<R> {
        LedgerReader(journal::JournalReader::new(source, head))
    }

    /// The head of what was read and verified.
    pub fn head(&self) -> ChainHead {
        self.0.head()
    }

    /// Number of the last line that this reader read.
    pub fn line(&self) -> u64 {
        self.0.line()
    }

    /// The next record; `None` at the end.
    pub fn next_record(&mut self) -> Result<Option<LedgerRecord<'_>>, ReadFault> {
        self.0.next_record()
    }
}
