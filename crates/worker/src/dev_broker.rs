//! A development broker: JSON lines over TCP. Messages go to all subscribers except their sender,
//! and nothing is stored for absent clients. A client that reaches a limit gets an error; one that
//! does not read its messages loses the newest, and is told with its next receive.

use crate::{
    transport::dev_protocol::{self, DeliveredMessage, DevCommand, DevReply, RawProperties},
    wire::topic::{TrailingWildcard, matches},
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

/// Maximum number of clients.
const MAX_CLIENTS: usize = 256;
/// Maximum number of subscriptions of a client.
const MAX_PATTERNS: usize = 4096;
/// Maximum length of a topic, pattern or name.
const MAX_NAME_BYTES: usize = 250;
/// Messages and bytes queued for one client.
const MAX_QUEUED: usize = 10_000;
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Overhead of a delivered message.
const ENVELOPE_BYTES: usize = 64;
/// Maximum timeout of a receive.
const MAX_RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay after a failed accept, against a busy loop.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Serves clients for ever.
pub async fn serve(listener: TcpListener) {
    let hub = Arc::new(Hub::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let hub = hub.clone();
                tokio::spawn(async move {
                    // A broken connection needs no report.
                    _ = client(stream, &hub).await;
                });
            }
            // Out of file descriptors.
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

/// The connected clients.
#[derive(Default)]
struct Hub {
    clients: Mutex<HashMap<u64, Arc<Client>>>,
    last_client: AtomicU64,
    last_message: AtomicU64,
}

struct Client {
    name: String,
    patterns: Mutex<BTreeSet<String>>,
    waiting: Mutex<ClientQueue>,
    woken: Notify,
}

#[derive(Default)]
struct ClientQueue {
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
        user_properties: RawProperties,
    ) -> Result<u64, String> {
        let id = self.last_message.fetch_add(1, Ordering::Relaxed) + 1;
        let message = DeliveredMessage {
            message_id: id,
            topic,
            payload,
            user_properties: Some(user_properties),
        };
        let written: Arc<RawValue> = to_raw_value(&message)
            .map_err(|error| error.to_string())?
            .into();
        // Re-encoded, the message may be longer than it came; a client would disconnect on a line
        // that is too long.
        let size = written.get().len() + ENVELOPE_BYTES;
        if size > dev_protocol::MAX_LINE_BYTES {
            return Err(format!(
                "the message takes {size} bytes where it arrives; {} go",
                dev_protocol::MAX_LINE_BYTES
            ));
        }
        let clients: Vec<_> = locked(&self.clients).values().cloned().collect();
        for client in clients.iter().filter(|client| client.name != from.name) {
            client.enqueue(&message.topic, &written);
        }
        Ok(id)
    }
}

impl Client {
    fn enqueue(&self, topic: &str, message: &Arc<RawValue>) {
        if !locked(&self.patterns)
            .iter()
            .any(|pattern| matches(pattern, topic, TrailingWildcard::AlsoNothing))
        {
            return;
        }
        let mut waiting = locked(&self.waiting);
        let size = message.get().len();
        if waiting.messages.len() >= MAX_QUEUED || waiting.bytes + size > MAX_QUEUED_BYTES {
            waiting.lost += 1;
            return;
        }
        waiting.bytes += size;
        waiting.messages.push_back(message.clone());
        drop(waiting);
        self.woken.notify_one();
    }

    fn take(&self) -> Option<DevReply> {
        let mut waiting = locked(&self.waiting);
        if waiting.messages.is_empty() && waiting.lost > 0 {
            let lost = std::mem::take(&mut waiting.lost);
            return Some(DevReply::error(
                "INTERNAL_ERROR",
                format!("{lost} messages were lost: too many waited"),
            ));
        }
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.get().len();
        Some(DevReply {
            message: Some((*message).to_owned()),
            ..DevReply::ok()
        })
    }

    async fn receive(&self, timeout: Duration) -> DevReply {
        let wait = async {
            loop {
                if let Some(reply) = self.take() {
                    return reply;
                }
                self.woken.notified().await;
            }
        };
        tokio::time::timeout(timeout, wait)
            .await
            .unwrap_or_else(|_| DevReply::timeout())
    }
}

/// Registration of a client, removed on drop.
struct RegisteredClient<'a> {
    hub: &'a Hub,
    id: u64,
    client: Arc<Client>,
}

impl Drop for RegisteredClient<'_> {
    fn drop(&mut self) {
        locked(&self.hub.clients).remove(&self.id);
    }
}

