//! Over what a broker ended connections: MQTT 3.1.1 and some brokers have no other way to refuse a message. Such an end takes the
//! worker away from everybody, so that what may lead to another is tried seldom, and with nothing else under way.
//!
//! ```text
//! good ──ends a connection──▶ rests, twice as long each time ──▶ doubtful ──is taken──▶ good
//!                                        ▲                          │
//!                                        └────ends a connection─────┘
//! ```

use super::Outgoing;
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};
use tokio::time::Instant;

/// For so long it rests at first, and for so long nothing doubtful is tried after an end, whatever it was over.
pub(super) const FIRST_REST: Duration = Duration::from_secs(20);
/// Somebody waits for answers, and what is in their way may pass: a full queue.
const LONGEST_OF_AUDIENCE: Duration = Duration::from_secs(160);
/// The same words will seldom be taken later.
const LONGEST_OF_WORDS: Duration = Duration::from_secs(60 * 60);
/// Families that are known; then that is forgotten whose rest ended first.
const MOST_KNOWN: usize = 1024;

/// Messages over which a broker would end its connections for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Family {
    /// Only those that are the same.
    Words,
    /// All that are for the same: what is not for others does not hold up others.
    Audience(String),
}

impl Family {
    fn name(&self, message: &Outgoing) -> String {
        match self {
            Family::Audience(name) => name.clone(),
            Family::Words => {
                let mut hasher = DefaultHasher::new();
                message.payload.hash(&mut hasher);
                format!("{}\n{:x}", message.topic, hasher.finish())
            }
        }
    }

    fn longest_rest(&self) -> Duration {
        match self {
            Family::Audience(_) => LONGEST_OF_AUDIENCE,
            Family::Words => LONGEST_OF_WORDS,
        }
    }
}

/// What is to be done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Good,
    /// It is sent with nothing else under way.
    Doubtful,
    /// It is not sent for so long.
    Rests(Duration),
}

#[derive(Debug)]
struct Rest {
    lasts: Duration,
    until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Blame {
    known: HashMap<String, Rest>,
    quiet_until: Option<Instant>,
}

impl Blame {
    pub(super) fn standing(&self, family: &Family, message: &Outgoing, now: Instant) -> Standing {
        // Words are counted only where there is something to be found.
        let rest = (!self.known.is_empty())
            .then(|| self.known.get(&family.name(message)))
            .flatten();
        let quiet = self
            .quiet_until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let Some(rest) = rest else {
            // Where one tool cannot be told of, others often cannot, either.
            let is_doubtful = *family == Family::Words && !quiet.is_zero();
            return if is_doubtful {
                Standing::Doubtful
            } else {
                Standing::Good
            };
        };
        match rest.until.saturating_duration_since(now).max(quiet) {
            Duration::ZERO => Standing::Doubtful,
            left => Standing::Rests(left),
        }
    }

    /// It was sent alone, and the broker ended the connection.
    pub(super) fn ended(&mut self, family: &Family, message: &Outgoing, now: Instant) {
        self.quiet_until = Some(now + FIRST_REST);
        let name = family.name(message);
        if self.known.len() >= MOST_KNOWN && !self.known.contains_key(&name) {
            let first = self
                .known
                .iter()
                .min_by_key(|(_, rest)| rest.until)
                .map(|(name, _)| name.clone());
            first.and_then(|first| self.known.remove(&first));
        }
        let rest = self.known.entry(name).or_insert(Rest {
            lasts: Duration::ZERO,
            until: now,
        });
        rest.lasts = (rest.lasts * 2).clamp(FIRST_REST, family.longest_rest());
        rest.until = now + rest.lasts;
    }

    /// The broker has answered it.
    pub(super) fn answered(&mut self, family: &Family, message: &Outgoing) {
        if !self.known.is_empty() {
            self.known.remove(&family.name(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Properties;
    use bytes::Bytes;

    fn message(words: &str) -> Outgoing {
        let payload = Bytes::from(words.to_owned());
        Outgoing {
            topic: "a/b".to_owned(),
            payload,
            properties: Properties::new(),
        }
    }

    #[test]
    fn a_family_rests_longer_each_time_to_a_bound_and_is_good_again_when_one_of_it_was_taken() {
        let of_audience = (
            Family::Audience("a".to_owned()),
            [20, 40, 80, 160, 160, 160],
        );
        for (family, expected) in [of_audience, (Family::Words, [20, 40, 80, 160, 320, 640])] {
            let (mut blame, mut now) = (Blame::default(), Instant::now());
            assert_eq!(blame.standing(&family, &message("x"), now), Standing::Good);
            for seconds in expected {
                let rest = Duration::from_secs(seconds);
                blame.ended(&family, &message("x"), now);
                assert_eq!(
                    blame.standing(&family, &message("x"), now),
                    Standing::Rests(rest)
                );
                now += rest;
                assert_eq!(
                    blame.standing(&family, &message("x"), now),
                    Standing::Doubtful
                );
            }
            blame.answered(&family, &message("x"));
            assert_eq!(blame.standing(&family, &message("x"), now), Standing::Good);
        }
    }

    #[test]
    fn other_words_are_another_family_unless_they_are_for_the_same() {
        let (mut blame, now) = (Blame::default(), Instant::now());
        blame.ended(&Family::Words, &message("x"), now);
        assert_eq!(
            blame.standing(&Family::Words, &message("y"), now),
            Standing::Doubtful
        );
        assert_eq!(
            blame.standing(&Family::Words, &message("y"), now + FIRST_REST),
            Standing::Good
        );
        let (one, other) = (
            Family::Audience("one".to_owned()),
            Family::Audience("other".to_owned()),
        );
        blame.ended(&one, &message("x"), now);
        assert_eq!(
            blame.standing(&one, &message("y"), now),
            Standing::Rests(FIRST_REST)
        );
        assert_eq!(blame.standing(&other, &message("x"), now), Standing::Good);
    }

    #[test]
    fn doubtful_families_take_turns() {
        let (mut blame, now) = (Blame::default(), Instant::now());
        let [one, other] = ["one", "other"].map(|name| Family::Audience(name.to_owned()));
        blame.ended(&one, &message("x"), now);
        let later = now + FIRST_REST;
        blame.ended(&other, &message("x"), later);
        assert_eq!(
            blame.standing(&one, &message("x"), later),
            Standing::Rests(FIRST_REST)
        );
    }

    #[test]
    fn what_is_known_is_bounded_and_the_oldest_is_forgotten() {
        let (mut blame, begun) = (Blame::default(), Instant::now());
        let family = |number: usize| Family::Audience(number.to_string());
        for number in 0..=MOST_KNOWN {
            blame.ended(
                &family(number),
                &message("x"),
                begun + Duration::from_millis(number as u64),
            );
        }
        assert_eq!(blame.known.len(), MOST_KNOWN);
        assert_eq!(
            blame.standing(&family(0), &message("x"), begun),
            Standing::Good
        );
        assert_ne!(
            blame.standing(&family(1), &message("x"), begun),
            Standing::Good
        );
    }
}
