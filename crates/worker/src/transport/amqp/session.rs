//! AMQP session state after the handshake. Pure: frames in, events and bytes out.
//!
//! ```text
//! publish ─▶ queue ─▶ sent ─▶ outcome ─▶ ConnectionEvent::Confirmed, ConnectionEvent::Refused
//!             (within the broker's credit)  └─timeout─▶ ConnectionEvent::Unanswered
//! message ─▶ unsettled ─▶ settle ─▶ accepted
//!             (within our credit: the broker holds back the rest)
//! ```

mod receiver;

use super::{
    address::AddressScheme,
    frame::{self, DescribedList, Frame, FrameKind, descriptor},
    message,
    value::Value,
};
use crate::transport::{
    ConnectionError, ConnectionEvent, OutgoingMessage, Subscription, driver::Protocol, temporary,
};
use bytes::{Bytes, BytesMut};
use receiver::{Receiver, ReceiverState};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Maximum number of unsettled outgoing messages, even if the broker accepts more.
const MAX_IN_FLIGHT: usize = 1024;
/// Nothing is added to the write buffer above this size.
const MAX_BUFFERED_BYTES: usize = 256 << 10;
/// Messages kept while a subscription is awaited, in bytes.
const MAX_HELD_BYTES: usize = 32 << 20;
/// Maximum number of receiver links.
const MAX_LINKS: usize = 256;
/// Incoming window: flow control is by not reading.
const WINDOW: u32 = 0x7fff_ffff;
/// Size of a transfer frame without its payload.
const TRANSFER_OVERHEAD: usize = 128;
/// Handle of the sender link.
const SENDER: u32 = 0;

/// Negotiated parameters.
#[derive(Clone, Debug)]
pub(super) struct Negotiated {
    pub(super) addresses: AddressScheme,
    /// Queue of the pool.
    pub(super) queue: String,
    /// Container id; link names are derived from it.
    pub(super) container: String,
    /// Maximum frame size of the broker.
    pub(super) largest_frame: usize,
    /// Our maximum frame size.
    pub(super) largest_taken: usize,
    /// Our maximum message size.
    pub(super) largest_message: usize,
    /// Credit of each receiver link.
    pub(super) credit: u32,
    /// Outgoing window: frames that the broker accepts.
    pub(super) window: u32,
    /// Number of the broker's first frame.
    pub(super) first: u32,
}

/// State of the sender link.
#[derive(Debug, Default)]
struct Sender {
    credit: u32,
    count: u32,
    largest: Option<u64>,
    /// Since when nothing can be sent: initially, and whenever a message waits for credit.
    starved: Option<Instant>,
    /// The delivery in progress and the rest of its payload.
    current: Option<(u32, Bytes)>,
}

/// State of a session.
#[derive(Debug)]
pub struct AmqpSession {
    agreed: Negotiated,
    /// Write buffer.
    outgoing: BytesMut,
    queue: VecDeque<(u64, OutgoingMessage)>,
    sender: Sender,
    /// By delivery number.
    in_flight: BTreeMap<u32, (u64, Instant)>,
    receivers: BTreeMap<u32, Receiver>,
    /// The broker's handles and ours.
    handles: BTreeMap<u32, u32>,
    asked: BTreeMap<u32, Instant>,
    /// Receiver link of each unsettled delivery.
    unsettled: BTreeMap<u32, u32>,
    last_handle: u32,
    next_delivery: u32,
    next_outgoing: u32,
    next_incoming: u32,
    window: u32,
    events: VecDeque<ConnectionEvent>,
    held: usize,
}

impl Protocol for AmqpSession {
    fn take(&mut self, incoming: &mut BytesMut) -> Result<bool, ConnectionError> {
        let read = frame::read(incoming, self.agreed.largest_taken);
        match read.map_err(|bad| {
            temporary(format!(
                "the broker does not speak AMQP as it should: {bad}"
            ))
        })? {
            Some(frame) => self.received(frame).map(|()| true),
            None => Ok(false),
        }
    }

