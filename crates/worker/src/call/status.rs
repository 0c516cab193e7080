//! Status messages of a running tool: JSON lines in a FIFO, `{"status": "text"}`. They are read at
//! the rate limit of sending: a faster writer fills the FIFO, and writers drop lines rather than
//! block. What is left in the FIFO at the end is still sent.

use crate::wire::untrusted_json;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};
use tokio::{net::unix::pipe, sync::mpsc};

/// Maximum length of a line; a longer one is skipped.
const MAX_LINE_BYTES: usize = 8 << 10;
/// Rate limit: a burst, and then one per interval.
const BURST: u32 = 100;
const TOKEN_INTERVAL: Duration = Duration::from_millis(20);
/// Pause after input without a status.
const IDLE_DELAY: Duration = Duration::from_millis(1);
/// Newest statuses that are sent at the end, and the timeout for that.
const MAX_FINAL: usize = 256;
const FINAL_TIMEOUT: Duration = Duration::from_secs(1);
/// About the capacity of a FIFO: more than that was written after the end.
const MAX_UNREAD_BYTES: usize = 128 << 10;

/// The reading end of the FIFO.
#[derive(Debug)]
pub(crate) struct StatusPipe {
    pipe: pipe::Receiver,
    lines: LineBuffer,
    texts: VecDeque<String>,
    tokens: u32,
    since: Instant,
    /// Statuses that were not passed on.
    dropped: u64,
}

impl StatusPipe {
    /// Takes a FIFO that is open for reading and writing, non-blocking.
    pub(crate) fn new(pipe: OwnedFd) -> io::Result<StatusPipe> {
        let pipe = pipe::Receiver::from_owned_fd(pipe)?;
        Ok(StatusPipe {
            pipe,
            lines: LineBuffer::default(),
            texts: VecDeque::new(),
            tokens: BURST,
            since: Instant::now(),
            dropped: 0,
        })
    }

    /// Forwards statuses for ever. Cancel safe.
    pub(crate) async fn forward(&mut self, to: &mpsc::Sender<String>) -> Infallible {
        loop {
            while !self.texts.is_empty() {
                self.take_token().await;
                self.pass_on(to).await;
            }
            match self.read_some() {
                // Input without a status must not cause a busy loop.
                Ok(1..) if self.texts.is_empty() => tokio::time::sleep(IDLE_DELAY).await,
                Ok(1..) => {}
                // A broken FIFO does not fail the call.
                Ok(0) => std::future::pending().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    _ = self.pipe.readable().await;
                }
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Forwards what is left without waiting for writers. Returns the number of statuses that were
    /// dropped.
    pub(crate) async fn finish(mut self, to: &mpsc::Sender<String>) -> u64 {
        let mut left = MAX_UNREAD_BYTES;
        while let Ok(count @ 1..) = self.read_now() {
            left = left.saturating_sub(count);
            if left == 0 {
                break;
            }
        }
        let over = self.texts.len().saturating_sub(MAX_FINAL);
        self.texts.drain(..over);
        self.dropped += over as u64;
        let all = async {
            while !self.texts.is_empty() {
                self.pass_on(to).await;
            }
        };
        // A receiver that does not read loses them.
        _ = tokio::time::timeout(FINAL_TIMEOUT, all).await;
        self.dropped + self.texts.len() as u64
    }

    async fn pass_on(&mut self, to: &mpsc::Sender<String>) {
        match to.reserve().await {
            Ok(place) => {
                if let Some(text) = self.texts.pop_front() {
                    place.send(text);
                }
            }
            Err(_) => {
                self.dropped += self.texts.len() as u64;
                self.texts.clear();
            }
        }
    }

    async fn take_token(&mut self) {
        loop {
            let more = u32::try_from(self.since.elapsed().as_nanos() / TOKEN_INTERVAL.as_nanos())
                .unwrap_or(BURST);
            if more > 0 {
                self.tokens = self.tokens.saturating_add(more).min(BURST);
                self.since = Instant::now();
            }
            if self.tokens > 0 {
                self.tokens -= 1;
                return;
            }
            tokio::time::sleep(TOKEN_INTERVAL).await;
        }
    }

    /// Reads directly, past the runtime's readiness: at the end there is no later.
    fn read_now(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 4096];
        let count = rustix::io::read(&self.pipe, &mut buffer)?;
        self.texts.extend(self.lines.add(&buffer[..count]));
        Ok(count)
    }

    fn read_some(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 4096];
        let count = self.pipe.try_read(&mut buffer)?;
        self.texts.extend(self.lines.add(&buffer[..count]));
        Ok(count)
    }
}

