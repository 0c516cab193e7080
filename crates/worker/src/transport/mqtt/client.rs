//! What is spoken on a connection: packets of what was read, for a [`Session`], and its words for the driver.

use super::{
    again,
    codec::{self, Disconnect, Extras, Packet, Read, Reader, Value, name},
    reason,
    rival::{SentAway, Stay},
    session::Session,
};
use crate::transport::{
    Event, Outgoing, Subscription, Trouble,
    driver::{Driver, Speaker},
};
use bytes::BytesMut;
use std::time::Duration;
use tokio::time::Instant;

/// One connection to a broker.
pub type Client = Driver<Speaking>;

#[derive(Debug)]
pub struct Speaking {
    reader: Reader,
    session: Session,
    /// The session is of no use to anybody after us.
    forgets: bool,
    /// Where others may have our name.
    stay: Option<Stay>,
}

impl Speaking {
    pub(super) fn new(reader: Reader, session: Session, forgets: bool) -> Speaking {
        Speaking {
            reader,
            session,
            forgets,
            stay: None,
        }
    }

    fn sent_away(&self, how: SentAway, message: &str) -> Trouble {
        match self
            .stay
            .as_ref()
            .and_then(|stay| stay.sent_away(how, Instant::now()))
        {
            Some(more) => again(format!("{message}: {more}")),
            None => again(message),
        }
    }

    fn write(&mut self, packet: &Packet) {
        // A few bytes: they can be written.
        _ = codec::write(self.session.version(), packet, &mut self.session.outgoing);
    }
}

impl Client {
    /// Says there when the broker sends it away.
    pub(super) fn at(mut self, stay: Option<Stay>) -> Client {
        self.speaker.stay = stay;
        self
    }
}

impl Speaker for Speaking {
    fn take(&mut self, incoming: &mut BytesMut) -> Result<bool, Trouble> {
        let read = self.reader.read(incoming);
        match read.map_err(|flaw| {
            again(format!(
                "the broker does not speak MQTT as it should: {flaw}"
            ))
        })? {
            Read::Packet(packet) => {
                let is_rival =
                    matches!(&packet, Packet::Disconnect(end) if end.reason == reason::TAKEN_OVER);
                let received = self.session.received(packet);
                received.map_err(|trouble| match is_rival {
                    true => self.sent_away(SentAway::ForAnother, &trouble.message),
                    false => trouble,
                })?;
            }
            Read::Oversize { packet_id } => self.session.passed_over(packet_id),
            Read::More => return Ok(false),
        }
        Ok(true)
    }

    fn outgoing(&mut self) -> &mut BytesMut {
        &mut self.session.outgoing
    }

    fn fill(&mut self, now: Instant) -> Result<(), Trouble> {
        self.session.fill(now)
    }

    fn event(&mut self) -> Option<Event> {
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

    fn subscribe(&mut self, to: &Subscription, now: Instant) -> Result<u32, Trouble> {
        self.session.ask(to, true, now).map(u32::from)
    }

    fn is_asked(&self, question: u32) -> bool {
        u16::try_from(question).is_ok_and(|id| self.session.is_asked(id))
    }

    fn unsubscribe(&mut self, from: &Subscription, now: Instant) -> Result<(), Trouble> {
        self.session.ask(from, false, now).map(|_| ())
    }

    fn publish(&mut self, number: u64, message: &Outgoing) {
        self.session.publish(number, message);
    }

    fn settle(&mut self, tag: u64) {
        self.session.settle(tag);
    }

    fn beat(&mut self) {
        self.write(&Packet::Ping);
    }

    fn close(&mut self) {
        let mut end = Disconnect::default();
        if self.forgets {
            end.extras = Extras(vec![(name::SESSION_EXPIRY, Value::Four(0))]);
        }
        self.write(&Packet::Disconnect(end));
    }

    fn closed(&mut self) -> Trouble {
        let how = match self.session.has_published() {
            true => SentAway::OverAMessage,
            false => SentAway::WithoutAWord,
        };
        self.sent_away(how, "the broker closed the connection")
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
