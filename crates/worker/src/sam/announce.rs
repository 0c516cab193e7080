//! Follows the tools: subscribes to what is asked of each, and tells the mesh of those that are new, changed or gone; of all
//! after each connection and every few minutes, since agents come later and nobody keeps what was told.

use super::{Undiscovered, noted::Noted, post::Post};
use crate::{
    tools::{Catalog, Tool},
    transport::{LinkState, Properties, Subscription},
    wire::{
        answer,
        topic::{BadTopic, Base},
    },
};
use bytes::Bytes;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Between two times that everybody is told of all tools.
pub(super) const AGAIN: Duration = Duration::from_secs(300);

pub(super) struct Announcer {
    pub(super) base: Base,
    pub(super) catalog: watch::Receiver<Catalog>,
    pub(super) state: watch::Receiver<LinkState>,
    pub(super) undiscovered: mpsc::Receiver<Undiscovered>,
    /// Tools that were asked for and that nobody has.
    pub(super) strays: mpsc::Receiver<String>,
    pub(super) subscribed: BTreeSet<Subscription>,
    /// Even when it is told to leave: see [`super::Worker::is_kept`].
    pub(super) keeps_listening: bool,
    pub(super) post: Post,
}

/// What is listened to for these tools. A link that is begun with it is connected when a call can reach it.
pub fn subscriptions(base: &Base, tools: &Catalog) -> BTreeSet<Subscription> {
    let of_tools = tools
        .keys()
        .flat_map(|tool| of_tool(base, tool).into_iter().flatten());
    of_tools
        .chain([questions(base), cancellations(base)])
        .collect()
}

/// Calls, and questions of older agents.
fn of_tool(base: &Base, tool: &str) -> Result<[Subscription; 2], BadTopic> {
    let shared = |pattern| Subscription {
        pattern,
        is_shared: true,
    };
    Ok([shared(base.invoke(tool)?), shared(base.init(tool)?)])
}

/// One member of a pool answers for all: they have the same tools.
fn questions(base: &Base) -> Subscription {
    Subscription {
        pattern: base.init_requests(),
        is_shared: true,
    }
}

/// Every member: nobody else knows who has the call.
fn cancellations(base: &Base) -> Subscription {
    Subscription {
        pattern: base.cancellations(),
        is_shared: false,
    }
}

impl Announcer {
    /// Until it is told to leave: then nothing more is listened to but cancellations, so that others have it. Where it would
    /// come to nobody else, the broker gathers it for whoever comes next as long as it is listened to.
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
            self.post.unsubscribe(subscription).await;
        }
    }

    async fn follow_all(&mut self, known: &mut Catalog) {
        self.subscribe(cancellations(&self.base)).await;
        self.subscribe(questions(&self.base)).await;
        let mut again = interval_at(Instant::now() + AGAIN, AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.follow(known).await;
        loop {
            tokio::select! {
                // Without those who change them, tools stay as they are.
                () = changed(&mut self.catalog) => self.follow(known).await,
                () = changed(&mut self.state) => self.link_changed(known).await,
                _ = again.tick() => self.tell(known.values()).await,
                Some(undiscovered) = self.undiscovered.recv() => self.failed(&undiscovered).await,
                Some(tool) = self.strays.recv() => {
                    // It may have come meanwhile.
                    if !self.catalog.borrow().contains_key(&tool) {
                        self.unsubscribe(&tool).await;
                    }
                }
            }
        }
    }

    async fn link_changed(&mut self, known: &Catalog) {
        if self.is_connected() {
            self.tell(known.values()).await;
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
        // Otherwise all are told of once it is.
        if self.is_connected() && !news.is_empty() {
            self.tell(news.iter()).await;
        }
    }

    async fn tell(&self, tools: impl Iterator<Item = &Arc<Tool>>) {
        let mut count = 0;
        for tool in tools {
            let topic = self.base.init(&tool.name);
            match answer::init_broadcast(&tool.card, self.post.largest) {
                Ok(card) => count += usize::from(self.broadcast(topic, card).await),
                Err(large) => self.unspeakable(&tool.name, &large),
            }
        }
        self.post.note(Noted::Announced { tools: count });
    }

    async fn failed(&self, undiscovered: &Undiscovered) {
        let Undiscovered { tool, why } = undiscovered;
        self.broadcast(
            self.base.failed_discovery(tool),
            answer::failed_discovery(tool, why),
        )
        .await;
    }

    /// What nobody waits for is told again in any case.
    async fn broadcast(&self, topic: Result<String, BadTopic>, message: Vec<u8>) -> bool {
        match topic {
            Ok(topic) => self
                .post
                .mention(None, &topic, Bytes::from(message), &Properties::new())
                .await
                .is_ok(),
            Err(_) => false,
        }
    }

    fn unspeakable(&self, tool: &str, why: &dyn std::fmt::Display) {
        let (topic, why) = (
            tool.to_owned(),
            format!("the mesh cannot be told of this tool: {why}"),
        );
        self.post.note(Noted::PublishFailed {
            which: None,
            topic,
            why,
        });
    }

    async fn subscribe(&mut self, to: Subscription) {
        if self.subscribed.insert(to.clone()) {
            self.post.subscribe(to).await;
        }
    }

    /// Also what others left subscribed under our name.
    async fn unsubscribe(&mut self, tool: &str) {
        for subscription in of_tool(&self.base, tool).into_iter().flatten() {
            self.post.unsubscribe(subscription.clone()).await;
            self.subscribed.remove(&subscription);
        }
    }
}

/// Until it has changed; for ever if nobody can change it.
pub(super) async fn changed<T>(of: &mut watch::Receiver<T>) {
    if of.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
