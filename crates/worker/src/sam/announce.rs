//! Announces tools: subscribes to the topics of each tool and tells the mesh about new, changed and
//! removed ones; about all of them after each connection and every few minutes, because agents come
//! later and the messages are not retained.

use super::{UndiscoveredTool, events::WorkerEvent, responder::Responder};
use crate::{
    tools::{Catalog, Tool},
    transport::{LinkState, Properties, Subscription},
    wire::{
        answer,
        topic::{BadTopic, TopicBase},
    },
};
use bytes::Bytes;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Interval between announcements of all tools.
pub(super) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(300);

pub(super) struct Announcer {
    pub(super) base: TopicBase,
    pub(super) catalog: watch::Receiver<Catalog>,
    pub(super) state: watch::Receiver<LinkState>,
    pub(super) undiscovered: mpsc::Receiver<UndiscoveredTool>,
    /// Unknown tools that were requested.
    pub(super) strays: mpsc::Receiver<String>,
    pub(super) subscribed: BTreeSet<Subscription>,
    /// Also after a shutdown: see [`super::Worker::redelivers`].
    pub(super) keeps_listening: bool,
    pub(super) responder: Responder,
}

/// Subscriptions for these tools. A link that starts with them is ready for calls once it is
/// connected.
pub fn subscriptions(base: &TopicBase, tools: &Catalog) -> BTreeSet<Subscription> {
    let of_tools = tools
        .keys()
        .flat_map(|tool| of_tool(base, tool).into_iter().flatten());
    of_tools
        .chain([questions(base), cancellations(base)])
        .collect()
}

/// Subscriptions for calls, and for describe requests of older agents.
fn of_tool(base: &TopicBase, tool: &str) -> Result<[Subscription; 2], BadTopic> {
    let shared = |pattern| Subscription {
        pattern,
        is_shared: true,
    };
    Ok([shared(base.invoke(tool)?), shared(base.init(tool)?)])
}

/// One member of the pool answers for all: they have the same tools.
fn questions(base: &TopicBase) -> Subscription {
    Subscription {
        pattern: base.init_requests(),
        is_shared: true,
    }
}

/// Every member gets cancellations: only one knows the call.
fn cancellations(base: &TopicBase) -> Subscription {
    Subscription {
        pattern: base.cancellations(),
        is_shared: false,
    }
}

impl Announcer {
    /// Runs until the shutdown, then unsubscribes from everything but cancellations, so that other
    /// workers get the messages. Where no other worker would get them, it stays subscribed, because
    /// the broker then keeps them for the next one.
    pub(super) async fn run(mut self, mut closing: watch::Receiver<bool>) {
        let mut known = Catalog::default();
        tokio::select! {
            () = self.follow_all(&mut known) => {}
            _ = closing.wait_for(|is| *is) => {}
        }
        if self.keeps_listening {
            return;
        }
        self.subscribed.remove(&cancellations(&self.base));
        for subscription in self.subscribed {
            self.responder.unsubscribe(subscription).await;
        }
    }

    async fn follow_all(&mut self, known: &mut Catalog) {
        self.subscribe(cancellations(&self.base)).await;
        self.subscribe(questions(&self.base)).await;
        let mut again = interval_at(Instant::now() + ANNOUNCE_INTERVAL, ANNOUNCE_INTERVAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.follow(known).await;
        loop {
            tokio::select! {
                // A closed channel means that the tools stay as they are.
                () = changed(&mut self.catalog) => self.follow(known).await,
                () = changed(&mut self.state) => self.link_changed(known).await,
                _ = again.tick() => self.announce(known.values()).await,
                Some(undiscovered) = self.undiscovered.recv() => self.failed(&undiscovered).await,
                Some(tool) = self.strays.recv() => {
                    // The tool may have been added meanwhile.
                    if !self.catalog.borrow().contains_key(&tool) {
                        self.unsubscribe(&tool).await;
                    }
                }
            }
        }
    }

    async fn link_changed(&mut self, known: &Catalog) {
        if self.is_connected() {
            self.announce(known.values()).await;
        }
    }

    fn is_connected(&mut self) -> bool {
        *self.state.borrow_and_update() == LinkState::Connected
    }

    async fn follow(&mut self, known: &mut Catalog) {
        let now = self.catalog.borrow_and_update().clone();
        for tool in known.keys().filter(|tool| !now.contains_key(*tool)) {
            self.unsubscribe(tool).await;
            let topic = self.base.removed(tool);
            self.broadcast(topic, answer::removed(tool)).await;
        }
        for tool in now.keys().filter(|tool| !known.contains_key(*tool)) {
            match of_tool(&self.base, tool) {
                Ok(both) => {
                    for subscription in both {
                        self.subscribe(subscription).await;
                    }
                }
                Err(why) => self.unspeakable(tool, &why),
            }
        }
        let is_news = |tool: &&Arc<Tool>| {
            known
                .get(&tool.name)
                .is_none_or(|before| before.card != tool.card)
        };
        let news: Vec<_> = now.values().filter(is_news).cloned().collect();
        *known = now;
        // Otherwise all tools are announced after the connect.
        if self.is_connected() && !news.is_empty() {
            self.announce(news.iter()).await;
        }
    }

    async fn announce(&self, tools: impl Iterator<Item = &Arc<Tool>>) {
        let mut count = 0;
        for tool in tools {
            let topic = self.base.init(&tool.name);
            match answer::init_broadcast(&tool.card, self.responder.largest) {
                Ok(card) => count += usize::from(self.broadcast(topic, card).await),
                Err(large) => self.unspeakable(&tool.name, &large),
            }
        }
        self.responder.emit(WorkerEvent::Announced { tools: count });
    }

    async fn failed(&self, undiscovered: &UndiscoveredTool) {
        let UndiscoveredTool { tool, why } = undiscovered;
        self.broadcast(
            self.base.failed_discovery(tool),
            answer::failed_discovery(tool, why),
        )
        .await;
    }

    /// Nobody waits for an announcement, and it is repeated anyway.
    async fn broadcast(&self, topic: Result<String, BadTopic>, message: Vec<u8>) -> bool {
        match topic {
            Ok(topic) => self
                .responder
                .publish_once(None, &topic, Bytes::from(message), &Properties::new())
                .await
                .is_ok(),
            Err(_) => false,
        }
    }

    fn unspeakable(&self, tool: &str, why: &dyn std::fmt::Display) {
        let topic = tool.to_owned();
        let why = format!("the mesh cannot be told of this tool: {why}");
        self.responder.emit(WorkerEvent::PublishFailed {
            request: None,
            topic,
            why,
        });
    }

    async fn subscribe(&mut self, to: Subscription) {
        if self.subscribed.insert(to.clone()) {
            self.responder.subscribe(to).await;
        }
    }

    /// Also removes subscriptions that others left under our name.
    async fn unsubscribe(&mut self, tool: &str) {
        for subscription in of_tool(&self.base, tool).into_iter().flatten() {
            self.responder.unsubscribe(subscription.clone()).await;
            self.subscribed.remove(&subscription);
        }
    }
}

/// Waits for a change; for ever if the sender is gone.
pub(super) async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
