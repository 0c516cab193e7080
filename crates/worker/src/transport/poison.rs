//! Poison messages: messages over which the broker closes the connection, because MQTT 3.1.1 and
//! some brokers have no other way to reject one. Each disconnect interrupts the worker for
//! everybody, so that suspect messages are retried rarely, with backoff, and with nothing else in
//! flight.
//!
//! ```text
//! good ──closes a connection──▶ backoff, doubled each time ──▶ suspect ──accepted──▶ good
//!                                       ▲                         │
//!                                       └───closes a connection───┘
//! ```

use super::OutgoingMessage;
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};
use tokio::time::Instant;

/// Initial backoff, and the time after any disconnect in which no suspect is sent.
pub(super) const INITIAL_BACKOFF: Duration = Duration::from_secs(20);
/// Short, because requesters wait, and the reason may pass: a full queue.
const MAX_RECIPIENT_BACKOFF: Duration = Duration::from_secs(160);
/// Long, because the same payload is unlikely to be accepted later.
const MAX_PAYLOAD_BACKOFF: Duration = Duration::from_secs(60 * 60);
/// Maximum number of tracked classes; the one whose backoff ended first is dropped.
const MAX_TRACKED: usize = 1024;

/// Messages that a broker would reject for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageClass {
    /// Only messages with the same topic and payload.
    SamePayload,
    /// All messages for one recipient: a bad recipient does not affect others.
    Recipient(String),
}

impl MessageClass {
    fn name(&self, message: &OutgoingMessage) -> String {
        match self {
            MessageClass::Recipient(name) => name.clone(),
            MessageClass::SamePayload => {
                let mut hasher = DefaultHasher::new();
                message.payload.hash(&mut hasher);
                format!("{}\n{:x}", message.topic, hasher.finish())
            }
        }
    }

    fn max_backoff(&self) -> Duration {
        match self {
            MessageClass::Recipient(_) => MAX_RECIPIENT_BACKOFF,
            MessageClass::SamePayload => MAX_PAYLOAD_BACKOFF,
        }
    }
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendVerdict {
    Send,
    /// Send it with nothing else in flight.
    SendAlone,
    /// Do not send it for this long.
    BackOff(Duration),
}

/// The backoff of one class.
#[derive(Debug)]
struct BackoffState {
    duration: Duration,
    until: Instant,
}

/// Which classes closed the connection, and until when their messages are not sent.
#[derive(Debug, Default)]
pub(super) struct PoisonTracker {
    known: HashMap<String, BackoffState>,
    quiet_until: Option<Instant>,
}

impl PoisonTracker {
    pub(super) fn verdict(
        &self,
        class: &MessageClass,
        message: &OutgoingMessage,
        now: Instant,
    ) -> SendVerdict {
        // Payloads are hashed only if anything is tracked.
        let backoff = if self.known.is_empty() {
            None
        } else {
            self.known.get(&class.name(message))
        };
        let quiet = self
            .quiet_until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let Some(backoff) = backoff else {
            // If one tool cannot be announced, others often cannot, either.
            let is_suspect = *class == MessageClass::SamePayload && !quiet.is_zero();
            return if is_suspect {
                SendVerdict::SendAlone
            } else {
                SendVerdict::Send
            };
        };
        match backoff.until.saturating_duration_since(now).max(quiet) {
            Duration::ZERO => SendVerdict::SendAlone,
            left => SendVerdict::BackOff(left),
        }
    }

    /// The message was sent alone, and the broker closed the connection.
    pub(super) fn ended(&mut self, class: &MessageClass, message: &OutgoingMessage, now: Instant) {
        self.quiet_until = Some(now + INITIAL_BACKOFF);
        let name = class.name(message);
        if self.known.len() >= MAX_TRACKED && !self.known.contains_key(&name) {
            let first = self
                .known
                .iter()
                .min_by_key(|(_, backoff)| backoff.until)
                .map(|(name, _)| name.clone());
            first.and_then(|first| self.known.remove(&first));
        }
        let backoff = self.known.entry(name).or_insert(BackoffState {
            duration: Duration::ZERO,
            until: now,
        });
        backoff.duration = (backoff.duration * 2).clamp(INITIAL_BACKOFF, class.max_backoff());
        backoff.until = now + backoff.duration;
    }

