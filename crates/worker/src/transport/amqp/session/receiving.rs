//! What comes by the links that we listen by: messages in pieces, as many as we give credit for, until they are settled.

use super::{
    super::{
        frame::{Named, name},
        message,
        value::Value,
    },
    Session,
};
use crate::transport::{Event, Notice, Properties, Subscription, Trouble, again};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;

/// What we listen by.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) address: String,
    /// Why it is there.
    pub(super) wanted: BTreeSet<Subscription>,
    /// Of these the broker may still send.
    pub(super) credit: u32,
    pub(super) unsettled: u32,
    pub(super) count: u32,
    pub(super) part: Option<Part>,
    pub(super) listens: Listens,
    /// What is for others as soon as we do not listen any more.
    pub(super) given_back: Vec<u32>,
}

/// Whether we want more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listens {
    Yes,
    /// Not any more, but what came by it is not settled: with the link the broker would take that back.
    Stopped,
    /// It has been told to end.
    Ended,
}

/// A message of which not all has come.
#[derive(Debug)]
pub(super) struct Part {
    delivery: u32,
    pub(super) bytes: BytesMut,
    size: usize,
    is_settled: bool,
}

impl Receiver {
    pub(super) fn new(address: String, wanted: Subscription) -> Receiver {
        Receiver {
            address,
            wanted: BTreeSet::from([wanted]),
            credit: 0,
            unsettled: 0,
            count: 0,
            part: None,
            listens: Listens::Yes,
            given_back: Vec::new(),
        }
    }
}

impl Session {
    pub(super) fn address(&self, of: &Subscription) -> Result<String, Trouble> {
        match of.is_shared {
            true => Ok(self.agreed.addresses.queue(&self.agreed.queue)),
            false => self.agreed.addresses.pattern(&of.pattern),
        }
    }

    pub(super) fn listening(&mut self, address: &str) -> Option<(u32, &mut Receiver)> {
        let mut all = self.receivers.iter_mut();
        all.find(|(_, receiver)| receiver.address == address && receiver.listens == Listens::Yes)
            .map(|(handle, receiver)| (*handle, receiver))
    }

    /// Ends a link by which nothing is to come and nothing is left to be settled.
    pub(super) fn end_if_settled(&mut self, handle: u32) {
        let stopped = |receiver: &&mut Receiver| {
            receiver.listens == Listens::Stopped && receiver.unsettled == 0
        };
        if let Some(receiver) = self.receivers.get_mut(&handle).filter(stopped) {
            receiver.listens = Listens::Ended;
            self.say(name::DETACH, vec![Value::Uint(handle), Value::Bool(true)]);
        }
    }

    pub(super) fn give_back(&mut self, handle: u32, delivery: u32) {
        self.dispose(handle, delivery, Value::named(name::RELEASED, Vec::new()));
    }

    pub(super) fn dispose(&mut self, handle: u32, delivery: u32, state: Value) {
        let (receiver, settled) = (Value::Bool(true), Value::Bool(true));
        let fields = vec![
            receiver,
            Value::Uint(delivery),
            Value::Uint(delivery),
            settled,
            state,
        ];
        self.say(name::DISPOSITION, fields);
        self.had_room(handle);
    }

    /// One less is unsettled.
    fn had_room(&mut self, handle: u32) {
        if let Some(receiver) = self.receivers.get_mut(&handle) {
            receiver.unsettled = receiver.unsettled.saturating_sub(1);
            self.allow(handle);
            self.end_if_settled(handle);
        }
    }

    /// Lets the broker send, if that is worth a frame.
    pub(super) fn allow(&mut self, handle: u32) {
        let most = self.agreed.credit;
        let listens = |receiver: &&mut Receiver| receiver.listens == Listens::Yes;
        let Some(receiver) = self.receivers.get_mut(&handle).filter(listens) else {
            return;
        };
        let credit = most.saturating_sub(receiver.unsettled);
        if credit.saturating_sub(receiver.credit) < (most / 4).max(1) {
            return;
        }
        receiver.credit = credit;
        let count = receiver.count;
        self.grant(handle, count, credit);
    }

    pub(super) fn grant(&mut self, handle: u32, count: u32, credit: u32) {
        let mut fields = self.flow();
        fields.extend([handle, count, credit].map(Value::Uint));
        self.say(name::FLOW, fields);
    }

