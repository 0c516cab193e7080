//! Prometheus metrics. Label values are our own: a tool's name only if it is in the manifest, an
//! outcome only if it is one of ours. So no client can grow the cardinality.

use crate::{transport::LinkState, wire::code::MeshErrorCode};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};
use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Maximum number of tool names with their own metrics.
const MAX_TOOLS: usize = 1000;
/// Label of tools that are not in the manifest.
const OTHER_TOOL: &str = "other";

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct InvocationLabels {
    tool: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ToolLabels {
    tool: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct BuildLabels {
    version: &'static str,
}

/// Outcome of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvocationOutcome {
    /// The tool returned a result.
    Success,
    /// The tool timed out.
    TimedOut,
    /// The call was cancelled.
    Cancelled,
    /// The call was refused or failed.
    Refused(MeshErrorCode),
    /// A duplicate got the same answer again.
    Again,
}

impl InvocationOutcome {
    /// Value of the label, and of the log's field: the mesh's error code where there is one.
    pub fn name(self) -> &'static str {
        match self {
            InvocationOutcome::Success => "success",
            InvocationOutcome::TimedOut => "timed_out",
            InvocationOutcome::Cancelled => "cancelled",
            InvocationOutcome::Again => "answered_again",
            InvocationOutcome::Refused(code) => match code {
                MeshErrorCode::SandboxTimeout => "SANDBOX_TIMEOUT",
                MeshErrorCode::SandboxFailed => "SANDBOX_FAILED",
                MeshErrorCode::ToolNotFound => "TOOL_NOT_FOUND",
                MeshErrorCode::ToolNotAvailable => "TOOL_NOT_AVAILABLE",
                MeshErrorCode::ImportError => "IMPORT_ERROR",
                MeshErrorCode::ExecutionError => "EXECUTION_ERROR",
                MeshErrorCode::ToolError => "TOOL_ERROR",
                MeshErrorCode::ArtifactError => "ARTIFACT_ERROR",
                MeshErrorCode::InvalidRequest => "INVALID_REQUEST",
                MeshErrorCode::InternalError => "INTERNAL_ERROR",
                MeshErrorCode::InitError => "INIT_ERROR",
                MeshErrorCode::AuthenticationFailed => "AUTHENTICATION_FAILED",
                MeshErrorCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
            },
        }
    }
}

/// Why a message had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The message was too large.
    Oversize,
    /// The requester could not be told.
    Unanswerable,
    /// The broker did not take our message.
    Unsent,
}

/// All metrics.
pub struct Metrics {
    registry: Registry,
    tools: RwLock<BTreeSet<String>>,
    invocations: Family<InvocationLabels, Counter>,
    durations: Family<ToolLabels, Histogram, fn() -> Histogram>,
    queue_wait: Histogram,
    waiting: Gauge,
    under_way: Gauge,
    statuses: Counter,
    artifacts_in: Counter,
    artifacts_out: Counter,
    warm_interpreters: Gauge,
    warm: Family<ReasonLabels, Counter>,
    connected: Gauge,
    /// Number of successful connections so far.
    good: AtomicU64,
    reconnects: Counter,
    lost: Family<ReasonLabels, Counter>,
    served: Gauge,
    log_dropped: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Metrics(..)")
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Metrics {
        let durations: fn() -> Histogram = seconds;
        let mut metrics = Metrics {
            registry: Registry::with_prefix("airlock_worker"),
            tools: RwLock::default(),
            invocations: Family::default(),
            durations: Family::new_with_constructor(durations),
            queue_wait: seconds(),
            waiting: Gauge::default(),
            under_way: Gauge::default(),
            statuses: Counter::default(),
            artifacts_in: Counter::default(),
            artifacts_out: Counter::default(),
            warm_interpreters: Gauge::default(),
            warm: Family::default(),
            connected: Gauge::default(),
            good: AtomicU64::default(),
            reconnects: Counter::default(),
            lost: Family::default(),
            served: Gauge::default(),
            log_dropped: Gauge::default(),
        };
        metrics.register_calls();
        metrics.register_rest();
        metrics
    }

