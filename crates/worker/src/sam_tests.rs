//! The loop with a broker that keeps what is not settled and sends it again, and with calls that do what a test says. Time
//! stands still while anybody can do anything.

use super::*;
use crate::{
    tools::{Code as ToolCode, Limits, Tool, What},
    transport::{
        Connection, Connector, Event, Outgoing, Patience, Properties, Subscription, Trouble,
    },
    wire::{
        answer::ToolCard,
        code::Refusal,
        topic::{Rest, matches},
    },
};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

#[path = "sam/tests/broker.rs"]
mod broker;
#[path = "sam/tests/calls.rs"]
mod calls;
#[path = "sam/tests/chance.rs"]
mod chance;
#[path = "sam/tests/claims.rs"]
mod claims;
#[path = "sam/tests/delays.rs"]
mod delays;
#[path = "sam/tests/ends.rs"]
mod ends;
#[path = "sam/tests/hated.rs"]
mod hated;

use broker::Broker;
use calls::FakeCalls;

/// More than anything here takes, unless it takes for ever.
const LONG: Duration = Duration::from_secs(36_000);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker, its broker and its calls.
struct World {
    broker: Broker,
    calls: FakeCalls,
    catalog: watch::Sender<Catalog>,
    stop: watch::Sender<Stop>,
    undiscovered: mpsc::Sender<Undiscovered>,
    noted: Arc<Mutex<Vec<Noted>>>,
    served: JoinHandle<Result<Ended, Failed>>,
}

#[derive(Clone, Debug)]
struct Setup {
    slots: usize,
    waiting: usize,
    largest: usize,
    tries: u64,
    is_kept: bool,
    is_full: bool,
    has_receipts: bool,
    releases: bool,
    is_subscribed: bool,
    tools: Vec<&'static str>,
    /// Tools that the link was begun with as well.
    gone: Vec<&'static str>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            slots: 2,
            waiting: 100,
            largest: 10_000,
            tries: 0,
            is_kept: true,
            is_full: false,
            has_receipts: true,
            releases: false,
            is_subscribed: true,
            tools: vec!["echo", "hang", "panic", "large", "chat", "late"],
            gone: Vec::new(),
        }
    }
}

fn tool(name: &str, description: &str) -> Arc<Tool> {
    Arc::new(Tool {
        name: name.to_owned(),
        what: What::Function {
            module: "m".to_owned(),
            function: "f".to_owned(),
        },
        code: ToolCode::default(),
        card: ToolCard {
            tool_name: name.to_owned(),
            description: Some(description.to_owned()),
            parameters: Some(json!({"type": "object", "$schema": "x"})),
            ..ToolCard::default()
        },
        profile: None,
        timeout: None,
        limits: Limits::default(),
    })
}

fn catalog(names: &[&str]) -> Catalog {
    Arc::new(
        names
            .iter()
            .map(|name| ((*name).to_owned(), tool(name, "d")))
            .collect(),
    )
}

impl World {
    async fn new(setup: Setup) -> World {
        let broker = Broker::new(setup.has_receipts, setup.releases);
        let patience = Patience {
            tries: setup.tries,
            pause: Duration::from_secs(3),
        };
        let calls = FakeCalls::default();
        let (tells, told) = watch::channel(catalog(&setup.tools));
        let base = Base::new("ns", "x").unwrap();
        let subscribed = match setup.is_subscribed {
            true => subscriptions(&base, &catalog(&[&setup.tools[..], &setup.gone].concat())),
            false => BTreeSet::new(),
        };
        let link = Link::start(broker.clone(), subscribed.clone(), patience);
        let (undiscovered, undiscovereds) = mpsc::channel(4);
        let (stops, stop) = watch::channel(Stop::No);
        let noted = Arc::new(Mutex::new(Vec::new()));
        let is_full = setup.is_full;
        let worker = Worker {
            base,
            link,
            subscribed,
            catalog: told,
            undiscovered: undiscovereds,
            calls: calls.clone(),
            bounds: Bounds {
                slots: setup.slots,
                waiting: setup.waiting,
                waiting_bytes: 1 << 20,
            },
            defaults: Defaults {
                timeout: Duration::from_secs(30),
                profile: Profile::Restrictive,
                largest: setup.largest,
            },
            grace: Duration::from_secs(30),
            is_kept: setup.is_kept,
            is_full: Arc::new(move || is_full),
            note: {
                let noted = noted.clone();
                Arc::new(move |what| locked(&noted).push(what))
            },
        };
        let served = tokio::spawn(serve(worker, stop));
        let world = World {
            broker,
            calls,
            catalog: tells,
            stop: stops,
            undiscovered,
            noted,
            served,
        };
        world.idle().await;
        world
    }

    async fn usual() -> World {
        World::new(Setup::default()).await
    }

    /// Everybody has done what they could: time moves on only then.
    async fn idle(&self) {
        sleep(Duration::from_millis(1)).await;
    }

    fn invoke(&self, tool: &str, id: &str) {
        self.invoke_with(tool, id, json!({}));
    }

    fn invoke_with(&self, tool: &str, id: &str, more: Value) {
        let mut params = json!({"task_id": format!("task-{id}"), "tool_name": tool, "args": {"of": id},
            "app_name": "agent", "user_id": "u", "session_id": "s"});
        let object = params.as_object_mut().unwrap();
        object.extend(more.as_object().unwrap().clone());
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "sam_remote_tool/invoke", "params": params});
        let properties = Properties::from([
            ("replyTo".to_owned(), reply_topic(id)),
            ("statusTo".to_owned(), status_topic(id)),
            ("traceId".to_owned(), format!("trace-{id}")),
        ]);
        self.broker
            .deliver(&topic(&format!("invoke/{tool}")), &body, properties);
    }

    fn cancel(&self, id: &str) {
        self.broker.deliver(
            &topic(&format!("cancel/{id}")),
            &json!({}),
            Properties::new(),
        );
    }

    /// All answers to this id so far.
    fn answers(&self, id: &str) -> Vec<Value> {
        self.broker.published(&reply_topic(id))
    }

    /// The one answer.
    fn answer(&self, id: &str) -> Value {
        let mut answers = self.answers(id);
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    fn code(&self, id: &str) -> String {
        self.answer(id)["error"]["code"]
            .as_str()
            .unwrap_or("none")
            .to_owned()
    }

    fn count(&self, is_meant: impl Fn(&Noted) -> bool) -> usize {
        locked(&self.noted)
            .iter()
            .filter(|noted| is_meant(noted))
            .count()
    }

    async fn ends(self) -> Result<Ended, Failed> {
        tokio::time::timeout(LONG, self.served)
            .await
            .expect("it ends")
            .expect("it does not panic")
    }
}

fn topic(rest: &str) -> String {
    format!("ns/a2a/v1/sam_remote_tool/{rest}")
}

fn reply_topic(id: &str) -> String {
    topic(&format!("response/agent/{id}"))
}

fn status_topic(id: &str) -> String {
    topic(&format!("status/agent/{id}"))
}