async fn client(stream: TcpStream, hub: &Hub) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    let mut held = Vec::new();
    let mut known = None;
    loop {
        let (reply, is_over) = match dev_protocol::read_line(&mut from, &mut held).await {
            Ok(true) => match dev_protocol::decode(&held) {
                Ok(DevCommand::Disconnect) => (DevReply::ok(), true),
                Ok(command) => (answer(command, hub, &mut known).await, false),
                Err(error) => (invalid(&error), false),
            },
            Ok(false) => break,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                dev_protocol::skip_line(&mut from).await?;
                (invalid(&error), false)
            }
            Err(error) => return Err(error),
        };
        held = Vec::new();
        to.write_all(&dev_protocol::encode(&reply)?).await?;
        if is_over {
            break;
        }
    }
    Ok(())
}

fn invalid(why: &impl ToString) -> DevReply {
    DevReply::error("INVALID_COMMAND", why.to_string())
}

async fn answer<'a>(
    command: DevCommand,
    hub: &'a Hub,
    known: &mut Option<RegisteredClient<'a>>,
) -> DevReply {
    if let DevCommand::Connect {
        client_id,
        subscriptions,
        ..
    } = command
    {
        return connect(client_id, subscriptions, hub, known);
    }
    let Some(known) = known else {
        return DevReply::error("NOT_CONNECTED", "send CONNECT first");
    };
    let client = &known.client;
    match command {
        DevCommand::Subscribe { topic_pattern } => match subscribe(client, topic_pattern) {
            Ok(()) => DevReply::ok(),
            Err(why) => DevReply::error("SUBSCRIBE_FAILED", why),
        },
        DevCommand::Unsubscribe { topic_pattern } => {
            locked(&client.patterns).remove(&topic_pattern);
            DevReply::ok()
        }
        DevCommand::Publish { topic, .. } if !is_topic(&topic) => DevReply::error(
            "PUBLISH_FAILED",
            format!("a topic has 1 to {MAX_NAME_BYTES} bytes and no `*` or `>`"),
        ),
        DevCommand::Publish {
            topic,
            payload,
            user_properties,
        } => match hub.publish(client, topic, payload, user_properties) {
            Ok(id) => DevReply {
                message_id: Some(id),
                ..DevReply::ok()
            },
            Err(why) => DevReply::error("PUBLISH_FAILED", why),
        },
        DevCommand::Receive { timeout_ms } => {
            client
                .receive(Duration::from_millis(timeout_ms).min(MAX_RECEIVE_TIMEOUT))
                .await
        }
        DevCommand::Ack | DevCommand::Connect { .. } | DevCommand::Disconnect => DevReply::ok(),
    }
}

fn connect<'a>(
    name: String,
    patterns: Vec<String>,
    hub: &'a Hub,
    known: &mut Option<RegisteredClient<'a>>,
) -> DevReply {
    if name.len() > MAX_NAME_BYTES || known.is_some() {
        return DevReply::error("INVALID_COMMAND", "CONNECT once, with a short client_id");
    }
    let id = hub.last_client.fetch_add(1, Ordering::Relaxed) + 1;
    let name = if name.is_empty() {
        format!("client-{id}")
    } else {
        name
    };
    let waiting = Mutex::default();
    let woken = Notify::new();
    let client = Arc::new(Client {
        name: name.clone(),
        patterns: Mutex::default(),
        waiting,
        woken,
    });
    for pattern in patterns {
        if let Err(why) = subscribe(&client, pattern) {
            return DevReply::error("SUBSCRIBE_FAILED", why);
        }
    }
    let mut clients = locked(&hub.clients);
    if clients.len() >= MAX_CLIENTS {
        return DevReply::error(
            "INTERNAL_ERROR",
            format!("there are {MAX_CLIENTS} clients already"),
        );
    }
    clients.insert(id, client.clone());
    drop(clients);
    *known = Some(RegisteredClient { hub, id, client });
    DevReply {
        client_id: Some(name),
        ..DevReply::ok()
    }
}

fn subscribe(client: &Client, pattern: String) -> Result<(), String> {
    let mut patterns = locked(&client.patterns);
    if pattern.is_empty() || pattern.len() > MAX_NAME_BYTES {
        return Err(format!("a pattern has 1 to {MAX_NAME_BYTES} bytes"));
    }
    if patterns.len() >= MAX_PATTERNS && !patterns.contains(&pattern) {
        return Err(format!("there are {MAX_PATTERNS} patterns already"));
    }
    patterns.insert(pattern);
    Ok(())
}

fn is_topic(topic: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&topic.len()) && !topic.contains(['*', '>'])
}

#[cfg(test)]
#[path = "dev_broker_tests.rs"]
mod tests;
