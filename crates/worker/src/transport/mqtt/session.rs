//! What a connection knows once the broker has let it in: which messages wait for whom. Pure: packets in, events and bytes out.
//!
//! ```text
//! publish ─▶ queue ─▶ in flight ─▶ acknowledged ─▶ Event::Confirmed, Event::Refused
//!             (as many as the broker takes at once) └─for too long─▶ Event::Unanswered
//! message ─▶ unsettled ─▶ settle ─▶ acknowledgement to the broker
//!             (as many as we take at once: in MQTT 5 the broker holds back the rest)
//! ```
//!
//! Acknowledgements leave when the work is done, in whatever order that is. The standard would have them in the order of the
//! messages; then one long call would hold back the acknowledgements of all that came after it.

use super::{
    again,
    codec::{
        self, Extras, Packet, Publish, PublishAnswer, Subscribe, SubscribeAnswer, Value, Version,
        name,
    },
    never, reason, topic,
};
use crate::transport::{Event, Notice, Outgoing, Properties, Subscription, Trouble};
use bytes::BytesMut;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Publishes that are under way at once, even if the broker takes more.
const MOST_IN_FLIGHT: usize = 1024;
/// With so many bytes waiting to be written no publish is added.
const MOST_BUFFERED: usize = 64 << 10;
/// Bytes of messages that are kept while a subscription is waited for.
const MOST_HELD: usize = 32 << 20;
/// Subscribe at QoS 1; in MQTT 5 also: what was retained before we listened is not for us.
const CONFIRMED: u8 = 1;
const NO_RETAINED: u8 = 2 << 4;

/// What the broker and we agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) version: Version,
    /// Publishes that it takes at once.
    pub(super) window: usize,
    /// The largest packet that it takes.
    pub(super) largest: usize,
    /// Whether it takes QoS 1.
    pub(super) confirms: bool,
    /// The pool whose members take turns; none if it has no shared subscriptions.
    pub(super) pool: Option<String>,
    /// Messages that we take at once.
    pub(super) receive_maximum: u16,
}

#[derive(Debug)]
struct Asked {
    filter: String,
    /// Whether what comes by it is to be confirmed.
    is_confirmed: bool,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Session {
    agreed: Agreed,
    /// Bytes that wait to be written.
    pub(super) outgoing: BytesMut,
    queue: VecDeque<(u64, Outgoing)>,
    in_flight: BTreeMap<u16, (u64, Instant)>,
    /// Those that are waited for no longer. The broker may yet answer them, and they still count as under way for it.
    given_up: BTreeMap<u16, Instant>,
    /// Beginnings and ends of subscriptions that the broker has not answered.
    asked: BTreeMap<u16, Asked>,
    unsettled: BTreeSet<u16>,
    /// Whether the broker sent more than it may; told once.
    is_overrun: bool,
    last_id: u16,
    events: VecDeque<Event>,
    held: usize,
}

impl Session {
    pub(super) fn new(agreed: Agreed) -> Session {
        Session {
            agreed,
            outgoing: BytesMut::new(),
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            given_up: BTreeMap::new(),
            asked: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            is_overrun: false,
            last_id: 0,
            events: VecDeque::new(),
            held: 0,
        }
    }

    pub(super) fn version(&self) -> Version {
        self.agreed.version
    }

    pub(super) fn event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.held -= event.size();
        Some(event)
    }

    /// Whether so much is kept that nothing more should be read before it is taken.
    pub(super) fn is_full(&self) -> bool {
        self.held > MOST_HELD
    }

    pub(super) fn is_asked(&self, id: u16) -> bool {
        self.asked.contains_key(&id)
    }

    /// Whether the broker has not answered something that was sent.
    pub(super) fn has_published(&self) -> bool {
        !self.in_flight.is_empty() || !self.given_up.is_empty()
    }

    /// Since when the broker owes its oldest answer.
    pub(super) fn owed_since(&self) -> Option<Instant> {
        let publishes = self.in_flight.values().map(|(_, since)| *since);
        let owed = publishes.chain(self.asked.values().map(|asked| asked.since));
        // What was given up is owed when nothing else can be sent because of it.
        let is_stuck = self.given_up.len() >= self.window() && !self.queue.is_empty();
        owed.chain(self.given_up.values().copied().filter(|_| is_stuck))
            .min()
    }

    /// See [`crate::transport::driver::Speaker::give_up`].
    pub(super) fn give_up(&mut self, sent_by: Instant, why: &str) -> bool {
        let is_late = |(_, (_, since)): &(&u16, &(u64, Instant))| *since <= sent_by;
        let late: Vec<_> = self
            .in_flight
            .iter()
            .filter(is_late)
            .map(|(id, sent)| (*id, *sent))
            .collect();
        for (id, (number, since)) in &late {
            self.in_flight.remove(id);
            self.given_up.insert(*id, *since);
            self.tell(Event::Unanswered(*number, why.to_owned()));
        }
        !late.is_empty()
    }

