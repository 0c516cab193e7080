//! Keeps a connection alive. What was subscribed is subscribed again; what the broker has not confirmed is sent again, in order;
//! what came by a connection that is gone cannot be settled any more: the broker will send it again.
//!
//! ```text
//! order ─▶ unconfirmed ──the connection ends──▶ suspects ─▶ alone ──the connection ends──▶ it was this one: see `blame`
//!               └─confirmed, refused─▶ done          (one after the other) └─confirmed, refused─▶ done
//! ```
//!
//! What the broker leaves unanswered for long is sent once more by another connection, or given back if it cannot be the
//! connection: whoever sends it knows how long it is of use.

use super::{
    Connection, Connector, Event, Notice, Outgoing, Properties, Subscription, Trouble,
    blame::{Blame, Family, Standing},
    silence,
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

/// Messages that came and wait to be taken; then the connection is not read any more. Few, because each may be large, and
/// because whoever takes them must do so at once: answers of the broker wait behind them.
const MOST_ARRIVED: usize = 16;
/// Orders that wait for the connection.
const MOST_ORDERS: usize = 1024;
/// Notices that nobody has taken; more are dropped.
const MOST_NOTICES: usize = 64;
/// Messages that the broker has not confirmed; then no order is taken until it has.
const MOST_UNCONFIRMED: usize = 1024;
/// Of those for an audience of which the broker says nothing: each takes a place for 30 s and more.
const MOST_SILENT: usize = 16;
/// Audiences that are known to be such.
const MOST_KNOWN: usize = 1024;

/// How often it is tried to connect, and how long is waited between two tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Tries in a row; 0 is for ever.
    pub tries: u64,
    /// Between two of them.
    pub pause: Duration,
}

/// How it stands with the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// There is no connection, but there will be.
    Connecting {
        /// Why the last one ended or failed; empty at first.
        why: String,
        /// How many were good before: whoever looks seldom may not have seen each of them.
        after: u64,
    },
    /// Everything that was asked for is subscribed.
    Connected,
    /// There will be none any more.
    Lost {
        /// Why.
        why: String,
    },
}

/// A message that came.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Arrived {
    pub topic: String,
    pub payload: Bytes,
    pub properties: Properties,
    pub receipt: Receipt,
}

/// By which a message is settled. Dropped without that, the broker will send it again where it can, by the next connection; by
/// this one it sends one less at once.
#[derive(Debug)]
pub struct Receipt {
    of: Option<(u64, u64)>,
    can_go_back: bool,
    orders: mpsc::Sender<Order>,
}

impl Receipt {
    /// Whether the broker may send it again if it is not settled.
    pub fn comes_again(&self) -> bool {
        self.of.is_some()
    }

    /// It has been dealt with and need not come again.
    pub async fn settle(self) {
        if let Some((connection, tag)) = self.of {
            // Without a link nobody can be told.
            _ = self.orders.send(Order::Settle { connection, tag }).await;
        }
    }

    /// Whether it can be released.
    pub fn can_go_back(&self) -> bool {
        self.can_go_back && self.of.is_some()
    }

    /// It will not be dealt with here: others may have it as soon as we listen to such no more, not only when we are gone.
    pub async fn release(self) {
        if let Some((connection, tag)) = self.of {
            _ = self.orders.send(Order::Release { connection, tag }).await;
        }
    }
}

#[derive(Debug)]
enum Order {
    Publish(Sending),
    Subscribe(Subscription),
    Unsubscribe(Subscription),
    Settle { connection: u64, tag: u64 },
    Release { connection: u64, tag: u64 },
}

/// What is to be sent, until the broker has it.
#[derive(Debug)]
struct Sending {
    message: Outgoing,
    done: oneshot::Sender<Result<(), Gone>>,
    family: Family,
    /// It is sent with nothing else under way, also while its family rests.
    goes_alone: bool,
    /// It was under way by a connection that was replaced because nothing was answered any more.
    was_unanswered: bool,
}

/// A link to a broker: what comes by it.
#[derive(Debug)]
pub struct Link {
    /// Messages, in their order. Whoever takes them must not wait for anything of the link meanwhile: while they are full, the
    /// broker's answers are not read.
    pub arrived: mpsc::Receiver<Arrived>,
    /// How it stands.
    pub state: watch::Receiver<LinkState>,
    /// What whoever runs this should know.
    pub notices: mpsc::Receiver<Notice>,
    /// Whether what was not settled comes again, to us or to others. Where it does not, whoever took a message must answer it.
    pub redelivers: bool,
    /// Whether a message can be given back, so that others have it at once.
    pub releases: bool,
    /// What can be done with it.
    pub reach: Reach,
    /// Ends when every [`Reach`] and [`Receipt`] is gone, or the patience is.
    pub task: JoinHandle<()>,
}

