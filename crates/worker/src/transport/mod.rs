//! Ways to a broker. A [`Connector`] makes connections, a [`Connection`] speaks one protocol and knows nothing of what is
//! said; [`Link`] keeps one alive: connects again, subscribes again, sends again what was not confirmed.
//!
//! ```text
//! worker ──orders──▶ link ──▶ Connection ──▶ broker
//!        ◀─arrived──      ◀──            ◀──
//! ```

pub mod amqp;
mod blame;
mod choose;
pub mod dev;
mod driver;
pub mod lines;
mod link;
pub mod mqtt;
mod stream;
mod tls;

pub use blame::Family;
pub use choose::Broker;
pub use link::{Arrived, Gone, Link, LinkState, Patience, Reach, Receipt};
pub use tls::{Certificate, Tls, Trust};

use bytes::Bytes;
use std::{collections::BTreeMap, fmt};

/// What travels beside a message. Values are texts; numbers arrive as they are written.
pub type Properties = BTreeMap<String, String>;

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Outgoing {
    pub topic: String,
    pub payload: Bytes,
    pub properties: Properties,
}

/// What is listened to. Patterns are in the words of the mesh: `*` is one level, a last `>` is all below.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscription {
    /// The pattern.
    pub pattern: String,
    /// Whether the members of the pool take turns, where the protocol can do that; otherwise each gets all.
    pub is_shared: bool,
}

/// What even an event without a word takes, or a property, about.
const SIZE_OF_ONE: usize = 256;

/// What a connection tells.
#[derive(Debug)]
pub enum Event {
    /// A message came.
    Message {
        /// By which it is settled; none where the protocol has no such thing.
        tag: Option<u64>,
        /// Where it was sent to.
        topic: String,
        /// What it says.
        payload: Bytes,
        /// What travels beside it.
        properties: Properties,
    },
    /// The broker has what was sent under this number.
    Confirmed(u64),
    /// The broker refuses what was sent under this number; sending it again would not help.
    Refused(u64, String),
    /// The broker does not take it for now: for lack of room, or because nobody is there. It may be sent again.
    NotNow(u64, String),
    /// The broker has not said for long what it does with this. It is waited for no longer.
    Unanswered(u64, String),
    /// Something that whoever runs this should know.
    Notice(Notice),
}

impl Event {
    /// What it takes in memory, about.
    fn size(&self) -> usize {
        SIZE_OF_ONE + self.words()
    }

    fn words(&self) -> usize {
        match self {
            Event::Message {
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
            Event::Confirmed(_) => 0,
            Event::Refused(_, why) | Event::NotNow(_, why) | Event::Unanswered(_, why) => why.len(),
            Event::Notice(Notice::PassedOver(what) | Notice::Weaker(what)) => what.len(),
        }
    }
}

/// What nobody asked for and somebody should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message came that cannot be answered, because it is too large or cannot be understood. It does not come again.
    PassedOver(String),
    /// The broker gives less than it was asked for.
    Weaker(String),
}

/// Why there is no connection, or no more. Says nothing secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What happened.
    pub message: String,
    /// Trying again cannot help: the broker does not want us.
    pub is_final: bool,
    /// The broker was waited for in vain: it has said nothing against anything that was sent.
    pub is_silence: bool,
}

/// Trouble that may pass.
fn again(message: impl Into<String>) -> Trouble {
    Trouble {
        message: message.into(),
        is_final: false,
        is_silence: false,
    }
}

/// The same, where the broker was waited for in vain.
fn silence(message: impl Into<String>) -> Trouble {
    Trouble {
        is_silence: true,
        ..again(message)
    }
}

/// Trouble that will not.
fn never(message: impl Into<String>) -> Trouble {
    Trouble {
        is_final: true,
        ..again(message)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

/// Name and password.
#[derive(Clone)]
pub struct Credentials {
    /// The name.
    pub user: String,
    /// The password.
    pub password: Option<Bytes>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Credentials({:?}, ..)", self.user)
    }
}

/// Makes connections to one broker.
pub trait Connector: Send + 'static {
    /// What it makes.
    type Connection: Connection;

    /// The broker's address, for messages: without credentials.
    fn address(&self) -> String;

    /// Whether what was not settled comes again, to us or to others, when the connection is gone or we are. Where it does not,
    /// whoever took a message must answer it.
    fn redelivers(&self) -> bool;

    /// Whether a message can be given back, so that others have it at once.
    fn releases(&self) -> bool {
        false
    }

    /// One try. What must be waited for before it is waited for here, so that tries are counted that were made.
    fn connect(&mut self) -> impl Future<Output = Result<Self::Connection, Trouble>> + Send;
}

/// One connection. Nothing here waits for the broker but [`Connection::next`] and [`Connection::subscribe`].
pub trait Connection: Send {
    /// What comes next. May be dropped at any point without losing anything.
    fn next(&mut self) -> impl Future<Output = Result<Event, Trouble>> + Send;

    /// What it must do to stay alive while nobody has room for what comes next; ends in trouble only. May be dropped at any
    /// point.
    fn idle(&mut self) -> impl Future<Output = Trouble> + Send {
        std::future::pending()
    }

    /// Listens to this, too; an error if the broker refuses.
    fn subscribe(&mut self, to: &Subscription) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Listens to it no more.
    fn unsubscribe(
        &mut self,
        from: &Subscription,
    ) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Sends; the event that confirms it has this number. Protocols without confirmations tell it as soon as it is written.
    fn publish(
        &mut self,
        number: u64,
        message: &Outgoing,
    ) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Tells the broker that a message has been dealt with and need not come again.
    fn settle(&mut self, tag: u64) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Gives a message back as soon as we listen to such no more, so that it does not come back to us.
    fn release(&mut self, _tag: u64) -> impl Future<Output = Result<(), Trouble>> + Send {
        std::future::ready(Ok(()))
    }

    /// Says farewell.
    fn close(self) -> impl Future<Output = ()> + Send;
}
