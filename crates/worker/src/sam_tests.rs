//! The loop with a broker that keeps what is not settled and sends it again, and with calls that do what a test says. Time
//! stands still while anybody can do anything.

use super::*;
use crate::{
    tools::{EntryPoint, Tool, ToolCode, ToolLimits},
    transport::{
        Connection, ConnectionError, ConnectionEvent, Connector, OutgoingMessage, Properties,
        ReconnectPolicy, Subscription,
    },
    wire::{
        answer::ToolCard,
        code::CallRefusal,
        topic::{TrailingWildcard, matches},
    },
};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

#[path = "sam/tests/claims.rs"]
mod claims;
#[path = "sam/tests/delayed_answers.rs"]
mod delayed_answers;
#[path = "sam/tests/fake_broker.rs"]
mod fake_broker;
#[path = "sam/tests/fake_executor.rs"]
mod fake_executor;
#[path = "sam/tests/model_test.rs"]
mod model_test;
#[path = "sam/tests/rejected_messages.rs"]
mod rejected_messages;
#[path = "sam/tests/shutdown.rs"]
mod shutdown;

use fake_broker::Broker;
use fake_executor::FakeCalls;

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
    stop: watch::Sender<Shutdown>,
    undiscovered: mpsc::Sender<UndiscoveredTool>,
    noted: Arc<Mutex<Vec<WorkerEvent>>>,
    served: JoinHandle<Result<ShutdownReport, WorkerError>>,
}

#[derive(Clone, Debug)]
struct Setup {
    slots: usize,
    waiting: usize,
    largest: usize,
    tries: u64,
    redelivers: bool,
    is_disk_full: bool,
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
            redelivers: true,
            is_disk_full: false,
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
        what: EntryPoint::Function {
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
        limits: ToolLimits::default(),
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
        let patience = ReconnectPolicy {
            tries: setup.tries,
            pause: Duration::from_secs(3),
        };
        let calls = FakeCalls::default();
        let (tells, told) = watch::channel(catalog(&setup.tools));
        let base = TopicBase::new("ns", "x").unwrap();
        let subscribed = match setup.is_subscribed {
            true => subscriptions(&base, &catalog(&[&setup.tools[..], &setup.gone].concat())),
            false => BTreeSet::new(),
        };
        let link = Link::start(broker.clone(), subscribed.clone(), patience);
        let (undiscovered, undiscovereds) = mpsc::channel(4);
        let (stops, stop) = watch::channel(Shutdown::No);
        let noted = Arc::new(Mutex::new(Vec::new()));
        let is_full = setup.is_disk_full;
        let worker = Worker {
            base,
            link,
            subscribed,
            catalog: told,
            undiscovered: undiscovereds,
            calls: calls.clone(),
            bounds: AdmissionLimits {
                slots: setup.slots,
                waiting: setup.waiting,
                waiting_bytes: 1 << 20,
            },
            defaults: CallDefaults {
                timeout: Duration::from_secs(30),
                profile: ToolProfile::Restrictive,
                largest: setup.largest,
            },
            grace: Duration::from_secs(30),
            redelivers: setup.redelivers,
            is_disk_full: Arc::new(move || is_full),
            events: {
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

    fn count(&self, is_meant: impl Fn(&WorkerEvent) -> bool) -> usize {
        locked(&self.noted)
            .iter()
            .filter(|noted| is_meant(noted))
            .count()
    }

    async fn ends(self) -> Result<ShutdownReport, WorkerError> {
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
