//! Client of the development broker: one connection to receive and one to send. The broker stores
//! nothing, so that there is nothing to settle.

use super::{
    Connection, ConnectionError, ConnectionEvent, Connector, LinkNotice, OutgoingMessage,
    Subscription,
    dev_protocol::{self, DeliveredMessage, DevCommand, DevReply, RawProperties},
    temporary, timed_out,
};
use bytes::{Bytes, BytesMut};
use serde_json::value::{RawValue, to_raw_value};
use std::{collections::VecDeque, io, time::Duration};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Instant, sleep_until, timeout},
};

/// Timeout of a connect and of immediate replies.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one receive command; a subscribe waits for its end.
const RECEIVE_TIMEOUT_MS: u64 = 250;

/// Connects to a development broker.
#[derive(Clone, Debug)]
pub struct DevBroker {
    /// `HOST:PORT`.
    pub address: String,
    /// Client id.
    pub client_id: String,
    /// Queue name.
    pub queue: String,
}

impl Connector for DevBroker {
    type Connection = DevConnection;

    fn address(&self) -> String {
        format!("tcp://{}", self.address)
    }

    fn redelivers(&self) -> bool {
        false
    }

    async fn connect(&mut self) -> Result<DevConnection, ConnectionError> {
        let incoming = self.line("").await?;
        let outgoing = self.line("-out").await?;
        Ok(DevConnection {
            incoming,
            outgoing,
            pending: VecDeque::new(),
            events: VecDeque::new(),
            sent: VecDeque::new(),
            heard: Instant::now(),
            was_idle: false,
        })
    }
}

impl DevBroker {
    async fn line(&self, suffix: &str) -> Result<JsonConnection, ConnectionError> {
        let stream = within(TcpStream::connect(&self.address)).await?;
        stream.set_nodelay(true).map_err(io_error)?;
        let (from, to) = stream.into_split();
        let mut line = JsonConnection {
            from: BufReader::new(from),
            to,
            held: Vec::new(),
            unsent: BytesMut::new(),
        };
        let hello = DevCommand::Connect {
            client_id: format!("{}{suffix}", self.client_id),
            queue_name: format!("{}{suffix}", self.queue),
            subscriptions: Vec::new(),
        };
        line.ask(&hello).await?;
        Ok(line)
    }
}

/// A connection of JSON lines.
#[derive(Debug)]
struct JsonConnection {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    /// Partially read line.
    held: Vec<u8>,
    unsent: BytesMut,
}

impl JsonConnection {
    async fn write(&mut self, command: &DevCommand) -> Result<(), ConnectionError> {
        self.unsent
            .extend_from_slice(&dev_protocol::encode(command).map_err(io_error)?);
        self.flush().await
    }

    /// Cancel safe: a partial write is continued.
    async fn flush(&mut self) -> Result<(), ConnectionError> {
        while !self.unsent.is_empty() {
            within(self.to.write_buf(&mut self.unsent)).await?;
        }
        Ok(())
    }