    fn register_calls(&mut self) {
        let Metrics { registry, .. } = self;
        let help = "Invocations by tool and by how they ended";
        registry.register("invocations", help, self.invocations.clone());
        let help = "How long calls took, from slot to answer";
        registry.register_with_unit("call_duration", help, Unit::Seconds, self.durations.clone());
        let help = "How long calls waited for a slot";
        registry.register_with_unit("queue_wait", help, Unit::Seconds, self.queue_wait.clone());
        registry.register(
            "calls_waiting",
            "Calls that wait for a slot",
            self.waiting.clone(),
        );
        registry.register(
            "calls_under_way",
            "Calls that have one",
            self.under_way.clone(),
        );
        registry.register(
            "statuses",
            "Statuses that tools sent",
            self.statuses.clone(),
        );
        let help = "Artifacts that were given to tools";
        registry.register_with_unit("artifacts_in", help, Unit::Bytes, self.artifacts_in.clone());
        let help = "Artifacts that tools made";
        registry.register_with_unit(
            "artifacts_out",
            help,
            Unit::Bytes,
            self.artifacts_out.clone(),
        );
        registry.register(
            "parked_interpreters",
            "Interpreters that are kept ready",
            self.warm_interpreters.clone(),
        );
        registry.register(
            "starts",
            "Calls by whether an interpreter was ready",
            self.warm.clone(),
        );
    }

    fn register_rest(&mut self) {
        let Metrics { registry, .. } = self;
        registry.register(
            "broker_connected",
            "1 while the broker is connected",
            self.connected.clone(),
        );
        let help = "Connections to the broker after the first";
        registry.register("broker_reconnects", help, self.reconnects.clone());
        registry.register(
            "messages_lost",
            "Messages without effect, by reason",
            self.lost.clone(),
        );
        registry.register("tools", "Tools that are served", self.served.clone());
        let help = "Lines of the log that found no room since the start";
        registry.register("log_lines_dropped", help, self.log_dropped.clone());
        let build = Family::<BuildLabels, Gauge>::default();
        build
            .get_or_create(&BuildLabels {
                version: env!("CARGO_PKG_VERSION"),
            })
            .set(1);
        registry.register("build_info", "Which Airlock this is", build);
    }

