//! Receiver links: messages are reassembled within the link's credit, until they are settled.

use super::{
    super::{
        frame::{DescribedList, descriptor},
        message,
        value::Value,
    },
    AmqpSession,
};
use crate::transport::{
    ConnectionError, ConnectionEvent, LinkNotice, Properties, Subscription, temporary,
};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;

/// A receiver link.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) address: String,
    /// Subscriptions that it serves.
    pub(super) wanted: BTreeSet<Subscription>,
    /// Messages that the broker may still send.
    pub(super) credit: u32,
    pub(super) unsettled: u32,
    pub(super) count: u32,
    pub(super) part: Option<PartialMessage>,
    pub(super) listens: ReceiverState,
    /// Deliveries to release when the subscription ends.
    pub(super) given_back: Vec<u32>,
}

/// State of a receiver link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverState {
    Yes,
    /// Unsubscribed, but with unsettled messages: a detach would return them to the broker.
    Stopped,
    /// Detach sent.
    Ended,
}

/// A message that is incomplete.
#[derive(Debug)]
pub(super) struct PartialMessage {
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
            listens: ReceiverState::Yes,
            given_back: Vec::new(),
        }
    }
}

impl AmqpSession {
    pub(super) fn address(&self, of: &Subscription) -> Result<String, ConnectionError> {
        if of.is_shared {
            Ok(self.agreed.addresses.queue(&self.agreed.queue))
        } else {
            self.agreed.addresses.pattern(&of.pattern)
        }
    }

    pub(super) fn listening(&mut self, address: &str) -> Option<(u32, &mut Receiver)> {
        let mut all = self.receivers.iter_mut();
        all.find(|(_, receiver)| {
            receiver.address == address && receiver.listens == ReceiverState::Yes
        })
        .map(|(handle, receiver)| (*handle, receiver))
    }

    /// Detaches an unsubscribed link without unsettled messages.
    pub(super) fn end_if_settled(&mut self, handle: u32) {
        let stopped = |receiver: &&mut Receiver| {
            receiver.listens == ReceiverState::Stopped && receiver.unsettled == 0
        };
        if let Some(receiver) = self.receivers.get_mut(&handle).filter(stopped) {
            receiver.listens = ReceiverState::Ended;
            self.send(
                descriptor::DETACH,
                vec![Value::Uint(handle), Value::Bool(true)],
            );
        }
    }

    pub(super) fn give_back(&mut self, handle: u32, delivery: u32) {
        self.dispose(
            handle,
            delivery,
            Value::named(descriptor::RELEASED, Vec::new()),
        );
    }

    pub(super) fn dispose(&mut self, handle: u32, delivery: u32, state: Value) {
        let receiver = Value::Bool(true);
        let settled = Value::Bool(true);
        let fields = vec![
            receiver,
            Value::Uint(delivery),
            Value::Uint(delivery),
            settled,
            state,
        ];
        self.send(descriptor::DISPOSITION, fields);
        self.had_room(handle);
    }

    /// A delivery was settled.
    fn had_room(&mut self, handle: u32) {
        if let Some(receiver) = self.receivers.get_mut(&handle) {
            receiver.unsettled = receiver.unsettled.saturating_sub(1);
            self.allow(handle);
            self.end_if_settled(handle);
        }
    }

    /// Renews the credit, if that is worth a frame.
    pub(super) fn allow(&mut self, handle: u32) {
        let limit = self.agreed.credit;
        let listens = |receiver: &&mut Receiver| receiver.listens == ReceiverState::Yes;
        let Some(receiver) = self.receivers.get_mut(&handle).filter(listens) else {
            return;
        };
        let credit = limit.saturating_sub(receiver.unsettled);
        if credit.saturating_sub(receiver.credit) < (limit / 4).max(1) {
            return;
        }
        receiver.credit = credit;
        let count = receiver.count;
        self.grant(handle, count, credit);
    }

