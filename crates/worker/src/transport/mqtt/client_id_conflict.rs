//! Duplicate client ids: two workers with one id would disconnect each other for ever, and each
//! time repeat the calls in progress. A disconnected worker therefore waits with backoff before it
//! reconnects: from the first time if the broker reports a takeover, from the third time if it
//! closes young connections without a reason.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::{Instant, sleep_until};

/// A connection shorter than this is young. After a long backoff twice that counts, because the
/// other worker waits as long.
const SHORT_CONNECTION: Duration = Duration::from_secs(60);
/// This many disconnects in a row may be accidents.
const MAX_ACCIDENTS: u32 = 3;
const INITIAL_DELAY: Duration = Duration::from_secs(20);
/// Maximum number of doublings, to about five minutes.
const MAX_DOUBLINGS: u32 = 4;

/// Cause of a disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisconnectCause {
    /// Closed without a reason.
    Silent,
    /// Closed without a reason while a message was unanswered, which may be the reason.
    MessageUnanswered,
    /// The broker reports that another client has our id.
    TakenOver,
}

/// Consecutive disconnects and the resulting backoff.
#[derive(Clone, Copy, Debug, Default)]
struct DisconnectStreak {
    times: u32,
    pause: Duration,
}

/// Use of the client id by one connection, which reports its end here.
#[derive(Debug)]
pub(super) struct ClientIdLease {
    name: String,
    since: Instant,
    before: DisconnectStreak,
    end: Arc<OnceLock<(DisconnectStreak, Instant)>>,
}

/// History of disconnects.
#[derive(Debug, Default)]
pub(super) struct ClientIdConflicts {
    away: DisconnectStreak,
    last: Option<Arc<OnceLock<(DisconnectStreak, Instant)>>>,
}

impl ClientIdLease {
    /// Records the end of the connection; returns an explanation if another worker may be the
    /// cause.
    pub(super) fn disconnected(&self, how: DisconnectCause, now: Instant) -> Option<String> {
        let is_soon = now < self.since + SHORT_CONNECTION.max(self.before.pause * 2);
        let before = if is_soon { self.before.times } else { 0 };
        let (times, beyond) = match how {
            DisconnectCause::TakenOver => (before + 1, Some(before)),
            DisconnectCause::Silent if is_soon => {
                (before + 1, (before + 1).checked_sub(MAX_ACCIDENTS))
            }
            DisconnectCause::Silent => (0, None),
            // It does not rule another worker out, either.
            DisconnectCause::MessageUnanswered => (before, None),
        };
        let pause = beyond.map(|beyond| INITIAL_DELAY * (1 << beyond.min(MAX_DOUBLINGS)));
        // Only the first cause counts.
        _ = self.end.set((
            DisconnectStreak {
                times,
                pause: pause.unwrap_or_default(),
            },
            now,
        ));
        let name = &self.name;
        let seconds = pause?.as_secs();
        Some(format!(
            "is another worker connected as `{name}`? With `SAM_POOL=session` only one at a time can be. Sent away \
             {times} times in a row, this one comes again in {seconds} s"
        ))
    }
}

impl ClientIdConflicts {
    /// A connection with this id was accepted.
    pub(super) fn let_in(&mut self, name: &str, now: Instant) -> ClientIdLease {
        let end = Arc::default();
        self.last = Some(Arc::clone(&end));
        ClientIdLease {
            name: name.to_owned(),
            since: now,
            before: self.away,
            end,
        }
    }

    /// Waits for the backoff.
    pub(super) async fn rest(&mut self) {
        let Some(last) = self.last.take() else { return };
        // Any other end says nothing about other workers.
        let Some((away, at)) = last.get().copied() else {
            return self.away = DisconnectStreak::default();
        };
        self.away = away;
        sleep_until(at + away.pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DisconnectCause::{Silent, TakenOver};

    /// Let in, and sent away after so long. Gives the seconds after which it comes again.
    async fn round(rivals: &mut ClientIdConflicts, lasts: Duration, how: DisconnectCause) -> u64 {
        let stay = rivals.let_in("me", Instant::now());
        tokio::time::advance(lasts).await;
        let told = stay.disconnected(how, Instant::now());
        let ended = Instant::now();
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
            (Silent, [0, 0, 20, 40, 80, 160, 320, 320, 320]),
            (TakenOver, [20, 40, 80, 160, 320, 320, 320, 320, 320]),
        ] {
            let mut rivals = ClientIdConflicts::default();
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
        let mut rivals = ClientIdConflicts::default();
        let begun = Instant::now();
        for _ in 0..20 {
            _ = rivals.let_in("me", Instant::now());
            rivals.rest().await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_waited_once_however_often_it_is_tried_in_vain_then() {
        let mut rivals = ClientIdConflicts::default();
        assert_eq!(round(&mut rivals, Duration::ZERO, TakenOver).await, 20);
        let begun = Instant::now();
        rivals.rest().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(round(&mut rivals, Duration::ZERO, TakenOver).await, 40);
    }
}