    /// Sets the names of the current tools.
    pub fn set_tools<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for name in names {
            count += 1;
            if known.len() < MAX_TOOLS {
                known.insert(name.to_owned());
            }
        }
        self.served.set(count);
    }

    /// Counts an answered invocation; `took` is its duration if it had a slot.
    pub fn record_end(&self, tool: &str, end: InvocationOutcome, took: Option<Duration>) {
        let tool = self.label(tool);
        self.invocations
            .get_or_create(&InvocationLabels {
                tool: tool.clone(),
                outcome: end.name(),
            })
            .inc();
        if let Some(took) = took {
            self.durations
                .get_or_create(&ToolLabels { tool })
                .observe(took.as_secs_f64());
        }
    }

    /// Records the time that a call was queued.
    pub fn record_wait(&self, time: Duration) {
        self.queue_wait.observe(time.as_secs_f64());
    }

    /// Sets the number of queued and running calls.
    pub fn set_load(&self, waiting: usize, under_way: usize) {
        self.waiting.set(whole(waiting));
        self.under_way.set(whole(under_way));
    }

    /// Counts a status message.
    pub fn count_status(&self) {
        self.statuses.inc();
    }

    /// Counts bytes of artifacts given to tools.
    pub fn add_artifacts_in(&self, bytes: u64) {
        self.artifacts_in.inc_by(bytes);
    }

    /// Counts bytes of artifacts made by tools.
    pub fn add_artifacts_out(&self, bytes: u64) {
        self.artifacts_out.inc_by(bytes);
    }

    /// Sets the number of warm interpreters.
    pub fn set_warm_interpreters(&self, count: usize) {
        self.warm_interpreters.set(whole(count));
    }

    /// Counts a call by whether its interpreter was warm.
    pub fn count_start(&self, is_warm: bool) {
        let reason = if is_warm { "warm" } else { "cold" };
        self.warm.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Records a change of the link.
    pub fn set_link(&self, state: &LinkState) {
        let is_connected = *state == LinkState::Connected;
        let known = self.good.load(Ordering::Relaxed);
        let good = match state {
            LinkState::Connected => known + u64::from(self.connected.get() == 0),
            // Short connections may not have been observed.
            LinkState::Connecting { after, .. } => known.max(*after),
            LinkState::Lost { .. } => known,
        };
        self.good.store(good, Ordering::Relaxed);
        self.reconnects.inc_by(good.max(1) - known.max(1));
        self.connected.set(i64::from(is_connected));
    }

    /// Counts a message without effect.
    pub fn count_loss(&self, why: LossReason) {
        let reason = match why {
            LossReason::Oversize => "oversize",
            LossReason::Unanswerable => "unanswerable",
            LossReason::Unsent => "unsent",
        };
        self.lost.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Sets the number of dropped log lines.
    pub fn set_log_dropped(&self, lines: u64) {
        self.log_dropped
            .set(i64::try_from(lines).unwrap_or(i64::MAX));
    }

    /// All metrics in the OpenMetrics text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn label(&self, tool: &str) -> String {
        let known = self.tools.read().unwrap_or_else(PoisonError::into_inner);
        if known.contains(tool) {
            tool.to_owned()
        } else {
            OTHER_TOOL.to_owned()
        }
    }
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 19))
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_by_tool_and_outcome() {
        let metrics = Metrics::new();
        metrics.set_tools(["echo"]);
        metrics.record_end(
            "echo",
            InvocationOutcome::Success,
            Some(Duration::from_millis(3)),
        );
        metrics.record_end(
            "echo",
            InvocationOutcome::Refused(MeshErrorCode::ToolError),
            None,
        );
        let text = metrics.text().unwrap();
        for line in [
            "airlock_worker_invocations_total{tool=\"echo\",outcome=\"success\"} 1",
            "airlock_worker_invocations_total{tool=\"echo\",outcome=\"TOOL_ERROR\"} 1",
            "airlock_worker_call_duration_seconds_count{tool=\"echo\"} 1",
            "airlock_worker_tools 1",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    #[test]
    fn strangers_make_no_labels() {
        let metrics = Metrics::new();
        for number in 0..3000 {
            metrics.record_end(
                &format!("made-up-{number}"),
                InvocationOutcome::Refused(MeshErrorCode::ToolNotAvailable),
                None,
            );
        }
        let text = metrics.text().unwrap();
        assert!(
            text.contains("{tool=\"other\",outcome=\"TOOL_NOT_AVAILABLE\"} 3000"),
            "{text}"
        );
        assert!(!text.contains("made-up"));
        let many: Vec<String> = (0..3000).map(|number| format!("tool-{number}")).collect();
        metrics.set_tools(many.iter().map(String::as_str));
        many.iter()
            .for_each(|tool| metrics.record_end(tool, InvocationOutcome::Success, None));
        let series = metrics
            .text()
            .unwrap()
            .lines()
            .filter(|line| line.contains("success"))
            .count();
        assert_eq!(series, MAX_TOOLS + 1);
    }

    #[test]
    fn only_a_connection_after_the_first_is_a_reconnect() {
        let metrics = Metrics::new();
        let connecting = LinkState::Connecting {
            why: String::new(),
            after: 0,
        };
        for state in [&connecting, &LinkState::Connected, &LinkState::Connected] {
            metrics.set_link(state);
        }
        assert_eq!((metrics.reconnects.get(), metrics.connected.get()), (0, 1));
        metrics.set_link(&connecting);
        assert_eq!(metrics.connected.get(), 0);
        metrics.set_link(&LinkState::Connected);
        assert_eq!(metrics.reconnects.get(), 1);
        metrics.set_link(&LinkState::Connecting {
            why: String::new(),
            after: 2,
        });
        assert_eq!(metrics.reconnects.get(), 1);
        metrics.set_link(&LinkState::Connecting {
            why: String::new(),
            after: 3,
        });
        assert_eq!(metrics.reconnects.get(), 2, "one that nobody saw");
    }

    #[test]
    fn an_outcome_has_the_name_that_the_mesh_gives_it() {
        for code in [
            MeshErrorCode::ToolError,
            MeshErrorCode::ResourceExhausted,
            MeshErrorCode::ImportError,
            MeshErrorCode::SandboxTimeout,
        ] {
            assert_eq!(
                serde_json::to_value(code).unwrap(),
                InvocationOutcome::Refused(code).name()
            );
        }
    }
}
