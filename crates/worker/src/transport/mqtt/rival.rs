//! Two workers with one name: where the broker does not say so, but only closes, each would send the other away for ever, and
//! each time what is under way would be done once more. So whoever is sent away soon and again waits, longer each time; the
//! tries that the operator allows are spent meanwhile.

use super::again;
use crate::transport::Trouble;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::Instant;

/// A connection that was closed sooner was closed soon.
const SOON: Duration = Duration::from_secs(60);
/// So often in a row it may have been an accident.
const MOST: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(20);
/// It doubles so often, to about five minutes.
const MOST_DOUBLED: u32 = 4;

/// When the broker closed a connection.
pub(super) type Closed = Arc<OnceLock<Instant>>;

/// What became of the last connections.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    last: Option<(Instant, Closed)>,
    times: u32,
    until: Option<Instant>,
}

impl Rivals {
    /// It has been let in; whoever sees it closed says so here.
    pub(super) fn let_in(&mut self, now: Instant) -> Closed {
        let closed = Closed::default();
        self.last = Some((now, closed.clone()));
        closed
    }

    /// Whether it may come again now.
    pub(super) fn may_come(&mut self, name: &str, now: Instant) -> Result<(), Trouble> {
        if let Some((since, closed)) = self.last.take() {
            let was_soon = closed.get().is_some_and(|at| *at < since + SOON);
            self.times = if was_soon { self.times + 1 } else { 0 };
            let pause = |beyond: u32| FIRST_PAUSE * (1 << beyond.min(MOST_DOUBLED));
            self.until = self.times.checked_sub(MOST).map(|beyond| now + pause(beyond));
        }
        let Some(left) = self.until.map(|until| until.saturating_duration_since(now)) else { return Ok(()) };
        if left.is_zero() {
            return Ok(());
        }
        Err(again(format!(
            "the broker let us in and soon closed the connection, {} times in a row: is another worker connected as \
             `{name}`? With `SAM_POOL=session` only one at a time can be. It may come again in {} s",
            self.times,
            left.as_secs() + 1
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Let in, and closed after so long. Gives the pause after which it may come again.
    fn round(rivals: &mut Rivals, now: &mut Instant, lasts: Duration) -> Duration {
        let closed = rivals.let_in(*now);
        *now += lasts;
        closed.set(*now).unwrap();
        let begun = *now;
        while let Err(trouble) = rivals.may_come("me", *now) {
            assert!(trouble.message.contains("connected as `me`") && !trouble.is_final, "{trouble}");
            *now += Duration::from_secs(1);
        }
        *now - begun
    }

    #[test]
    fn who_is_sent_away_again_and_again_waits_longer_each_time_and_anew_after_a_good_while() {
        let (mut rivals, mut now) = (Rivals::default(), Instant::now());
        let brief = Duration::from_secs(2);
        let pauses: Vec<_> = (0..9).map(|_| round(&mut rivals, &mut now, brief).as_secs()).collect();
        assert_eq!(pauses, [0, 0, 20, 40, 80, 160, 320, 320, 320]);
        assert_eq!(round(&mut rivals, &mut now, SOON), Duration::ZERO);
        assert_eq!(round(&mut rivals, &mut now, brief), Duration::ZERO);
    }

    #[test]
    fn what_ended_otherwise_says_nothing_of_rivals() {
        let (mut rivals, now) = (Rivals::default(), Instant::now());
        for _ in 0..20 {
            _ = rivals.let_in(now);
            rivals.may_come("me", now).unwrap();
        }
    }
}