    fn outgoing(&mut self) -> &mut BytesMut {
        &mut self.outgoing
    }

    fn event(&mut self) -> Option<ConnectionEvent> {
        let event = self.events.pop_front()?;
        self.held -= event.size();
        Some(event)
    }

    fn is_full(&self) -> bool {
        self.held > MAX_HELD_BYTES
    }

    fn is_asked(&self, handle: u32) -> bool {
        self.asked.contains_key(&handle)
    }

    fn is_mute(&self) -> bool {
        self.sender.starved.is_some()
    }

    fn owed(&self) -> Option<(Instant, &'static str)> {
        let sent = self.in_flight.values().map(|(_, since)| *since);
        let answers = sent.chain(self.asked.values().copied());
        let answers = answers.map(|since| (since, "has left us unanswered"));
        answers
            .chain(
                self.sender
                    .starved
                    .map(|since| (since, "has given us no credit to send")),
            )
            .min()
    }

    fn give_up(&mut self, sent_by: Instant, why: &str) -> bool {
        let under_way = self.sender.current.as_ref().map(|(delivery, _)| *delivery);
        let mut late = Vec::new();
        self.in_flight.retain(|delivery, (number, since)| {
            let is_late = *since <= sent_by && Some(*delivery) != under_way;
            is_late.then(|| late.push(*number));
            !is_late
        });
        late.iter()
            .for_each(|number| self.emit(ConnectionEvent::Unanswered(*number, why.to_owned())));
        !late.is_empty()
    }

    fn forgive(&mut self, lost: Duration, now: Instant) {
        let sent = self.in_flight.values_mut().map(|(_, since)| since);
        let all = sent
            .chain(self.asked.values_mut())
            .chain(&mut self.sender.starved);
        all.for_each(|since| *since = (*since + lost).min(now));
    }

    /// Shared subscriptions use the pool's queue: clients cannot change its bindings.
    fn subscribe(&mut self, to: &Subscription, now: Instant) -> Result<u32, ConnectionError> {
        let address = self.address(to)?;
        if let Some((handle, receiver)) = self.listening(&address) {
            receiver.wanted.insert(to.clone());
            return Ok(handle);
        }
        if self.receivers.len() >= MAX_LINKS {
            return Err(temporary(format!(
                "more than {MAX_LINKS} things would be listened to"
            )));
        }
        self.last_handle += 1;
        let handle = self.last_handle;
        self.attach(handle, Some(&address), now);
        self.receivers
            .insert(handle, Receiver::new(address, to.clone()));
        Ok(handle)
    }

    fn unsubscribe(&mut self, from: &Subscription, _now: Instant) -> Result<(), ConnectionError> {
        let address = self.address(from)?;
        let Some((handle, receiver)) = self.listening(&address) else {
            return Ok(());
        };
        receiver.wanted.remove(from);
        if receiver.wanted.is_empty() {
            receiver.listens = ReceiverState::Stopped;
            let count = receiver.count;
            let unsettled = receiver.unsettled;
            let given_back = std::mem::take(&mut receiver.given_back);
            match unsettled {
                0 => self.end_if_settled(handle),
                _ => self.grant(handle, count, 0),
            }
            given_back
                .into_iter()
                .for_each(|delivery| self.give_back(handle, delivery));
        }
        Ok(())
    }

    fn publish(&mut self, number: u64, message: &OutgoingMessage) {
        self.queue.push_back((number, message.clone()));
    }

