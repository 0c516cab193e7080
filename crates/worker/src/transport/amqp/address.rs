//! What things of the mesh are called on a broker. AMQP leaves names to brokers, and they differ.

use super::super::{Trouble, never};
use crate::wire::topic::mqtt_filter;

/// How a broker calls queues and topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// `queue://NAME` and `topic://TOPIC`.
    Solace,
    /// Queues, and an exchange of the kind `topic`. There `.` stands between levels, so `.` and `/` change places: nothing is
    /// lost, and wildcards mean what they mean in the mesh. Which keys a queue gets is bound by whoever made it.
    Rabbit {
        /// By which topics travel: `amq.topic` unless another was made.
        exchange: String,
    },
}

impl Addresses {
    /// The scheme with this name, as settings give it.
    pub fn named(name: &str) -> Result<Addresses, String> {
        match name {
            "solace" => Ok(Addresses::Solace),
            "rabbitmq" => Ok(Addresses::Rabbit {
                exchange: "amq.topic".to_owned(),
            }),
            other => Err(format!(
                "`{other}` is no scheme of addresses: use `solace` or `rabbitmq`"
            )),
        }
    }

    /// Where a queue is read.
    pub(super) fn queue(&self, name: &str) -> String {
        match self {
            Addresses::Solace => format!("queue://{name}"),
            Addresses::Rabbit { .. } => format!("/amq/queue/{}", escaped(name)),
        }
    }

    /// Where all that matches a pattern of the mesh is read.
    pub(super) fn pattern(&self, pattern: &str) -> Result<String, Trouble> {
        // What cannot be said in the one cannot be said in the other.
        mqtt_filter(pattern).map_err(|bad| never(bad.to_string()))?;
        Ok(match self {
            Addresses::Solace => format!("topic://{pattern}"),
            Addresses::Rabbit { exchange } => {
                let key = swapped(pattern);
                let key = match key.strip_suffix('>') {
                    Some(before) => format!("{before}#"),
                    None => key,
                };
                format!("/exchange/{}/{}", escaped(exchange), escaped(&key))
            }
        })
    }

    /// Where everything is sent to; none is where each message says.
    pub(super) fn target(&self) -> Option<String> {
        match self {
            Addresses::Solace => None,
            Addresses::Rabbit { exchange } => Some(format!("/exchange/{}", escaped(exchange))),
        }
    }

    /// Where one message is sent to.
    pub(super) fn topic(&self, topic: &str) -> String {
        match self {
            Addresses::Solace => format!("topic://{topic}"),
            Addresses::Rabbit { exchange } => {
                format!(
                    "/exchange/{}/{}",
                    escaped(exchange),
                    escaped(&swapped(topic))
                )
            }
        }
    }

    /// By which the broker decides who gets a message, where that is apart from its address.
    pub(super) fn key(&self, topic: &str) -> Option<String> {
        match self {
            Addresses::Solace => None,
            Addresses::Rabbit { .. } => Some(swapped(topic)),
        }
    }

    /// The topic behind an address; none if it is something else.
    pub(super) fn topic_of(&self, address: &str) -> Option<String> {
        match self {
            Addresses::Solace => match address.split_once("://") {
                Some(("topic", topic)) => Some(topic.to_owned()),
                Some(_) => None,
                // Between clients of its own protocol topics have no prefix.
                None => Some(address.to_owned()),
            },
            Addresses::Rabbit { .. } => {
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

    /// The topic behind a key.
    pub(super) fn topic_of_key(&self, key: &str) -> Option<String> {
        match self {
            Addresses::Solace => None,
            Addresses::Rabbit { .. } => Some(swapped(key)),
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

/// RabbitMQ understands this one escape and no other.
fn escaped(name: &str) -> String {
    name.replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_come_back_as_they_went() {
        let schemes = [
            Addresses::named("solace").unwrap(),
            Addresses::named("rabbitmq").unwrap(),
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
        assert!(Addresses::named("other").is_err());
    }
}
