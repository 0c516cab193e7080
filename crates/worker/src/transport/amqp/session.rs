//! What a connection knows once the broker has let it in. Pure: frames in, events and bytes out.
//!
//! ```text
//! publish ─▶ queue ─▶ sent ─▶ outcome ─▶ Event::Confirmed, Event::Refused
//!             (as many as the broker gives credit for) └─none for too long─▶ Event::Unanswered
//! message ─▶ unsettled ─▶ settle ─▶ accepted
//!             (as many as we give credit for: the broker holds back the rest)
//! ```

mod receiving;

use super::{
    address::Addresses,
    frame::{self, Frame, Kind, Named, name},
    message,
    value::Value,
};
use crate::transport::{Event, Outgoing, Subscription, Trouble, again, driver::Speaker};
use bytes::{Bytes, BytesMut};
use receiving::{Listens, Receiver};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Messages that are under way at once, even if the broker takes more.
const MOST_IN_FLIGHT: usize = 1024;
/// With so many bytes waiting to be written nothing is added.
const MOST_BUFFERED: usize = 256 << 10;
/// Bytes of messages that are kept while a subscription is waited for.
const MOST_HELD: usize = 32 << 20;
/// Things that are listened to.
const MOST_LINKS: usize = 256;
/// Frames that the broker may send before it hears of us: what really holds it back is that we do not read.
const WINDOW: u32 = 0x7fff_ffff;
/// The parts of a frame that are not the message.
const OVERHEAD: usize = 128;
/// Our handle of what we send by.
const SENDER: u32 = 0;

/// What the broker and we agreed on.
#[derive(Clone, Debug)]
pub(super) struct Agreed {
    pub(super) addresses: Addresses,
    /// The queue of the pool.
    pub(super) queue: String,
    /// Who we are; links are named after it.
    pub(super) container: String,
    /// The largest frame that the broker takes.
    pub(super) largest_frame: usize,
    /// The largest frame that we take.
    pub(super) largest_taken: usize,
    /// The largest message that we take.
    pub(super) largest_message: usize,
    /// Messages that we take at once.
    pub(super) credit: u32,
    /// Frames that the broker takes at once.
    pub(super) window: u32,
    /// The number of the first frame that the broker will send.
    pub(super) first: u32,
}

/// What we send by.
#[derive(Debug, Default)]
struct Sender {
    credit: u32,
    count: u32,
    largest: Option<u64>,
    /// Since when we may send nothing: from the beginning until there is credit, then whenever something waits for it.
    starved: Option<Instant>,
    /// The one under way: its delivery, and what is left of it.
    current: Option<(u32, Bytes)>,
}

/// What is there between the broker and us.
#[derive(Debug)]
pub struct Session {
    agreed: Agreed,
    /// Bytes that wait to be written.
    outgoing: BytesMut,
    queue: VecDeque<(u64, Outgoing)>,
    sender: Sender,
    /// By the number of the delivery.
    in_flight: BTreeMap<u32, (u64, Instant)>,
    receivers: BTreeMap<u32, Receiver>,
    /// The broker's handles, and ours.
    handles: BTreeMap<u32, u32>,
    asked: BTreeMap<u32, Instant>,
    /// Which receiver a delivery came by.
    unsettled: BTreeMap<u32, u32>,
    last_handle: u32,
    next_delivery: u32,
    next_outgoing: u32,
    next_incoming: u32,
    window: u32,
    events: VecDeque<Event>,
    held: usize,
}

