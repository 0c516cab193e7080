//! Ours, without a broker: cold calls in the engine.

use crate::{FUNCTION, MODULE, Trouble};
use bytes::Bytes;
use engine::Engine;
use serde_json::json;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};
use worker::{
    artifacts::Shelf,
    call::{Caller, Order, Outcome, Settings, profile::Profile},
    tools::{Code, Limits, Tool, What},
    wire::{
        answer::{LARGEST, ToolCard},
        request::{Message, Request, read},
        topic::Base,
    },
};

/// Long enough for any machine.
const TIME: Duration = Duration::from_secs(60);

/// Makes calls, each in a sandbox of its own.
pub(crate) struct Calls {
    engine: Engine,
    caller: Caller,
    tool: Arc<Tool>,
    base: Base,
}

impl Calls {
    /// Without an interpreter kept ready; with so many sandboxes made ahead.
    pub(crate) fn open(
        python: &Path,
        tools: &Path,
        state: &Path,
        spares: usize,
    ) -> Result<Calls, Trouble> {
        let engine = Engine::open(engine::Settings::new(state)).map_err(failed)?;
        let settings = Settings {
            python: python.to_owned(),
            largest_result: LARGEST,
            parked: 0,
            parked_bytes: 0,
            spares,
            hidden: Vec::new(),
        };
        let caller = Caller::new(engine.clone(), Shelf::memory(), None, settings);
        let tool = Arc::new(Tool {
            name: "add".to_owned(),
            what: What::Function {
                module: MODULE.to_owned(),
                function: FUNCTION.to_owned(),
            },
            code: Code {
                python: Some(tools.join("python")),
                ..Code::default()
            },
            card: ToolCard::default(),
            profile: None,
            timeout: None,
            limits: Limits::default(),
        });
        let base = Base::new("bench", "bench").map_err(failed)?;
        Ok(Calls {
            engine,
            caller,
            tool,
            base,
        })
    }

    /// One call; how long it took until its result was there.
    pub(crate) async fn once(&self) -> Result<Duration, Trouble> {
        let order = self.order()?;
        let (_keep, cancelled) = watch::channel(false);
        let (statuses, _nobody) = mpsc::channel(1);
        let begun = Instant::now();
        let outcome = self.caller.call(order, cancelled, statuses).await;
        let took = begun.elapsed();
        match outcome {
            Outcome::Success { result, .. } if result.get("sum") == Some(&json!(3)) => Ok(took),
            other => Err(failed(format!("{other:?}"))),
        }
    }

    /// As it would have come over a broker.
    fn order(&self) -> Result<Order, Trouble> {
        let body = json!({
            "jsonrpc": "2.0", "id": "one", "method": "sam_remote_tool/invoke",
            "params": {
                "task_id": "one", "tool_name": "add", "args": { "a": 1, "b": 2 },
                "app_name": "agent", "user_id": "someone", "session_id": "one",
            },
        });
        let payload = Bytes::from(body.to_string());
        let topic = self.base.invoke("add").map_err(failed)?;
        let message = Message {
            topic: &topic,
            payload: &payload,
            properties: &Default::default(),
        };
        match read(&self.base, message, LARGEST) {
            Ok(Request::Invoke(invoke)) => Ok(Order {
                tool: self.tool.clone(),
                invoke,
                time: TIME,
                profile: Profile::Restrictive,
            }),
            other => Err(failed(format!("{other:?}"))),
        }
    }

    /// Waits until every sandbox is gone.
    pub(crate) async fn close(self) {
        self.caller.close().await;
        self.engine.close().await;
    }
}

fn failed(why: impl ToString) -> Trouble {
    Trouble::Engine(why.to_string())
}