    /// The broker responded to the message.
    pub(super) fn answered(&mut self, class: &MessageClass, message: &OutgoingMessage) {
        if !self.known.is_empty() {
            self.known.remove(&class.name(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Properties;
    use bytes::Bytes;

    fn message(words: &str) -> OutgoingMessage {
        let payload = Bytes::from(words.to_owned());
        OutgoingMessage {
            topic: "a/b".to_owned(),
            payload,
            properties: Properties::new(),
        }
    }

    #[test]
    fn a_family_rests_longer_each_time_to_a_bound_and_is_good_again_when_one_of_it_was_taken() {
        let of_audience = (
            MessageClass::Recipient("a".to_owned()),
            [20, 40, 80, 160, 160, 160],
        );
        for (class, expected) in [
            of_audience,
            (MessageClass::SamePayload, [20, 40, 80, 160, 320, 640]),
        ] {
            let mut tracker = PoisonTracker::default();
            let mut now = Instant::now();
            assert_eq!(
                tracker.verdict(&class, &message("x"), now),
                SendVerdict::Send
            );
            for seconds in expected {
                let rest = Duration::from_secs(seconds);
                tracker.ended(&class, &message("x"), now);
                assert_eq!(
                    tracker.verdict(&class, &message("x"), now),
                    SendVerdict::BackOff(rest)
                );
                now += rest;
                assert_eq!(
                    tracker.verdict(&class, &message("x"), now),
                    SendVerdict::SendAlone
                );
            }
            tracker.answered(&class, &message("x"));
            assert_eq!(
                tracker.verdict(&class, &message("x"), now),
                SendVerdict::Send
            );
        }
    }

    #[test]
    fn other_words_are_another_family_unless_they_are_for_the_same() {
        let mut tracker = PoisonTracker::default();
        let now = Instant::now();
        tracker.ended(&MessageClass::SamePayload, &message("x"), now);
        assert_eq!(
            tracker.verdict(&MessageClass::SamePayload, &message("y"), now),
            SendVerdict::SendAlone
        );
        assert_eq!(
            tracker.verdict(
                &MessageClass::SamePayload,
                &message("y"),
                now + INITIAL_BACKOFF
            ),
            SendVerdict::Send
        );
        let one = MessageClass::Recipient("one".to_owned());
        let other = MessageClass::Recipient("other".to_owned());
        tracker.ended(&one, &message("x"), now);
        assert_eq!(
            tracker.verdict(&one, &message("y"), now),
            SendVerdict::BackOff(INITIAL_BACKOFF)
        );
        assert_eq!(
            tracker.verdict(&other, &message("x"), now),
            SendVerdict::Send
        );
    }

    #[test]
    fn doubtful_families_take_turns() {
        let mut tracker = PoisonTracker::default();
        let now = Instant::now();
        let [one, other] = ["one", "other"].map(|name| MessageClass::Recipient(name.to_owned()));
        tracker.ended(&one, &message("x"), now);
        let later = now + INITIAL_BACKOFF;
        tracker.ended(&other, &message("x"), later);
        assert_eq!(
            tracker.verdict(&one, &message("x"), later),
            SendVerdict::BackOff(INITIAL_BACKOFF)
        );
    }

    #[test]
    fn what_is_known_is_bounded_and_the_oldest_is_forgotten() {
        let mut tracker = PoisonTracker::default();
        let begun = Instant::now();
        let class = |number: usize| MessageClass::Recipient(number.to_string());
        for number in 0..=MAX_TRACKED {
            tracker.ended(
                &class(number),
                &message("x"),
                begun + Duration::from_millis(number as u64),
            );
        }
        assert_eq!(tracker.known.len(), MAX_TRACKED);
        assert_eq!(
            tracker.verdict(&class(0), &message("x"), begun),
            SendVerdict::Send
        );
        assert_ne!(
            tracker.verdict(&class(1), &message("x"), begun),
            SendVerdict::Send
        );
    }
}