    fn fill(&mut self, now: Instant) -> Result<(), ConnectionError> {
        while self.window > 0 && self.outgoing.len() < MAX_BUFFERED_BYTES {
            let Some((delivery, mut rest)) = self.sender.current.take().or_else(|| self.begin(now))
            else {
                break;
            };
            let chunk = rest.split_to(
                rest.len()
                    .min(self.agreed.largest_frame.saturating_sub(TRANSFER_OVERHEAD)),
            );
            let has_more = !rest.is_empty();
            let fields = vec![
                Value::Uint(SENDER),
                Value::Uint(delivery),
                Value::Binary(Bytes::copy_from_slice(&delivery.to_be_bytes())),
                Value::Uint(0),
                Value::Bool(false),
                Value::Bool(has_more),
            ];
            frame::write(
                &mut self.outgoing,
                FrameKind::Amqp,
                descriptor::TRANSFER,
                fields,
                &chunk,
            );
            self.next_outgoing = self.next_outgoing.wrapping_add(1);
            self.window -= 1;
            // The response timeout starts with the last frame.
            self.in_flight
                .entry(delivery)
                .and_modify(|(_, since)| *since = now);
            self.sender.current = has_more.then_some((delivery, rest));
        }
        let waits = self.sender.current.is_some() || !self.queue.is_empty();
        if waits && !self.may_send() {
            self.sender.starved.get_or_insert(now);
        }
        Ok(())
    }

    fn settle(&mut self, tag: u64) {
        let Ok(delivery) = u32::try_from(tag) else {
            return;
        };
        if let Some(handle) = self.unsettled.remove(&delivery) {
            self.dispose(
                handle,
                delivery,
                Value::named(descriptor::ACCEPTED, Vec::new()),
            );
        }
    }

    /// Releases a message to other receivers. While we are subscribed it would come back.
    fn release(&mut self, tag: u64) {
        let Ok(delivery) = u32::try_from(tag) else {
            return;
        };
        let Some(handle) = self.unsettled.remove(&delivery) else {
            return;
        };
        match self.receivers.get_mut(&handle) {
            Some(receiver) if receiver.listens == ReceiverState::Yes => {
                receiver.given_back.push(delivery)
            }
            Some(_) | None => self.give_back(handle, delivery),
        }
    }

    fn ping(&mut self) {
        frame::write_empty(&mut self.outgoing);
    }

    fn close(&mut self) {
        self.send(descriptor::CLOSE, Vec::new());
    }
}

impl AmqpSession {
    pub(super) fn new(agreed: Negotiated, now: Instant) -> AmqpSession {
        let window = agreed.window;
        let next_incoming = agreed.first;
        let mut session = AmqpSession {
            agreed,
            outgoing: BytesMut::new(),
            queue: VecDeque::new(),
            sender: Sender {
                starved: Some(now),
                ..Sender::default()
            },
            in_flight: BTreeMap::new(),
            receivers: BTreeMap::new(),
            handles: BTreeMap::new(),
            asked: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            last_handle: SENDER,
            next_delivery: 0,
            next_outgoing: 0,
            next_incoming,
            window,
            events: VecDeque::new(),
            held: 0,
        };
        session.attach(SENDER, None, now);
        session
    }

    fn emit(&mut self, event: ConnectionEvent) {
        self.held += event.size();
        self.events.push_back(event);
    }

    fn send(&mut self, name: u64, fields: Vec<Value>) {
        frame::write(&mut self.outgoing, FrameKind::Amqp, name, fields, &[]);
    }

    fn attach(&mut self, handle: u32, source: Option<&str>, now: Instant) {
        let address = |name, address: Option<&str>| {
            Value::named(name, vec![address.map_or(Value::Null, Value::text)])
        };
        let is_receiver = source.is_some();
        let target = if is_receiver {
            None
        } else {
            self.agreed.addresses.target()
        };
        // Sender settle mode unsettled: the receiver reports the outcome, which settles the
        // delivery.
        let unsettled = Value::Ubyte(0);
        let first = Value::Ubyte(0);
        let mut fields = vec![
            Value::Text(format!("{}-{handle}", self.agreed.container)),
            Value::Uint(handle),
            Value::Bool(is_receiver),
            if is_receiver { Value::Null } else { unsettled },
            first,
            address(descriptor::SOURCE, source),
            address(descriptor::TARGET, target.as_deref()),
        ];
        if !is_receiver {
            fields.extend([Value::Null, Value::Null, Value::Uint(0)]);
        }
        self.send(descriptor::ATTACH, fields);
        self.asked.insert(handle, now);
    }

