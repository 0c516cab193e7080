//! A small broker for a laptop: JSON lines over TCP, everybody gets everything that they subscribed to but what they sent
//! themselves, nothing is kept for those who are not there. Every bound that is reached is told to whoever reaches it, but for
//! one: a client that does not take its messages loses the newest, and is told so when it asks for more.

use crate::{
    transport::lines::{self, Command, Delivered, Reply, Written},
    wire::topic::{Rest, matches},
};
use serde_json::value::{RawValue, to_raw_value};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

/// Clients at once.
const MOST_CLIENTS: usize = 256;
/// Patterns of one client.
const MOST_PATTERNS: usize = 4096;
/// The longest topic, pattern or name.
const LONGEST_NAME: usize = 250;
/// Messages and bytes that may wait for one client.
const MOST_WAITING: usize = 10_000;
const MOST_WAITING_BYTES: usize = 64 << 20;
/// What stands around a message in the line that delivers it.
const ENVELOPE: usize = 64;
/// How long a client may be waited for.
const LONGEST_RECEIVE: Duration = Duration::from_secs(60);
/// After a failed accept: long enough not to spin.
const BREATH: Duration = Duration::from_millis(20);

/// Serves whoever connects, for ever.
pub async fn serve(listener: TcpListener) {
    let hub = Arc::new(Hub::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let hub = hub.clone();
                tokio::spawn(async move {
                    // A client that breaks its connection off is nothing to tell of.
                    _ = client(stream, &hub).await;
                });
            }
            // No descriptors are left.
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// Who is there.
#[derive(Default)]
struct Hub {
    clients: Mutex<HashMap<u64, Arc<Client>>>,
    last_client: AtomicU64,
    last_message: AtomicU64,
}

struct Client {
    name: String,
    patterns: Mutex<BTreeSet<String>>,
    waiting: Mutex<Waiting>,
    woken: Notify,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Arc<RawValue>>,
    bytes: usize,
    lost: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    fn publish(
        &self,
        from: &Client,
        topic: String,
        payload: Box<RawValue>,
        user_properties: Written,
    ) -> Result<u64, String> {
        let id = self.last_message.fetch_add(1, Ordering::Relaxed) + 1;
        let message = Delivered {
            message_id: id,
            topic,
            payload,
            user_properties: Some(user_properties),
        };
        let written: Arc<RawValue> = to_raw_value(&message)
            .map_err(|error| error.to_string())?
            .into();
        // It may be longer than it came; who gets a line that is too long breaks off.
        let size = written.get().len() + ENVELOPE;
        if size > lines::LONGEST {
            return Err(format!(
                "the message takes {size} bytes where it arrives; {} go",
                lines::LONGEST
            ));
        }
        let clients: Vec<_> = locked(&self.clients).values().cloned().collect();
        for client in clients.iter().filter(|client| client.name != from.name) {
            client.offer(&message.topic, &written);
        }
        Ok(id)
    }
}

impl Client {
    fn offer(&self, topic: &str, message: &Arc<RawValue>) {
        if !locked(&self.patterns)
            .iter()
            .any(|pattern| matches(pattern, topic, Rest::AlsoNothing))
        {
            return;
        }
        let mut waiting = locked(&self.waiting);
        let size = message.get().len();
        if waiting.messages.len() >= MOST_WAITING || waiting.bytes + size > MOST_WAITING_BYTES {
            waiting.lost += 1;
            return;
        }
        waiting.bytes += size;
        waiting.messages.push_back(message.clone());
        drop(waiting);
        self.woken.notify_one();
    }

    fn take(&self) -> Option<Reply> {
        let mut waiting = locked(&self.waiting);
        if waiting.messages.is_empty() && waiting.lost > 0 {
            let lost = std::mem::take(&mut waiting.lost);
            return Some(Reply::error(
                "INTERNAL_ERROR",
                format!("{lost} messages were lost: too many waited"),
            ));
        }
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.get().len();
        Some(Reply {
            message: Some((*message).to_owned()),
            ..Reply::ok()
        })
    }

    async fn receive(&self, patience: Duration) -> Reply {
        let wait = async {
            loop {
                if let Some(reply) = self.take() {
                    return reply;
                }
                self.woken.notified().await;
            }
        };
        tokio::time::timeout(patience, wait)
            .await
            .unwrap_or_else(|_| Reply::timeout())
    }
}

/// A client that is known to the hub for as long as this lives.
struct Known<'a> {
    hub: &'a Hub,
    id: u64,
    client: Arc<Client>,
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        locked(&self.hub.clients).remove(&self.id);
    }
}