/// What can be done with a link. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reach {
    orders: mpsc::Sender<Order>,
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The broker refuses this one, and always will; others may go.
    #[error("{0}")]
    Refused(String),
    /// The broker does not take this one for now. Whoever sends it knows how long it is worth another try.
    #[error("{0}")]
    NotNow(String),
    /// The broker ended its connections over this one, the second with nothing else under way.
    #[error("{0}")]
    Ended(String),
    /// It was not sent: the broker ended connections over others of its family lately.
    #[error("{0}")]
    HeldBack(String),
    /// Nothing goes any more.
    #[error("the link to the broker is over")]
    Over,
}

impl Reach {
    /// Sends, and waits until the broker has said what it does with it, through as many connections as that takes.
    pub async fn publish(&self, message: Outgoing) -> Result<(), Gone> {
        self.publish_of(Family::Words, message).await
    }

    /// The same, if nothing is held against its family.
    pub async fn publish_of(&self, family: Family, message: Outgoing) -> Result<(), Gone> {
        self.send(family, message, false).await
    }

    /// The same with nothing else under way, whatever is held against its family.
    pub async fn publish_alone(&self, family: Family, message: Outgoing) -> Result<(), Gone> {
        self.send(family, message, true).await
    }

    async fn send(&self, family: Family, message: Outgoing, goes_alone: bool) -> Result<(), Gone> {
        let (done, told) = oneshot::channel();
        let sending = Sending {
            message,
            done,
            family,
            goes_alone,
            was_unanswered: false,
        };
        self.orders
            .send(Order::Publish(sending))
            .await
            .map_err(|_| Gone::Over)?;
        told.await.unwrap_or(Err(Gone::Over))
    }

    /// Listens to this, too.
    pub async fn subscribe(&self, to: Subscription) {
        // Without a link there is nothing to listen to.
        _ = self.orders.send(Order::Subscribe(to)).await;
    }

    /// Listens to it no more.
    pub async fn unsubscribe(&self, from: Subscription) {
        _ = self.orders.send(Order::Unsubscribe(from)).await;
    }
}

impl Link {
    /// Begins to connect.
    pub fn start<C: Connector>(
        connector: C,
        subscriptions: BTreeSet<Subscription>,
        patience: Patience,
    ) -> Link {
        let (orders, taken) = mpsc::channel(MOST_ORDERS);
        let (arrives, arrived) = mpsc::channel(MOST_ARRIVED);
        let (states, state) = watch::channel(LinkState::Connecting {
            why: String::new(),
            after: 0,
        });
        let (notes, notices) = mpsc::channel(MOST_NOTICES);
        let (redelivers, releases) = (connector.redelivers(), connector.releases());
        let keeper = Keeper {
            can_go_back: releases,
            subscriptions,
            patience,
            // It must not keep itself alive.
            orders: orders.downgrade(),
            taken,
            arrives,
            states,
            notes,
            waiting: None,
            unconfirmed: BTreeMap::new(),
            suspects: BTreeMap::new(),
            alone: None,
            answered: 0,
            blame: Blame::default(),
            silent: BTreeSet::new(),
            last: 0,
            connections: 0,
        };
        let (reach, task) = (Reach { orders }, tokio::spawn(keeper.run(connector)));
        Link {
            arrived,
            state,
            notices,
            redelivers,
            releases,
            reach,
            task,
        }
    }
}

struct Keeper {
    can_go_back: bool,
    subscriptions: BTreeSet<Subscription>,
    patience: Patience,
    orders: mpsc::WeakSender<Order>,
    taken: mpsc::Receiver<Order>,
    arrives: mpsc::Sender<Arrived>,
    states: watch::Sender<LinkState>,
    notes: mpsc::Sender<Notice>,
    /// One for which there is no room yet.
    waiting: Option<Arrived>,
    /// By number, so that they are sent again in their order.
    unconfirmed: BTreeMap<u64, Sending>,
    /// Over one of which the broker may end the next connection: each goes alone. No order is taken while there are any.
    suspects: BTreeMap<u64, Sending>,
    /// The suspect that is under way.
    alone: Option<u64>,
    /// The last of all that this connection has answered.
    answered: u64,
    blame: Blame,
    /// Audiences of which the broker left a message unanswered, and has answered none since.
    silent: BTreeSet<String>,
    last: u64,
    connections: u64,
}

/// Why a connection is used no more.
enum End {
    Trouble(Trouble),
    /// The broker ended it over a message, which is not sent again: the next can come at once.
    Explained(Trouble),
    /// Nobody is left who could want something.
    Unused,
}

/// What happened at a connection.
enum Heard {
    Event(Event),
    /// There is room for a message that came.
    Room,
}

