//! Buffer of body chunks before they are written. A slice of a received body keeps its whole buffer
//! alive, so small chunks are copied together: memory use then follows the bytes sent, however they
//! were split.

use bytes::{Bytes, BytesMut};

/// Smaller chunks are copied; bodies are read into buffers of about this size.
const SMALL: usize = 16 << 10;

/// Chunks in order.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: Vec<Bytes>,
    /// Collects small chunks after the others.
    small: BytesMut,
    size_bytes: usize,
}

impl Pieces {
    /// Appends a chunk.
    pub fn push(&mut self, piece: Bytes) {
        self.size_bytes += piece.len();
        if piece.len() < SMALL {
            return self.small.extend_from_slice(&piece);
        }
        self.close();
        self.whole.push(piece);
    }

    /// Total bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Takes all chunks.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.close();
        self.size_bytes = 0;
        std::mem::take(&mut self.whole)
    }

    /// Gives the buffer away with its contents: the unused rest would keep it alive.
    fn close(&mut self) {
        if !self.small.is_empty() {
            self.whole.push(std::mem::take(&mut self.small).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_keep_no_buffer_alive_and_large_ones_are_not_copied() {
        let read = Bytes::from(vec![7; 2 * SMALL]);
        let mut pieces = Pieces::default();
        (0..1000).for_each(|at| pieces.push(read.slice(at..=at)));
        assert!(read.is_unique(), "all of it was copied");
        pieces.push(read.slice(..SMALL));
        assert!(!read.is_unique(), "the positive control: this one was not");
        assert_eq!(
            pieces.take().iter().map(Bytes::len).collect::<Vec<_>>(),
            [1000, SMALL]
        );
    }

    #[test]
    fn they_come_out_in_the_order_in_which_they_went_in() {
        let sizes = [1, SMALL, 0, 5, SMALL - 1, SMALL + 1, SMALL, 3];
        let mut pieces = Pieces::default();
        let mut sent = Vec::new();
        for (number, size) in (0_u8..).zip(sizes) {
            sent.extend(vec![number; size]);
            pieces.push(Bytes::from(vec![number; size]));
        }
        assert_eq!(pieces.size_bytes(), sent.len());
        assert_eq!(pieces.take().concat(), sent);
        assert!(pieces.take().is_empty() && pieces.size_bytes() == 0);
    }
}