async fn client(stream: TcpStream, hub: &Hub) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.into_split();
    let (mut from, mut held, mut known) = (BufReader::new(from), Vec::new(), None);
    loop {
        let (reply, is_over) = match lines::fill(&mut from, &mut held).await {
            Ok(true) => match lines::read(&held) {
                Ok(Command::Disconnect) => (Reply::ok(), true),
                Ok(command) => (answer(command, hub, &mut known).await, false),
                Err(error) => (invalid(&error), false),
            },
            Ok(false) => break,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                lines::pass_over(&mut from).await?;
                (invalid(&error), false)
            }
            Err(error) => return Err(error),
        };
        held = Vec::new();
        to.write_all(&lines::line(&reply)?).await?;
        if is_over {
            break;
        }
    }
    Ok(())
}

fn invalid(why: &impl ToString) -> Reply {
    Reply::error("INVALID_COMMAND", why.to_string())
}

async fn answer<'a>(command: Command, hub: &'a Hub, known: &mut Option<Known<'a>>) -> Reply {
    if let Command::Connect {
        client_id,
        subscriptions,
        ..
    } = command
    {
        return connect(client_id, subscriptions, hub, known);
    }
    let Some(known) = known else {
        return Reply::error("NOT_CONNECTED", "send CONNECT first");
    };
    let client = &known.client;
    match command {
        Command::Subscribe { topic_pattern } => match subscribe(client, topic_pattern) {
            Ok(()) => Reply::ok(),
            Err(why) => Reply::error("SUBSCRIBE_FAILED", why),
        },
        Command::Unsubscribe { topic_pattern } => {
            locked(&client.patterns).remove(&topic_pattern);
            Reply::ok()
        }
        Command::Publish { topic, .. } if !is_topic(&topic) => Reply::error(
            "PUBLISH_FAILED",
            format!("a topic has 1 to {LONGEST_NAME} bytes and no `*` or `>`"),
        ),
        Command::Publish {
            topic,
            payload,
            user_properties,
        } => match hub.publish(client, topic, payload, user_properties) {
            Ok(id) => Reply {
                message_id: Some(id),
                ..Reply::ok()
            },
            Err(why) => Reply::error("PUBLISH_FAILED", why),
        },
        Command::Receive { timeout_ms } => {
            client
                .receive(Duration::from_millis(timeout_ms).min(LONGEST_RECEIVE))
                .await
        }
        Command::Ack | Command::Connect { .. } | Command::Disconnect => Reply::ok(),
    }
}

fn connect<'a>(
    name: String,
    patterns: Vec<String>,
    hub: &'a Hub,
    known: &mut Option<Known<'a>>,
) -> Reply {
    if name.len() > LONGEST_NAME || known.is_some() {
        return Reply::error("INVALID_COMMAND", "CONNECT once, with a short client_id");
    }
    let id = hub.last_client.fetch_add(1, Ordering::Relaxed) + 1;
    let name = if name.is_empty() {
        format!("client-{id}")
    } else {
        name
    };
    let (waiting, woken) = (Mutex::default(), Notify::new());
    let client = Arc::new(Client {
        name: name.clone(),
        patterns: Mutex::default(),
        waiting,
        woken,
    });
    for pattern in patterns {
        if let Err(why) = subscribe(&client, pattern) {
            return Reply::error("SUBSCRIBE_FAILED", why);
        }
    }
    let mut clients = locked(&hub.clients);
    if clients.len() >= MOST_CLIENTS {
        return Reply::error(
            "INTERNAL_ERROR",
            format!("there are {MOST_CLIENTS} clients already"),
        );
    }
    clients.insert(id, client.clone());
    drop(clients);
    *known = Some(Known { hub, id, client });
    Reply {
        client_id: Some(name),
        ..Reply::ok()
    }
}

fn subscribe(client: &Client, pattern: String) -> Result<(), String> {
    let mut patterns = locked(&client.patterns);
    if pattern.is_empty() || pattern.len() > LONGEST_NAME {
        return Err(format!("a pattern has 1 to {LONGEST_NAME} bytes"));
    }
    if patterns.len() >= MOST_PATTERNS && !patterns.contains(&pattern) {
        return Err(format!("there are {MOST_PATTERNS} patterns already"));
    }
    patterns.insert(pattern);
    Ok(())
}

fn is_topic(topic: &str) -> bool {
    (1..=LONGEST_NAME).contains(&topic.len()) && !topic.contains(['*', '>'])
}

#[cfg(test)]
#[path = "broker_tests.rs"]
mod tests;
