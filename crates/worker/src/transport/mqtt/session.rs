//! MQTT session state after the handshake. Pure: packets in, events and bytes out.
//!
//! ```text
//! publish ─▶ queue ─▶ in flight ─▶ acknowledged ─▶ ConnectionEvent::Confirmed, ConnectionEvent::Refused
//!             (within the broker's receive maximum) └─timeout─▶ ConnectionEvent::Unanswered
//! message ─▶ unsettled ─▶ settle ─▶ PUBACK
//!             (within our receive maximum: in MQTT 5 the broker holds back the rest)
//! ```
//!
//! PUBACKs are sent when the work is done, in any order. The standard requires the order of the
//! messages; then one long call would delay the acknowledgements of all later ones.

use super::{
    codec::{
        self, MqttProperties, Packet, PropertyValue, PubAck, Publish, SubAck, Subscribe, Version,
        property,
    },
    fatal, reason_code, temporary, topic,
};
use crate::transport::{
    ConnectionError, ConnectionEvent, LinkNotice, OutgoingMessage, Properties, Subscription,
};
use bytes::BytesMut;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Maximum number of publishes in flight, even if the broker accepts more.
const MAX_IN_FLIGHT: usize = 1024;
/// No publish is added to the write buffer above this size.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Messages kept while a subscription is awaited, in bytes.
const MAX_HELD_BYTES: usize = 32 << 20;
/// Subscription options: QoS 1, and in MQTT 5 no retained messages.
const QOS_1: u8 = 1;
const NO_RETAINED_MESSAGES: u8 = 2 << 4;

/// Negotiated parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) version: Version,
    /// The broker's receive maximum.
    pub(super) window: usize,
    /// The broker's maximum packet size.
    pub(super) largest: usize,
    /// Whether the broker supports QoS 1.
    pub(super) confirms: bool,
    /// Group of shared subscriptions; none if the broker does not support them.
    pub(super) pool: Option<String>,
    /// Our receive maximum.
    pub(super) receive_maximum: u16,
}

#[derive(Debug)]
struct PendingSubscription {
    filter: String,
    /// Whether QoS 1 was requested.
    is_confirmed: bool,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct MqttSession {
    agreed: Negotiated,
    /// Write buffer.
    pub(super) outgoing: BytesMut,
    queue: VecDeque<(u64, OutgoingMessage)>,
    in_flight: BTreeMap<u16, (u64, Instant)>,
    /// Publishes whose response is no longer awaited. The broker may still answer them, and counts
    /// them as in flight.
    given_up: BTreeMap<u16, Instant>,
    /// Pending SUBSCRIBE and UNSUBSCRIBE packets.
    asked: BTreeMap<u16, PendingSubscription>,
    unsettled: BTreeSet<u16>,
    /// Whether the broker exceeded our receive maximum; reported once.
    is_overrun: bool,
    last_id: u16,
    events: VecDeque<ConnectionEvent>,
    held: usize,
}

impl MqttSession {
    pub(super) fn new(agreed: Negotiated) -> MqttSession {
        MqttSession {
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

    pub(super) fn event(&mut self) -> Option<ConnectionEvent> {
        let event = self.events.pop_front()?;
        self.held -= event.size();
        Some(event)
    }

    /// Whether so many events are kept that nothing more should be read.
    pub(super) fn is_full(&self) -> bool {
        self.held > MAX_HELD_BYTES
    }

    pub(super) fn is_asked(&self, id: u16) -> bool {
        self.asked.contains_key(&id)
    }

    /// Whether a publish is unanswered.
    pub(super) fn has_published(&self) -> bool {
        !self.in_flight.is_empty() || !self.given_up.is_empty()
    }

    /// Since when the broker owes its oldest response.
    pub(super) fn owed_since(&self) -> Option<Instant> {
        let publishes = self.in_flight.values().map(|(_, since)| *since);
        let owed = publishes.chain(self.asked.values().map(|asked| asked.since));
        // Given up publishes count when they block the window.
        let is_stuck = self.given_up.len() >= self.window() && !self.queue.is_empty();
        owed.chain(self.given_up.values().copied().filter(|_| is_stuck))
            .min()
    }

    /// See [`crate::transport::driver::Protocol::give_up`].
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
            self.emit(ConnectionEvent::Unanswered(*number, why.to_owned()));
        }
        !late.is_empty()
    }

