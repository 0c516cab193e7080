//! What a tool says while it runs: lines of JSON in a FIFO, `{"status": "text"}`. Read as they come, never faster than they may
//! go out: whoever writes more fills the FIFO, and writers of this kind rather lose a line than wait. What is in the FIFO at the
//! end still goes out.

use crate::wire::plain;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};
use tokio::{net::unix::pipe, sync::mpsc};

/// The longest line, in bytes; a longer one is passed over.
const LONGEST_LINE: usize = 8 << 10;
/// So many may go out at once, and then one in this time.
const BURST: u32 = 100;
const EVERY: Duration = Duration::from_millis(20);
/// Between pieces that say nothing.
const BREATH: Duration = Duration::from_millis(1);
/// What goes out at the end, at most: the newest; and how long that may take.
const MOST_LAST: usize = 256;
const LONGEST_LAST: Duration = Duration::from_secs(1);
/// What a FIFO can hold, more or less: what is more than that at the end was written behind the end.
const MOST_LEFT: usize = 128 << 10;

/// The reading end.
#[derive(Debug)]
pub(crate) struct Statuses {
    pipe: pipe::Receiver,
    lines: Lines,
    texts: VecDeque<String>,
    tokens: u32,
    since: Instant,
    /// Texts that nobody was told.
    dropped: u64,
}

impl Statuses {
    /// Of a FIFO that is open for reading and writing, and does not block.
    pub(crate) fn new(pipe: OwnedFd) -> io::Result<Statuses> {
        let pipe = pipe::Receiver::from_owned_fd(pipe)?;
        let (lines, texts) = (Lines::default(), VecDeque::new());
        Ok(Statuses {
            pipe,
            lines,
            texts,
            tokens: BURST,
            since: Instant::now(),
            dropped: 0,
        })
    }

    /// Passes on what comes, for ever. Dropped in the middle, nothing is lost.
    pub(crate) async fn forward(&mut self, to: &mpsc::Sender<String>) -> Infallible {
        loop {
            while !self.texts.is_empty() {
                self.take_token().await;
                self.pass_on(to).await;
            }
            match self.read_some() {
                // Whoever writes what nobody understands does not keep us busy with it.
                Ok(1..) if self.texts.is_empty() => tokio::time::sleep(BREATH).await,
                Ok(1..) => {}
                // Nothing can be said against a pipe that fails; the call goes on without it.
                Ok(0) => std::future::pending().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    _ = self.pipe.readable().await;
                }
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Passes on what is left. Nobody who could write something is waited for. Tells how many texts nobody was told.
    pub(crate) async fn finish(mut self, to: &mpsc::Sender<String>) -> u64 {
        let mut left = MOST_LEFT;
        while let Ok(count @ 1..) = self.read_now() {
            left = left.saturating_sub(count);
            if left == 0 {
                break;
            }
        }
        let over = self.texts.len().saturating_sub(MOST_LAST);
        self.texts.drain(..over);
        self.dropped += over as u64;
        let all = async {
            while !self.texts.is_empty() {
                self.pass_on(to).await;
            }
        };
        // Whoever does not listen misses them.
        _ = tokio::time::timeout(LONGEST_LAST, all).await;
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
            let more =
                u32::try_from(self.since.elapsed().as_nanos() / EVERY.as_nanos()).unwrap_or(BURST);
            if more > 0 {
                self.tokens = self.tokens.saturating_add(more).min(BURST);
                self.since = Instant::now();
            }
            if self.tokens > 0 {
                self.tokens -= 1;
                return;
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Whatever is there, also what the runtime has not heard of yet: at the end there is no later.
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

/// Lines, put together from what is read.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    /// The line that is being read is too long.
    is_lost: bool,
}

impl Lines {
    /// The texts of the lines that are complete now.
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut texts = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (line, is_whole) = match piece {
                [line @ .., b'\n'] => (line, true),
                line => (line, false),
            };
            self.is_lost |= self.begun.len() + line.len() > LONGEST_LINE;
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

/// What a line says, without what could do something to a terminal; none if it says nothing.
fn text(line: &[u8]) -> Option<String> {
    let said = plain::read(line).ok()?;
    let text = said.get("status")?.as_str()?;
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
        let mut lines = Lines::default();
        assert!(lines.add(b"{\"status\": \"ha").is_empty());
        assert_eq!(
            lines.add(b"lf\"}\nnot json\n{\"other\": 1}\n[]\n{\"status\":\"\\u001b[2J\"}\n"),
            ["half", " [2J"]
        );
        let long = format!("{{\"status\":\"{}\"}}\n", "x".repeat(LONGEST_LINE));
        assert!(lines.add(long.as_bytes()).is_empty());
        assert_eq!(lines.add(b"{\"status\":\"after\"}\n"), ["after"]);
    }

    /// A pipe with so many statuses in it, as a tool leaves it.
    fn left(count: usize) -> Statuses {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let line = b"{\"status\":\"x\"}\n";
        for _ in 0..count {
            assert_eq!(rustix::io::write(&writer, line).unwrap(), line.len());
        }
        Statuses::new(reader).unwrap()
    }

    #[tokio::test]
    async fn what_is_not_passed_on_at_the_end_is_counted() {
        let (to, mut from) = mpsc::channel(MOST_LAST);
        assert_eq!(left(MOST_LAST).finish(&to).await, 0);
        assert_eq!(
            std::iter::from_fn(|| from.try_recv().ok()).count(),
            MOST_LAST
        );
        assert_eq!(left(MOST_LAST + 7).finish(&to).await, 7);
        // Nobody takes them: the channel is full.
        assert_eq!(left(3).finish(&to).await, 3);
        drop(from);
        assert_eq!(left(4).finish(&to).await, 4);
    }

    proptest! {
        #[test]
        fn where_it_is_cut_makes_no_difference(texts in prop::collection::vec("[a-z\"\n]{0,20}", 0..5), cut in 1_usize..9) {
            let all: String = texts.iter().map(|text| format!("{}\n", serde_json::json!({"status": text}))).collect();
            let mut lines = Lines::default();
            let found: Vec<_> = all.as_bytes().chunks(cut).flat_map(|piece| lines.add(piece)).collect();
            prop_assert_eq!(found, texts);
        }

        #[test]
        fn any_bytes_take_bounded_room(bytes in prop::collection::vec(any::<u8>(), 0..20_000)) {
            let mut lines = Lines::default();
            lines.add(&bytes);
            prop_assert!(lines.begun.len() <= LONGEST_LINE);
        }
    }
}
