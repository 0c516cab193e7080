//! Numbers for Prometheus. Labels come from us alone: a tool's name only if the manifest has it, an outcome only if it is one
//! of ours. So nobody who sends messages can make them grow.

use crate::{transport::LinkState, wire::code::Code};
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

/// Names of tools that were ever counted; those beyond are counted together.
const MOST_TOOLS: usize = 1000;
/// What is counted of tools that the manifest does not have.
const OTHER: &str = "other";

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Called {
    tool: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct OfTool {
    tool: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Because {
    reason: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Build {
    version: &'static str,
}

/// How an invocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum End {
    Success,
    TimedOut,
    Cancelled,
    Refused(Code),
    /// It was answered before and got the same answer again.
    Again,
}

impl End {
    /// Its name in numbers and logs: one of the mesh's codes where there is one.
    pub fn name(self) -> &'static str {
        match self {
            End::Success => "success",
            End::TimedOut => "timed_out",
            End::Cancelled => "cancelled",
            End::Again => "answered_again",
            End::Refused(code) => match code {
                Code::SandboxTimeout => "SANDBOX_TIMEOUT",
                Code::SandboxFailed => "SANDBOX_FAILED",
                Code::ToolNotFound => "TOOL_NOT_FOUND",
                Code::ToolNotAvailable => "TOOL_NOT_AVAILABLE",
                Code::ImportError => "IMPORT_ERROR",
                Code::ExecutionError => "EXECUTION_ERROR",
                Code::ToolError => "TOOL_ERROR",
                Code::ArtifactError => "ARTIFACT_ERROR",
                Code::InvalidRequest => "INVALID_REQUEST",
                Code::InternalError => "INTERNAL_ERROR",
                Code::InitError => "INIT_ERROR",
                Code::AuthenticationFailed => "AUTHENTICATION_FAILED",
                Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            },
        }
    }
}

/// Why a message had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It came, and is larger than anything may be.
    Oversize,
    /// It came, and nobody could be answered.
    Unanswerable,
    /// The broker would not take what we sent.
    Unsent,
}

