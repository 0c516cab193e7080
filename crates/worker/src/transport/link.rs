//! Link: keeps a connection to the broker alive. After a reconnect it subscribes again and resends
//! unconfirmed messages in order; messages received on a lost connection can no longer be settled,
//! because the broker redelivers them.
//!
//! ```text
//! command ─▶ unconfirmed ──connection ends──▶ suspects ─▶ sent alone ──connection ends──▶ poison message: see `poison`
//!                └─confirmed, rejected─▶ done  (one by one)    └─confirmed, rejected─▶ done
//! ```
//!
//! A message that the broker leaves unanswered is resent once on another connection, or returned if
//! the connection cannot be the reason: its sender knows how long it is useful.

use super::{
    Connection, ConnectionError, ConnectionEvent, Connector, LinkNotice, OutgoingMessage,
    Properties, Subscription,
    poison::{MessageClass, PoisonTracker, SendVerdict},
    timed_out,
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot, watch,
    },
    task::JoinHandle,
    time::Instant,
};

/// Received messages that wait for the reader; above this the connection is not read. Few, because
/// each may be large, and the reader must be fast: the broker's responses wait behind them.
const MAX_INCOMING: usize = 16;
/// Capacity of the command channel.
const MAX_COMMANDS: usize = 1024;
/// Capacity of the notice channel; more are dropped.
const MAX_NOTICES: usize = 64;
/// Unconfirmed messages; above this no command is taken.
const MAX_UNCONFIRMED: usize = 1024;
/// Unconfirmed messages per unresponsive recipient: each occupies an entry for 30 s and more.
const MAX_UNANSWERED: usize = 16;
/// Unresponsive recipients that are tracked.
const MAX_KNOWN: usize = 1024;

/// How often and how soon to reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectPolicy {
    /// Consecutive tries; 0 is unlimited.
    pub tries: u64,
    /// Delay between tries.
    pub pause: Duration,
}

/// State of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Not connected, but connecting.
    Connecting {
        /// Why the last connection ended or failed; empty at first.
        why: String,
        /// Number of successful connections so far, because observers may miss short ones.
        after: u64,
    },
    /// Connected, with all subscriptions.
    Connected,
    /// No further try will be made.
    Lost {
        /// The last error.
        why: String,
    },
}

/// A received message.
#[derive(Debug)]
pub struct IncomingMessage {
    /// Topic.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// User properties.
    pub properties: Properties,
    /// Settles the message.
    pub receipt: Receipt,
}

/// Settles a received message. Dropped without that, the broker redelivers it where it can, on the
/// next connection; on this one its credit is reduced by one.
#[derive(Debug)]
pub struct Receipt {
    of: Option<(u64, u64)>,
    can_release: bool,
    commands: mpsc::Sender<LinkCommand>,
}

impl Receipt {
    /// Whether the broker may redeliver the message if it is not settled.
    pub fn is_redeliverable(&self) -> bool {
        self.of.is_some()
    }

    /// Acknowledges the message.
    pub async fn settle(self) {
        if let Some((connection, tag)) = self.of {
            // Without a link the broker cannot be told.
            _ = self
                .commands
                .send(LinkCommand::Settle { connection, tag })
                .await;
        }
    }

    /// Whether the message can be released.
    pub fn can_release(&self) -> bool {
        self.can_release && self.of.is_some()
    }

    /// Releases the message to other receivers, as soon as its subscription has ended, not only
    /// when the connection has.
    pub async fn release(self) {
        if let Some((connection, tag)) = self.of {
            _ = self
                .commands
                .send(LinkCommand::Release { connection, tag })
                .await;
        }
    }
}

#[derive(Debug)]
enum LinkCommand {
    Publish(PendingPublish),
    Subscribe(Subscription),
    Unsubscribe(Subscription),
    Settle { connection: u64, tag: u64 },
    Release { connection: u64, tag: u64 },
}

/// A message until the broker has it.
#[derive(Debug)]
struct PendingPublish {
    message: OutgoingMessage,
    done: oneshot::Sender<Result<(), PublishError>>,
    class: MessageClass,
    /// Send it with nothing else in flight, also during a backoff of its class.
    send_alone: bool,
    /// It was in flight on a connection that was replaced for lack of responses.
    was_unanswered: bool,
}

