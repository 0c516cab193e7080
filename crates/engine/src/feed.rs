//! What a program writes, kept for whoever comes late or comes again: two streams of bytes with offsets. Within a
//! bound; what is older than that is forgotten, and a reader is told so by the offset that he gets.

use spec::Stream;

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
pub struct Feed {}

impl Feed {
    /// Keeps the newest `most` bytes of each stream.
    pub fn new(most: u64) -> Feed {
        let _ = most;
        Feed {}
    }

    /// Adds what was written.
    pub fn append(&self, stream: Stream, bytes: &[u8]) {
        let _ = (stream, bytes);
    }

    /// Nothing more will come.
    pub fn end(&self) {}

    /// What is there of a stream from an offset on, at most so much of it.
    pub fn read(&self, stream: Stream, from: u64, most: usize) -> Piece {
        let _ = (stream, from, most);
        Piece::default()
    }

    /// How much was ever written: to standard output, and to standard error.
    pub fn lengths(&self) -> [u64; 2] {
        [0, 0]
    }

    /// Waits until there is more than this; false once nothing more will come.
    pub async fn grown(&self, seen: [u64; 2]) -> bool {
        let _ = seen;
        false
    }
}