/// What is counted.
pub struct Metrics {
    registry: Registry,
    tools: RwLock<BTreeSet<String>>,
    invocations: Family<Called, Counter>,
    durations: Family<OfTool, Histogram, fn() -> Histogram>,
    queue_wait: Histogram,
    waiting: Gauge,
    under_way: Gauge,
    statuses: Counter,
    artifacts_in: Counter,
    artifacts_out: Counter,
    parked: Gauge,
    warm: Family<Because, Counter>,
    connected: Gauge,
    /// Connections that are known to have been good.
    good: AtomicU64,
    reconnects: Counter,
    lost: Family<Because, Counter>,
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
    /// All at nothing.
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
            parked: Gauge::default(),
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
            self.parked.clone(),
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
        let build = Family::<Build, Gauge>::default();
        build
            .get_or_create(&Build {
                version: env!("CARGO_PKG_VERSION"),
            })
            .set(1);
        registry.register("build_info", "Which Airlock this is", build);
    }

    /// These are the tools now.
    pub fn tools<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for name in names {
            count += 1;
            if known.len() < MOST_TOOLS {
                known.insert(name.to_owned());
            }
        }
        self.served.set(count);
    }

    /// An invocation was answered; how long it took, if it had a slot.
    pub fn ended(&self, tool: &str, end: End, took: Option<Duration>) {
        let tool = self.label(tool);
        self.invocations
            .get_or_create(&Called {
                tool: tool.clone(),
                outcome: end.name(),
            })
            .inc();
        if let Some(took) = took {
            self.durations
                .get_or_create(&OfTool { tool })
                .observe(took.as_secs_f64());
        }
    }

    /// A call got its slot after so long.
    pub fn waited(&self, time: Duration) {
        self.queue_wait.observe(time.as_secs_f64());
    }

    /// So many wait, so many are under way.
    pub fn load(&self, waiting: usize, under_way: usize) {
        self.waiting.set(whole(waiting));
        self.under_way.set(whole(under_way));
    }

    /// A tool said something.
    pub fn status(&self) {
        self.statuses.inc();
    }

    /// A tool was given so many bytes of artifacts.
    pub fn artifacts_in(&self, bytes: u64) {
        self.artifacts_in.inc_by(bytes);
    }

    /// A tool made so many.
    pub fn artifacts_out(&self, bytes: u64) {
        self.artifacts_out.inc_by(bytes);
    }

    /// So many interpreters are kept ready.
    pub fn parked(&self, count: usize) {
        self.parked.set(whole(count));
    }

    /// A call began, in an interpreter that was ready or not.
    pub fn started(&self, is_warm: bool) {
        let reason = if is_warm { "warm" } else { "cold" };
        self.warm.get_or_create(&Because { reason }).inc();
    }

    /// The link changed.
    pub fn link(&self, state: &LinkState) {
        let is_connected = *state == LinkState::Connected;
        let known = self.good.load(Ordering::Relaxed);
        let good = match state {
            LinkState::Connected => known + u64::from(self.connected.get() == 0),
            // Some may have ended before they were seen.
            LinkState::Connecting { after, .. } => known.max(*after),
            LinkState::Lost { .. } => known,
        };
        self.good.store(good, Ordering::Relaxed);
        self.reconnects.inc_by(good.max(1) - known.max(1));
        self.connected.set(i64::from(is_connected));
    }

    /// A message had no effect.
    pub fn lost(&self, why: Lost) {
        let reason = match why {
            Lost::Oversize => "oversize",
            Lost::Unanswerable => "unanswerable",
            Lost::Unsent => "unsent",
        };
        self.lost.get_or_create(&Because { reason }).inc();
    }

    /// So many lines of the log found no room.
    pub fn log_dropped(&self, lines: u64) {
        self.log_dropped
            .set(i64::try_from(lines).unwrap_or(i64::MAX));
    }

    /// All of it, in the text format of OpenMetrics.
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
            OTHER.to_owned()
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
        metrics.tools(["echo"]);
        metrics.ended("echo", End::Success, Some(Duration::from_millis(3)));
        metrics.ended("echo", End::Refused(Code::ToolError), None);
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
            metrics.ended(
                &format!("made-up-{number}"),
                End::Refused(Code::ToolNotAvailable),
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
        metrics.tools(many.iter().map(String::as_str));
        many.iter()
            .for_each(|tool| metrics.ended(tool, End::Success, None));
        let series = metrics
            .text()
            .unwrap()
            .lines()
            .filter(|line| line.contains("success"))
            .count();
        assert_eq!(series, MOST_TOOLS + 1);
    }

    #[test]
    fn only_a_connection_after_the_first_is_a_reconnect() {
        let metrics = Metrics::new();
        let connecting = LinkState::Connecting {
            why: String::new(),
            after: 0,
        };
        for state in [&connecting, &LinkState::Connected, &LinkState::Connected] {
            metrics.link(state);
        }
        assert_eq!((metrics.reconnects.get(), metrics.connected.get()), (0, 1));
        metrics.link(&connecting);
        assert_eq!(metrics.connected.get(), 0);
        metrics.link(&LinkState::Connected);
        assert_eq!(metrics.reconnects.get(), 1);
        metrics.link(&LinkState::Connecting {
            why: String::new(),
            after: 2,
        });
        assert_eq!(metrics.reconnects.get(), 1);
        metrics.link(&LinkState::Connecting {
            why: String::new(),
            after: 3,
        });
        assert_eq!(metrics.reconnects.get(), 2, "one that nobody saw");
    }

    #[test]
    fn an_outcome_has_the_name_that_the_mesh_gives_it() {
        for code in [
            Code::ToolError,
            Code::ResourceExhausted,
            Code::ImportError,
            Code::SandboxTimeout,
        ] {
            assert_eq!(
                serde_json::to_value(code).unwrap(),
                End::Refused(code).name()
            );
        }
    }
}
