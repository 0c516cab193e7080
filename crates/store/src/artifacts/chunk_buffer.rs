//! Buffer of body chunks before they are written. A slice of a received body keeps its whole buffer
//! alive, so small chunks are copied together: memory use then follows the bytes sent, however they
//! were split.

use bytes::{Bytes, BytesMut};

/// Smaller chunks are copied; bodies are read into buffers of about this size.
const SMALL_CHUNK_BYTES: usize = 16 << 10;

/// Chunks in order.
#[derive(Debug, Default)]
pub struct ChunkBuffer {
    whole: Vec<Bytes>,
    /// Collects small chunks after the others.
    small: BytesMut,
    size_bytes: usize,
}

impl ChunkBuffer {
    /// Appends a chunk.
    pub fn push(&mut self, chunk: Bytes) {
        self.size_bytes += chunk.len();
        if chunk.len() < SMALL_CHUNK_BYTES {
            return self.small.extend_from_slice(&chunk);
        }
        self.close();
        self.whole.push(chunk);
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
        let read = Bytes::from(vec![7; 2 * SMALL_CHUNK_BYTES]);
        let mut buffer = ChunkBuffer::default();
        (0..1000).for_each(|at| buffer.push(read.slice(at..=at)));
        assert!(read.is_unique(), "all of it was copied");
        buffer.push(read.slice(..SMALL_CHUNK_BYTES));
        assert!(!read.is_unique(), "the positive control: this one was not");
        assert_eq!(
            buffer.take().iter().map(Bytes::len).collect::<Vec<_>>(),
            [1000, SMALL_CHUNK_BYTES]
        );
    }

    #[test]
    fn they_come_out_in_the_order_in_which_they_went_in() {
        let sizes = [
            1,
            SMALL_CHUNK_BYTES,
            0,
            5,
            SMALL_CHUNK_BYTES - 1,
            SMALL_CHUNK_BYTES + 1,
            SMALL_CHUNK_BYTES,
            3,
        ];
        let mut buffer = ChunkBuffer::default();
        let mut sent = Vec::new();
        for (number, size) in (0_u8..).zip(sizes) {
            sent.extend(vec![number; size]);
            buffer.push(Bytes::from(vec![number; size]));
        }
        assert_eq!(buffer.size_bytes(), sent.len());
        assert_eq!(buffer.take().concat(), sent);
        assert!(buffer.take().is_empty() && buffer.size_bytes() == 0);
    }
}