    fn window(&self) -> usize {
        self.agreed.window.min(MAX_IN_FLIGHT)
    }

    /// See [`crate::transport::driver::Protocol::forgive`].
    pub(super) fn forgive(&mut self, lost: Duration, now: Instant) {
        let publishes = self.in_flight.values_mut().map(|(_, since)| since);
        let all = publishes.chain(self.asked.values_mut().map(|asked| &mut asked.since));
        all.for_each(|since| *since = (*since + lost).min(now));
    }

    fn emit(&mut self, event: ConnectionEvent) {
        self.held += event.size();
        self.events.push_back(event);
    }

    fn write(&mut self, packet: &Packet) -> Result<(), codec::CodecError> {
        codec::write(self.agreed.version, packet, &mut self.outgoing)
    }

    fn free_id(&mut self) -> Result<u16, ConnectionError> {
        for _ in 0..u16::MAX {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = self.last_id;
            let is_used = self.in_flight.contains_key(&id) || self.given_up.contains_key(&id);
            if !is_used && !self.asked.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(temporary("the broker leaves 65535 packets unanswered"))
    }

    /// Sends a SUBSCRIBE or UNSUBSCRIBE; returns its packet id.
    pub(super) fn ask(
        &mut self,
        about: &Subscription,
        begins: bool,
        now: Instant,
    ) -> Result<u16, ConnectionError> {
        let pool = self.agreed.pool.as_deref().filter(|_| about.is_shared);
        let filter = topic::filter(&about.pattern, pool).map_err(fatal)?;
        let packet_id = self.free_id()?;
        let options = match self.agreed.version {
            // In 3.1.1 brokers stop after a few unsettled messages, and the number cannot be
            // changed. Cancellations are about those messages and must not wait behind them: QoS 0.
            Version::Three if !about.is_shared => 0,
            Version::Three => QOS_1,
            // In MQTT 5 we set the receive maximum (see `protocol.rs`), so that cancellations can
            // use QoS 1, too: a session keeps them while we are away, with the requests that they
            // are about.
            Version::Five => QOS_1 | NO_RETAINED_MESSAGES,
        };
        let filters = vec![(filter.clone(), options)];
        let question = Subscribe {
            packet_id,
            filters,
            properties: MqttProperties::default(),
        };
        let packet = if begins {
            Packet::Subscribe(question)
        } else {
            Packet::Unsubscribe(question)
        };
        self.write(&packet)
            .map_err(|flaw| fatal(format!("`{filter}` cannot be subscribed to: {flaw}")))?;
        self.asked.insert(
            packet_id,
            PendingSubscription {
                filter,
                is_confirmed: options & QOS_1 != 0,
                since: now,
            },
        );
        Ok(packet_id)
    }

    pub(super) fn publish(&mut self, number: u64, message: &OutgoingMessage) {
        self.queue.push_back((number, message.clone()));
    }

    /// Moves queued publishes into the write buffer.
    pub(super) fn fill(&mut self, now: Instant) -> Result<(), ConnectionError> {
        while self.in_flight.len() + self.given_up.len() < self.window()
            && self.outgoing.len() < MAX_BUFFERED_BYTES
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
                (Err(why), _) => self.emit(ConnectionEvent::Refused(number, why)),
                (Ok(()), None) => self.emit(ConnectionEvent::Confirmed(number)),
                (Ok(()), Some(id)) => _ = self.in_flight.insert(id, (number, now)),
            }
        }
        Ok(())
    }

