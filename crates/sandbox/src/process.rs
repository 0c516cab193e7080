//! A further program of a box that outlives it: it has a channel of its own to whoever started it.

use crate::native::{Ended, Told, launcher::Channel};
use init::protocol::{Command, Report};
use tokio::sync::mpsc;

/// A program under way. Dropped, it is killed with its process group; the box goes on.
#[derive(Debug)]
pub struct Process {
    channel: Channel,
    denials: Option<mpsc::Receiver<Told>>,
}

impl Process {
    #[allow(dead_code, reason = "for the backends")]
    pub(crate) fn new(channel: Channel, denials: Option<mpsc::Receiver<Told>>) -> Process {
        Process { channel, denials }
    }

    /// What it is denied; nothing where that cannot be known.
    pub fn take_denials(&mut self) -> Option<mpsc::Receiver<Told>> {
        self.denials.take()
    }

    /// Waits for its end; `None` if the box went under it. May be asked again after it was not awaited to its end.
    pub async fn ended(&mut self) -> Option<Ended> {
        loop {
            match self.channel.report().await {
                Ok(Some((Report::Ended(ended), _))) => return Some(ended),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, number: i32) {
        // A launcher that is gone took the program with it.
        _ = self.channel.order(Command::Signal(number));
    }
}