    fn window(&self) -> usize {
        self.agreed.window.min(MOST_IN_FLIGHT)
    }

    /// See [`crate::transport::driver::Speaker::forgive`].
    pub(super) fn forgive(&mut self, lost: Duration, now: Instant) {
        let publishes = self.in_flight.values_mut().map(|(_, since)| since);
        let all = publishes.chain(self.asked.values_mut().map(|asked| &mut asked.since));
        all.for_each(|since| *since = (*since + lost).min(now));
    }

    fn tell(&mut self, event: Event) {
        self.held += event.size();
        self.events.push_back(event);
    }

    fn write(&mut self, packet: &Packet) -> Result<(), codec::Flaw> {
        codec::write(self.agreed.version, packet, &mut self.outgoing)
    }

    fn free_id(&mut self) -> Result<u16, Trouble> {
        for _ in 0..u16::MAX {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = self.last_id;
            let is_used = self.in_flight.contains_key(&id) || self.given_up.contains_key(&id);
            if !is_used && !self.asked.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(again("the broker leaves 65535 packets unanswered"))
    }

    /// Asks for a subscription, or for its end; gives the number of the question.
    pub(super) fn ask(
        &mut self,
        about: &Subscription,
        begins: bool,
        now: Instant,
    ) -> Result<u16, Trouble> {
        let pool = self.agreed.pool.as_deref().filter(|_| about.is_shared);
        let filter = topic::filter(&about.pattern, pool).map_err(never)?;
        let packet_id = self.free_id()?;
        let options = match self.agreed.version {
            // There brokers hold back what comes after a few unsettled messages, and nobody can ask for more. What is for each
            // is about those messages: it must not wait behind them.
            Version::Three if !about.is_shared => 0,
            Version::Three => CONFIRMED,
            // Here we say how many it sends (see `choose.rs`), so that what is for each may be confirmed as well: of a session it
            // is kept while we are away, together with the requests that it is about.
            Version::Five => CONFIRMED | NO_RETAINED,
        };
        let filters = vec![(filter.clone(), options)];
        let question = Subscribe {
            packet_id,
            filters,
            extras: Extras::default(),
        };
        let packet = if begins {
            Packet::Subscribe(question)
        } else {
            Packet::Unsubscribe(question)
        };
        self.write(&packet)
            .map_err(|flaw| never(format!("`{filter}` cannot be subscribed to: {flaw}")))?;
        self.asked.insert(
            packet_id,
            Asked {
                filter,
                is_confirmed: options & CONFIRMED != 0,
                since: now,
            },
        );
        Ok(packet_id)
    }

    pub(super) fn publish(&mut self, number: u64, message: &Outgoing) {
        self.queue.push_back((number, message.clone()));
    }

    /// Moves publishes on for which there is room.
    pub(super) fn fill(&mut self, now: Instant) -> Result<(), Trouble> {
        while self.in_flight.len() + self.given_up.len() < self.window()
            && self.outgoing.len() < MOST_BUFFERED
        {
            let Some((number, message)) = self.queue.pop_front() else {
                break;
            };
            let packet_id = if self.agreed.confirms {
                Some(self.free_id()?)
            } else {
                None
            };
            match (self.write_message(message, packet_id), packet_id) {
                (Err(why), _) => self.tell(Event::Refused(number, why)),
                (Ok(()), None) => self.tell(Event::Confirmed(number)),
                (Ok(()), Some(id)) => _ = self.in_flight.insert(id, (number, now)),
            }
        }
        Ok(())
    }

    fn write_message(&mut self, message: Outgoing, packet_id: Option<u16>) -> Result<(), String> {
        let Outgoing {
            topic,
            payload,
            properties,
        } = message;
        let largest = self.agreed.largest;
        let too_large = |size: usize| {
            format!("a packet of {size} bytes is too large: the broker takes {largest}")
        };
        if payload.len() > largest {
            return Err(too_large(payload.len()));
        }
        let pairs = properties
            .into_iter()
            .map(|(key, value)| (name::USER, Value::Pair(key, value)));
        let extras = Extras(pairs.collect());
        let (is_duplicate, is_retained) = (false, false);
        let publish = Publish {
            is_duplicate,
            is_retained,
            topic,
            packet_id,
            extras,
            payload,
        };
        let before = self.outgoing.len();
        self.write(&Packet::Publish(publish))
            .map_err(|flaw| flaw.to_string())?;
        let size = self.outgoing.len() - before;
        if size > largest {
            self.outgoing.truncate(before);
            return Err(too_large(size));
        }
        Ok(())
    }

    /// Acknowledges a message, once.
    pub(super) fn settle(&mut self, tag: u64) {
        let Ok(id) = u16::try_from(tag) else { return };
        if self.unsettled.remove(&id) {
            self.acknowledge(id);
        }
    }

    fn acknowledge(&mut self, packet_id: u16) {
        let answer = PublishAnswer {
            packet_id,
            reason: 0,
            extras: Extras::default(),
        };
        // Four bytes: they can be written.
        _ = self.write(&Packet::PublishAnswer(answer));
    }

    /// A message was passed over because of its size; it must not come again.
    pub(super) fn passed_over(&mut self, packet_id: Option<u16>) {
        if let Some(id) = packet_id.filter(|id| !self.unsettled.contains(id)) {
            self.acknowledge(id);
        }
        let what = "a message is larger than we take".to_owned();
        self.tell(Event::Notice(Notice::PassedOver(what)));
    }

    pub(super) fn received(&mut self, packet: Packet) -> Result<(), Trouble> {
        match packet {
            Packet::Publish(publish) => self.message(publish),
            Packet::PublishAnswer(answer) => {
                self.published(&answer);
                Ok(())
            }
            Packet::SubscribeAnswer(answer) if answer.reasons.len() != 1 => Err(again(
                "the broker answers another question about subscriptions than it was asked",
            )),
            Packet::SubscribeAnswer(answer) => {
                self.granted(&answer);
                self.answered(&answer, "lets us not listen to")
            }
            Packet::UnsubscribeAnswer(answer) => {
                self.answered(&answer, "lets us not stop to listen to")
            }
            Packet::PingAnswer => Ok(()),
            Packet::Disconnect(end) => {
                let why = reason::told(end.reason, &end.extras);
                Err(again(format!("the broker ends the connection: {why}")))
            }
            Packet::Connect(_)
            | Packet::ConnectAnswer(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Ping => Err(again(
                "the broker says what only a client says, or says it again",
            )),
        }
    }

    fn message(&mut self, publish: Publish) -> Result<(), Trouble> {
        let Publish {
            topic,
            packet_id,
            extras,
            payload,
            is_retained,
            ..
        } = publish;
        if let Some(id) = packet_id {
            if self.unsettled.contains(&id) {
                // It is here already. Some brokers say it again when they wait long.
                return Ok(());
            }
            if is_retained {
                self.acknowledge(id);
                return Ok(());
            }
            let most = usize::from(self.agreed.receive_maximum);
            let is_too_much = self.agreed.version == Version::Five && self.unsettled.len() >= most;
            // Some brokers do that when they catch up. What we hold of it is bounded elsewhere; going away would lose it.
            if is_too_much && !std::mem::replace(&mut self.is_overrun, true) {
                self.weaker(format!(
                    "the broker sends more than {most} messages at once, against what was agreed"
                ));
            }
            self.unsettled.insert(id);
        }
        if is_retained {
            return Ok(());
        }
        let properties = user_properties(extras);
        self.tell(Event::Message {
            tag: packet_id.map(u64::from),
            topic,
            payload,
            properties,
        });
        Ok(())
    }

    fn published(&mut self, answer: &PublishAnswer) {
        self.given_up.remove(&answer.packet_id);
        // One that nobody waits for comes too late, or answers what an earlier connection sent.
        let Some((number, _)) = self.in_flight.remove(&answer.packet_id) else {
            return;
        };
        self.tell(match answer.reason {
            0..0x80 => Event::Confirmed(number),
            code if reason::is_of_message(code) => {
                Event::Refused(number, reason::told(code, &answer.extras))
            }
            code => Event::NotNow(number, reason::told(code, &answer.extras)),
        });
    }

    /// Some brokers confirm nothing to members of a pool that take turns.
    fn granted(&mut self, answer: &SubscribeAnswer) {
        let asked = self
            .asked
            .get(&answer.packet_id)
            .filter(|asked| asked.is_confirmed);
        if let (Some(Asked { filter, .. }), [0]) = (asked, &answer.reasons[..]) {
            let what = format!(
                "what comes by `{filter}` is sent once: when it is lost, it does not come again"
            );
            self.weaker(what);
        }
    }

    pub(super) fn weaker(&mut self, what: String) {
        self.tell(Event::Notice(Notice::Weaker(what)));
    }

    fn answered(&mut self, answer: &SubscribeAnswer, verb: &str) -> Result<(), Trouble> {
        let Some(Asked { filter, .. }) = self.asked.remove(&answer.packet_id) else {
            return Ok(());
        };
        match answer.reasons.iter().find(|reason| **reason >= 0x80) {
            None => Ok(()),
            Some(code) => {
                let why = reason::told(*code, &answer.extras);
                Err(again(format!("the broker {verb} `{filter}`: {why}")))
            }
        }
    }
}

/// Of two with one name the first counts.
fn user_properties(extras: Extras) -> Properties {
    let mut properties = Properties::new();
    for (_, value) in extras.0 {
        if let Value::Pair(key, value) = value {
            properties.entry(key).or_insert(value);
        }
    }
    properties
}
