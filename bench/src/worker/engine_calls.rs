//! Ours, without a broker: cold calls in the engine.

use crate::worker::{FUNCTION, MODULE, Trouble};
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
    artifacts::ArtifactStore,
    call::{CallOrder, CallRunner, CallSettings, ToolCallOutcome, profile::ToolProfile},
    tools::{EntryPoint, Tool, ToolCode, ToolLimits},
    wire::{
        answer::{MAX_MESSAGE_BYTES, ToolCard},
        request::{RawMessage, WorkerRequest, read},
        topic::TopicBase,
    },
};

/// Long enough for any machine.
const TIME: Duration = Duration::from_secs(60);

/// Makes calls, each in a sandbox of its own.
pub(crate) struct Calls {
    engine: Engine,
    caller: CallRunner,
    tool: Arc<Tool>,
    base: TopicBase,
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
        let settings = CallSettings {
            python: python.to_owned(),
            largest_result: MAX_MESSAGE_BYTES,
            max_warm: 0,
            max_warm_bytes: 0,
            max_prewarmed: spares,
            hidden: Vec::new(),
        };
        let caller = CallRunner::new(engine.clone(), ArtifactStore::memory(), None, settings);
        let tool = Arc::new(Tool {
            name: "add".to_owned(),
            what: EntryPoint::Function {
                module: MODULE.to_owned(),
                function: FUNCTION.to_owned(),
            },
            code: ToolCode {
                python: Some(tools.join("python")),
                ..ToolCode::default()
            },
            card: ToolCard::default(),
            profile: None,
            timeout: None,
            limits: ToolLimits::default(),
        });
        let base = TopicBase::new("bench", "bench").map_err(failed)?;
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
            ToolCallOutcome::Success { result, .. } if result.get("sum") == Some(&json!(3)) => {
                Ok(took)
            }
            other => Err(failed(format!("{other:?}"))),
        }
    }

    /// As it would have come over a broker.
    fn order(&self) -> Result<CallOrder, Trouble> {
        let body = json!({
            "jsonrpc": "2.0", "id": "one", "method": "sam_remote_tool/invoke",
            "params": {
                "task_id": "one", "tool_name": "add", "args": { "a": 1, "b": 2 },
                "app_name": "agent", "user_id": "someone", "session_id": "one",
            },
        });
        let payload = Bytes::from(body.to_string());
        let topic = self.base.invoke("add").map_err(failed)?;
        let message = RawMessage {
            topic: &topic,
            payload: &payload,
            properties: &Default::default(),
        };
        match read(&self.base, message, MAX_MESSAGE_BYTES) {
            Ok(WorkerRequest::Invoke(invoke)) => Ok(CallOrder {
                tool: self.tool.clone(),
                invoke,
                time: TIME,
                profile: ToolProfile::Restrictive,
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
