//! One reader of a run who must not miss anything: whoever asked for it and reads its events as the answer. While he is
//! slow the program waits, as it would before a pipe; if he breaks off, it waits for his return, and not for long.

use super::live::Live;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// How long a reader who broke off is waited for.
const RETURN: Duration = Duration::from_secs(15);

/// How far the reader is; none if there is none.
#[derive(Debug, Default)]
pub(crate) struct Held(watch::Sender<Place>);

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    at: Option<[u64; 2]>,
    /// Which reader this is.
    reader: u64,
}

/// The reader's own end: the run is held until a while after this is dropped.
pub(crate) struct Hold {
    live: Arc<Live>,
    reader: u64,
}

impl Held {
    /// Waits until the reader is no further behind these lengths than `most`; at once if there is none.
    pub(super) async fn room(&self, lengths: [u64; 2], most: u64) {
        let near =
            |at: [u64; 2]| lengths.iter().zip(at).all(|(length, at)| length.saturating_sub(at) <= most);
        // The sender is ours.
        _ = self.0.subscribe().wait_for(|place| place.at.is_none_or(near)).await;
    }
}

impl Hold {
    /// Holds a run from here on.
    pub(crate) fn take(live: &Arc<Live>, at: [u64; 2]) -> Hold {
        let mut reader = 0;
        live.held.0.send_modify(|place| {
            place.reader += 1;
            place.at = Some(at);
            reader = place.reader;
        });
        Hold { live: live.clone(), reader }
    }

    /// The same for a reader who comes again, if he is still waited for.
    pub(crate) fn again(live: &Arc<Live>, at: [u64; 2]) -> Option<Hold> {
        let held = live.held.0.borrow().at.is_some();
        held.then(|| Hold::take(live, at))
    }

    /// He has read so much.
    pub(crate) fn read(&self, at: [u64; 2]) {
        self.live.held.0.send_if_modified(|place| {
            let ours = place.reader == self.reader && place.at.is_some();
            if ours {
                place.at = Some(at);
            }
            ours
        });
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (live, reader) = (self.live.clone(), self.reader);
        let let_go = async move {
            tokio::time::sleep(RETURN).await;
            live.held.0.send_if_modified(|place| {
                let ours = place.reader == reader;
                if ours {
                    place.at = None;
                }
                ours
            });
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(let_go);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_waits_for_its_reader_and_for_his_return_but_not_for_long() {
        let live = Arc::new(Live::new(spec::Id::new("r").unwrap(), "key", &std::env::temp_dir()));
        let waits =
            async |lengths| tokio::time::timeout(RETURN / 2, live.held.room(lengths, 10)).await.is_err();
        assert!(!waits([100, 100]).await, "nobody must see it");
        let first = Hold::take(&live, [0, 0]);
        assert!(!waits([10, 10]).await && waits([11, 0]).await && waits([0, 11]).await);
        first.read([5, 5]);
        assert!(!waits([15, 15]).await && waits([16, 0]).await);
        drop(first);
        assert!(waits([16, 0]).await, "he may come again");
        let second = Hold::again(&live, [6, 5]).unwrap();
        tokio::time::sleep(RETURN * 2).await;
        assert!(!waits([16, 0]).await && waits([17, 0]).await, "the first one's end is not the second's");
        drop(second);
        tokio::time::sleep(RETURN * 2).await;
        assert!(!waits([u64::MAX, 0]).await && Hold::again(&live, [0, 0]).is_none());
    }
}