    fn may_send(&self) -> bool {
        self.window > 0 && (self.sender.credit > 0 || self.sender.current.is_some())
    }

    /// The next message that can be sent.
    fn begin(&mut self, now: Instant) -> Option<(u32, Bytes)> {
        loop {
            if self.sender.credit == 0 || self.in_flight.len() >= MAX_IN_FLIGHT {
                return None;
            }
            let (number, message) = self.queue.pop_front()?;
            let bytes = message::write(&message, &self.agreed.addresses);
            let largest = self.sender.largest.unwrap_or(u64::MAX);
            if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > largest {
                let size = bytes.len();
                let why =
                    format!("a message of {size} bytes is too large: the broker takes {largest}");
                self.emit(ConnectionEvent::Refused(number, why));
                continue;
            }
            let delivery = self.next_delivery;
            self.next_delivery = delivery.wrapping_add(1);
            self.sender.credit -= 1;
            self.sender.count = self.sender.count.wrapping_add(1);
            self.in_flight.insert(delivery, (number, now));
            return Some((delivery, bytes));
        }
    }

    fn flow(&self) -> Vec<Value> {
        let numbers = [self.next_incoming, WINDOW, self.next_outgoing, WINDOW];
        numbers.into_iter().map(Value::Uint).collect()
    }

    fn received(&mut self, frame: Frame) -> Result<(), ConnectionError> {
        let Frame::Performative {
            kind: FrameKind::Amqp,
            what,
            payload,
            ..
        } = frame
        else {
            return Ok(());
        };
        match what.name {
            descriptor::ATTACH => self.attached(&what),
            descriptor::FLOW => self.flowed(&what),
            descriptor::TRANSFER => self.transferred(&what, &payload),
            descriptor::DISPOSITION => {
                self.disposed(&what);
                Ok(())
            }
            descriptor::DETACH => self.detached(&what),
            descriptor::END => Err(ended("session", what.inner(0).as_ref())),
            descriptor::CLOSE => Err(ended("connection", what.inner(0).as_ref())),
            _ => Err(temporary("the broker says what it must not say now")),
        }
    }

    fn attached(&mut self, what: &DescribedList) -> Result<(), ConnectionError> {
        let strange = || temporary("the broker attaches what nobody asked for");
        let handle = what.get(0).words().and_then(|name| {
            let number = name
                .strip_prefix(self.agreed.container.as_str())?
                .strip_prefix('-')?;
            number.parse::<u32>().ok()
        });
        let handle = handle
            .filter(|handle| self.asked.contains_key(handle))
            .ok_or_else(strange)?;
        let theirs = what.uint(1).ok_or_else(strange)?;
        self.handles.insert(theirs, handle);
        let is_refused = match handle {
            SENDER => what.get(6) == &Value::Null,
            _ => what.get(5) == &Value::Null,
        };
        if is_refused {
            // The reason follows in the detach.
            return Ok(());
        }
        self.asked.remove(&handle);
        if handle == SENDER {
            self.sender.largest = what.number(10).filter(|largest| *largest > 0);
        } else if let Some(receiver) = self.receivers.get_mut(&handle) {
            receiver.count = what.uint(9).unwrap_or(0);
            self.allow(handle);
        }
        Ok(())
    }

    fn flowed(&mut self, what: &DescribedList) -> Result<(), ConnectionError> {
        let window = what
            .uint(1)
            .ok_or_else(|| temporary("the broker tells of a flow without a window"))?;
        let seen = what.uint(0).unwrap_or(0);
        self.window = window.saturating_sub(self.next_outgoing.wrapping_sub(seen));
        let handle = what.uint(4).and_then(|theirs| self.handles.get(&theirs));
        if handle == Some(&SENDER) {
            let under_way = self.sender.count.wrapping_sub(what.uint(5).unwrap_or(0));
            self.sender.credit = what.uint(6).unwrap_or(0).saturating_sub(under_way);
        }
        if self.may_send() {
            self.sender.starved = None;
        }
        if what.flag(9) {
            let fields = self.flow();
            self.send(descriptor::FLOW, fields);
        }
        Ok(())
    }