/// Assembles lines from reads.
#[derive(Debug, Default)]
struct LineBuffer {
    begun: Vec<u8>,
    /// The current line is too long.
    is_lost: bool,
}

impl LineBuffer {
    /// Adds bytes and returns the statuses of the complete lines.
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut texts = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (line, is_whole) = match piece {
                [line @ .., b'\n'] => (line, true),
                line => (line, false),
            };
            self.is_lost |= self.begun.len() + line.len() > MAX_LINE_BYTES;
            if !self.is_lost {
                self.begun.extend_from_slice(line);
            }
            if is_whole {
                let line = std::mem::take(&mut self.begun);
                texts.extend(
                    (!std::mem::take(&mut self.is_lost))
                        .then(|| text(&line))
                        .flatten(),
                );
            }
        }
        texts
    }
}

/// The status in a line, without control characters; none if there is none.
fn text(line: &[u8]) -> Option<String> {
    let message = untrusted_json::read(line).ok()?;
    let text = message.get("status")?.as_str()?;
    let clean = |letter: char| {
        if letter.is_control() && letter != '\n' {
            ' '
        } else {
            letter
        }
    };
    Some(text.chars().map(clean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_put_together_and_others_passed_over() {
        let mut lines = LineBuffer::default();
        assert!(lines.add(b"{\"status\": \"ha").is_empty());
        assert_eq!(
            lines.add(b"lf\"}\nnot json\n{\"other\": 1}\n[]\n{\"status\":\"\\u001b[2J\"}\n"),
            ["half", " [2J"]
        );
        let long = format!("{{\"status\":\"{}\"}}\n", "x".repeat(MAX_LINE_BYTES));
        assert!(lines.add(long.as_bytes()).is_empty());
        assert_eq!(lines.add(b"{\"status\":\"after\"}\n"), ["after"]);
    }

    /// A pipe with so many statuses in it, as a tool leaves it.
    fn left(count: usize) -> StatusPipe {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let line = b"{\"status\":\"x\"}\n";
        for _ in 0..count {
            assert_eq!(rustix::io::write(&writer, line).unwrap(), line.len());
        }
        StatusPipe::new(reader).unwrap()
    }

    #[tokio::test]
    async fn what_is_not_passed_on_at_the_end_is_counted() {
        let (to, mut from) = mpsc::channel(MAX_FINAL);
        assert_eq!(left(MAX_FINAL).finish(&to).await, 0);
        assert_eq!(
            std::iter::from_fn(|| from.try_recv().ok()).count(),
            MAX_FINAL
        );
        assert_eq!(left(MAX_FINAL + 7).finish(&to).await, 7);
        // Nobody takes them: the channel is full.
        assert_eq!(left(3).finish(&to).await, 3);
        drop(from);
        assert_eq!(left(4).finish(&to).await, 4);
    }

    proptest! {
        #[test]
        fn where_it_is_cut_makes_no_difference(texts in prop::collection::vec("[a-z\"\n]{0,20}", 0..5), cut in 1_usize..9) {
            let all: String = texts.iter().map(|text| format!("{}\n", serde_json::json!({"status": text}))).collect();
            let mut lines = LineBuffer::default();
            let found: Vec<_> = all.as_bytes().chunks(cut).flat_map(|piece| lines.add(piece)).collect();
            prop_assert_eq!(found, texts);
        }

        #[test]
        fn any_bytes_take_bounded_room(bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let mut lines = LineBuffer::default();
            lines.add(&bytes);
            prop_assert!(lines.begun.len() <= MAX_LINE_BYTES);
        }
    }
}
