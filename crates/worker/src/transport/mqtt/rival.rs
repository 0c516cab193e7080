//! Two workers with one name: each would send the other away for ever, and each time what is under way would be done once more.
//! So whoever is sent away waits before it comes again, longer each time: from the first time where the broker says that another
//! came, from the third on where it only closes, and soon.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// A connection that was closed sooner was closed soon. After a long pause of ours, twice that: the other waits as long.
const SOON: Duration = Duration::from_secs(60);
/// So often in a row it may have been an accident.
const MOST: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(20);
/// It doubles so often, to about five minutes.
const MOST_DOUBLED: u32 = 4;

/// How a broker sends us away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentAway {
    /// It only closes.
    WithoutAWord,
    /// The same, while it has not answered what we sent: that may be the reason.
    OverAMessage,
    /// It says that another has our name now.
    ForAnother,
}

/// How often in a row, and how long is waited therefore.
#[derive(Clone, Copy, Debug, Default)]
struct Away {
    times: u32,
    pause: Duration,
}

/// One connection: whoever sees that it is sent away says so here.
#[derive(Debug)]
pub(super) struct Stay {
    name: String,
    since: Instant,
    before: Away,
    end: Arc<OnceLock<(Away, Instant)>>,
}

/// What became of the last connections.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    away: Away,
    last: Option<Arc<OnceLock<(Away, Instant)>>>,
}

impl Stay {
    /// What there is to know of it, if another worker may be the cause.
    pub(super) fn sent_away(&self, how: SentAway, now: Instant) -> Option<String> {
        let is_soon = now < self.since + SOON.max(self.before.pause * 2);
        let before = if is_soon { self.before.times } else { 0 };
        let (times, beyond) = match how {
            SentAway::ForAnother => (before + 1, Some(before)),
            SentAway::WithoutAWord if is_soon => (before + 1, (before + 1).checked_sub(MOST)),
            SentAway::WithoutAWord => (0, None),
            // Nor does it say that there is none.
            SentAway::OverAMessage => (before, None),
        };
        let pause = beyond.map(|beyond| FIRST_PAUSE * (1 << beyond.min(MOST_DOUBLED)));
        // Once it is over it stays so.
        _ = self.end.set((
            Away {
                times,
                pause: pause.unwrap_or_default(),
            },
            now,
        ));
        let (name, seconds) = (&self.name, pause?.as_secs());
        Some(format!(
            "is another worker connected as `{name}`? With `SAM_POOL=session` only one at a time can be. Sent away \
             {times} times in a row, this one comes again in {seconds} s"
        ))
    }
}

impl Rivals {
    /// It has been let in under this name.
    pub(super) fn let_in(&mut self, name: &str, now: Instant) -> Stay {
        let end = Arc::default();
        self.last = Some(Arc::clone(&end));
        Stay {
            name: name.to_owned(),
            since: now,
            before: self.away,
            end,
        }
    }

    /// Waits until it may come again.
    pub(super) async fn rest(&mut self) {
        let Some(last) = self.last.take() else { return };
        // One that ended otherwise says nothing of rivals.
        let Some((away, at)) = last.get().copied() else {
            return self.away = Away::default();
        };
        self.away = away;
        sleep_until(at + away.pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SentAway::{ForAnother, WithoutAWord};

    /// Let in, and sent away after so long. Gives the seconds after which it comes again.
    async fn round(rivals: &mut Rivals, lasts: Duration, how: SentAway) -> u64 {
        let stay = rivals.let_in("me", Instant::now());
        tokio::time::advance(lasts).await;
        let (told, ended) = (stay.sent_away(how, Instant::now()), Instant::now());
        rivals.rest().await;
        let paused = ended.elapsed().as_secs();
        assert_eq!(told.is_some(), paused > 0);
        assert!(told.is_none_or(
            |told| told.contains("as `me`") && told.contains(&format!("in {paused} s"))
        ));
        paused
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_sent_away_again_and_again_waits_longer_each_time_and_anew_after_a_good_while() {
        let brief = Duration::from_secs(2);
        for (how, expected) in [
            (WithoutAWord, [0, 0, 20, 40, 80, 160, 320, 320, 320]),
            (ForAnother, [20, 40, 80, 160, 320, 320, 320, 320, 320]),
        ] {
            let mut rivals = Rivals::default();
            for pause in expected {
                assert_eq!(round(&mut rivals, brief, how).await, pause);
            }
            let as_long_as_the_other_waits = Duration::from_secs(320);
            assert_eq!(
                round(&mut rivals, as_long_as_the_other_waits, how).await,
                320
            );
            let first = expected[0];
            assert_eq!(
                round(&mut rivals, as_long_as_the_other_waits * 2, how).await,
                first
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_ended_otherwise_says_nothing_of_rivals() {
        let (mut rivals, begun) = (Rivals::default(), Instant::now());
        for _ in 0..20 {
            _ = rivals.let_in("me", Instant::now());
            rivals.rest().await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_waited_once_however_often_it_is_tried_in_vain_then() {
        let mut rivals = Rivals::default();
        assert_eq!(round(&mut rivals, Duration::ZERO, ForAnother).await, 20);
        let begun = Instant::now();
        rivals.rest().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(round(&mut rivals, Duration::ZERO, ForAnother).await, 40);
    }
}
