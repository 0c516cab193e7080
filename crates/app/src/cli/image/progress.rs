//! How far a pull has come: one line that is written over and over for somebody who watches, else a line a blob.

use super::shared;
use crate::cli::message::{self, Line};
use image::registry::PullEvent;
use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Faster than this nobody reads.
const STRIDE: Duration = Duration::from_millis(100);

/// What has come so far.
pub(super) struct Meter {
    terminal: bool,
    so_far: Mutex<SoFar>,
}

#[derive(Debug)]
struct SoFar {
    began: Instant,
    shown: Option<Instant>,
    bytes: u64,
    received: u64,
    blobs: usize,
    done: usize,
}

impl Meter {
    pub(super) fn new() -> Meter {
        let so_far = SoFar {
            began: Instant::now(),
            shown: None,
            bytes: 0,
            received: 0,
            blobs: 0,
            done: 0,
        };
        Meter {
            terminal: io::stderr().is_terminal(),
            so_far: Mutex::new(so_far),
        }
    }

    /// Something has happened.
    pub(super) fn tell(&self, event: PullEvent) {
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        let line = so_far.take(&event);
        match (self.terminal, line) {
            (true, _) if so_far.shown.is_none_or(|shown| shown.elapsed() >= STRIDE) => {
                so_far.shown = Some(Instant::now());
                let line = format!("\r\x1b[K{}", so_far.line(so_far.began.elapsed()));
                // Where nobody watches any more there is nobody to tell.
                _ = io::stderr().lock().write_all(line.as_bytes());
            }
            (false, Some(line)) => message::say(&[Line::Note(line)]),
            (true, _) | (false, None) => {}
        }
    }

    /// Takes the line away.
    pub(super) fn clear(&self) {
        if self.terminal {
            _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}

impl SoFar {
    /// Counts, and says what is worth a line of its own.
    fn take(&mut self, event: &PullEvent) -> Option<String> {
        match event {
            PullEvent::Started { bytes, blobs } => {
                (self.bytes, self.blobs) = (*bytes, *blobs);
                None
            }
            PullEvent::Received(bytes) => {
                self.received += bytes;
                None
            }
            PullEvent::Lost(bytes) => {
                self.received = self.received.saturating_sub(*bytes);
                None
            }
            PullEvent::Blob { digest, size } => {
                self.done += 1;
                let short: String = digest.hex().chars().take(12).collect();
                Some(format!(
                    "{} of {}: {short} ({})",
                    self.done,
                    self.blobs,
                    shared::size(*size)
                ))
            }
        }
    }

    fn line(&self, took: Duration) -> String {
        let speed = (self.received as f64 / took.as_secs_f64().max(0.001)) as u64;
        format!(
            "{} of {}, {} of {} blobs, {}/s",
            shared::size(self.received),
            shared::size(self.bytes),
            self.done,
            self.blobs,
            shared::size(speed)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_counted_and_what_is_lost_is_not() {
        let so_far = |received, done| SoFar {
            began: Instant::now(),
            shown: None,
            bytes: 3 << 20,
            received,
            blobs: 2,
            done,
        };
        let mut counted = so_far(0, 0);
        let digest =
            spec::Digest::new(&format!("sha256:{}", "0123456789abcdef".repeat(4))).unwrap();
        assert_eq!(
            counted.take(&PullEvent::Started {
                bytes: 3 << 20,
                blobs: 2
            }),
            None
        );
        for event in [
            PullEvent::Received(2 << 20),
            PullEvent::Lost(1 << 20),
            PullEvent::Received(1 << 20),
        ] {
            assert_eq!(counted.take(&event), None);
        }
        let told = counted.take(&PullEvent::Blob {
            digest,
            size: 2 << 20,
        });
        assert_eq!(told.as_deref(), Some("1 of 2: 0123456789ab (2.0 MiB)"));
        let line = counted.line(Duration::from_secs(4));
        assert_eq!(line, "2.0 MiB of 3.0 MiB, 1 of 2 blobs, 512.0 KiB/s");
    }
}
