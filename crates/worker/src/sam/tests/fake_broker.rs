//! A broker with one queue: what is not settled comes again by the next connection.

use super::*;
use std::collections::VecDeque;
use tokio::time::{Instant, timeout_at};

/// For so long a message is waited for.
const ANSWER: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Broker(Arc<State>);

struct State {
    inner: Mutex<Inner>,
    woken: Notify,
    has_receipts: bool,
    releases: bool,
}

#[derive(Default)]
struct Inner {
    /// By tag.
    queue: BTreeMap<u64, Message>,
    last: u64,
    /// How many it gives before some are settled; any, if it is not said.
    window: Option<usize>,
    /// Given to this connection.
    given: BTreeSet<u64>,
    patterns: BTreeSet<Subscription>,
    log: Vec<OutgoingMessage>,
    confirms: Vec<u64>,
    /// Messages are taken, and nobody is told so.
    is_silent: bool,
    connection: u64,
    is_down: bool,
    refuses_larger: Option<usize>,
    refused: Vec<u64>,
    /// Whose queues are full, by topic; what was meant for them is not taken.
    full: BTreeSet<String>,
    /// Over what is sent there it ends the connection.
    hated: BTreeSet<String>,
    hates_larger: Option<usize>,
    /// Of what is sent there it says nothing.
    ignored: BTreeSet<String>,
    /// When what it ignores is waited for no longer, in order.
    overdue: VecDeque<(Instant, u64)>,
    not_now: Vec<u64>,
    offered: usize,
    settled: usize,
    /// Given back by this connection: for others.
    released: BTreeSet<u64>,
}

#[derive(Clone)]
struct Message {
    topic: String,
    payload: Bytes,
    properties: Properties,
}

impl Broker {
    pub(super) fn new(has_receipts: bool, releases: bool) -> Broker {
        Broker(Arc::new(State {
            inner: Mutex::default(),
            woken: Notify::new(),
            has_receipts,
            releases,
        }))
    }

    fn change<T>(&self, how: impl FnOnce(&mut Inner) -> T) -> T {
        let done = how(&mut locked(&self.0.inner));
        self.0.woken.notify_waiters();
        done
    }

    /// To whoever subscribed to it.
    pub(super) fn deliver(&self, topic: &str, body: &Value, properties: Properties) {
        self.deliver_bytes(topic, Bytes::from(body.to_string()), properties);
    }

    pub(super) fn deliver_bytes(&self, topic: &str, payload: Bytes, properties: Properties) {
        self.change(|inner| {
            inner.last += 1;
            let message = Message {
                topic: topic.to_owned(),
                payload,
                properties,
            };
            inner.queue.insert(inner.last, message);
        });
    }

    pub(super) fn published(&self, topic: &str) -> Vec<Value> {
        let inner = locked(&self.0.inner);
        let meant = inner.log.iter().filter(|message| message.topic == topic);
        meant
            .map(|message| serde_json::from_slice(&message.payload).unwrap())
            .collect()
    }

    pub(super) fn log(&self) -> Vec<OutgoingMessage> {
        locked(&self.0.inner).log.clone()
    }

    pub(super) fn topics(&self) -> Vec<String> {
        self.log()
            .into_iter()
            .map(|message| message.topic)
            .collect()
    }

    pub(super) fn unsettled(&self) -> usize {
        locked(&self.0.inner).queue.len()
    }

    /// Whether it still has a request with this address.
    pub(super) fn has_for(&self, reply_to: &str) -> bool {
        let inner = locked(&self.0.inner);
        inner.queue.values().any(|one| {
            one.properties
                .get("replyTo")
                .is_some_and(|to| to == reply_to)
        })
    }

    pub(super) fn settled(&self) -> usize {
        locked(&self.0.inner).settled
    }

    pub(super) fn released(&self) -> usize {
        locked(&self.0.inner).released.len()
    }

    pub(super) fn patterns(&self) -> Vec<String> {
        locked(&self.0.inner)
            .patterns
            .iter()
            .map(|subscription| subscription.pattern.clone())
            .collect()
    }

    /// Ends the connection.
    pub(super) fn cut(&self) {
        self.change(|inner| inner.connection += 1);
    }

    pub(super) fn down(&self, is_down: bool) {
        self.change(|inner| {
            inner.is_down = is_down;
            inner.connection += u64::from(is_down);
        });
    }

    pub(super) fn silent(&self, is_silent: bool) {
        self.change(|inner| inner.is_silent = is_silent);
    }

    pub(super) fn full(&self, topic: &str, is_full: bool) {
        self.change(|inner| match is_full {
            true => inner.full.insert(topic.to_owned()),
            false => inner.full.remove(topic),
        });
    }

    /// How often something was offered that was not taken.
    pub(super) fn offered(&self) -> usize {
        locked(&self.0.inner).offered
    }

    pub(super) fn ends_over(&self, topic: &str, does: bool) {
        self.change(|inner| match does {
            true => inner.hated.insert(topic.to_owned()),
            false => inner.hated.remove(topic),
        });
    }

    pub(super) fn ignores(&self, topic: &str, does: bool) {
        self.change(|inner| match does {
            true => inner.ignored.insert(topic.to_owned()),
            false => inner.ignored.remove(topic),
        });
    }

    pub(super) fn ends_over_larger(&self, than: usize) {
        self.change(|inner| inner.hates_larger = Some(than));
    }

    /// How often it ended its connection.
    pub(super) fn cuts(&self) -> usize {
        usize::try_from(locked(&self.0.inner).connection).unwrap()
    }

    pub(super) fn window(&self, limit: usize) {
        self.change(|inner| inner.window = Some(limit));
    }