    fn disposed(&mut self, what: &DescribedList) {
        // A disposition of the broker as sender changes nothing for us.
        let is_receiver = what.flag(0);
        let (Some(first), true) = (what.uint(1), is_receiver) else {
            return;
        };
        let last = what.uint(2).unwrap_or(first);
        let state = what.inner(4);
        let is_settled = what.flag(3);
        if first > last || (state.is_none() && !is_settled) {
            return;
        }
        let meant: Vec<u32> = self
            .in_flight
            .range(first..=last)
            .map(|(delivery, _)| *delivery)
            .collect();
        for delivery in meant {
            let Some(outcome) = outcome(state.as_ref()) else {
                continue;
            };
            let Some((number, _)) = self.in_flight.remove(&delivery) else {
                continue;
            };
            self.emit(match outcome {
                DeliveryOutcome::Taken => ConnectionEvent::Confirmed(number),
                DeliveryOutcome::Refused(why) => ConnectionEvent::Refused(number, why),
                DeliveryOutcome::NotNow(why) => ConnectionEvent::NotNow(number, why),
            });
            if !is_settled {
                let sender = Value::Bool(false);
                let id = Value::Uint(delivery);
                let settled = Value::Bool(true);
                self.send(
                    descriptor::DISPOSITION,
                    vec![sender, id.clone(), id, settled],
                );
            }
        }
    }

    fn detached(&mut self, what: &DescribedList) -> Result<(), ConnectionError> {
        let handle = what.uint(0).and_then(|theirs| self.handles.remove(&theirs));
        let why = frame::error(what.inner(2).as_ref());
        let Some(handle) = handle else {
            return Err(temporary(format!(
                "the broker ends a link that is none: {why}"
            )));
        };
        match self.receivers.remove(&handle) {
            Some(receiver) if receiver.listens != ReceiverState::Yes => {
                self.asked.remove(&handle);
                self.unsettled.retain(|_, other| *other != handle);
                Ok(())
            }
            Some(receiver) => {
                let address = receiver.address;
                Err(temporary(format!(
                    "the broker lets us not listen to `{address}`, or not any more: {why}"
                )))
            }
            None => Err(temporary(format!("the broker lets us not send: {why}"))),
        }
    }
}

/// Outcome of an outgoing message.
enum DeliveryOutcome {
    Taken,
    /// Permanent.
    Refused(String),
    NotNow(String),
}

/// None as long as the outcome is open.
fn outcome(state: Option<&DescribedList>) -> Option<DeliveryOutcome> {
    match state.map(|state| state.name) {
        // Settled without an outcome.
        None | Some(descriptor::ACCEPTED) => Some(DeliveryOutcome::Taken),
        Some(descriptor::REJECTED) => {
            let error = state.and_then(|state| state.inner(0));
            let why = format!("the broker rejects it: {}", frame::error(error.as_ref()));
            let condition = error.as_ref().and_then(|error| error.get(0).words());
            Some(match condition {
                // Some brokers give no reason and mean a full queue. Messages above the size limit
                // are not sent at all.
                Some("amqp:resource-limit-exceeded") | None => DeliveryOutcome::NotNow(why),
                Some(_) => DeliveryOutcome::Refused(why),
            })
        }
        Some(descriptor::RELEASED | descriptor::MODIFIED) => {
            let why = "the broker gives it back: nobody is there who could get it";
            Some(DeliveryOutcome::NotNow(why.to_owned()))
        }
        Some(_) => None,
    }
}

fn ended(what: &str, why: Option<&DescribedList>) -> ConnectionError {
    temporary(format!("the broker ends the {what}: {}", frame::error(why)))
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
