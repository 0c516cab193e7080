//! Progress of a pull: one redrawn line on a terminal, otherwise one line a blob.

use crate::cli::{
    message::{self, Message},
    size::human_size,
};
use image::registry::PullEvent;
use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The minimum time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// The progress of one pull.
pub(super) struct PullProgress {
    terminal: bool,
    counters: Mutex<Counters>,
}

#[derive(Debug)]
struct Counters {
    began: Instant,
    shown: Option<Instant>,
    bytes: u64,
    received: u64,
    blobs: usize,
    done: usize,
}

impl PullProgress {
    pub(super) fn new() -> PullProgress {
        let counters = Counters {
            began: Instant::now(),
            shown: None,
            bytes: 0,
            received: 0,
            blobs: 0,
            done: 0,
        };
        PullProgress {
            terminal: io::stderr().is_terminal(),
            counters: Mutex::new(counters),
        }
    }

    /// Counts an event and updates the display.
    pub(super) fn update(&self, event: PullEvent) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let line = counters.count(&event);
        match (self.terminal, line) {
            (true, _)
                if counters
                    .shown
                    .is_none_or(|shown| shown.elapsed() >= REDRAW_INTERVAL) =>
            {
                counters.shown = Some(Instant::now());
                let line = format!("\r\x1b[K{}", counters.line(counters.began.elapsed()));
                // A write error is ignored: the terminal is gone.
                _ = io::stderr().lock().write_all(line.as_bytes());
            }
            (false, Some(line)) => message::print(&[Message::Note(line)]),
            (true, _) | (false, None) => {}
        }
    }

    /// Clears the line.
    pub(super) fn clear(&self) {
        if self.terminal {
            _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}

impl Counters {
    /// Counts an event; returns the line of a finished blob.
    fn count(&mut self, event: &PullEvent) -> Option<String> {
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
                    human_size(*size)
                ))
            }
        }
    }

    fn line(&self, took: Duration) -> String {
        let speed = (self.received as f64 / took.as_secs_f64().max(0.001)) as u64;
        format!(
            "{} of {}, {} of {} blobs, {}/s",
            human_size(self.received),
            human_size(self.bytes),
            self.done,
            self.blobs,
            human_size(speed)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_counted_and_what_is_lost_is_not() {
        let counters = |received, done| Counters {
            began: Instant::now(),
            shown: None,
            bytes: 3 << 20,
            received,
            blobs: 2,
            done,
        };
        let mut counted = counters(0, 0);
        let digest =
            spec::Digest::new(&format!("sha256:{}", "0123456789abcdef".repeat(4))).unwrap();
        assert_eq!(
            counted.count(&PullEvent::Started {
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
            assert_eq!(counted.count(&event), None);
        }
        let line = counted.count(&PullEvent::Blob {
            digest,
            size: 2 << 20,
        });
        assert_eq!(line.as_deref(), Some("1 of 2: 0123456789ab (2.0 MiB)"));
        let line = counted.line(Duration::from_secs(4));
        assert_eq!(line, "2.0 MiB of 3.0 MiB, 1 of 2 blobs, 512.0 KiB/s");
    }
}
