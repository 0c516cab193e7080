//! A reader's place in a program's output. Each stream comes in order, nothing twice; what was forgotten before it
//! could be read is named.

use engine::Feed;
use spec::Stream;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Bytes of a stream, and where they begin.
    Piece(Stream, u64, Vec<u8>),
    /// These bytes of a stream are forgotten: from, and up to but not with.
    Gap(Stream, u64, u64),
    /// Nothing more will come.
    End,
}

/// A place in one or both streams.
#[derive(Debug)]
pub(super) struct Cursor {
    feed: Feed,
    at: [u64; 2],
    streams: Vec<Stream>,
    /// How much is handed out at a time.
    most: usize,
}

pub(super) fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Cursor {
    pub(super) fn new(feed: &Feed, at: [u64; 2], streams: &[Stream], most: usize) -> Cursor {
        Cursor {
            feed: feed.clone(),
            at,
            streams: streams.to_vec(),
            most,
        }
    }

    /// What is there already; `None` if nothing.
    pub(super) fn ready(&mut self) -> Option<Next> {
        let lengths = self.feed.lengths();
        // Whoever asks for what is not written yet gets what will stand there.
        let waiting = |stream: &&Stream| lengths[index(**stream)] > self.at[index(**stream)];
        let stream = *self.streams.iter().find(waiting)?;
        let at = &mut self.at[index(stream)];
        let piece = self.feed.read(stream, *at, self.most);
        if piece.from > *at {
            let gap = Next::Gap(stream, *at, piece.from);
            *at = piece.from;
            return Some(gap);
        }
        *at += piece.bytes.len() as u64;
        // The next one is the other stream's, so that a flood on one cannot hide the other.
        self.streams.rotate_left(1);
        Some(Next::Piece(stream, piece.from, piece.bytes))
    }

    /// Waits for what comes next. Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            let seen = self.feed.lengths();
            if let Some(next) = self.ready() {
                return next;
            }
            if !self.feed.grown(seen).await {
                return self.ready().unwrap_or(Next::End);
            }
        }
    }
}
