//! OpenTelemetry traces: spans of requests, runs and programs, exported as OTLP over HTTP in JSON.
//! Spans wait in a bounded queue; dropped spans are counted, and no request waits for the export.
//!
//! ```text
//! request ─┬─ admission
//!          ├─ run ─┬─ start
//!          │       ├─ program
//!          │       ├─ keep
//!          │       └─ end
//!          └─ exec
//! ```

use http::HeaderMap;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use spec::{RunResult, TraceParent};
use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use zeroize::Zeroizing;

/// Queue length, and batch size.
const MAX_QUEUED_SPANS: usize = 8192;
const BATCH_SPANS: usize = 512;
/// How long spans wait for a batch.
const BATCH_DELAY: Duration = Duration::from_millis(500);
/// Request timeout of the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the final export.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum interval of warnings about a failing collector.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
const MAX_TEXT: usize = 256;

/// Settings of the trace export.
#[derive(Clone)]
pub struct TraceSettings {
    /// Base address of the OTLP collector, such as `http://127.0.0.1:4318`.
    pub endpoint: String,
    /// Sampling ratio of traces that start here, from 0 to 1; a caller's own trace has its own
    /// decision.
    pub sample: f64,
    /// Headers for the collector; their values are secret.
    pub headers: Vec<(String, Zeroizing<String>)>,
}

impl fmt::Debug for TraceSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "TraceSettings({:?}, {}, ..)",
            self.endpoint, self.sample
        )
    }
}

/// Identity of a span: trace, span and parent ids, flags, state.
#[derive(Clone, Debug)]
pub(crate) struct SpanContext {
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    flags: u8,
    state: Option<String>,
    /// The caller sent the trace context.
    from_caller: bool,
    /// The span is sampled and exported.
    recorded: bool,
}

impl SpanContext {
    /// A child context. If this span is not recorded, the caller's span stays the parent.
    pub(crate) fn child(&self) -> SpanContext {
        if self.recorded {
            SpanContext {
                span: random_id(),
                parent: Some(self.span),
                ..self.clone()
            }
        } else {
            self.clone()
        }
    }

    /// The trace id in hex, for logs.
    pub(crate) fn trace(&self) -> String {
        TraceParent::hex(&self.trace)
    }

    /// The `traceparent` header value.
    pub(crate) fn traceparent(&self) -> String {
        TraceParent::written(&self.trace, &self.span, self.flags)
    }

    /// `traceparent` for a program in a sandbox: only if the caller sent one.
    pub(crate) fn traceparent_for_program(&self) -> Option<String> {
        self.from_caller.then(|| self.traceparent())
    }
}

