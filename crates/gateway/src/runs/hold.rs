//! Readers of a run who must not miss anything: whoever asked for it and reads its events as the answer. While he is slow
//! the program waits, as it would before a pipe; if he breaks off, it waits for his return, and not for long. Once the
//! program is over, its run ends without him: he reads the rest from the feed.
//!
//! Whoever merely looks at the events holds nothing, and takes nothing from whoever does. One who comes again, and says so
//! by what he saw or by his Idempotency-Key, takes the place of one who broke off. If nobody has (a connection may be dead
//! and not known to be) he holds the run beside the first, but the program waits for him alone only so long in all.

use super::live::Live;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// How long a reader who broke off is waited for.
const RETURN: Duration = Duration::from_secs(15);
/// How long the program waits for a further reader, in all.
const PATIENCE: Duration = Duration::from_secs(15);
/// Who hold a run at a time.
const MOST_READERS: usize = 8;

/// How far each reader is; none if nobody must see everything.
#[derive(Debug, Default)]
pub(crate) struct Held(watch::Sender<Places>);

#[derive(Clone, Debug, Default)]
struct Places {
    /// In the order in which they came. The first one is waited for as long as he reads.
    readers: Vec<Place>,
    came: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    at: [u64; 2],
    /// Which reader this is.
    reader: u64,
    /// He broke off, and may come again.
    is_gone: bool,
    /// How long the program has yet to wait for him, unless he is the first.
    patience: Duration,
}

/// A reader's own end: the run is held until a while after this is dropped.
pub(crate) struct Hold {
    live: Arc<Live>,
    reader: u64,
}

impl Place {
    fn is_near(&self, lengths: [u64; 2], most: u64) -> bool {
        lengths
            .iter()
            .zip(self.at)
            .all(|(length, at)| length.saturating_sub(at) <= most)
    }
}

impl Places {
    fn add(&mut self, at: [u64; 2]) -> u64 {
        self.came += 1;
        self.readers.push(Place {
            at,
            reader: self.came,
            is_gone: false,
            patience: PATIENCE,
        });
        self.came
    }

    /// How long the program waits for somebody at most; none while it waits for the first reader.
    fn patience(&self, lengths: [u64; 2], most: u64) -> Option<Duration> {
        let first_is_near = self
            .readers
            .first()
            .is_none_or(|first| first.is_near(lengths, most));
        let behind = self
            .readers
            .iter()
            .filter(|place| !place.is_near(lengths, most));
        behind
            .map(|place| place.patience)
            .min()
            .filter(|_| first_is_near)
    }

    /// The program waited so long for those who are further behind than that.
    fn waited(&mut self, time: Duration, lengths: [u64; 2], most: u64) {
        for place in self
            .readers
            .iter_mut()
            .skip(1)
            .filter(|place| !place.is_near(lengths, most))
        {
            place.patience = place.patience.saturating_sub(time);
        }
        let mut is_first = true;
        self.readers
            .retain(|place| std::mem::take(&mut is_first) || !place.patience.is_zero());
    }
}

impl Held {
    /// Waits until no reader is further behind these lengths than `most`; at once if there is none.
    pub(super) async fn room(&self, lengths: [u64; 2], most: u64) {
        let mut places = self.0.subscribe();
        loop {
            let now = places.borrow_and_update().clone();
            if now.readers.iter().all(|place| place.is_near(lengths, most)) {
                return;
            }
            let begun = Instant::now();
            let Some(patience) = now.patience(lengths, most) else {
                // The sender is ours.
                _ = places.changed().await;
                continue;
            };
            _ = tokio::time::timeout(patience, places.changed()).await;
            self.0.send_if_modified(|places| {
                places.waited(begun.elapsed(), lengths, most);
                false
            });
        }
    }
}

impl Hold {
    /// Holds a run from here on.
    pub(crate) fn take(live: &Arc<Live>, at: [u64; 2]) -> Hold {
        let mut reader = 0;
        live.held.0.send_modify(|places| reader = places.add(at));
        Hold {
            live: live.clone(),
            reader,
        }
    }

