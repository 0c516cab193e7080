//! Transports to a broker. A [`Connector`] opens connections, a [`Connection`] speaks one protocol,
//! whatever the messages; [`Link`] keeps one alive: it reconnects, subscribes again, and resends
//! unconfirmed messages.
//!
//! ```text
//! worker ──commands──▶ link ──▶ Connection ──▶ broker
//!        ◀─messages──       ◀──            ◀──
//! ```

pub mod amqp;
pub mod dev;
pub mod dev_protocol;
mod driver;
mod link;
pub mod mqtt;
mod poison;
mod protocol;
mod stream;
mod tls;

pub use link::{
    IncomingMessage, Link, LinkState, PublishError, Publisher, Receipt, ReconnectPolicy,
};
pub use poison::MessageClass;
pub use protocol::BrokerProtocol;
pub use tls::{BrokerTls, ClientCertificate, Trust};

use bytes::Bytes;
use std::{collections::BTreeMap, fmt};

/// User properties of a message, as texts.
pub type Properties = BTreeMap<String, String>;

/// A message to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// User properties.
    pub properties: Properties,
}

/// A subscription with the mesh's wildcards: `*` is one level, a last `>` is everything below.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscription {
    /// Topic pattern.
    pub pattern: String,
    /// Whether the members of the pool share the messages, where the protocol supports that;
    /// otherwise each gets all.
    pub is_shared: bool,
}

/// Approximate overhead of an event or a property.
const SIZE_OF_ONE: usize = 256;

/// Event of a connection.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A message was received.
    Message {
        /// Id to settle it; none if the protocol has no acknowledgements.
        tag: Option<u64>,
        /// Topic.
        topic: String,
        /// Payload.
        payload: Bytes,
        /// User properties.
        properties: Properties,
    },
    /// The broker confirmed the message with this number.
    Confirmed(u64),
    /// The broker rejects the message permanently.
    Refused(u64, String),
    /// The broker does not take the message for now: it is out of resources, or nobody is
    /// subscribed.
    NotNow(u64, String),
    /// The broker did not respond to the message in time; its response is no longer awaited.
    Unanswered(u64, String),
    /// A notice for the operator.
    Notice(LinkNotice),
}

impl ConnectionEvent {
    /// Approximate size in memory.
    fn size(&self) -> usize {
        SIZE_OF_ONE + self.words()
    }

    fn words(&self) -> usize {
        match self {
            ConnectionEvent::Message {
                topic,
                payload,
                properties,
                ..
            } => {
                let beside: usize = properties
                    .iter()
                    .map(|(key, value)| key.len() + value.len())
                    .sum();
                topic.len() + payload.len() + beside + properties.len() * SIZE_OF_ONE
            }
            ConnectionEvent::Confirmed(_) => 0,
            ConnectionEvent::Refused(_, why)
            | ConnectionEvent::NotNow(_, why)
            | ConnectionEvent::Unanswered(_, why) => why.len(),
            ConnectionEvent::Notice(LinkNotice::PassedOver(what) | LinkNotice::Weaker(what)) => {
                what.len()
            }
        }
    }
}

/// A notice of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkNotice {
    /// A message was dropped because it is too large or invalid. It is not redelivered.
    PassedOver(String),
    /// The broker grants less than was requested.
    Weaker(String),
}

/// Why there is no connection, or it ended. Contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// What happened.
    pub message: String,
    /// Another try cannot succeed.
    pub is_final: bool,
    /// The broker did not respond in time; it rejected nothing.
    pub is_timeout: bool,
}

/// A temporary error.
fn temporary(message: impl Into<String>) -> ConnectionError {
    ConnectionError {
        message: message.into(),
        is_final: false,
        is_timeout: false,
    }
}

/// A timeout.
fn timed_out(message: impl Into<String>) -> ConnectionError {
    ConnectionError {
        is_timeout: true,
        ..temporary(message)
    }
}

/// A permanent error.
fn fatal(message: impl Into<String>) -> ConnectionError {
    ConnectionError {
        is_final: true,
        ..temporary(message)
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

/// User name and password.
#[derive(Clone)]
pub struct BrokerCredentials {
    /// User name.
    pub user: String,
    /// Password.
    pub password: Option<Bytes>,
}

impl fmt::Debug for BrokerCredentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Credentials({:?}, ..)", self.user)
    }
}

/// Opens connections to one broker.
pub trait Connector: Send + 'static {
    /// Type of the connections.
    type Connection: Connection;

    /// Address of the broker for messages, without credentials.
    fn address(&self) -> String;

    /// Whether unsettled messages are redelivered to us or others after a connection or worker is
    /// gone. Otherwise every received message must be answered.
    fn redelivers(&self) -> bool;

    /// Whether a message can be released to other receivers.
    fn releases(&self) -> bool {
        false
    }

    /// Tries once. Any delay before the try belongs here, so that only real tries are counted.
    fn connect(&mut self)
    -> impl Future<Output = Result<Self::Connection, ConnectionError>> + Send;
}

/// A connection. Only [`Connection::next`] and [`Connection::subscribe`] wait for the broker.
pub trait Connection: Send {
    /// The next event. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Result<ConnectionEvent, ConnectionError>> + Send;

    /// Keeps the connection alive while events cannot be taken; returns only an error. Cancel safe.
    fn idle(&mut self) -> impl Future<Output = ConnectionError> + Send {
        std::future::pending()
    }

    /// Adds a subscription; an error if the broker refuses.
    fn subscribe(
        &mut self,
        to: &Subscription,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Removes a subscription.
    fn unsubscribe(
        &mut self,
        from: &Subscription,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Publishes a message; its confirmation has this number. Protocols without confirmations
    /// report it as soon as it is written.
    fn publish(
        &mut self,
        number: u64,
        message: &OutgoingMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Acknowledges a message.
    fn settle(&mut self, tag: u64) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Releases a message as soon as its subscription has ended, so that it does not come back.
    fn release(&mut self, _tag: u64) -> impl Future<Output = Result<(), ConnectionError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Closes the connection gracefully.
    fn close(self) -> impl Future<Output = ()> + Send;
}