/// A span attribute.
pub(crate) type Attribute = (&'static str, Value);

/// A text attribute, truncated to a maximum length.
pub(crate) fn text(name: &'static str, value: &str) -> Attribute {
    (
        name,
        json!({ "stringValue": value.chars().take(MAX_TEXT).collect::<String>() }),
    )
}

/// An integer attribute.
pub(crate) fn number(name: &'static str, value: i64) -> Attribute {
    // OTLP/JSON writes 64-bit integers as strings.
    (name, json!({ "intValue": value.to_string() }))
}

/// Start and end, in microseconds since 1970.
pub(crate) type TimeRange = (u64, u64);

/// A finished span.
#[derive(Debug)]
pub(crate) struct Span {
    span_context: SpanContext,
    name: String,
    /// OTLP span kind: 1 internal, 2 server.
    kind: u8,
    time: TimeRange,
    failed: bool,
    attributes: Vec<Attribute>,
}

impl Span {
    fn json(&self) -> Value {
        let Span {
            span_context,
            name,
            kind,
            time,
            failed,
            attributes,
        } = self;
        let attributes: Vec<_> = attributes
            .iter()
            .map(|(key, value)| json!({ "key": key, "value": value }))
            .collect();
        let nanos = |us: u64| us.saturating_mul(1000).to_string();
        let mut span = json!({
            "traceId": TraceParent::hex(&span_context.trace), "spanId": TraceParent::hex(&span_context.span), "flags": span_context.flags,
            "name": name, "kind": kind, "attributes": attributes,
            "startTimeUnixNano": nanos(time.0), "endTimeUnixNano": nanos(time.1.max(time.0)),
            "status": if *failed { json!({ "code": 2 }) } else { json!({}) },
        });
        if let Some(parent) = &span_context.parent {
            span["parentSpanId"] = TraceParent::hex(parent).into();
        }
        if let Some(state) = &span_context.state {
            span["traceState"] = state.as_str().into();
        }
        span
    }
}

/// The queue of finished spans.
#[derive(Debug)]
pub(crate) struct Tracer {
    settings: Option<TraceSettings>,
    waiting: Mutex<Vec<Span>>,
    grown: Notify,
    dropped: AtomicU64,
    node: String,
}

impl Tracer {
    pub(crate) fn new(settings: Option<TraceSettings>, node: &str) -> Tracer {
        let (waiting, grown, dropped) = Default::default();
        Tracer {
            settings,
            waiting,
            grown,
            dropped,
            node: node.to_owned(),
        }
    }

    /// The span context of a request: in the caller's trace, or in a new one if it is sampled.
    pub(crate) fn start_span(&self, headers: &HeaderMap) -> Option<SpanContext> {
        let sample = self
            .settings
            .as_ref()
            .map(|settings| settings.sample)
            .filter(|sample| *sample > 0.0);
        match (parse_parent(headers), sample) {
            (
                Some(TraceParent {
                    trace,
                    span,
                    flags,
                    state,
                }),
                sample,
            ) => {
                let recorded = sample.is_some() && flags & 1 == 1;
                let (own, parent) = if recorded {
                    (random_id(), Some(span))
                } else {
                    (span, None)
                };
                Some(SpanContext {
                    trace,
                    span: own,
                    parent,
                    flags,
                    state,
                    from_caller: true,
                    recorded,
                })
            }
            (None, None) => None,
            (None, Some(sample)) => {
                let trace: [u8; 16] = random_id();
                let recorded = is_sampled(&trace, sample);
                let parent = None;
                let state = None;
                let from_caller = false;
                recorded.then(|| SpanContext {
                    trace,
                    span: random_id(),
                    parent,
                    flags: 1,
                    state,
                    from_caller,
                    recorded,
                })
            }
        }
    }

    /// Records a finished internal span.
    pub(crate) fn record_span(
        &self,
        span_context: &SpanContext,
        name: &str,
        time: TimeRange,
        failed: bool,
        attributes: Vec<Attribute>,
    ) {
        self.add(span_context, name, 1, time, failed, attributes);
    }

    /// Records the server span of a request.
    pub(crate) fn record_request(
        &self,
        span_context: &SpanContext,
        name: &str,
        time: TimeRange,
        failed: bool,
        attributes: Vec<Attribute>,
    ) {
        self.add(span_context, name, 2, time, failed, attributes);
    }

    fn add(
        &self,
        span_context: &SpanContext,
        name: &str,
        kind: u8,
        time: TimeRange,
        failed: bool,
        attributes: Vec<Attribute>,
    ) {
        if !span_context.recorded {
            return;
        }
        let span = Span {
            span_context: span_context.clone(),
            name: name.to_owned(),
            kind,
            time,
            failed,
            attributes,
        };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < MAX_QUEUED_SPANS {
            waiting.push(span)
        } else {
            _ = self.dropped.fetch_add(1, Ordering::Relaxed)
        }
        drop(waiting);
        self.grown.notify_one();
    }

    /// Records a run and its phases.
    pub(crate) fn record_run(
        &self,
        span_context: &SpanContext,
        result: &RunResult,
        tenant: &str,
        image: &str,
    ) {
        if !span_context.recorded {
            return;
        }
        let moments = &result.phase_times;
        let or_end = |at: u64| if at == 0 { moments.ended } else { at };
        let started = or_end(moments.started);
        let over = or_end(moments.over);
        let kept = or_end(moments.kept);
        let ran = moments.started > 0;
        self.record_span(
            &span_context.child(),
            "start",
            (moments.begun, started),
            !ran,
            Vec::new(),
        );
        if ran {
            self.record_span(
                &span_context.child(),
                "program",
                (started, over),
                false,
                Vec::new(),
            );
            let artifacts = number("airlock.artifacts", result.artifacts.len() as i64);
            self.record_span(
                &span_context.child(),
                "keep",
                (over, kept),
                false,
                vec![artifacts],
            );
            self.record_span(
                &span_context.child(),
                "end",
                (kept, moments.ended),
                false,
                Vec::new(),
            );
        }
        let failed = !matches!(result.status, spec::Status::Succeeded);
        let time = (moments.begun, moments.ended);
        self.record_span(
            span_context,
            "run",
            time,
            failed,
            attributes(result, tenant, image),
        );
    }

    /// Number of dropped spans.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Exports spans as they come; returns at once if no collector is configured.
    pub(crate) async fn export(&self) {
        let Some(exporter) = self.settings.as_ref().and_then(OtlpExporter::new) else {
            return;
        };
        let mut warned_at: Option<Instant> = None;
        loop {
            self.grown.notified().await;
            tokio::time::sleep(BATCH_DELAY).await;
            if let Err(why) = self.send_all(&exporter).await
                && warned_at.is_none_or(|when| when.elapsed() > WARNING_INTERVAL)
            {
                warned_at = Some(Instant::now());
                crate::log_warning(format_args!("traces cannot be sent: {why}"));
            }
        }
    }

    /// Exports the remaining spans within the flush timeout.
    pub(crate) async fn finish(&self) {
        if let Some(exporter) = self.settings.as_ref().and_then(OtlpExporter::new) {
            // The server ends even if the collector does not answer.
            _ = tokio::time::timeout(FLUSH_TIMEOUT, self.send_all(&exporter)).await;
        }
    }

    async fn send_all(&self, exporter: &OtlpExporter) -> Result<(), String> {
        let mut outcome = Ok(());
        loop {
            let spans: Vec<_> = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let count = waiting.len().min(BATCH_SPANS);
                waiting.drain(..count).collect()
            };
            if spans.is_empty() {
                return outcome;
            }
            if let Err(why) = exporter.send(self.document(&spans)).await {
                self.dropped
                    .fetch_add(spans.len() as u64, Ordering::Relaxed);
                outcome = Err(why);
            }
        }
    }

    fn document(&self, spans: &[Span]) -> Value {
        let resource = [
            text("service.name", "airlock"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", &self.node),
        ];
        let resource: Vec<_> = resource
            .iter()
            .map(|(key, value)| json!({ "key": key, "value": value }))
            .collect();
        let spans: Vec<_> = spans.iter().map(Span::json).collect();
        let scope = json!({ "name": "airlock", "version": env!("CARGO_PKG_VERSION") });
        json!({ "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }] })
    }
}

fn attributes(result: &RunResult, tenant: &str, image: &str) -> Vec<Attribute> {
    let name = |limit| {
        serde_json::to_value(limit)
            .ok()
            .and_then(|name| Some(name.as_str()?.to_owned()))
    };
    let limits: Vec<_> = result.limits_hit.iter().filter_map(name).collect();
    let mut all = vec![
        text("airlock.run", result.run_id.as_str()),
        text("airlock.tenant", tenant),
        text("airlock.profile", &result.profile),
        text("airlock.backend", result.backend),
        text("airlock.image", image),
        text("airlock.status", result.status.name()),
        number("airlock.exit_status", i64::from(result.exit_status)),
        number("airlock.cpu_ms", result.usage.cpu_ms as i64),
        number("airlock.denials", result.denials.len() as i64),
    ];
    let ids = [
        ("airlock.task", &result.task_id),
        ("airlock.job", &result.job_id),
    ];
    all.extend(
        ids.into_iter()
            .filter_map(|(name, id)| Some(text(name, id.as_ref()?.as_str()))),
    );
    if !limits.is_empty() {
        all.push(text("airlock.limits_hit", &limits.join(" ")));
    }
    if result.usage.llm.calls > 0 {
        let llm = &result.usage.llm;
        all.extend([
            number("airlock.model_calls", llm.calls as i64),
            number("gen_ai.usage.input_tokens", llm.input_tokens as i64),
            number("gen_ai.usage.output_tokens", llm.output_tokens as i64),
        ]);
    }
    all
}

/// HTTP client of the OTLP collector. The operator configured its address, so no address rules
/// apply.
struct OtlpExporter {
    http: reqwest::Client,
    endpoint: String,
    headers: HeaderMap,
}

impl OtlpExporter {
    fn new(settings: &TraceSettings) -> Option<OtlpExporter> {
        // Another part of the process may have installed the provider.
        _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .timeout(SEND_TIMEOUT)
            .build()
            .ok()?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let name = http::HeaderName::try_from(name).ok()?;
            let mut value = http::HeaderValue::try_from(value.as_str()).ok()?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let endpoint = format!("{}/v1/traces", settings.endpoint.trim_end_matches('/'));
        Some(OtlpExporter {
            http,
            endpoint,
            headers,
        })
    }

    async fn send(&self, document: Value) -> Result<(), String> {
        let request = self.http.post(&self.endpoint).headers(self.headers.clone());
        let request = request
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(document.to_string());
        // The error text of the client contains the address, and is replaced.
        let answer = request.send().await.map_err(|error| {
            if error.is_timeout() {
                "the receiver does not answer in time".to_owned()
            } else {
                "the receiver cannot be reached".to_owned()
            }
        })?;
        if answer.status().is_success() {
            Ok(())
        } else {
            Err(format!("the receiver answers {}", answer.status().as_u16()))
        }
    }
}

/// The trace context of the caller. Malformed or repeated headers are ignored.
fn parse_parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all("traceparent").iter();
    let (Some(one), None) = (values.next(), values.next()) else {
        return None;
    };
    let parent = TraceParent::read(one.to_str().ok()?)?;
    let state: Option<Vec<_>> = headers
        .get_all("tracestate")
        .iter()
        .map(|value| value.to_str().ok())
        .collect();
    let state = state
        .map(|parts| parts.join(","))
        .filter(|state| TraceParent::is_state(state));
    Some(TraceParent { state, ..parent })
}

/// Sampling by the last seven bytes of the trace id: every participant decides alike.
fn is_sampled(trace: &[u8; 16], sample: f64) -> bool {
    let value = trace[9..]
        .iter()
        .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    (value as f64) < sample * (1_u64 << 56) as f64
}

/// Random bytes, never all zeros, which is an invalid id.
fn random_id<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // `fill` does not fail in practice; an id with a single bit is still valid.
    if SystemRandom::new().fill(&mut bytes).is_err() || bytes == [0; N] {
        bytes[N - 1] = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn tracer(sample: Option<f64>) -> Tracer {
        let endpoint = "http://127.0.0.1:1".to_owned();
        let settings = sample.map(|sample| TraceSettings {
            endpoint,
            sample,
            headers: Vec::new(),
        });
        Tracer::new(settings, "node")
    }

    fn headers(parent: Option<&str>) -> HeaderMap {
        parent
            .into_iter()
            .map(|parent| ("traceparent".parse().unwrap(), parent.parse().unwrap()))
            .collect()
    }

    #[test]
    fn without_a_receiver_a_trace_is_passed_on_as_it_came_and_none_begins() {
        let tracer = tracer(None);
        let span_context = tracer.start_span(&headers(Some(GIVEN))).unwrap();
        assert_eq!(
            (
                span_context.child().traceparent(),
                span_context.traceparent_for_program()
            ),
            (GIVEN.to_owned(), Some(GIVEN.to_owned()))
        );
        assert!(tracer.start_span(&headers(None)).is_none());
        tracer.record_span(&span_context, "x", (0, 1), false, Vec::new());
        assert!(tracer.waiting.lock().unwrap().is_empty());
    }

    #[test]
    fn a_caller_who_does_not_record_is_not_recorded_and_one_without_a_trace_gives_none_to_programs()
    {
        let tracer = tracer(Some(1.0));
        let span_context = tracer
            .start_span(&headers(Some(&GIVEN.replace("-01", "-00"))))
            .unwrap();
        assert!(!span_context.recorded);
        let own = tracer.start_span(&headers(None)).unwrap();
        assert!(own.recorded && own.traceparent_for_program().is_none());
        let child = tracer.start_span(&headers(Some(GIVEN))).unwrap().child();
        assert!(
            child
                .traceparent_for_program()
                .unwrap()
                .starts_with(&GIVEN[..36])
        );
        assert!(
            tracer_of_none()
                .start_span(&headers(Some(GIVEN)))
                .is_some_and(|span_context| !span_context.recorded)
        );
    }

    fn tracer_of_none() -> Tracer {
        tracer(Some(0.0))
    }

    #[test]
    fn a_trace_that_is_named_twice_is_not_believed() {
        let mut twice = headers(Some(GIVEN));
        assert!(parse_parent(&twice).is_some());
        twice.append("traceparent", GIVEN.parse().unwrap());
        assert!(parse_parent(&twice).is_none());
    }

    #[test]
    fn a_part_of_all_traces_is_chosen_as_was_asked() {
        let chosen = |sample| {
            (0..2000)
                .filter(|_| is_sampled(&random_id(), sample))
                .count()
        };
        assert_eq!((chosen(0.0), chosen(1.0)), (0, 2000));
        // Six times what chance may differ by.
        let half = chosen(0.5);
        assert!((870..1130).contains(&half), "{half}");
    }

    #[test]
    fn the_queue_is_bounded_and_what_is_dropped_is_counted() {
        let tracer = tracer(Some(1.0));
        let span_context = tracer.start_span(&headers(None)).unwrap();
        (0..MAX_QUEUED_SPANS + 7)
            .for_each(|_| tracer.record_span(&span_context, "x", (0, 1), false, Vec::new()));
        assert_eq!(tracer.dropped(), 7);
    }
}
