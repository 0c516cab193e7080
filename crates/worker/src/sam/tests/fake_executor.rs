//! Calls that do what a test says: by the name of the tool, and when they are let go.

use super::*;

#[derive(Clone, Default)]
pub(super) struct FakeCalls(Arc<Inner>);

#[derive(Default)]
struct Inner {
    begun: Mutex<Vec<SeenCall>>,
    running: Mutex<(usize, usize)>,
    let_go: Mutex<BTreeSet<String>>,
    woken: Notify,
    is_closed: Mutex<bool>,
}

/// What a call was ordered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenCall {
    pub(super) id: String,
    pub(super) time: Duration,
    pub(super) profile: ToolProfile,
}

/// Counts itself while it lives.
struct Counted<'a>(&'a Inner);

impl<'a> Counted<'a> {
    fn new(inner: &'a Inner) -> Counted<'a> {
        let mut running = locked(&inner.running);
        running.0 += 1;
        running.1 = running.1.max(running.0);
        drop(running);
        Counted(inner)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        locked(&self.0.running).0 -= 1;
    }
}

impl FakeCalls {
    pub(super) fn begun(&self) -> Vec<String> {
        locked(&self.0.begun)
            .iter()
            .map(|seen| seen.id.clone())
            .collect()
    }

    pub(super) fn seen(&self, id: &str) -> SeenCall {
        locked(&self.0.begun)
            .iter()
            .find(|seen| seen.id == id)
            .cloned()
            .expect("it was called")
    }

    /// How many run, and how many ever did at once.
    pub(super) fn running(&self) -> (usize, usize) {
        *locked(&self.0.running)
    }

    pub(super) fn let_go(&self, id: &str) {
        locked(&self.0.let_go).insert(id.to_owned());
        self.0.woken.notify_waiters();
    }

    pub(super) fn is_closed(&self) -> bool {
        *locked(&self.0.is_closed)
    }

    async fn is_let_go(&self, id: &str) {
        loop {
            let woken = self.0.woken.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if locked(&self.0.let_go).contains(id) {
                return;
            }
            woken.await;
        }
    }
}

fn success(text: &str) -> ToolCallOutcome {
    let result = Map::from_iter([("text".to_owned(), Value::from(text))]);
    ToolCallOutcome::Success {
        result,
        artifacts: Vec::new(),
        took: Duration::from_millis(7),
    }
}

impl Executor for FakeCalls {
    async fn describe(
        &self,
        tool: Arc<Tool>,
        config: Map<String, Value>,
    ) -> Result<ToolCard, CallRefusal> {
        let description = config
            .get("description")
            .and_then(Value::as_str)
            .map(str::to_owned);
        match description.as_deref() {
            Some("unknown") => Err(CallRefusal::new(
                crate::wire::code::MeshErrorCode::InitError,
                "it does not say what it is",
            )),
            _ => Ok(ToolCard {
                description,
                ..tool.card.clone()
            }),
        }
    }

    fn forget(&self, _code: &crate::tools::ToolCode) {}

    async fn call(
        &self,
        order: CallOrder,
        mut cancelled: watch::Receiver<bool>,
        statuses: mpsc::Sender<String>,
    ) -> CompletedCall {
        let id = order.invoke.id.clone();
        locked(&self.0.begun).push(SeenCall {
            id: id.clone(),
            time: order.time,
            profile: order.profile,
        });
        let _counted = Counted::new(&self.0);
        let outcome = match order.invoke.tool.as_str() {
            "panic" => panic!("a tool's call panics, as a test wants"),
            "large" => success(&"x".repeat(20_000)),
            "huge" => success(&"x".repeat(9_000_000)),
            "chat" => {
                for number in 0..40 {
                    statuses.send(format!("status {number}")).await.unwrap();
                }
                // Somebody holds on to it beyond the end.
                tokio::spawn(async move {
                    sleep(Duration::from_secs(3600)).await;
                    drop(statuses);
                });
                success("said")
            }
            "late" => {
                sleep(order.time).await;
                ToolCallOutcome::TimedOut { took: order.time }
            }
            "stuck" => std::future::pending().await,
            "refuse" => ToolCallOutcome::Refused(CallRefusal::new(
                crate::wire::code::MeshErrorCode::ToolError,
                "no",
            )),
            "hang" => tokio::select! {
                () = self.is_let_go(&id) => success(&id),
                _ = cancelled.wait_for(|is| *is) => ToolCallOutcome::Cancelled,
            },
            _ => success(&id),
        };
        CompletedCall::from(outcome)
    }

    async fn close(&self) {
        *locked(&self.0.is_closed) = true;
    }
}