    pub(super) fn refuses_larger(&self, than: usize) {
        self.change(|inner| inner.refuses_larger = Some(than));
    }
}

impl Connector for Broker {
    type Connection = Connected;

    fn address(&self) -> String {
        "fake".to_owned()
    }

    fn redelivers(&self) -> bool {
        true
    }

    fn releases(&self) -> bool {
        self.0.releases
    }

    async fn connect(&mut self) -> Result<Connected, ConnectionError> {
        self.change(|inner| {
            if inner.is_down {
                return Err(trouble("it is down"));
            }
            inner.given.clear();
            inner.released.clear();
            inner.confirms.clear();
            inner.refused.clear();
            inner.not_now.clear();
            inner.overdue.clear();
            inner.patterns.clear();
            Ok(inner.connection)
        })
        .map(|number| Connected {
            broker: self.clone(),
            number,
        })
    }
}

pub(super) struct Connected {
    broker: Broker,
    number: u64,
}

fn trouble(message: &str) -> ConnectionError {
    ConnectionError {
        message: message.to_owned(),
        is_final: false,
        is_timeout: false,
    }
}

impl Connected {
    fn next_event(&self) -> Option<Result<ConnectionEvent, ConnectionError>> {
        let has_receipts = self.broker.0.has_receipts;
        let mut inner = locked(&self.broker.0.inner);
        if inner.connection != self.number {
            return Some(Err(trouble("cut")));
        }
        if let Some(number) = inner.refused.pop() {
            return Some(Ok(ConnectionEvent::Refused(number, "too large".to_owned())));
        }
        if let Some(number) = inner.not_now.pop() {
            return Some(Ok(ConnectionEvent::NotNow(
                number,
                "quota exceeded".to_owned(),
            )));
        }
        if inner
            .overdue
            .front()
            .is_some_and(|(due, _)| *due <= Instant::now())
            && let Some((_, number)) = inner.overdue.pop_front()
        {
            return Some(Ok(ConnectionEvent::Unanswered(
                number,
                "no word".to_owned(),
            )));
        }
        if !inner.is_silent && !inner.confirms.is_empty() {
            return Some(Ok(ConnectionEvent::Confirmed(inner.confirms.remove(0))));
        }
        let unsettled = || {
            inner
                .given
                .iter()
                .filter(|tag| inner.queue.contains_key(tag))
                .count()
        };
        if inner.window.is_some_and(|limit| unsettled() >= limit) {
            return None;
        }
        let is_meant = |topic: &str| {
            inner
                .patterns
                .iter()
                .any(|wanted| matches(&wanted.pattern, topic, TrailingWildcard::OneLevelOrMore))
        };
        let is_next = |(tag, message): &(&u64, &Message)| {
            !inner.given.contains(tag) && is_meant(&message.topic)
        };
        let (tag, message) = inner
            .queue
            .iter()
            .find(is_next)
            .map(|(tag, message)| (*tag, message.clone()))?;
        inner.given.insert(tag);
        if !has_receipts {
            inner.queue.remove(&tag);
        }
        let Message {
            topic,
            payload,
            properties,
        } = message;
        Some(Ok(ConnectionEvent::Message {
            tag: has_receipts.then_some(tag),
            topic,
            payload,
            properties,
        }))
    }
}

impl Connection for Connected {
    async fn next(&mut self) -> Result<ConnectionEvent, ConnectionError> {
        let state = self.broker.0.clone();
        loop {
            let woken = state.woken.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if let Some(event) = self.next_event() {
                return event;
            }
            let due = locked(&state.inner).overdue.front().map(|(due, _)| *due);
            match due {
                Some(due) => _ = timeout_at(due, woken).await,
                None => woken.await,
            }
        }
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), ConnectionError> {
        self.broker
            .change(|inner| inner.patterns.insert(to.clone()));
        Ok(())
    }

    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), ConnectionError> {
        self.broker.change(|inner| inner.patterns.remove(from));
        Ok(())
    }

    async fn publish(
        &mut self,
        number: u64,
        message: &OutgoingMessage,
    ) -> Result<(), ConnectionError> {
        self.broker.change(|inner| {
            if inner.connection != self.number {
                return;
            }
            if inner
                .refuses_larger
                .is_some_and(|limit| message.payload.len() > limit)
            {
                inner.refused.push(number);
                return;
            }
            let is_larger = inner
                .hates_larger
                .is_some_and(|limit| message.payload.len() > limit);
            if is_larger || inner.hated.contains(&message.topic) {
                inner.connection += 1;
                return;
            }
            if inner.ignored.contains(&message.topic) {
                inner.overdue.push_back((Instant::now() + ANSWER, number));
                return;
            }
            if inner.full.contains(&message.topic) {
                inner.offered += 1;
                inner.not_now.push(number);
                return;
            }
            inner.log.push(message.clone());
            inner.confirms.push(number);
        });
        Ok(())
    }

    async fn settle(&mut self, tag: u64) -> Result<(), ConnectionError> {
        self.broker.change(|inner| {
            assert!(
                inner.queue.remove(&tag).is_some(),
                "settled twice, or never given"
            );
            assert!(
                !inner.released.contains(&tag),
                "settled though it is for others"
            );
            inner.settled += 1;
        });
        Ok(())
    }

    async fn release(&mut self, tag: u64) -> Result<(), ConnectionError> {
        self.broker.change(|inner| {
            let is_here = inner.queue.contains_key(&tag) && inner.given.contains(&tag);
            assert!(
                is_here && inner.released.insert(tag),
                "given back twice, or never given"
            );
        });
        Ok(())
    }

    async fn close(self) {}
}
