//! Backpressure for slow readers: a client that reads the events of a run as the response to its
//! request must not miss output. While it is slow, the program waits, as before a full pipe. If it
//! disconnects, the program waits briefly for it to reconnect. Once the program has ended, the run
//! ends without the reader, who reads the rest from the feed.
//!
//! A client that only watches does not hold the run. A client that reconnects, with an event id or
//! its Idempotency-Key, takes the place of a disconnected reader. If there is none (a dead
//! connection may not be known yet), it becomes an additional reader, for which the program waits
//! only a limited time in total.

use super::active::ActiveRun;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// How long the program waits for a disconnected reader.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Total time that the program waits for an additional reader.
const EXTRA_READER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of readers that hold a run.
const MAX_READERS: usize = 8;

/// Positions of the readers that hold the run.
#[derive(Debug, Default)]
pub(crate) struct ReaderPositions(watch::Sender<Readers>);

#[derive(Clone, Debug, Default)]
struct Readers {
    /// In order of arrival. The first reader is waited for as long as it reads.
    all: Vec<ReaderState>,
    last_id: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReaderState {
    at: [u64; 2],
    /// Id of the reader.
    reader: u64,
    /// Disconnected, and may reconnect.
    is_gone: bool,
    /// Remaining time that the program waits for this reader, unless it is the first.
    time_left: Duration,
}

/// Holds the run for one reader, and for a while after it is dropped.
pub(crate) struct SlowReaderGuard {
    live: Arc<ActiveRun>,
    reader: u64,
}

impl ReaderState {
    fn is_within(&self, lengths: [u64; 2], max: u64) -> bool {
        lengths
            .iter()
            .zip(self.at)
            .all(|(length, at)| length.saturating_sub(at) <= max)
    }
}

impl Readers {
    fn add(&mut self, at: [u64; 2]) -> u64 {
        self.last_id += 1;
        self.all.push(ReaderState {
            at,
            reader: self.last_id,
            is_gone: false,
            time_left: EXTRA_READER_TIMEOUT,
        });
        self.last_id
    }

    /// How long the program still waits for the readers that are behind; `None` while it waits for
    /// the first one.
    fn time_left(&self, lengths: [u64; 2], max: u64) -> Option<Duration> {
        let first_is_near = self
            .all
            .first()
            .is_none_or(|first| first.is_within(lengths, max));
        let behind = self
            .all
            .iter()
            .filter(|state| !state.is_within(lengths, max));
        behind
            .map(|state| state.time_left)
            .min()
            .filter(|_| first_is_near)
    }

    /// Charges the waited time to the additional readers that are behind.
    fn charge_wait(&mut self, time: Duration, lengths: [u64; 2], max: u64) {
        for state in self
            .all
            .iter_mut()
            .skip(1)
            .filter(|state| !state.is_within(lengths, max))
        {
            state.time_left = state.time_left.saturating_sub(time);
        }
        let mut is_first = true;
        self.all
            .retain(|state| std::mem::take(&mut is_first) || !state.time_left.is_zero());
    }
}

impl ReaderPositions {
    /// Waits until no reader is more than `max` bytes behind; returns at once if there is none.
    pub(super) async fn wait_for_room(&self, lengths: [u64; 2], max: u64) {
        let mut readers = self.0.subscribe();
        loop {
            let now = readers.borrow_and_update().clone();
            if now.all.iter().all(|state| state.is_within(lengths, max)) {
                return;
            }
            let begun = Instant::now();
            let Some(time_left) = now.time_left(lengths, max) else {
                // The sender is part of `self` and cannot be gone.
                _ = readers.changed().await;
                continue;
            };
            _ = tokio::time::timeout(time_left, readers.changed()).await;
            self.0.send_if_modified(|readers| {
                readers.charge_wait(begun.elapsed(), lengths, max);
                false
            });
        }
    }
}

impl SlowReaderGuard {
    /// Holds the run from this position on.
    pub(crate) fn new(live: &Arc<ActiveRun>, at: [u64; 2]) -> SlowReaderGuard {
        let mut reader = 0;
        live.readers
            .0
            .send_modify(|readers| reader = readers.add(at));
        SlowReaderGuard {
            live: live.clone(),
            reader,
        }
    }

    /// Holds the run for a reader that reconnects, if the run is held.
    pub(crate) fn rejoin(live: &Arc<ActiveRun>, at: [u64; 2]) -> Option<SlowReaderGuard> {
        let mut reader = None;
        live.readers.0.send_modify(|readers| {
            if let Some(gone) = readers.all.iter_mut().find(|state| state.is_gone) {
                readers.last_id += 1;
                *gone = ReaderState {
                    at,
                    reader: readers.last_id,
                    is_gone: false,
                    ..*gone
                };
                reader = Some(readers.last_id);
            } else if (1..MAX_READERS).contains(&readers.all.len()) {
                reader = Some(readers.add(at));
            }
        });
        reader.map(|reader| SlowReaderGuard {
            live: live.clone(),
            reader,
        })
    }

