//! Choice of the protocol; everything above is the same for all of them.

use super::{
    ConnectionError, Link, ReconnectPolicy, Subscription, amqp, dev::DevBroker, fatal, mqtt,
};
use std::{collections::BTreeSet, num::NonZeroU16};

/// Credit beyond the calls that the worker accepts: for delayed answers, and so that a cancellation
/// does not wait behind the calls it is about.
const EXTRA_MESSAGES: usize = 64 + 16;

/// Settings of a broker, by protocol.
#[derive(Clone, Debug)]
pub enum BrokerProtocol {
    /// MQTT 5 or 3.1.1.
    Mqtt(mqtt::MqttSettings),
    /// The development broker.
    Dev(DevBroker),
    /// AMQP 1.0.
    Amqp(amqp::AmqpSettings),
}

impl BrokerProtocol {
    /// Validates everything that a connection needs, such as certificates, without contacting the
    /// broker.
    pub fn check(self, max_calls: usize) -> Result<(), ConnectionError> {
        match self {
            BrokerProtocol::Mqtt(settings) => {
                at_least(settings.receive_maximum, max_calls)?;
                mqtt::Mqtt::new(settings).map(drop)
            }
            BrokerProtocol::Amqp(settings) => {
                at_least(settings.receive_maximum, max_calls)?;
                amqp::Amqp::new(settings).map(drop)
            }
            BrokerProtocol::Dev(_) => Ok(()),
        }
    }

    /// Starts a link. `max_calls` is the number of calls that the worker accepts, running and queued:
    /// the broker gets credit for more than that.
    pub fn link(
        self,
        subscriptions: BTreeSet<Subscription>,
        policy: ReconnectPolicy,
        max_calls: usize,
    ) -> Result<Link, ConnectionError> {
        Ok(match self {
            BrokerProtocol::Mqtt(mut settings) => {
                settings.receive_maximum = at_least(settings.receive_maximum, max_calls)?;
                Link::start(mqtt::Mqtt::new(settings)?, subscriptions, policy)
            }
            BrokerProtocol::Amqp(mut settings) => {
                settings.receive_maximum = at_least(settings.receive_maximum, max_calls)?;
                Link::start(amqp::Amqp::new(settings)?, subscriptions, policy)
            }
            BrokerProtocol::Dev(broker) => Link::start(broker, subscriptions, policy),
        })
    }
}

/// The configured maximum, or more if that is not enough.
fn at_least(set: NonZeroU16, max_calls: usize) -> Result<NonZeroU16, ConnectionError> {
    let least = u16::try_from(max_calls.saturating_add(EXTRA_MESSAGES)).map_err(|_| {
        let largest = usize::from(u16::MAX) - EXTRA_MESSAGES;
        fatal(format!(
            "{max_calls} calls at once and waiting are too many: brokers send {largest} at most"
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
        assert_eq!(at_least(set(256), 100), Ok(set(256)));
        assert_eq!(at_least(set(256), 256), Ok(set(336)));
        assert_eq!(at_least(set(1), 65_455), Ok(set(65_535)));
        assert!(at_least(set(256), 65_456).is_err() && at_least(set(256), usize::MAX).is_err());
    }

    #[tokio::test]
    async fn what_is_wrong_is_told_before_anything_is_begun() {
        let settings = amqp::AmqpSettings::new("127.0.0.1", 5672, "", "me");
        let policy = ReconnectPolicy {
            tries: 1,
            pause: std::time::Duration::ZERO,
        };
        let checked = BrokerProtocol::Amqp(settings.clone()).check(8);
        assert!(checked.is_err_and(|trouble| trouble.is_final));
        let refused = BrokerProtocol::Amqp(settings).link(BTreeSet::new(), policy, 8);
        assert!(refused.is_err_and(|trouble| trouble.is_final));
    }
}