    pub(super) fn transferred(&mut self, what: &Named, payload: &[u8]) -> Result<(), Trouble> {
        self.next_incoming = self.next_incoming.wrapping_add(1);
        let (most, largest) = (self.agreed.credit, self.agreed.largest_message);
        let ours = what
            .uint(0)
            .and_then(|theirs| self.handles.get(&theirs))
            .copied();
        let found = ours.and_then(|ours| {
            self.receivers
                .get_mut(&ours)
                .map(|receiver| (ours, receiver))
        });
        let Some((handle, receiver)) = found else {
            return Err(again("the broker sends by a link that is none"));
        };
        if receiver.listens == Listens::Ended {
            return Ok(());
        }
        if receiver.part.is_none() {
            let delivery = what
                .uint(1)
                .ok_or_else(|| again("the broker sends a message without a number"))?;
            if receiver.credit == 0 || self.unsettled.contains_key(&delivery) {
                return Err(again(format!(
                    "the broker sends more than {most} messages at once, or one twice"
                )));
            }
            receiver.credit -= 1;
            receiver.unsettled += 1;
            receiver.count = receiver.count.wrapping_add(1);
            receiver.part = Some(Part {
                delivery,
                bytes: BytesMut::new(),
                size: 0,
                is_settled: false,
            });
        }
        let Some(part) = receiver.part.as_mut() else {
            return Ok(());
        };
        part.is_settled |= what.flag(4);
        part.size = part.size.saturating_add(payload.len());
        match part.size > largest {
            true => part.bytes = BytesMut::new(),
            false => part.bytes.extend_from_slice(payload),
        }
        let (has_more, is_aborted) = (what.flag(5), what.flag(9));
        if is_aborted {
            receiver.part = None;
            self.had_room(handle);
        } else if !has_more && let Some(part) = receiver.part.take() {
            self.arrived(handle, part);
        }
        Ok(())
    }

    /// A message is whole.
    fn arrived(&mut self, handle: u32, part: Part) {
        let Part {
            delivery,
            bytes,
            size,
            is_settled,
        } = part;
        let is_wanted = self
            .receivers
            .get(&handle)
            .is_some_and(|receiver| receiver.listens == Listens::Yes);
        if !is_wanted && !is_settled {
            // It was under way when we stopped: others may have it at once.
            return self.give_back(handle, delivery);
        }
        let largest = self.agreed.largest_message;
        let read = match size > largest {
            true => Err((
                "amqp:link:message-size-exceeded",
                format!("a message of {size} bytes is larger than {largest}"),
            )),
            false => self
                .understood(handle, bytes.freeze())
                .map_err(|why| ("amqp:decode-error", why)),
        };
        match read {
            Ok((topic, payload, properties)) => {
                let tag = (!is_settled).then_some(u64::from(delivery));
                match is_settled {
                    true => self.had_room(handle),
                    false => _ = self.unsettled.insert(delivery, handle),
                }
                self.tell(Event::Message {
                    tag,
                    topic,
                    payload,
                    properties,
                });
            }
            Err((condition, why)) => {
                let error = vec![Value::Symbol(condition.to_owned()), Value::text(&why)];
                let state = Value::named(name::REJECTED, vec![Value::named(name::ERROR, error)]);
                match is_settled {
                    true => self.had_room(handle),
                    false => self.dispose(handle, delivery, state),
                }
                self.tell(Event::Notice(Notice::PassedOver(why)));
            }
        }
    }

    fn understood(&self, handle: u32, bytes: Bytes) -> Result<(String, Bytes, Properties), String> {
        let read =
            message::read(bytes, &self.agreed.addresses).map_err(|unclear| unclear.to_string())?;
        let topic = read.topic.or_else(|| self.only_topic(handle));
        let topic = topic.ok_or(
            "a message does not say which topic it was sent to, so nobody knows what it asks for",
        )?;
        Ok((topic, read.payload, read.properties))
    }

    /// What can only have come by one topic was sent to that.
    fn only_topic(&self, handle: u32) -> Option<String> {
        let receiver = self.receivers.get(&handle)?;
        let mut wanted = receiver.wanted.iter();
        let only = wanted
            .next()
            .filter(|wanted| !wanted.is_shared && !wanted.pattern.contains(['*', '>']))?;
        wanted.next().is_none().then(|| only.pattern.clone())
    }
}