    pub(super) fn grant(&mut self, handle: u32, count: u32, credit: u32) {
        let mut fields = self.flow();
        fields.extend([handle, count, credit].map(Value::Uint));
        self.send(descriptor::FLOW, fields);
    }

    pub(super) fn transferred(
        &mut self,
        what: &DescribedList,
        payload: &[u8],
    ) -> Result<(), ConnectionError> {
        self.next_incoming = self.next_incoming.wrapping_add(1);
        let limit = self.agreed.credit;
        let largest = self.agreed.largest_message;
        let own_handle = what
            .uint(0)
            .and_then(|theirs| self.handles.get(&theirs))
            .copied();
        let found = own_handle.and_then(|own_handle| {
            self.receivers
                .get_mut(&own_handle)
                .map(|receiver| (own_handle, receiver))
        });
        let Some((handle, receiver)) = found else {
            return Err(temporary("the broker sends by a link that is none"));
        };
        if receiver.listens == ReceiverState::Ended {
            return Ok(());
        }
        if receiver.part.is_none() {
            let delivery = what
                .uint(1)
                .ok_or_else(|| temporary("the broker sends a message without a number"))?;
            if receiver.credit == 0 || self.unsettled.contains_key(&delivery) {
                return Err(temporary(format!(
                    "the broker sends more than {limit} messages at once, or one twice"
                )));
            }
            receiver.credit -= 1;
            receiver.unsettled += 1;
            receiver.count = receiver.count.wrapping_add(1);
            receiver.part = Some(PartialMessage {
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
        if part.size > largest {
            part.bytes = BytesMut::new()
        } else {
            part.bytes.extend_from_slice(payload)
        }
        let has_more = what.flag(5);
        let is_aborted = what.flag(9);
        if is_aborted {
            receiver.part = None;
            self.had_room(handle);
        } else if !has_more && let Some(part) = receiver.part.take() {
            self.arrived(handle, part);
        }
        Ok(())
    }

    /// A message is complete.
    fn arrived(&mut self, handle: u32, part: PartialMessage) {
        let PartialMessage {
            delivery,
            bytes,
            size,
            is_settled,
        } = part;
        let is_wanted = self
            .receivers
            .get(&handle)
            .is_some_and(|receiver| receiver.listens == ReceiverState::Yes);
        if !is_wanted && !is_settled {
            // In transit when we unsubscribed: released to other receivers.
            return self.give_back(handle, delivery);
        }
        let largest = self.agreed.largest_message;
        let read = if size > largest {
            Err((
                "amqp:link:message-size-exceeded",
                format!("a message of {size} bytes is larger than {largest}"),
            ))
        } else {
            self.understood(handle, bytes.freeze())
                .map_err(|why| ("amqp:decode-error", why))
        };
        match read {
            Ok((topic, payload, properties)) => {
                let tag = (!is_settled).then_some(u64::from(delivery));
                if is_settled {
                    self.had_room(handle)
                } else {
                    _ = self.unsettled.insert(delivery, handle)
                }
                self.emit(ConnectionEvent::Message {
                    tag,
                    topic,
                    payload,
                    properties,
                });
            }
            Err((condition, why)) => {
                let error = vec![Value::Symbol(condition.to_owned()), Value::text(&why)];
                let state = Value::named(
                    descriptor::REJECTED,
                    vec![Value::named(descriptor::ERROR, error)],
                );
                if is_settled {
                    self.had_room(handle)
                } else {
                    self.dispose(handle, delivery, state)
                }
                self.emit(ConnectionEvent::Notice(LinkNotice::PassedOver(why)));
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

    /// The topic of a subscription without wildcards is that of its messages.
    fn only_topic(&self, handle: u32) -> Option<String> {
        let receiver = self.receivers.get(&handle)?;
        let mut wanted = receiver.wanted.iter();
        let only = wanted
            .next()
            .filter(|wanted| !wanted.is_shared && !wanted.pattern.contains(['*', '>']))?;
        wanted.next().is_none().then(|| only.pattern.clone())
    }
}
