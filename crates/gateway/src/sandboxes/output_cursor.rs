//! A reader's position in a program's output. Each stream is read in order without repetition;
//! discarded output is reported as a gap.

use engine::OutputLog;
use spec::StdStream;

/// The next item for the reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutputItem {
    /// Bytes of a stream, and their offset.
    Chunk(StdStream, u64, Vec<u8>),
    /// Discarded bytes of a stream: start, and end (exclusive).
    Gap(StdStream, u64, u64),
    /// The output has ended.
    End,
}

/// A position in one or both streams.
#[derive(Debug)]
pub(super) struct OutputCursor {
    feed: OutputLog,
    at: [u64; 2],
    streams: Vec<StdStream>,
    /// Maximum bytes of a chunk.
    max: usize,
}

pub(super) fn stream_index(stream: StdStream) -> usize {
    match stream {
        StdStream::Stdout => 0,
        StdStream::Stderr => 1,
    }
}

impl OutputCursor {
    pub(super) fn new(
        feed: &OutputLog,
        at: [u64; 2],
        streams: &[StdStream],
        max: usize,
    ) -> OutputCursor {
        OutputCursor {
            feed: feed.clone(),
            at,
            streams: streams.to_vec(),
            max,
        }
    }

    /// The next item if it is available.
    pub(super) fn ready(&mut self) -> Option<OutputItem> {
        let lengths = self.feed.lengths();
        // A position beyond the end waits for the output at it.
        let waiting =
            |stream: &&StdStream| lengths[stream_index(**stream)] > self.at[stream_index(**stream)];
        let stream = *self.streams.iter().find(waiting)?;
        let at = &mut self.at[stream_index(stream)];
        let piece = self.feed.read(stream, *at, self.max);
        if piece.from > *at {
            let gap = OutputItem::Gap(stream, *at, piece.from);
            *at = piece.from;
            return Some(gap);
        }
        *at += piece.bytes.len() as u64;
        // Alternates between the streams, so that a flood on one does not starve the other.
        self.streams.rotate_left(1);
        Some(OutputItem::Chunk(stream, piece.from, piece.bytes))
    }

    /// Waits for the next item. Cancel safe.
    pub(super) async fn next(&mut self) -> OutputItem {
        loop {
            let seen = self.feed.lengths();
            if let Some(next) = self.ready() {
                return next;
            }
            if !self.feed.wait_for_more(seen).await {
                return self.ready().unwrap_or(OutputItem::End);
            }
        }
    }
}