/// The reader's side of a link.
#[derive(Debug)]
pub struct Link {
    /// Received messages, in order. The reader must never wait for the link: while the channel is
    /// full, the broker's responses are not read.
    pub arrived: mpsc::Receiver<IncomingMessage>,
    /// State of the link.
    pub state: watch::Receiver<LinkState>,
    /// Notices for the operator.
    pub notices: mpsc::Receiver<LinkNotice>,
    /// Whether unsettled messages are redelivered to us or others. Otherwise every received message
    /// must be answered.
    pub redelivers: bool,
    /// Whether a message can be released to other receivers.
    pub releases: bool,
    /// The sending side.
    pub publisher: Publisher,
    /// Ends when every [`Publisher`] and [`Receipt`] is dropped, or the reconnect policy is
    /// exhausted.
    pub task: JoinHandle<()>,
}

/// The sending side of a link. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Publisher {
    commands: mpsc::Sender<LinkCommand>,
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The broker rejects this message permanently; others may be accepted.
    #[error("{0}")]
    Rejected(String),
    /// The broker does not take the message for now. Its sender decides about a retry.
    #[error("{0}")]
    Temporary(String),
    /// The broker closed its connections over this message, the second with nothing else in flight.
    #[error("{0}")]
    ConnectionEnded(String),
    /// Not sent: the broker closed connections over other messages of its class lately.
    #[error("{0}")]
    BackedOff(String),
    /// The link has ended.
    #[error("the link to the broker is over")]
    LinkClosed,
}

impl Publisher {
    /// Publishes a message and waits for the broker's response, over as many connections as that
    /// takes.
    pub async fn publish(&self, message: OutgoingMessage) -> Result<(), PublishError> {
        self.publish_class(MessageClass::SamePayload, message).await
    }

    /// Publishes a message unless its class is in backoff.
    pub async fn publish_class(
        &self,
        class: MessageClass,
        message: OutgoingMessage,
    ) -> Result<(), PublishError> {
        self.send(class, message, false).await
    }

    /// Publishes a message with nothing else in flight, even during a backoff of its class.
    pub async fn publish_alone(
        &self,
        class: MessageClass,
        message: OutgoingMessage,
    ) -> Result<(), PublishError> {
        self.send(class, message, true).await
    }

    async fn send(
        &self,
        class: MessageClass,
        message: OutgoingMessage,
        send_alone: bool,
    ) -> Result<(), PublishError> {
        let (done, told) = oneshot::channel();
        let sending = PendingPublish {
            message,
            done,
            class,
            send_alone,
            was_unanswered: false,
        };
        self.commands
            .send(LinkCommand::Publish(sending))
            .await
            .map_err(|_| PublishError::LinkClosed)?;
        told.await.unwrap_or(Err(PublishError::LinkClosed))
    }

    /// Adds a subscription.
    pub async fn subscribe(&self, to: Subscription) {
        // Without a link there is nothing to subscribe to.
        _ = self.commands.send(LinkCommand::Subscribe(to)).await;
    }

    /// Removes a subscription.
    pub async fn unsubscribe(&self, from: Subscription) {
        _ = self.commands.send(LinkCommand::Unsubscribe(from)).await;
    }
}

impl Link {
    /// Starts connecting.
    pub fn start<C: Connector>(
        connector: C,
        subscriptions: BTreeSet<Subscription>,
        policy: ReconnectPolicy,
    ) -> Link {
        let (commands, taken) = mpsc::channel(MAX_COMMANDS);
        let (arrives, arrived) = mpsc::channel(MAX_INCOMING);
        let (states, state) = watch::channel(LinkState::Connecting {
            why: String::new(),
            after: 0,
        });
        let (notes, notices) = mpsc::channel(MAX_NOTICES);
        let redelivers = connector.redelivers();
        let releases = connector.releases();
        let link_task = LinkTask {
            can_release: releases,
            subscriptions,
            policy,
            // Weak, so that the task ends when nobody else uses the link.
            commands: commands.downgrade(),
            taken,
            arrives,
            states,
            notes,
            undelivered: None,
            unconfirmed: BTreeMap::new(),
            suspects: BTreeMap::new(),
            suspect_in_flight: None,
            answered: 0,
            poison: PoisonTracker::default(),
            silent: BTreeSet::new(),
            last: 0,
            connections: 0,
        };
        let publisher = Publisher { commands };
        let task = tokio::spawn(link_task.run(connector));
        Link {
            arrived,
            state,
            notices,
            redelivers,
            releases,
            publisher,
            task,
        }
    }
}