    /// Sets the position of the reader.
    pub(crate) fn advance(&self, at: [u64; 2]) {
        self.live.readers.0.send_if_modified(|readers| {
            let own = readers
                .all
                .iter_mut()
                .find(|state| state.reader == self.reader);
            own.map(|state| state.at = at).is_some()
        });
    }
}

impl Drop for SlowReaderGuard {
    fn drop(&mut self) {
        let live = self.live.clone();
        let reader = self.reader;
        live.readers.0.send_modify(|readers| {
            let own = readers.all.iter_mut().find(|state| state.reader == reader);
            own.into_iter().for_each(|state| state.is_gone = true);
        });
        let remove_later = async move {
            tokio::time::sleep(RECONNECT_TIMEOUT).await;
            live.readers
                .0
                .send_modify(|readers| readers.all.retain(|state| state.reader != reader));
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(remove_later);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Arc<ActiveRun> {
        Arc::new(ActiveRun::new(
            spec::Id::new("r").unwrap(),
            "key",
            engine::OutputLog::new(9),
        ))
    }

    async fn waits(live: &ActiveRun, lengths: [u64; 2]) -> bool {
        tokio::time::timeout(
            RECONNECT_TIMEOUT / 2,
            live.readers.wait_for_room(lengths, 10),
        )
        .await
        .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_waits_for_its_reader_and_for_his_return_but_not_for_long() {
        let live = live();
        assert!(!waits(&live, [100, 100]).await, "nobody must see it");
        let first = SlowReaderGuard::new(&live, [0, 0]);
        assert!(
            !waits(&live, [10, 10]).await
                && waits(&live, [11, 0]).await
                && waits(&live, [0, 11]).await
        );
        first.advance([5, 5]);
        assert!(!waits(&live, [15, 15]).await && waits(&live, [16, 0]).await);
        drop(first);
        assert!(waits(&live, [16, 0]).await, "he may come again");
        let second = SlowReaderGuard::rejoin(&live, [6, 5]).unwrap();
        tokio::time::sleep(RECONNECT_TIMEOUT * 2).await;
        assert!(
            !waits(&live, [16, 0]).await && waits(&live, [17, 0]).await,
            "the first one's end is not the second's"
        );
        drop(second);
        tokio::time::sleep(RECONNECT_TIMEOUT * 2).await;
        assert!(
            !waits(&live, [u64::MAX, 0]).await && SlowReaderGuard::rejoin(&live, [0, 0]).is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_reader_takes_nothing_from_the_first_and_cannot_stop_the_program() {
        let live = live();
        let first = SlowReaderGuard::new(&live, [0, 0]);
        let second = SlowReaderGuard::rejoin(&live, [100, 0]).unwrap();
        assert!(
            waits(&live, [11, 0]).await,
            "the first one has not seen it, whoever came since"
        );
        drop(second);
        tokio::time::sleep(RECONNECT_TIMEOUT * 2).await;
        assert!(waits(&live, [11, 0]).await, "nor whoever went since");
        first.advance([50, 0]);
        let second = SlowReaderGuard::rejoin(&live, [0, 0]).unwrap();
        assert!(
            waits(&live, [60, 0]).await,
            "the positive control: it waits for the second, too"
        );
        let trickle = tokio::spawn(async move {
            for at in 0.. {
                second.advance([at % 40, 0]);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let room = tokio::time::timeout(
            EXTRA_READER_TIMEOUT * 2,
            live.readers.wait_for_room([60, 0], 10),
        );
        room.await.expect("not for ever, however he trickles");
        trickle.abort();
        assert!(
            !waits(&live, [60, 0]).await && waits(&live, [61, 0]).await,
            "and the first holds it as before"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_came_again_before_his_dead_connection_was_noticed_holds_the_run_after_it()
    {
        let live = live();
        let dead = SlowReaderGuard::new(&live, [0, 0]);
        let again = SlowReaderGuard::rejoin(&live, [5, 0]).unwrap();
        drop(dead);
        tokio::time::sleep(RECONNECT_TIMEOUT * 2).await;
        tokio::time::timeout(
            EXTRA_READER_TIMEOUT * 4,
            live.readers.wait_for_room([16, 0], 10),
        )
        .await
        .unwrap_err();
        again.advance([6, 0]);
        assert!(!waits(&live, [16, 0]).await);
        let more: Vec<_> = std::iter::from_fn(|| SlowReaderGuard::rejoin(&live, [0, 0])).collect();
        assert_eq!(more.len(), MAX_READERS - 1, "no more hold it");
    }
}