    fn write_message(
        &mut self,
        message: OutgoingMessage,
        packet_id: Option<u16>,
    ) -> Result<(), String> {
        let OutgoingMessage {
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
            .map(|(key, value)| (property::USER, PropertyValue::Pair(key, value)));
        let properties = MqttProperties(pairs.collect());
        let publish = Publish {
            is_duplicate: false,
            is_retained: false,
            topic,
            packet_id,
            properties,
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
        let answer = PubAck {
            packet_id,
            reason: 0,
            properties: MqttProperties::default(),
        };
        // Four bytes always fit.
        _ = self.write(&Packet::PubAck(answer));
    }

    /// Acknowledges a message that was skipped for its size, so that it is not redelivered.
    pub(super) fn passed_over(&mut self, packet_id: Option<u16>) {
        if let Some(id) = packet_id.filter(|id| !self.unsettled.contains(id)) {
            self.acknowledge(id);
        }
        let what = "a message is larger than we take".to_owned();
        self.emit(ConnectionEvent::Notice(LinkNotice::PassedOver(what)));
    }

    pub(super) fn received(&mut self, packet: Packet) -> Result<(), ConnectionError> {
        match packet {
            Packet::Publish(publish) => self.message(publish),
            Packet::PubAck(answer) => {
                self.published(&answer);
                Ok(())
            }
            Packet::SubAck(answer) if answer.reasons.len() != 1 => Err(temporary(
                "the broker answers another question about subscriptions than it was asked",
            )),
            Packet::SubAck(answer) => {
                self.granted(&answer);
                self.answered(&answer, "lets us not listen to")
            }
            Packet::UnsubAck(answer) => self.answered(&answer, "lets us not stop to listen to"),
            Packet::PingResp => Ok(()),
            Packet::Disconnect(end) => {
                let why = reason_code::describe(end.reason, &end.properties);
                Err(temporary(format!("the broker ends the connection: {why}")))
            }
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::PingReq => Err(temporary(
                "the broker says what only a client says, or says it again",
            )),
        }
    }

    fn message(&mut self, publish: Publish) -> Result<(), ConnectionError> {
        let Publish {
            topic,
            packet_id,
            properties,
            payload,
            is_retained,
            ..
        } = publish;
        if let Some(id) = packet_id {
            if self.unsettled.contains(&id) {
                // A duplicate: some brokers resend when they have waited long.
                return Ok(());
            }
            if is_retained {
                self.acknowledge(id);
                return Ok(());
            }
            let limit = usize::from(self.agreed.receive_maximum);
            let is_too_much = self.agreed.version == Version::Five && self.unsettled.len() >= limit;
            // Some brokers do that when they catch up. Memory is bounded elsewhere, and a
            // disconnect would lose the message.
            if is_too_much && !std::mem::replace(&mut self.is_overrun, true) {
                self.weaker(format!(
                    "the broker sends more than {limit} messages at once, against what was agreed"
                ));
            }
            self.unsettled.insert(id);
        }
        if is_retained {
            return Ok(());
        }
        let properties = user_properties(properties);
        self.emit(ConnectionEvent::Message {
            tag: packet_id.map(u64::from),
            topic,
            payload,
            properties,
        });
        Ok(())
    }

    fn published(&mut self, answer: &PubAck) {
        self.given_up.remove(&answer.packet_id);
        // Late, or for a publish of an earlier connection.
        let Some((number, _)) = self.in_flight.remove(&answer.packet_id) else {
            return;
        };
        self.emit(match answer.reason {
            0..0x80 => ConnectionEvent::Confirmed(number),
            code if reason_code::is_of_message(code) => {
                ConnectionEvent::Refused(number, reason_code::describe(code, &answer.properties))
            }
            code => {
                ConnectionEvent::NotNow(number, reason_code::describe(code, &answer.properties))
            }
        });
    }

    /// Reports a downgrade to QoS 0, which some brokers do for shared subscriptions.
    fn granted(&mut self, answer: &SubAck) {
        let asked = self
            .asked
            .get(&answer.packet_id)
            .filter(|asked| asked.is_confirmed);
        if let (Some(PendingSubscription { filter, .. }), [0]) = (asked, &answer.reasons[..]) {
            let what = format!(
                "what comes by `{filter}` is sent once: when it is lost, it does not come again"
            );
            self.weaker(what);
        }
    }

    pub(super) fn weaker(&mut self, what: String) {
        self.emit(ConnectionEvent::Notice(LinkNotice::Weaker(what)));
    }

    fn answered(&mut self, answer: &SubAck, verb: &str) -> Result<(), ConnectionError> {
        let Some(PendingSubscription { filter, .. }) = self.asked.remove(&answer.packet_id) else {
            return Ok(());
        };
        match answer.reasons.iter().find(|reason| **reason >= 0x80) {
            None => Ok(()),
            Some(code) => {
                let why = reason_code::describe(*code, &answer.properties);
                Err(temporary(format!("the broker {verb} `{filter}`: {why}")))
            }
        }
    }
}

/// Of duplicate keys the first counts.
fn user_properties(packet: MqttProperties) -> Properties {
    let mut properties = Properties::new();
    for (_, value) in packet.0 {
        if let PropertyValue::Pair(key, value) = value {
            properties.entry(key).or_insert(value);
        }
    }
    properties
}
