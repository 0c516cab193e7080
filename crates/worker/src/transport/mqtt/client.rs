//! MQTT protocol for the driver: decodes packets for a [`MqttSession`] and encodes its packets.

use super::{
    client_id_conflict::{ClientIdLease, DisconnectCause},
    codec::{
        self, Decoded, Disconnect, MqttProperties, Packet, PacketReader, PropertyValue, property,
    },
    reason_code,
    session::MqttSession,
    temporary,
};
use crate::transport::{
    ConnectionError, ConnectionEvent, OutgoingMessage, Subscription,
    driver::{Driver, Protocol},
};
use bytes::BytesMut;
use std::time::Duration;
use tokio::time::Instant;

/// A connection to a broker.
pub type MqttClient = Driver<MqttProtocol>;

#[derive(Debug)]
pub struct MqttProtocol {
    reader: PacketReader,
    session: MqttSession,
    /// Whether the broker should drop the session at the end.
    forgets: bool,
    /// Lease of a client id that others may use, too.
    lease: Option<ClientIdLease>,
}

impl MqttProtocol {
    pub(super) fn new(reader: PacketReader, session: MqttSession, forgets: bool) -> MqttProtocol {
        MqttProtocol {
            reader,
            session,
            forgets,
            lease: None,
        }
    }

    fn disconnected(&self, how: DisconnectCause, message: &str) -> ConnectionError {
        match self
            .lease
            .as_ref()
            .and_then(|lease| lease.disconnected(how, Instant::now()))
        {
            Some(more) => temporary(format!("{message}: {more}")),
            None => temporary(message),
        }
    }

    fn write(&mut self, packet: &Packet) {
        // A few bytes always fit.
        _ = codec::write(self.session.version(), packet, &mut self.session.outgoing);
    }
}

impl MqttClient {
    /// Adds the lease that learns of disconnects.
    pub(super) fn at(mut self, lease: Option<ClientIdLease>) -> MqttClient {
        self.protocol.lease = lease;
        self
    }
}

impl Protocol for MqttProtocol {
    fn take(&mut self, incoming: &mut BytesMut) -> Result<bool, ConnectionError> {
        let read = self.reader.read(incoming);
        match read.map_err(|flaw| {
            temporary(format!(
                "the broker does not speak MQTT as it should: {flaw}"
            ))
        })? {
            Decoded::Packet(packet) => {
                let is_rival = matches!(&packet, Packet::Disconnect(end) if end.reason == reason_code::TAKEN_OVER);
                let received = self.session.received(packet);
                received.map_err(|error| {
                    if is_rival {
                        self.disconnected(DisconnectCause::TakenOver, &error.message)
                    } else {
                        error
                    }
                })?;
            }
            Decoded::Oversize { packet_id } => self.session.passed_over(packet_id),
            Decoded::More => return Ok(false),
        }
        Ok(true)
    }

    fn outgoing(&mut self) -> &mut BytesMut {
        &mut self.session.outgoing
    }

    fn fill(&mut self, now: Instant) -> Result<(), ConnectionError> {
        self.session.fill(now)
    }

    fn event(&mut self) -> Option<ConnectionEvent> {
        self.session.event()
    }

    fn is_full(&self) -> bool {
        self.session.is_full()
    }

    fn owed(&self) -> Option<(Instant, &'static str)> {
        self.session
            .owed_since()
            .map(|since| (since, "has left us unanswered"))
    }

    fn give_up(&mut self, sent_by: Instant, why: &str) -> bool {
        self.session.give_up(sent_by, why)
    }

    fn forgive(&mut self, lost: Duration, now: Instant) {
        self.session.forgive(lost, now);
    }

    fn subscribe(&mut self, to: &Subscription, now: Instant) -> Result<u32, ConnectionError> {
        self.session.ask(to, true, now).map(u32::from)
    }

    fn is_asked(&self, question: u32) -> bool {
        u16::try_from(question).is_ok_and(|id| self.session.is_asked(id))
    }

    fn unsubscribe(&mut self, from: &Subscription, now: Instant) -> Result<(), ConnectionError> {
        self.session.ask(from, false, now).map(|_| ())
    }

    fn publish(&mut self, number: u64, message: &OutgoingMessage) {
        self.session.publish(number, message);
    }

    fn settle(&mut self, tag: u64) {
        self.session.settle(tag);
    }

    fn ping(&mut self) {
        self.write(&Packet::PingReq);
    }

    fn close(&mut self) {
        let mut end = Disconnect::default();
        if self.forgets {
            end.properties =
                MqttProperties(vec![(property::SESSION_EXPIRY, PropertyValue::Four(0))]);
        }
        self.write(&Packet::Disconnect(end));
    }

    fn closed(&mut self) -> ConnectionError {
        let how = if self.session.has_published() {
            DisconnectCause::MessageUnanswered
        } else {
            DisconnectCause::Silent
        };
        self.disconnected(how, "the broker closed the connection")
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
