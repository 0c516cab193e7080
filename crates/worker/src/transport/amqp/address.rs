//! Names of queues and topics on an AMQP broker. AMQP does not define them, and brokers differ.

use super::super::{ConnectionError, fatal};
use crate::wire::topic::mqtt_filter;

/// How a broker names queues and topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressScheme {
    /// `queue://NAME` and `topic://TOPIC`.
    Solace,
    /// Queues, and a topic exchange. RabbitMQ separates levels by `.`, so `.` and `/` are
    /// exchanged: nothing is lost, and wildcards keep their meaning. The bindings of a queue are up
    /// to its owner.
    Rabbit {
        /// The exchange: `amq.topic` by default.
        exchange: String,
    },
}

impl AddressScheme {
    /// Parses the name of a scheme.
    pub fn named(name: &str) -> Result<AddressScheme, String> {
        match name {
            "solace" => Ok(AddressScheme::Solace),
            "rabbitmq" => Ok(AddressScheme::Rabbit {
                exchange: "amq.topic".to_owned(),
            }),
            other => Err(format!(
                "`{other}` is no scheme of addresses: use `solace` or `rabbitmq`"
            )),
        }
    }

    /// Source address of a queue.
    pub(super) fn queue(&self, name: &str) -> String {
        match self {
            AddressScheme::Solace => format!("queue://{name}"),
            AddressScheme::Rabbit { .. } => format!("/amq/queue/{}", escaped(name)),
        }
    }

    /// Source address of a subscription pattern.
    pub(super) fn pattern(&self, pattern: &str) -> Result<String, ConnectionError> {
        // Patterns have the same restrictions as in MQTT.
        mqtt_filter(pattern).map_err(|bad| fatal(bad.to_string()))?;
        Ok(match self {
            AddressScheme::Solace => format!("topic://{pattern}"),
            AddressScheme::Rabbit { exchange } => {
                let key = swapped(pattern);
                let key = match key.strip_suffix('>') {
                    Some(before) => format!("{before}#"),
                    None => key,
                };
                format!("/exchange/{}/{}", escaped(exchange), escaped(&key))
            }
        })
    }

    /// Target address of the sender link; none if each message has its own.
    pub(super) fn target(&self) -> Option<String> {
        match self {
            AddressScheme::Solace => None,
            AddressScheme::Rabbit { exchange } => Some(format!("/exchange/{}", escaped(exchange))),
        }
    }

    /// Address of a message.
    pub(super) fn topic(&self, topic: &str) -> String {
        match self {
            AddressScheme::Solace => format!("topic://{topic}"),
            AddressScheme::Rabbit { exchange } => {
                format!(
                    "/exchange/{}/{}",
                    escaped(exchange),
                    escaped(&swapped(topic))
                )
            }
        }
    }

    /// Routing key of a message, where it is separate from the address.
    pub(super) fn key(&self, topic: &str) -> Option<String> {
        match self {
            AddressScheme::Solace => None,
            AddressScheme::Rabbit { .. } => Some(swapped(topic)),
        }
    }

    /// The topic in an address; none if it is no topic.
    pub(super) fn topic_of(&self, address: &str) -> Option<String> {
        match self {
            AddressScheme::Solace => match address.split_once("://") {
                Some(("topic", topic)) => Some(topic.to_owned()),
                Some(_) => None,
                // Clients of the broker's own protocol send topics without a prefix.
                None => Some(address.to_owned()),
            },
            AddressScheme::Rabbit { .. } => {
                let rest = address
                    .strip_prefix("/exchange/")
                    .and_then(|rest| rest.split_once('/'));
                let key = rest
                    .map(|(_, key)| key)
                    .or_else(|| address.strip_prefix("/topic/"))?;
                Some(swapped(&key.replace("%2F", "/")))
            }
        }
    }

    /// The topic in a routing key.
    pub(super) fn topic_of_key(&self, key: &str) -> Option<String> {
        match self {
            AddressScheme::Solace => None,
            AddressScheme::Rabbit { .. } => Some(swapped(key)),
        }
    }
}

fn swapped(topic: &str) -> String {
    let swap = |letter| match letter {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    topic.chars().map(swap).collect()
}

/// RabbitMQ supports only this escape.
fn escaped(name: &str) -> String {
    name.replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_come_back_as_they_went() {
        let schemes = [
            AddressScheme::named("solace").unwrap(),
            AddressScheme::named("rabbitmq").unwrap(),
        ];
        for addresses in &schemes {
            for topic in ["a/b", "my.org/dev/a2a/v1/sam_remote_tool/invoke/x.y"] {
                assert_eq!(
                    addresses.topic_of(&addresses.topic(topic)).as_deref(),
                    Some(topic)
                );
                if let Some(key) = addresses.key(topic) {
                    assert_eq!(addresses.topic_of_key(&key).as_deref(), Some(topic));
                }
            }
            assert_eq!(addresses.topic_of("queue://a"), None);
            assert!(addresses.pattern("a/b*").is_err() && addresses.pattern("a/+").is_err());
        }
        assert_eq!(
            schemes[0].pattern("n/cancel/>").unwrap(),
            "topic://n/cancel/>"
        );
        assert_eq!(
            schemes[1].pattern("n.m/*/>").unwrap(),
            "/exchange/amq.topic/n%2Fm.*.#"
        );
        assert_eq!(schemes[1].queue("n/q/str/w"), "/amq/queue/n%2Fq%2Fstr%2Fw");
        assert!(AddressScheme::named("other").is_err());
    }
}
