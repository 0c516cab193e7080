//! A development broker, as its client: one connection on which messages are asked for, one on which they are sent. Nothing is
//! kept there, and nothing comes again: there is nothing to settle.

use super::{
    Connection, Connector, Event, Notice, Outgoing, Subscription, Trouble, again,
    lines::{self, Command, Delivered, Reply, Written},
    silence,
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

/// How long the broker may take for a connection, or to answer what it must answer at once.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long one question for messages stays open. What is subscribed meanwhile waits for its end.
const RECEIVE_MS: u64 = 250;

/// Connects to a development broker.
#[derive(Clone, Debug)]
pub struct DevBroker {
    /// `HOST:PORT`.
    pub address: String,
    /// What the broker calls us.
    pub client_id: String,
    /// What the broker calls our queue.
    pub queue: String,
}

impl Connector for DevBroker {
    type Connection = Speaking;

    fn address(&self) -> String {
        format!("tcp://{}", self.address)
    }

    fn redelivers(&self) -> bool {
        false
    }

    async fn connect(&mut self) -> Result<Speaking, Trouble> {
        let incoming = self.line("").await?;
        let outgoing = self.line("-out").await?;
        let (asked, early, sent) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Ok(Speaking {
            incoming,
            outgoing,
            asked,
            early,
            sent,
            heard: Instant::now(),
            was_idle: false,
        })
    }
}

impl DevBroker {
    async fn line(&self, suffix: &str) -> Result<Line, Trouble> {
        let stream = within(TcpStream::connect(&self.address)).await?;
        stream.set_nodelay(true).map_err(trouble)?;
        let (from, to) = stream.into_split();
        let mut line = Line {
            from: BufReader::new(from),
            to,
            held: Vec::new(),
            unsent: BytesMut::new(),
        };
        let hello = Command::Connect {
            client_id: format!("{}{suffix}", self.client_id),
            queue_name: format!("{}{suffix}", self.queue),
            subscriptions: Vec::new(),
        };
        line.ask(&hello).await?;
        Ok(line)
    }
}

/// A connection of which one end is ours.
#[derive(Debug)]
struct Line {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    /// What was read of the next line.
    held: Vec<u8>,
    unsent: BytesMut,
}

impl Line {
    async fn write(&mut self, command: &Command) -> Result<(), Trouble> {
        self.unsent
            .extend_from_slice(&lines::line(command).map_err(trouble)?);
        self.flush().await
    }

    /// May be dropped and called again: nothing is sent in part and forgotten.
    async fn flush(&mut self) -> Result<(), Trouble> {
        while !self.unsent.is_empty() {
            within(self.to.write_buf(&mut self.unsent)).await?;
        }
        Ok(())
    }

    /// May be dropped and called again.
    async fn reply(&mut self) -> Result<Reply, Trouble> {
        if !lines::fill(&mut self.from, &mut self.held)
            .await
            .map_err(trouble)?
        {
            return Err(trouble(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        let read = lines::read(&self.held);
        self.held.clear();
        read.map_err(|error| {
            again(format!(
                "the broker's answer is none of its dialect: {error}"
            ))
        })
    }

    /// Asks, and waits for what must be answered at once.
    async fn ask(&mut self, command: &Command) -> Result<(), Trouble> {
        self.write(command).await?;
        let reply = timeout(LONGEST_WAIT, self.reply())
            .await
            .map_err(|_| silent())??;
        refusal(&reply).map_or(Ok(()), |why| Err(again(why)))
    }
}

/// Two connections that are one.
#[derive(Debug)]
pub struct Speaking {
    incoming: Line,
    outgoing: Line,
    /// What was asked on the first, and not yet answered. It is answered in its order.
    asked: VecDeque<Asked>,
    /// What came while something else was waited for.
    early: VecDeque<Event>,
    /// What was sent on the second and not yet confirmed, and since when.
    sent: VecDeque<(u64, Instant)>,
    /// When the first last answered, or was asked though it owed nothing.
    heard: Instant,
    /// Answers were not read lately.
    was_idle: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Messages,
    Unsubscribe,
}

impl Connection for Speaking {
    async fn next(&mut self) -> Result<Event, Trouble> {
        self.forgive();
        loop {
            if let Some(event) = self.early.pop_front() {
                return Ok(event);
            }
            if !self.asked.contains(&Asked::Messages) {
                // Noted first: should this be dropped now, the rest is written the next time.
                self.owes(Asked::Messages);
                self.incoming
                    .write(&Command::Receive {
                        timeout_ms: RECEIVE_MS,
                    })
                    .await?;
            }
            self.incoming.flush().await?;
            let due = self.due();
            tokio::select! {
                // What has come counts even if the clock says that it is late.
                biased;
                reply = self.outgoing.reply(), if !self.sent.is_empty() => {
                    let (reply, sent) = (reply?, self.sent.pop_front());
                    let (number, _) = sent.ok_or_else(|| again("the broker answers what nobody asked"))?;
                    return Ok(match refusal(&reply) {
                        None => Event::Confirmed(number),
                        Some(why) => Event::Refused(number, why),
                    });
                }
                reply = self.incoming.reply() => self.received(reply?)?,
                () = sleep_until(due) => return Err(silent()),
            }
        }
    }

    async fn idle(&mut self) -> Trouble {
        self.was_idle = true;
        std::future::pending().await
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), Trouble> {
        self.finish_asking().await?;
        self.incoming
            .ask(&Command::Subscribe {
                topic_pattern: to.pattern.clone(),
            })
            .await
    }

    /// The answer is not waited for: behind an open question for messages, that of many would take long.
    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), Trouble> {
        self.owes(Asked::Unsubscribe);
        self.incoming
            .write(&Command::Unsubscribe {
                topic_pattern: from.pattern.clone(),
            })
            .await
    }

    async fn publish(&mut self, number: u64, message: &Outgoing) -> Result<(), Trouble> {
        let no_json =
            |error: serde_json::Error| again(format!("what is to be sent is no JSON: {error}"));
        let written =
            |(name, text): (&String, &String)| value(name, text).map(|value| (name.clone(), value));
        let user_properties: Result<Written, _> = message.properties.iter().map(written).collect();
        let user_properties = user_properties.map_err(no_json)?;
        let payload: Box<RawValue> = serde_json::from_slice(&message.payload).map_err(no_json)?;
        let topic = message.topic.clone();
        self.sent.push_back((number, Instant::now()));
        self.outgoing
            .write(&Command::Publish {
                topic,
                payload,
                user_properties,
            })
            .await
    }

    async fn settle(&mut self, _tag: u64) -> Result<(), Trouble> {
        Ok(())
    }

    async fn close(mut self) {
        // It ends with its connections in any case.
        _ = self.finish_asking().await;
        _ = self.incoming.ask(&Command::Disconnect).await;
        _ = self.outgoing.write(&Command::Disconnect).await;
    }
}

impl Speaking {
    fn owes(&mut self, what: Asked) {
        if self.asked.is_empty() {
            self.heard = Instant::now();
        }
        self.asked.push_back(what);
    }

    fn received(&mut self, reply: Reply) -> Result<(), Trouble> {
        self.heard = Instant::now();
        self.asked
            .pop_front()
            .ok_or_else(|| again("the broker answers what nobody asked"))?;
        if let Some(why) = refusal(&reply) {
            return Err(again(why));
        }
        self.early.extend(reply.message.as_deref().map(event));
        Ok(())
    }

    /// When the broker will have been silent for too long: about messages it may be for a while.
    fn due(&self) -> Instant {
        let messages = self.heard + LONGEST_WAIT + Duration::from_millis(RECEIVE_MS);
        let sent = self.sent.front().map(|(_, since)| *since + LONGEST_WAIT);
        sent.map_or(messages, |sent| sent.min(messages))
    }

    /// What could not be read for a while is not held against the broker.
    fn forgive(&mut self) {
        if std::mem::take(&mut self.was_idle) {
            self.heard = Instant::now();
            self.sent
                .iter_mut()
                .for_each(|(_, since)| *since = self.heard);
        }
    }

    /// A connection answers one thing after the other.
    async fn finish_asking(&mut self) -> Result<(), Trouble> {
        self.incoming.flush().await?;
        while !self.asked.is_empty() {
            let reply = timeout(LONGEST_WAIT, self.incoming.reply())
                .await
                .map_err(|_| silent())??;
            self.received(reply)?;
        }
        Ok(())
    }
}

/// A message that cannot be read is nobody's but its sender's fault: the link stays.
fn event(message: &RawValue) -> Event {
    match lines::read::<Delivered>(message.get().as_bytes()) {
        Ok(Delivered {
            topic,
            payload,
            user_properties,
            ..
        }) => {
            let payload = Bytes::from(lines::as_text(&payload));
            let properties = lines::as_texts(user_properties.unwrap_or_default());
            Event::Message {
                tag: None,
                topic,
                payload,
                properties,
            }
        }
        Err(error) => {
            let why = format!("a message cannot be read: {}", start(&error.to_string()));
            Event::Notice(Notice::PassedOver(why))
        }
    }
}

/// Clients of this dialect expect the time as a number.
fn value(name: &str, text: &str) -> serde_json::Result<Box<RawValue>> {
    match text.parse::<u64>() {
        Ok(number) if name == "timestamp" => to_raw_value(&number),
        _ => to_raw_value(text),
    }
}

/// Why the broker says no, if it does.
fn refusal(reply: &Reply) -> Option<String> {
    let said = |text: &Option<String>| start(text.as_deref().unwrap_or("?"));
    match reply.status.as_str() {
        "OK" | "TIMEOUT" => None,
        _ => Some(format!(
            "the broker says {}: {}",
            said(&reply.error_code),
            said(&reply.error_message)
        )),
    }
}

/// As much of a stranger's words as is told.
fn start(text: &str) -> String {
    text.chars().take(200).collect()
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> Result<T, Trouble> {
    timeout(LONGEST_WAIT, work)
        .await
        .map_err(|_| silent())?
        .map_err(trouble)
}

fn silent() -> Trouble {
    silence(format!(
        "the broker says nothing for {} s",
        LONGEST_WAIT.as_secs()
    ))
}

fn trouble(error: io::Error) -> Trouble {
    again(error.to_string())
}

#[cfg(test)]
#[path = "dev_tests.rs"]
mod tests;