impl Speaker for Session {
    fn take(&mut self, incoming: &mut BytesMut) -> Result<bool, Trouble> {
        let read = frame::read(incoming, self.agreed.largest_taken);
        match read.map_err(|bad| {
            again(format!(
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

    fn event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.held -= event.size();
        Some(event)
    }

    fn is_full(&self) -> bool {
        self.held > MOST_HELD
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
            .for_each(|number| self.tell(Event::Unanswered(*number, why.to_owned())));
        !late.is_empty()
    }

    fn forgive(&mut self, lost: Duration, now: Instant) {
        let sent = self.in_flight.values_mut().map(|(_, since)| since);
        let all = sent
            .chain(self.asked.values_mut())
            .chain(&mut self.sender.starved);
        all.for_each(|since| *since = (*since + lost).min(now));
    }

    /// What is shared comes by the queue of the pool: clients cannot say what lies
    /// there, whoever made the queue has.
    fn subscribe(&mut self, to: &Subscription, now: Instant) -> Result<u32, Trouble> {
        let address = self.address(to)?;
        if let Some((handle, receiver)) = self.listening(&address) {
            receiver.wanted.insert(to.clone());
            return Ok(handle);
        }
        if self.receivers.len() >= MOST_LINKS {
            return Err(again(format!(
                "more than {MOST_LINKS} things would be listened to"
            )));
        }
        self.last_handle += 1;
        let handle = self.last_handle;
        self.attach(handle, Some(&address), now);
        self.receivers
            .insert(handle, Receiver::new(address, to.clone()));
        Ok(handle)
    }

    fn unsubscribe(&mut self, from: &Subscription, _now: Instant) -> Result<(), Trouble> {
        let address = self.address(from)?;
        let Some((handle, receiver)) = self.listening(&address) else {
            return Ok(());
        };
        receiver.wanted.remove(from);
        if receiver.wanted.is_empty() {
            receiver.listens = Listens::Stopped;
            let (count, unsettled) = (receiver.count, receiver.unsettled);
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

    fn publish(&mut self, number: u64, message: &Outgoing) {
        self.queue.push_back((number, message.clone()));
    }

    fn fill(&mut self, now: Instant) -> Result<(), Trouble> {
        while self.window > 0 && self.outgoing.len() < MOST_BUFFERED {
            let Some((delivery, mut rest)) = self.sender.current.take().or_else(|| self.begin(now))
            else {
                break;
            };
            let chunk = rest.split_to(
                rest.len()
                    .min(self.agreed.largest_frame.saturating_sub(OVERHEAD)),
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
                Kind::Amqp,
                name::TRANSFER,
                fields,
                &chunk,
            );
            self.next_outgoing = self.next_outgoing.wrapping_add(1);
            self.window -= 1;
            // An answer is owed from the last piece on.
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
            self.dispose(handle, delivery, Value::named(name::ACCEPTED, Vec::new()));
        }
    }

    /// A message is for others. While we listen it would come back to us.
    fn release(&mut self, tag: u64) {
        let Ok(delivery) = u32::try_from(tag) else {
            return;
        };
        let Some(handle) = self.unsettled.remove(&delivery) else {
            return;
        };
        match self.receivers.get_mut(&handle) {
            Some(receiver) if receiver.listens == Listens::Yes => {
                receiver.given_back.push(delivery)
            }
            Some(_) | None => self.give_back(handle, delivery),
        }
    }

    fn beat(&mut self) {
        frame::write_empty(&mut self.outgoing);
    }

    fn close(&mut self) {
        self.say(name::CLOSE, Vec::new());
    }
}

impl Session {
    pub(super) fn new(agreed: Agreed, now: Instant) -> Session {
        let (window, next_incoming) = (agreed.window, agreed.first);
        let mut session = Session {
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

    fn tell(&mut self, event: Event) {
        self.held += event.size();
        self.events.push_back(event);
    }

    fn say(&mut self, name: u64, fields: Vec<Value>) {
        frame::write(&mut self.outgoing, Kind::Amqp, name, fields, &[]);
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
        // Sent unsettled: the other side tells what became of it, and with that it is settled.
        let (unsettled, first) = (Value::Ubyte(0), Value::Ubyte(0));
        let mut fields = vec![
            Value::Text(format!("{}-{handle}", self.agreed.container)),
            Value::Uint(handle),
            Value::Bool(is_receiver),
            if is_receiver { Value::Null } else { unsettled },
            first,
            address(name::SOURCE, source),
            address(name::TARGET, target.as_deref()),
        ];
        if !is_receiver {
            fields.extend([Value::Null, Value::Null, Value::Uint(0)]);
        }
        self.say(name::ATTACH, fields);
        self.asked.insert(handle, now);
    }

    fn may_send(&self) -> bool {
        self.window > 0 && (self.sender.credit > 0 || self.sender.current.is_some())
    }

    /// The next that can be sent.
    fn begin(&mut self, now: Instant) -> Option<(u32, Bytes)> {
        loop {
            if self.sender.credit == 0 || self.in_flight.len() >= MOST_IN_FLIGHT {
                return None;
            }
            let (number, message) = self.queue.pop_front()?;
            let bytes = message::write(&message, &self.agreed.addresses);
            let largest = self.sender.largest.unwrap_or(u64::MAX);
            if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > largest {
                let size = bytes.len();
                let why =
                    format!("a message of {size} bytes is too large: the broker takes {largest}");
                self.tell(Event::Refused(number, why));
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

    fn received(&mut self, frame: Frame) -> Result<(), Trouble> {
        let Frame::Said {
            kind: Kind::Amqp,
            what,
            payload,
            ..
        } = frame
        else {
            return Ok(());
        };
        match what.name {
            name::ATTACH => self.attached(&what),
            name::FLOW => self.flowed(&what),
            name::TRANSFER => self.transferred(&what, &payload),
            name::DISPOSITION => {
                self.disposed(&what);
                Ok(())
            }
            name::DETACH => self.detached(&what),
            name::END => Err(ended("session", what.inner(0).as_ref())),
            name::CLOSE => Err(ended("connection", what.inner(0).as_ref())),
            _ => Err(again("the broker says what it must not say now")),
        }
    }

    fn attached(&mut self, what: &Named) -> Result<(), Trouble> {
        let strange = || again("the broker attaches what nobody asked for");
        let ours = what.get(0).words().and_then(|name| {
            let number = name
                .strip_prefix(self.agreed.container.as_str())?
                .strip_prefix('-')?;
            number.parse::<u32>().ok()
        });
        let ours = ours
            .filter(|handle| self.asked.contains_key(handle))
            .ok_or_else(strange)?;
        let theirs = what.uint(1).ok_or_else(strange)?;
        self.handles.insert(theirs, ours);
        let is_refused = match ours {
            SENDER => what.get(6) == &Value::Null,
            _ => what.get(5) == &Value::Null,
        };
        if is_refused {
            // The reason comes with the detach that must follow.
            return Ok(());
        }
        self.asked.remove(&ours);
        if ours == SENDER {
            self.sender.largest = what.number(10).filter(|largest| *largest > 0);
        } else if let Some(receiver) = self.receivers.get_mut(&ours) {
            receiver.count = what.uint(9).unwrap_or(0);
            self.allow(ours);
        }
        Ok(())
    }

    fn flowed(&mut self, what: &Named) -> Result<(), Trouble> {
        let window = what
            .uint(1)
            .ok_or_else(|| again("the broker tells of a flow without a window"))?;
        let seen = what.uint(0).unwrap_or(0);
        self.window = window.saturating_sub(self.next_outgoing.wrapping_sub(seen));
        let ours = what.uint(4).and_then(|theirs| self.handles.get(&theirs));
        if ours == Some(&SENDER) {
            let under_way = self.sender.count.wrapping_sub(what.uint(5).unwrap_or(0));
            self.sender.credit = what.uint(6).unwrap_or(0).saturating_sub(under_way);
        }
        if self.may_send() {
            self.sender.starved = None;
        }
        if what.flag(9) {
            let fields = self.flow();
            self.say(name::FLOW, fields);
        }
        Ok(())
    }

    fn disposed(&mut self, what: &Named) {
        // What the broker says as a sender is about what it takes back: nothing that we could change.
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
            self.tell(match outcome {
                Outcome::Taken => Event::Confirmed(number),
                Outcome::Refused(why) => Event::Refused(number, why),
                Outcome::NotNow(why) => Event::NotNow(number, why),
            });
            if !is_settled {
                let (sender, id, settled) =
                    (Value::Bool(false), Value::Uint(delivery), Value::Bool(true));
                self.say(name::DISPOSITION, vec![sender, id.clone(), id, settled]);
            }
        }
    }

    fn detached(&mut self, what: &Named) -> Result<(), Trouble> {
        let ours = what.uint(0).and_then(|theirs| self.handles.remove(&theirs));
        let why = frame::error(what.inner(2).as_ref());
        let Some(ours) = ours else {
            return Err(again(format!("the broker ends a link that is none: {why}")));
        };
        match self.receivers.remove(&ours) {
            Some(receiver) if receiver.listens != Listens::Yes => {
                self.asked.remove(&ours);
                self.unsettled.retain(|_, handle| *handle != ours);
                Ok(())
            }
            Some(receiver) => {
                let address = receiver.address;
                Err(again(format!(
                    "the broker lets us not listen to `{address}`, or not any more: {why}"
                )))
            }
            None => Err(again(format!("the broker lets us not send: {why}"))),
        }
    }
}

/// What became of a message.
enum Outcome {
    Taken,
    /// It would be refused each time.
    Refused(String),
    NotNow(String),
}

/// None while that is open.
fn outcome(state: Option<&Named>) -> Option<Outcome> {
    match state.map(|state| state.name) {
        // Settled without a word: it is out of our hands.
        None | Some(name::ACCEPTED) => Some(Outcome::Taken),
        Some(name::REJECTED) => {
            let error = state.and_then(|state| state.inner(0));
            let why = format!("the broker rejects it: {}", frame::error(error.as_ref()));
            let condition = error.as_ref().and_then(|error| error.get(0).words());
            Some(match condition {
                // Some brokers do not say why, and mean a full queue. What is too large for them is not sent to them.
                Some("amqp:resource-limit-exceeded") | None => Outcome::NotNow(why),
                Some(_) => Outcome::Refused(why),
            })
        }
        Some(name::RELEASED | name::MODIFIED) => {
            let why = "the broker gives it back: nobody is there who could get it";
            Some(Outcome::NotNow(why.to_owned()))
        }
        Some(_) => None,
    }
}

fn ended(what: &str, why: Option<&Named>) -> Trouble {
    again(format!("the broker ends the {what}: {}", frame::error(why)))
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