struct LinkTask {
    can_release: bool,
    subscriptions: BTreeSet<Subscription>,
    policy: ReconnectPolicy,
    commands: mpsc::WeakSender<LinkCommand>,
    taken: mpsc::Receiver<LinkCommand>,
    arrives: mpsc::Sender<IncomingMessage>,
    states: watch::Sender<LinkState>,
    notes: mpsc::Sender<LinkNotice>,
    /// A received message that does not fit into the channel.
    undelivered: Option<IncomingMessage>,
    /// By number, so that they are resent in order.
    unconfirmed: BTreeMap<u64, PendingPublish>,
    /// Messages over which the broker may close the next connection: each is sent alone. No command
    /// is taken while there are any.
    suspects: BTreeMap<u64, PendingPublish>,
    /// The suspect in flight.
    suspect_in_flight: Option<u64>,
    /// Highest number that was answered on this connection.
    answered: u64,
    poison: PoisonTracker,
    /// Recipients with an unanswered message and none answered since.
    silent: BTreeSet<String>,
    last: u64,
    connections: u64,
}

/// Why a connection is no longer used.
enum ConnectionEnd {
    Failed(ConnectionError),
    /// Closed over a message that is not resent: reconnect at once.
    Explained(ConnectionError),
    /// Nobody uses the link any more.
    Unused,
}

/// Input of the link task.
enum LinkInput {
    Event(ConnectionEvent),
    /// The channel has space for the waiting message.
    Room,
}

impl LinkTask {
    async fn run<C: Connector>(mut self, mut connector: C) {
        let mut failures = 0;
        loop {
            let before = self.connections;
            let (error, pause) = match connector.connect().await {
                Ok(connection) => match self.serve(connection).await {
                    ConnectionEnd::Unused => return,
                    ConnectionEnd::Failed(error) => (error, self.policy.pause),
                    ConnectionEnd::Explained(error) => (error, Duration::ZERO),
                },
                Err(error) => (error, self.policy.pause),
            };
            // A connection with subscriptions was successful: the count restarts.
            failures = if self.connections > before {
                0
            } else {
                failures + 1
            };
            let is_over =
                error.is_final || (self.policy.tries != 0 && failures >= self.policy.tries);
            let why = format!("{}: {error}", connector.address());
            if is_over {
                self.states.send_replace(LinkState::Lost { why });
                return;
            }
            self.states.send_replace(LinkState::Connecting {
                why,
                after: self.connections,
            });
            tokio::time::sleep(pause).await;
            if self.taken.is_closed() && self.taken.is_empty() {
                return;
            }
        }
    }

    async fn serve<C: Connection>(&mut self, mut connection: C) -> ConnectionEnd {
        for subscription in &self.subscriptions {
            if let Err(error) = connection.subscribe(subscription).await {
                return ConnectionEnd::Failed(error);
            }
        }
        self.connections += 1;
        self.answered = 0;
        self.states.send_replace(LinkState::Connected);
        match self.exchange(&mut connection).await {
            Err(error) => {
                if self.handle_connection_end(&error) {
                    ConnectionEnd::Explained(error)
                } else {
                    ConnectionEnd::Failed(error)
                }
            }
            Ok(()) => {
                connection.close().await;
                ConnectionEnd::Unused
            }
        }
    }

