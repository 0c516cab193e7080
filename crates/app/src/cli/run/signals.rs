//! The signals that end a run.

use std::{future::pending, io};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, except those that the parent process has set to ignore (`nohup`,
/// background jobs).
#[derive(Debug)]
pub(in crate::cli) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts listening. From now on, these signals do not end the process.
    pub(in crate::cli) fn listen() -> io::Result<Self> {
        let ignored = ignored_mask();
        let listen = |kind| listen(kind, ignored);
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(in crate::cli) async fn next(&mut self) {
        tokio::select! {
            () = wait_for(&mut self.interrupt) => {}
            () = wait_for(&mut self.terminate) => {}
            () = wait_for(&mut self.hangup) => {}
        }
    }
}

/// Listens for one more signal, unless it is ignored.
pub(super) fn listen_unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    listen(kind, ignored_mask())
}

fn listen(kind: SignalKind, ignored: u64) -> io::Result<Option<Signal>> {
    match ignored >> (kind.as_raw_value() - 1) & 1 {
        0 => signal(kind).map(Some),
        _ => Ok(None),
    }
}

fn ignored_mask() -> u64 {
    ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Waits for a signal; for ever if it is ignored.
pub(super) async fn wait_for(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => pending().await,
    }
}

/// Parses the mask of ignored signals: bit N-1 for signal N.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status_file() {
        assert_eq!(
            ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"),
            0x1001
        );
        assert_eq!(ignored(""), 0);
    }
}
