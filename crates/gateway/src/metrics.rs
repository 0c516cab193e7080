//! Prometheus metrics. Label values come from the server alone: route templates and statuses, never
//! text of a client.

use crate::{Caller, Gateway, Problem};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode, header::CONTENT_TYPE};
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
use std::time::Duration;
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct StatusLabels {
    status: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct BuildLabels {
    version: &'static str,
}

/// Log lines, telemetry records and spans that were dropped.
#[derive(Debug, Default)]
struct DroppedGauges {
    lines: Gauge,
    records: Gauge,
    spans: Gauge,
}

/// The metrics of this server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    runs: Family<StatusLabels, Counter>,
    run_seconds: Histogram,
    output: Counter,
    containers: Family<StatusLabels, Counter>,
    dropped: DroppedGauges,
    /// Active runs.
    pub(crate) running: Gauge,
    /// Active sandboxes.
    pub(crate) sandboxes: Gauge,
    jobs: Family<StatusLabels, Counter>,
    jobs_queued: Gauge,
    jobs_running: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("airlock");
        let requests = Family::default();
        registry.register("requests", "Requests by route and status", requests.clone());
        let runs = Family::default();
        registry.register("runs", "Runs by how they ended", runs.clone());
        let run_seconds = Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let help = "How long runs took";
        registry.register_with_unit("run_duration", help, Unit::Seconds, run_seconds.clone());
        let output = Counter::default();
        registry.register_with_unit("run_output", "What runs wrote", Unit::Bytes, output.clone());
        let running = Gauge::default();
        let sandboxes = Gauge::default();
        registry.register("runs_now", "Runs under way", running.clone());
        registry.register("sandboxes_now", "Sessions under way", sandboxes.clone());
        let jobs = Family::default();
        registry.register("jobs_ended", "Jobs by how they ended", jobs.clone());
        let jobs_queued = Gauge::default();
        let jobs_running = Gauge::default();
        registry.register("jobs_queued", "Jobs that wait", jobs_queued.clone());
        registry.register("jobs_running", "Jobs under way", jobs_running.clone());
        let containers = Family::default();
        registry.register(
            "containers",
            "Runs and sandboxes as containers, by what became of them",
            containers.clone(),
        );
        let build = Family::<BuildLabels, Gauge>::default();
        build
            .get_or_create(&BuildLabels {
                version: env!("CARGO_PKG_VERSION"),
            })
            .set(1);
        registry.register("build_info", "Which Airlock this is", build);
        let dropped = DroppedGauges::default();
        let help = "Lines of the log that found no room since the start";
        registry.register("log_lines_dropped", help, dropped.lines.clone());
        let help = "Records of telemetry that found no room since the start";
        registry.register("telemetry_records_dropped", help, dropped.records.clone());
        let help = "Spans that nobody took since the start";
        registry.register("trace_spans_dropped", help, dropped.spans.clone());
        Metrics {
            registry,
            requests,
            runs,
            run_seconds,
            output,
            containers,
            dropped,
            running,
            sandboxes,
            jobs,
            jobs_queued,
            jobs_running,
        }
    }

    /// Counts a status change of a container.
    pub(crate) fn container(&self, status: &'static str) {
        self.containers
            .get_or_create(&StatusLabels { status })
            .inc();
    }

    /// Copies the counters that other modules keep.
    fn refresh(&self, gateway: &Gateway) {
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.dropped.lines.set(whole(crate::log::dropped()));
        self.dropped
            .records
            .set(whole(gateway.recorder().dropped()));
        self.dropped.spans.set(whole(gateway.tracer().dropped()));
    }

    pub(crate) fn request(&self, method: &Method, route: &str, status: StatusCode) {
        let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
        let method = known
            .into_iter()
            .find(|known| *known == method.as_str())
            .unwrap_or("other");
        let labels = RequestLabels {
            method,
            route: route.to_owned(),
            status: status.as_u16(),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a finished job.
    pub(crate) fn job(&self, status: &str) {
        let known = spec::Status::ALL
            .into_iter()
            .find(|known| known.name() == status);
        if let Some(status) = known.map(spec::Status::name) {
            self.jobs.get_or_create(&StatusLabels { status }).inc();
        }
    }

    pub(crate) fn run(&self, status: &'static str, took: Duration, output: u64) {
        self.runs.get_or_create(&StatusLabels { status }).inc();
        self.run_seconds.observe(took.as_secs_f64());
        self.output.inc_by(output);
    }
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, description = "In OpenMetrics' text format; any key may ask", body = String,
     content_type = "application/openmetrics-text"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn metrics(State(gateway): State<Gateway>, _: Caller) -> Response {
    let mut text = String::new();
    // If the database is unavailable, the gauges keep their last value.
    if let Ok(counts) = gateway
        .query_database(|database| database.job_counts(None))
        .await
    {
        gateway
            .metrics()
            .jobs_queued
            .set(i64::try_from(counts.queued).unwrap_or(i64::MAX));
        gateway
            .metrics()
            .jobs_running
            .set(i64::try_from(counts.running).unwrap_or(i64::MAX));
    }
    gateway.metrics().refresh(&gateway);
    match encode(&mut text, &gateway.metrics().registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(metrics))
}