    /// The same for a reader who comes again, if the run is held.
    pub(crate) fn again(live: &Arc<Live>, at: [u64; 2]) -> Option<Hold> {
        let mut reader = None;
        live.held.0.send_modify(|places| {
            if let Some(gone) = places.readers.iter_mut().find(|place| place.is_gone) {
                places.came += 1;
                *gone = Place {
                    at,
                    reader: places.came,
                    is_gone: false,
                    ..*gone
                };
                reader = Some(places.came);
            } else if (1..MOST_READERS).contains(&places.readers.len()) {
                reader = Some(places.add(at));
            }
        });
        reader.map(|reader| Hold {
            live: live.clone(),
            reader,
        })
    }

    /// He has read so much.
    pub(crate) fn read(&self, at: [u64; 2]) {
        self.live.held.0.send_if_modified(|places| {
            let own = places
                .readers
                .iter_mut()
                .find(|place| place.reader == self.reader);
            own.map(|place| place.at = at).is_some()
        });
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (live, reader) = (self.live.clone(), self.reader);
        live.held.0.send_modify(|places| {
            let own = places
                .readers
                .iter_mut()
                .find(|place| place.reader == reader);
            own.into_iter().for_each(|place| place.is_gone = true);
        });
        let let_go = async move {
            tokio::time::sleep(RETURN).await;
            live.held
                .0
                .send_modify(|places| places.readers.retain(|place| place.reader != reader));
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(let_go);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Arc<Live> {
        Arc::new(Live::new(
            spec::Id::new("r").unwrap(),
            "key",
            engine::Feed::new(9),
        ))
    }

    async fn waits(live: &Live, lengths: [u64; 2]) -> bool {
        tokio::time::timeout(RETURN / 2, live.held.room(lengths, 10))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_waits_for_its_reader_and_for_his_return_but_not_for_long() {
        let live = live();
        assert!(!waits(&live, [100, 100]).await, "nobody must see it");
        let first = Hold::take(&live, [0, 0]);
        assert!(
            !waits(&live, [10, 10]).await
                && waits(&live, [11, 0]).await
                && waits(&live, [0, 11]).await
        );
        first.read([5, 5]);
        assert!(!waits(&live, [15, 15]).await && waits(&live, [16, 0]).await);
        drop(first);
        assert!(waits(&live, [16, 0]).await, "he may come again");
        let second = Hold::again(&live, [6, 5]).unwrap();
        tokio::time::sleep(RETURN * 2).await;
        assert!(
            !waits(&live, [16, 0]).await && waits(&live, [17, 0]).await,
            "the first one's end is not the second's"
        );
        drop(second);
        tokio::time::sleep(RETURN * 2).await;
        assert!(!waits(&live, [u64::MAX, 0]).await && Hold::again(&live, [0, 0]).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_reader_takes_nothing_from_the_first_and_cannot_stop_the_program() {
        let live = live();
        let first = Hold::take(&live, [0, 0]);
        let second = Hold::again(&live, [100, 0]).unwrap();
        assert!(
            waits(&live, [11, 0]).await,
            "the first one has not seen it, whoever came since"
        );
        drop(second);
        tokio::time::sleep(RETURN * 2).await;
        assert!(waits(&live, [11, 0]).await, "nor whoever went since");
        first.read([50, 0]);
        let second = Hold::again(&live, [0, 0]).unwrap();
        assert!(
            waits(&live, [60, 0]).await,
            "the positive control: it waits for the second, too"
        );
        let trickle = tokio::spawn(async move {
            for at in 0.. {
                second.read([at % 40, 0]);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let room = tokio::time::timeout(PATIENCE * 2, live.held.room([60, 0], 10));
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
        let dead = Hold::take(&live, [0, 0]);
        let again = Hold::again(&live, [5, 0]).unwrap();
        drop(dead);
        tokio::time::sleep(RETURN * 2).await;
        tokio::time::timeout(PATIENCE * 4, live.held.room([16, 0], 10))
            .await
            .unwrap_err();
        again.read([6, 0]);
        assert!(!waits(&live, [16, 0]).await);
        let more: Vec<_> = std::iter::from_fn(|| Hold::again(&live, [0, 0])).collect();
        assert_eq!(more.len(), MOST_READERS - 1, "no more hold it");
    }
}