impl Keeper {
    async fn run<C: Connector>(mut self, mut connector: C) {
        let mut failures = 0;
        loop {
            let before = self.connections;
            let (trouble, pause) = match connector.connect().await {
                Ok(connection) => match self.serve(connection).await {
                    End::Unused => return,
                    End::Trouble(trouble) => (trouble, self.patience.pause),
                    End::Explained(trouble) => (trouble, Duration::ZERO),
                },
                Err(trouble) => (trouble, self.patience.pause),
            };
            // One that subscribed was good: the tries begin anew.
            failures = if self.connections > before {
                0
            } else {
                failures + 1
            };
            let is_over =
                trouble.is_final || (self.patience.tries != 0 && failures >= self.patience.tries);
            let why = format!("{}: {trouble}", connector.address());
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

    async fn serve<C: Connection>(&mut self, mut connection: C) -> End {
        for subscription in &self.subscriptions {
            if let Err(trouble) = connection.subscribe(subscription).await {
                return End::Trouble(trouble);
            }
        }
        self.connections += 1;
        self.answered = 0;
        self.states.send_replace(LinkState::Connected);
        match self.exchange(&mut connection).await {
            Err(trouble) => match self.explain(&trouble) {
                true => End::Explained(trouble),
                false => End::Trouble(trouble),
            },
            Ok(()) => {
                connection.close().await;
                End::Unused
            }
        }
    }

    /// Until nobody is left who could want something.
    async fn exchange<C: Connection>(&mut self, connection: &mut C) -> Result<(), Trouble> {
        for (number, sending) in &self.unconfirmed {
            connection.publish(*number, &sending.message).await?;
        }
        loop {
            self.try_suspect(connection).await?;
            let is_full = self.waiting.is_some();
            let may_order = self.unconfirmed.len() < MOST_UNCONFIRMED && self.suspects.is_empty();
            // Neither goes before the other: a flood of orders would hide that the broker is gone, a flood of messages would
            // keep the orders waiting that settle them.
            tokio::select! {
                heard = listen(connection, &self.arrives, is_full) => self.heard(heard?)?,
                order = self.taken.recv(), if may_order => match order {
                    Some(order) => self.carry_out(order, connection).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    /// Sends one if nothing else is under way.
    async fn try_suspect<C: Connection>(&mut self, connection: &mut C) -> Result<(), Trouble> {
        let is_clear = self.alone.is_none() && self.unconfirmed.is_empty();
        if let Some((number, sending)) = self.suspects.first_key_value().filter(|_| is_clear) {
            self.alone = Some(*number);
            connection.publish(*number, &sending.message).await?;
        }
        Ok(())
    }

    /// A connection has ended, perhaps over what was sent by it. True if it is known over what: that is given up.
    fn explain(&mut self, trouble: &Trouble) -> bool {
        let alone = self.alone.take();
        if trouble.is_silence {
            return false;
        }
        let Some(guilty) = alone.and_then(|number| self.suspects.remove(&number)) else {
            self.suspects.append(&mut self.unconfirmed);
            return false;
        };
        self.blame
            .ended(&guilty.family, &guilty.message, Instant::now());
        _ = guilty.done.send(Err(Gone::Ended(format!(
            "the broker ends each connection by which it is sent: {trouble}. Its log may say why: it may be too large for \
             the broker, this user may not send there, or a queue for it may be full"
        ))));
        self.hold_back();
        true
    }

    /// Those that would lead to the same.
    fn hold_back(&mut self) {
        for (number, sending) in std::mem::take(&mut self.suspects) {
            _ = self
                .admit(sending)
                .map(|sending| self.suspects.insert(number, sending));
        }
    }

    fn is_silent(&self, family: &Family) -> bool {
        matches!(family, Family::Audience(name) if self.silent.contains(name))
    }

    /// None if it rests, or too many such are under way, which it is told.
    fn admit(&self, mut sending: Sending) -> Option<Sending> {
        let others = || self.unconfirmed.values().chain(self.suspects.values());
        let is_same = |other: &&Sending| other.family == sending.family;
        if self.is_silent(&sending.family) && others().filter(is_same).count() >= MOST_SILENT {
            let why = format!("the broker says nothing of {MOST_SILENT} such that were sent");
            _ = sending.done.send(Err(Gone::HeldBack(why)));
            return None;
        }
        match self
            .blame
            .standing(&sending.family, &sending.message, Instant::now())
        {
            Standing::Rests(left) if !sending.goes_alone => {
                let seconds = left.as_secs() + 1;
                let why = format!(
                    "the broker ended connections over such before: none is sent for {seconds} s"
                );
                _ = sending.done.send(Err(Gone::HeldBack(why)));
                return None;
            }
            Standing::Doubtful => sending.goes_alone = true,
            Standing::Rests(_) | Standing::Good => {}
        }
        Some(sending)
    }

    fn heard(&mut self, heard: Heard) -> Result<(), Trouble> {
        match heard {
            Heard::Event(Event::Message {
                tag,
                topic,
                payload,
                properties,
            }) => {
                let Some(orders) = self.orders.upgrade() else {
                    return Ok(());
                };
                let (of, can_go_back) = (tag.map(|tag| (self.connections, tag)), self.can_go_back);
                let receipt = Receipt {
                    of,
                    can_go_back,
                    orders,
                };
                self.hand_over(Arrived {
                    topic,
                    payload,
                    properties,
                    receipt,
                });
            }
            Heard::Event(Event::Confirmed(number)) => self.conclude(number, Ok(())),
            Heard::Event(Event::Refused(number, why)) => {
                self.conclude(number, Err(Gone::Refused(why)))
            }
            Heard::Event(Event::NotNow(number, why)) => {
                self.conclude(number, Err(Gone::NotNow(why)))
            }
            Heard::Event(Event::Unanswered(number, why)) => return self.unanswered(number, why),
            // Whoever does not read them does not want to know.
            Heard::Event(Event::Notice(notice)) => _ = self.notes.try_send(notice),
            Heard::Room => _ = self.waiting.take().map(|arrived| self.hand_over(arrived)),
        }
        Ok(())
    }

    fn hand_over(&mut self, arrived: Arrived) {
        match self.arrives.try_send(arrived) {
            // Nobody reads any more: it will come again to whoever does.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(arrived)) => self.waiting = Some(arrived),
        }
    }

    /// What is under way by this number no more.
    fn take(&mut self, number: u64) -> Option<Sending> {
        self.alone.take_if(|alone| *alone == number);
        self.unconfirmed
            .remove(&number)
            .or_else(|| self.suspects.remove(&number))
    }

    /// A connection that has answered what was sent later is good, and two that leave the same unanswered are seldom bad: the
    /// broker has something against this message, or its audience. Otherwise all of them go by another connection. None of them
    /// is suspect there: each that goes alone and is not answered would keep everybody waiting.
    fn unanswered(&mut self, number: u64, why: String) -> Result<(), Trouble> {
        let was_alone = self.alone == Some(number);
        let Some(sending) = self.take(number) else {
            return Ok(());
        };
        // What is only unanswered ends no connections.
        self.blame.answered(&sending.family, &sending.message);
        if self.answered > number || sending.was_unanswered || self.is_silent(&sending.family) {
            self.know_silent(sending.family);
            _ = sending.done.send(Err(Gone::NotNow(why.clone())));
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
        Err(silence(why))
    }

    fn know_silent(&mut self, family: Family) {
        if let Family::Audience(name) = family {
            if self.silent.len() >= MOST_KNOWN {
                self.silent.clear();
            }
            self.silent.insert(name);
        }
    }

    fn conclude(&mut self, number: u64, how: Result<(), Gone>) {
        self.answered = self.answered.max(number);
        if let Some(sending) = self.take(number) {
            self.blame.answered(&sending.family, &sending.message);
            if let Family::Audience(name) = &sending.family {
                self.silent.remove(name);
            }
            // Whoever asked may have stopped waiting.
            _ = sending.done.send(how);
        }
    }

    async fn carry_out<C: Connection>(
        &mut self,
        order: Order,
        connection: &mut C,
    ) -> Result<(), Trouble> {
        match order {
            Order::Publish(sending) => {
                let Some(sending) = self.admit(sending) else {
                    return Ok(());
                };
                self.last += 1;
                if sending.goes_alone {
                    self.suspects.insert(self.last, sending);
                    return Ok(());
                }
                let sent = connection.publish(self.last, &sending.message).await;
                self.unconfirmed.insert(self.last, sending);
                sent
            }
            Order::Subscribe(to) => {
                let subscribed = connection.subscribe(&to).await;
                self.subscriptions.insert(to);
                subscribed
            }
            Order::Unsubscribe(from) => {
                self.subscriptions.remove(&from);
                connection.unsubscribe(&from).await
            }
            Order::Settle {
                connection: of,
                tag,
            } if of == self.connections => connection.settle(tag).await,
            Order::Release {
                connection: of,
                tag,
            } if of == self.connections => connection.release(tag).await,
            Order::Settle { .. } | Order::Release { .. } => Ok(()),
        }
    }
}

/// While a message waits nothing is read, so that what comes is held back by the broker; orders are still carried out, and the
/// connection is kept alive.
async fn listen<C: Connection>(
    connection: &mut C,
    arrives: &mpsc::Sender<Arrived>,
    is_full: bool,
) -> Result<Heard, Trouble> {
    if !is_full {
        return connection.next().await.map(Heard::Event);
    }
    tokio::select! {
        trouble = connection.idle() => Err(trouble),
        _ = arrives.reserve() => Ok(Heard::Room),
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