    /// Cancel safe.
    async fn reply(&mut self) -> Result<DevReply, ConnectionError> {
        if !dev_protocol::read_line(&mut self.from, &mut self.held)
            .await
            .map_err(io_error)?
        {
            return Err(io_error(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        let read = dev_protocol::decode(&self.held);
        self.held.clear();
        read.map_err(|error| {
            temporary(format!(
                "the broker's answer is none of its dialect: {error}"
            ))
        })
    }

    /// Sends a command and waits for its immediate reply.
    async fn ask(&mut self, command: &DevCommand) -> Result<(), ConnectionError> {
        self.write(command).await?;
        let reply = timeout(RESPONSE_TIMEOUT, self.reply())
            .await
            .map_err(|_| response_timed_out())??;
        refusal(&reply).map_or(Ok(()), |why| Err(temporary(why)))
    }
}

/// Both connections.
#[derive(Debug)]
pub struct DevConnection {
    incoming: JsonConnection,
    outgoing: JsonConnection,
    /// Commands on the receiving connection without a reply, in order.
    pending: VecDeque<PendingReply>,
    /// Events received while waiting for something else.
    events: VecDeque<ConnectionEvent>,
    /// Unconfirmed publishes on the sending connection, with their times.
    sent: VecDeque<(u64, Instant)>,
    /// Time of the last reply on the receiving connection, or of the first command since.
    heard: Instant,
    /// Replies were not read lately.
    was_idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingReply {
    Messages,
    Unsubscribe,
}

impl Connection for DevConnection {
    async fn next(&mut self) -> Result<ConnectionEvent, ConnectionError> {
        self.forgive();
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if !self.pending.contains(&PendingReply::Messages) {
                // Recorded first: if the future is dropped now, the rest is written later.
                self.expect_reply(PendingReply::Messages);
                self.incoming
                    .write(&DevCommand::Receive {
                        timeout_ms: RECEIVE_TIMEOUT_MS,
                    })
                    .await?;
            }
            self.incoming.flush().await?;
            let due = self.due();
            tokio::select! {
                // Received data counts even if the timeout has expired.
                biased;
                reply = self.outgoing.reply(), if !self.sent.is_empty() => {
                    let reply = reply?;
                    let sent = self.sent.pop_front();
                    let (number, _) = sent.ok_or_else(|| temporary("the broker answers what nobody asked"))?;
                    return Ok(match refusal(&reply) {
                        None => ConnectionEvent::Confirmed(number),
                        Some(why) => ConnectionEvent::Refused(number, why),
                    });
                }
                reply = self.incoming.reply() => self.received(reply?)?,
                () = sleep_until(due) => return Err(response_timed_out()),
            }
        }
    }

    async fn idle(&mut self) -> ConnectionError {
        self.was_idle = true;
        std::future::pending().await
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), ConnectionError> {
        self.drain_replies().await?;
        self.incoming
            .ask(&DevCommand::Subscribe {
                topic_pattern: to.pattern.clone(),
            })
            .await
    }

    /// Does not wait for the reply: with a pending receive, many of them would take long.
    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), ConnectionError> {
        self.expect_reply(PendingReply::Unsubscribe);
        self.incoming
            .write(&DevCommand::Unsubscribe {
                topic_pattern: from.pattern.clone(),
            })
            .await
    }

    async fn publish(
        &mut self,
        number: u64,
        message: &OutgoingMessage,
    ) -> Result<(), ConnectionError> {
        let no_json =
            |error: serde_json::Error| temporary(format!("what is to be sent is no JSON: {error}"));
        let written =
            |(name, text): (&String, &String)| value(name, text).map(|value| (name.clone(), value));
        let user_properties: Result<RawProperties, _> =
            message.properties.iter().map(written).collect();
        let user_properties = user_properties.map_err(no_json)?;
        let payload: Box<RawValue> = serde_json::from_slice(&message.payload).map_err(no_json)?;
        let topic = message.topic.clone();
        self.sent.push_back((number, Instant::now()));
        self.outgoing
            .write(&DevCommand::Publish {
                topic,
                payload,
                user_properties,
            })
            .await
    }

    async fn settle(&mut self, _tag: u64) -> Result<(), ConnectionError> {
        Ok(())
    }

    async fn close(mut self) {
        // The session ends with its connections anyway.
        _ = self.drain_replies().await;
        _ = self.incoming.ask(&DevCommand::Disconnect).await;
        _ = self.outgoing.write(&DevCommand::Disconnect).await;
    }
}

impl DevConnection {
    fn expect_reply(&mut self, what: PendingReply) {
        if self.pending.is_empty() {
            self.heard = Instant::now();
        }
        self.pending.push_back(what);
    }

    fn received(&mut self, reply: DevReply) -> Result<(), ConnectionError> {
        self.heard = Instant::now();
        self.pending
            .pop_front()
            .ok_or_else(|| temporary("the broker answers what nobody asked"))?;
        if let Some(why) = refusal(&reply) {
            return Err(temporary(why));
        }
        self.events.extend(reply.message.as_deref().map(event));
        Ok(())
    }

    /// Deadline of the broker's next reply; a receive may take its timeout.
    fn due(&self) -> Instant {
        let messages = self.heard + RESPONSE_TIMEOUT + Duration::from_millis(RECEIVE_TIMEOUT_MS);
        let sent = self
            .sent
            .front()
            .map(|(_, since)| *since + RESPONSE_TIMEOUT);
        sent.map_or(messages, |sent| sent.min(messages))
    }

    /// Does not count time without reading as silence of the broker.
    fn forgive(&mut self) {
        if std::mem::take(&mut self.was_idle) {
            self.heard = Instant::now();
            self.sent
                .iter_mut()
                .for_each(|(_, since)| *since = self.heard);
        }
    }

    /// Reads all pending replies, which come in order.
    async fn drain_replies(&mut self) -> Result<(), ConnectionError> {
        self.incoming.flush().await?;
        while !self.pending.is_empty() {
            let reply = timeout(RESPONSE_TIMEOUT, self.incoming.reply())
                .await
                .map_err(|_| response_timed_out())??;
            self.received(reply)?;
        }
        Ok(())
    }
}

/// An invalid message is its sender's fault and does not break the link.
fn event(message: &RawValue) -> ConnectionEvent {
    match dev_protocol::decode::<DeliveredMessage>(message.get().as_bytes()) {
        Ok(DeliveredMessage {
            topic,
            payload,
            user_properties,
            ..
        }) => {
            let payload = Bytes::from(dev_protocol::as_text(&payload));
            let properties = dev_protocol::as_texts(user_properties.unwrap_or_default());
            ConnectionEvent::Message {
                tag: None,
                topic,
                payload,
                properties,
            }
        }
        Err(error) => {
            let why = format!("a message cannot be read: {}", start(&error.to_string()));
            ConnectionEvent::Notice(LinkNotice::PassedOver(why))
        }
    }
}

/// Clients of this protocol expect the timestamp as a number.
fn value(name: &str, text: &str) -> serde_json::Result<Box<RawValue>> {
    match text.parse::<u64>() {
        Ok(number) if name == "timestamp" => to_raw_value(&number),
        _ => to_raw_value(text),
    }
}

/// The error in a reply, if there is one.
fn refusal(reply: &DevReply) -> Option<String> {
    let shown = |text: &Option<String>| start(text.as_deref().unwrap_or("?"));
    match reply.status.as_str() {
        "OK" | "TIMEOUT" => None,
        _ => Some(format!(
            "the broker says {}: {}",
            shown(&reply.error_code),
            shown(&reply.error_message)
        )),
    }
}

/// The beginning of an untrusted text.
fn start(text: &str) -> String {
    text.chars().take(200).collect()
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> Result<T, ConnectionError> {
    timeout(RESPONSE_TIMEOUT, work)
        .await
        .map_err(|_| response_timed_out())?
        .map_err(io_error)
}

fn response_timed_out() -> ConnectionError {
    timed_out(format!(
        "the broker says nothing for {} s",
        RESPONSE_TIMEOUT.as_secs()
    ))
}

fn io_error(error: io::Error) -> ConnectionError {
    temporary(error.to_string())
}

#[cfg(test)]
#[path = "dev_tests.rs"]
mod tests;