    /// Runs until nobody uses the link any more.
    async fn exchange<C: Connection>(&mut self, connection: &mut C) -> Result<(), ConnectionError> {
        for (number, sending) in &self.unconfirmed {
            connection.publish(*number, &sending.message).await?;
        }
        loop {
            self.send_suspect(connection).await?;
            let is_full = self.undelivered.is_some();
            let may_order = self.unconfirmed.len() < MAX_UNCONFIRMED && self.suspects.is_empty();
            // Fair: a flood of commands must not hide a lost connection, and a flood of messages
            // must not delay the commands that settle them.
            tokio::select! {
                heard = listen(connection, &self.arrives, is_full) => self.handle_input(heard?)?,
                command = self.taken.recv(), if may_order => match command {
                    Some(command) => self.execute(command, connection).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// Sends the next suspect if nothing else is in flight.
    async fn send_suspect<C: Connection>(
        &mut self,
        connection: &mut C,
    ) -> Result<(), ConnectionError> {
        let is_clear = self.suspect_in_flight.is_none() && self.unconfirmed.is_empty();
        if let Some((number, sending)) = self.suspects.first_key_value().filter(|_| is_clear) {
            self.suspect_in_flight = Some(*number);
            connection.publish(*number, &sending.message).await?;
        }
        Ok(())
    }

    /// Handles the end of a connection. True if a message is known to be the cause: that is given
    /// up.
    fn handle_connection_end(&mut self, error: &ConnectionError) -> bool {
        let suspect_in_flight = self.suspect_in_flight.take();
        if error.is_timeout {
            return false;
        }
        let Some(guilty) = suspect_in_flight.and_then(|number| self.suspects.remove(&number))
        else {
            self.suspects.append(&mut self.unconfirmed);
            return false;
        };
        self.poison
            .ended(&guilty.class, &guilty.message, Instant::now());
        _ = guilty.done.send(Err(PublishError::ConnectionEnded(format!(
            "the broker ends each connection by which it is sent: {error}. Its log may say why: it may be too large for \
             the broker, this user may not send there, or a queue for it may be full"
        ))));
        self.reject_backed_off();
        true
    }

    /// Returns the suspects whose class is now in backoff.
    fn reject_backed_off(&mut self) {
        for (number, sending) in std::mem::take(&mut self.suspects) {
            _ = self
                .admit(sending)
                .map(|sending| self.suspects.insert(number, sending));
        }
    }

    fn is_silent(&self, class: &MessageClass) -> bool {
        matches!(class, MessageClass::Recipient(name) if self.silent.contains(name))
    }

    /// Checks a message before it is sent. None if its class is in backoff, or too many such
    /// messages are in flight; its sender is told.
    fn admit(&self, mut sending: PendingPublish) -> Option<PendingPublish> {
        let others = || self.unconfirmed.values().chain(self.suspects.values());
        let is_same = |other: &&PendingPublish| other.class == sending.class;
        if self.is_silent(&sending.class) && others().filter(is_same).count() >= MAX_UNANSWERED {
            let why = format!("the broker says nothing of {MAX_UNANSWERED} such that were sent");
            _ = sending.done.send(Err(PublishError::BackedOff(why)));
            return None;
        }
        match self
            .poison
            .verdict(&sending.class, &sending.message, Instant::now())
        {
            SendVerdict::BackOff(left) if !sending.send_alone => {
                let seconds = left.as_secs() + 1;
                let why = format!(
                    "the broker ended connections over such before: none is sent for {seconds} s"
                );
                _ = sending.done.send(Err(PublishError::BackedOff(why)));
                return None;
            }
            SendVerdict::SendAlone => sending.send_alone = true,
            SendVerdict::BackOff(_) | SendVerdict::Send => {}
        }
        Some(sending)
    }

    fn handle_input(&mut self, heard: LinkInput) -> Result<(), ConnectionError> {
        match heard {
            LinkInput::Event(ConnectionEvent::Message {
                tag,
                topic,
                payload,
                properties,
            }) => {
                let Some(commands) = self.commands.upgrade() else {
                    return Ok(());
                };
                let of = tag.map(|tag| (self.connections, tag));
                let can_release = self.can_release;
                let receipt = Receipt {
                    of,
                    can_release,
                    commands,
                };
                self.deliver(IncomingMessage {
                    topic,
                    payload,
                    properties,
                    receipt,
                });
            }
            LinkInput::Event(ConnectionEvent::Confirmed(number)) => self.complete(number, Ok(())),
            LinkInput::Event(ConnectionEvent::Refused(number, why)) => {
                self.complete(number, Err(PublishError::Rejected(why)))
            }
            LinkInput::Event(ConnectionEvent::NotNow(number, why)) => {
                self.complete(number, Err(PublishError::Temporary(why)))
            }
            LinkInput::Event(ConnectionEvent::Unanswered(number, why)) => {
                return self.unanswered(number, why);
            }
            // Notices that nobody reads are dropped.
            LinkInput::Event(ConnectionEvent::Notice(notice)) => _ = self.notes.try_send(notice),
            LinkInput::Room => _ = self.undelivered.take().map(|arrived| self.deliver(arrived)),
        }
        Ok(())
    }

    fn deliver(&mut self, arrived: IncomingMessage) {
        match self.arrives.try_send(arrived) {
            // Without a reader the message is redelivered to somebody else.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(arrived)) => self.undelivered = Some(arrived),
        }
    }

    /// Removes a message that is no longer in flight.
    fn take(&mut self, number: u64) -> Option<PendingPublish> {
        self.suspect_in_flight
            .take_if(|suspect_in_flight| *suspect_in_flight == number);
        self.unconfirmed
            .remove(&number)
            .or_else(|| self.suspects.remove(&number))
    }

    /// Handles a missing response. If later messages were answered, or two connections leave the
    /// same message unanswered, the reason is the message or its recipient, not the connection.
    /// Otherwise all messages move to another connection, none of them as a suspect: each one sent
    /// alone and not answered would delay everybody.
    fn unanswered(&mut self, number: u64, why: String) -> Result<(), ConnectionError> {
        let was_alone = self.suspect_in_flight == Some(number);
        let Some(sending) = self.take(number) else {
            return Ok(());
        };
        // A missing response does not close connections.
        self.poison.answered(&sending.class, &sending.message);
        if self.answered > number || sending.was_unanswered || self.is_silent(&sending.class) {
            self.remember_silent(sending.class);
            _ = sending.done.send(Err(PublishError::Temporary(why.clone())));
            if !was_alone || self.suspects.is_empty() {
                return Ok(());
            }
        } else {
            self.unconfirmed.insert(number, sending);
        }
        self.unconfirmed.append(&mut self.suspects);
        self.unconfirmed
            .values_mut()
            .for_each(|sending| sending.was_unanswered = true);
        Err(timed_out(why))
    }

    fn remember_silent(&mut self, class: MessageClass) {
        if let MessageClass::Recipient(name) = class {
            if self.silent.len() >= MAX_KNOWN {
                self.silent.clear();
            }
            self.silent.insert(name);
        }
    }

    fn complete(&mut self, number: u64, how: Result<(), PublishError>) {
        self.answered = self.answered.max(number);
        if let Some(sending) = self.take(number) {
            self.poison.answered(&sending.class, &sending.message);
            if let MessageClass::Recipient(name) = &sending.class {
                self.silent.remove(name);
            }
            // The sender may have stopped waiting.
            _ = sending.done.send(how);
        }
    }

    async fn execute<C: Connection>(
        &mut self,
        command: LinkCommand,
        connection: &mut C,
    ) -> Result<(), ConnectionError> {
        match command {
            LinkCommand::Publish(sending) => {
                let Some(sending) = self.admit(sending) else {
                    return Ok(());
                };
                self.last += 1;
                if sending.send_alone {
                    self.suspects.insert(self.last, sending);
                    return Ok(());
                }
                let sent = connection.publish(self.last, &sending.message).await;
                self.unconfirmed.insert(self.last, sending);
                sent
            }
            LinkCommand::Subscribe(to) => {
                let subscribed = connection.subscribe(&to).await;
                self.subscriptions.insert(to);
                subscribed
            }
            LinkCommand::Unsubscribe(from) => {
                self.subscriptions.remove(&from);
                connection.unsubscribe(&from).await
            }
            LinkCommand::Settle {
                connection: of,
                tag,
            } if of == self.connections => connection.settle(tag).await,
            LinkCommand::Release {
                connection: of,
                tag,
            } if of == self.connections => connection.release(tag).await,
            LinkCommand::Settle { .. } | LinkCommand::Release { .. } => Ok(()),
        }
    }
}

/// While a received message waits for the reader, the connection is not read, so that the broker
/// holds messages back; commands and heartbeats go on.
async fn listen<C: Connection>(
    connection: &mut C,
    arrives: &mpsc::Sender<IncomingMessage>,
    is_full: bool,
) -> Result<LinkInput, ConnectionError> {
    if !is_full {
        return connection.next().await.map(LinkInput::Event);
    }
    tokio::select! {
        error = connection.idle() => Err(error),
        _ = arrives.reserve() => Ok(LinkInput::Room),
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
