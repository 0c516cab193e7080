//! Which broker, and by which protocol: everything behind this is the same for all.

use super::{Link, Patience, Subscription, Trouble, amqp, dev::DevBroker, mqtt, never};
use std::{collections::BTreeSet, num::NonZeroU16};

/// Beyond what the worker takes upon itself there is room for so many: for those whose answers the broker does not take for now,
/// and so that a request to cancel does not wait behind those that it is about.
const ROOM: usize = 64 + 16;

/// A broker, by its protocol.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Broker {
    Mqtt(mqtt::Settings),
    Dev(DevBroker),
    Amqp(amqp::Settings),
}

impl Broker {
    /// Whether all that is needed to connect is there, such as certificates. The broker is not asked.
    pub fn check(self, most: usize) -> Result<(), Trouble> {
        match self {
            Broker::Mqtt(settings) => {
                enough(settings.receive_maximum, most)?;
                mqtt::Mqtt::new(settings).map(drop)
            }
            Broker::Amqp(settings) => {
                enough(settings.receive_maximum, most)?;
                amqp::Amqp::new(settings).map(drop)
            }
            Broker::Dev(_) => Ok(()),
        }
    }

    /// Begins to connect. `most` is what the worker takes upon itself at once, under way and waiting: as many the broker must
    /// be ready to send, and some more.
    pub fn link(
        self,
        subscriptions: BTreeSet<Subscription>,
        patience: Patience,
        most: usize,
    ) -> Result<Link, Trouble> {
        Ok(match self {
            Broker::Mqtt(mut settings) => {
                settings.receive_maximum = enough(settings.receive_maximum, most)?;
                Link::start(mqtt::Mqtt::new(settings)?, subscriptions, patience)
            }
            Broker::Amqp(mut settings) => {
                settings.receive_maximum = enough(settings.receive_maximum, most)?;
                Link::start(amqp::Amqp::new(settings)?, subscriptions, patience)
            }
            Broker::Dev(broker) => Link::start(broker, subscriptions, patience),
        })
    }
}

/// What is set, or more if that is not enough.
fn enough(set: NonZeroU16, most: usize) -> Result<NonZeroU16, Trouble> {
    let least = u16::try_from(most.saturating_add(ROOM)).map_err(|_| {
        let largest = usize::from(u16::MAX) - ROOM;
        never(format!(
            "{most} calls at once and waiting are too many: brokers send {largest} at most"
        ))
    })?;
    Ok(set.saturating_add(least.saturating_sub(set.get())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_may_come_than_is_taken() {
        let set = |number| NonZeroU16::new(number).unwrap();
        assert_eq!(enough(set(256), 100), Ok(set(256)));
        assert_eq!(enough(set(256), 256), Ok(set(336)));
        assert_eq!(enough(set(1), 65_455), Ok(set(65_535)));
        assert!(enough(set(256), 65_456).is_err() && enough(set(256), usize::MAX).is_err());
    }

    #[tokio::test]
    async fn what_is_wrong_is_told_before_anything_is_begun() {
        let settings = amqp::Settings::new("127.0.0.1", 5672, "", "me");
        let patience = Patience {
            tries: 1,
            pause: std::time::Duration::ZERO,
        };
        let checked = Broker::Amqp(settings.clone()).check(8);
        assert!(checked.is_err_and(|trouble| trouble.is_final));
        let refused = Broker::Amqp(settings).link(BTreeSet::new(), patience, 8);
        assert!(refused.is_err_and(|trouble| trouble.is_final));
    }
}
