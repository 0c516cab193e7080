//! Bytes that are gathered before they are written. A piece of a body keeps the whole buffer alive that it was read
//! into, so small pieces are copied together: then memory is about what was sent, however it was cut.

use bytes::{Bytes, BytesMut};

/// What is smaller than this is copied; a body is read into buffers of about as much.
const SMALL: usize = 16 << 10;

/// Pieces in their order.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: Vec<Bytes>,
    /// Comes after them.
    small: BytesMut,
    size_bytes: usize,
}

impl Pieces {
    /// Adds one behind the others.
    pub fn push(&mut self, piece: Bytes) {
        self.size_bytes += piece.len();
        if piece.len() < SMALL {
            return self.small.extend_from_slice(&piece);
        }
        self.close();
        self.whole.push(piece);
    }

    /// The bytes in all of them.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// All of them, and none are left.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.close();
        self.size_bytes = 0;
        std::mem::take(&mut self.whole)
    }

    /// The buffer goes with what is in it: the rest of it would keep it alive.
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
