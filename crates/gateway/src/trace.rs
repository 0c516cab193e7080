//! Traces, as OpenTelemetry knows them: what was done for a request, and how long each part took. Sent as OTLP over HTTP in
//! JSON to where the operator says. Spans wait in a bounded queue; those that find no room and those that nobody takes are
//! counted, and no request ever waits for them.
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

/// Spans that may wait, and how many are sent together.
const MOST_WAITING: usize = 8192;
const TOGETHER: usize = 512;
/// How long spans wait for others.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the receiver may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last ones are waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Between two words about a receiver that takes nothing.
const BETWEEN_WORDS: Duration = Duration::from_secs(60);
const LONGEST_TEXT: usize = 256;

/// Where traces go.
#[derive(Clone)]
pub struct TraceSettings {
    /// The receiver, such as `http://127.0.0.1:4318`.
    pub endpoint: String,
    /// Which part of the traces that begin here is kept, from 0 to 1; whoever calls with a trace decides for it.
    pub sample: f64,
    /// Headers for the receiver, whose values are secret.
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

/// Where in a trace something happens.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    flags: u8,
    state: Option<String>,
    /// Whether the caller brought it.
    given: bool,
    /// Whether it is told of.
    recorded: bool,
}

impl Spot {
    /// Something that belongs to this. What is not told of leaves the caller's own span as the parent of what follows.
    pub(crate) fn child(&self) -> Spot {
        match self.recorded {
            true => Spot {
                span: chance(),
                parent: Some(self.span),
                ..self.clone()
            },
            false => self.clone(),
        }
    }

    /// The trace, as logs know it.
    pub(crate) fn trace(&self) -> String {
        TraceParent::hex(&self.trace)
    }

    /// As it is passed on.
    pub(crate) fn written(&self) -> String {
        TraceParent::written(&self.trace, &self.span, self.flags)
    }

    /// The same for a program inside: only if the caller is part of it himself.
    pub(crate) fn for_program(&self) -> Option<String> {
        self.given.then(|| self.written())
    }
}

/// One attribute.
pub(crate) type Attribute = (&'static str, Value);

/// Words of ours or of a caller's, bounded.
pub(crate) fn text(name: &'static str, value: &str) -> Attribute {
    (
        name,
        json!({ "stringValue": value.chars().take(LONGEST_TEXT).collect::<String>() }),
    )
}

/// A number.
pub(crate) fn number(name: &'static str, value: i64) -> Attribute {
    // Numbers of 64 bits are texts in this JSON.
    (name, json!({ "intValue": value.to_string() }))
}

/// From when to when, in microseconds since 1970.
pub(crate) type Time = (u64, u64);

/// Part of a trace that is over.
#[derive(Debug)]
pub(crate) struct Span {
    spot: Spot,
    name: String,
    /// 1 internal, 2 server.
    kind: u8,
    time: Time,
    failed: bool,
    attributes: Vec<Attribute>,
}

impl Span {
    fn json(&self) -> Value {
        let Span {
            spot,
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
            "traceId": TraceParent::hex(&spot.trace), "spanId": TraceParent::hex(&spot.span), "flags": spot.flags,
            "name": name, "kind": kind, "attributes": attributes,
            "startTimeUnixNano": nanos(time.0), "endTimeUnixNano": nanos(time.1.max(time.0)),
            "status": if *failed { json!({ "code": 2 }) } else { json!({}) },
        });
        if let Some(parent) = &spot.parent {
            span["parentSpanId"] = TraceParent::hex(parent).into();
        }
        if let Some(state) = &spot.state {
            span["traceState"] = state.as_str().into();
        }
        span
    }
}

/// Where spans wait to be sent.
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

    /// Where a request is in whose trace: the caller's, or a new one if anybody wants those.
    pub(crate) fn begin(&self, headers: &HeaderMap) -> Option<Spot> {
        let sample = self
            .settings
            .as_ref()
            .map(|settings| settings.sample)
            .filter(|sample| *sample > 0.0);
        match (parent_of(headers), sample) {
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
                    (chance(), Some(span))
                } else {
                    (span, None)
                };
                Some(Spot {
                    trace,
                    span: own,
                    parent,
                    flags,
                    state,
                    given: true,
                    recorded,
                })
            }
            (None, None) => None,
            (None, Some(sample)) => {
                let trace: [u8; 16] = chance();
                let recorded = is_chosen(&trace, sample);
                let (parent, state, given) = (None, None, false);
                recorded.then(|| Spot {
                    trace,
                    span: chance(),
                    parent,
                    flags: 1,
                    state,
                    given,
                    recorded,
                })
            }
        }
    }

    /// Tells of something that is over.
    pub(crate) fn tell(
        &self,
        spot: &Spot,
        name: &str,
        time: Time,
        failed: bool,
        attributes: Vec<Attribute>,
    ) {
        self.add(spot, name, 1, time, failed, attributes);
    }

    /// The same of a whole request.
    pub(crate) fn request(
        &self,
        spot: &Spot,
        name: &str,
        time: Time,
        failed: bool,
        attributes: Vec<Attribute>,
    ) {
        self.add(spot, name, 2, time, failed, attributes);
    }

    fn add(
        &self,
        spot: &Spot,
        name: &str,
        kind: u8,
        time: Time,
        failed: bool,
        attributes: Vec<Attribute>,
    ) {
        if !spot.recorded {
            return;
        }
        let span = Span {
            spot: spot.clone(),
            name: name.to_owned(),
            kind,
            time,
            failed,
            attributes,
        };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.len() < MOST_WAITING {
            true => waiting.push(span),
            false => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
        }
        drop(waiting);
        self.grown.notify_one();
    }

    /// A run with its phases.
    pub(crate) fn run(&self, spot: &Spot, result: &RunResult, tenant: &str, image: &str) {
        if !spot.recorded {
            return;
        }
        let moments = &result.moments;
        let or_end = |at: u64| if at == 0 { moments.ended } else { at };
        let (started, over) = (or_end(moments.started), or_end(moments.over));
        let kept = or_end(moments.kept);
        let ran = moments.started > 0;
        self.tell(
            &spot.child(),
            "start",
            (moments.begun, started),
            !ran,
            Vec::new(),
        );
        if ran {
            self.tell(&spot.child(), "program", (started, over), false, Vec::new());
            let artifacts = number("airlock.artifacts", result.artifacts.len() as i64);
            self.tell(&spot.child(), "keep", (over, kept), false, vec![artifacts]);
            self.tell(
                &spot.child(),
                "end",
                (kept, moments.ended),
                false,
                Vec::new(),
            );
        }
        let failed = !matches!(result.status, spec::Status::Succeeded);
        let time = (moments.begun, moments.ended);
        self.tell(spot, "run", time, failed, attributes(result, tenant, image));
    }

    /// How many spans nobody took.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Sends spans as they come, for ever; at once ends where there is nowhere to send them.
    pub(crate) async fn export(&self) {
        let Some(sender) = self.settings.as_ref().and_then(Sender::new) else {
            return;
        };
        let mut spoken: Option<Instant> = None;
        loop {
            self.grown.notified().await;
            tokio::time::sleep(PAUSE).await;
            if let Err(why) = self.send_all(&sender).await
                && spoken.is_none_or(|when| when.elapsed() > BETWEEN_WORDS)
            {
                spoken = Some(Instant::now());
                crate::say(format_args!("traces cannot be sent: {why}"));
            }
        }
    }

    /// Sends what is left, for a moment.
    pub(crate) async fn finish(&self) {
        if let Some(sender) = self.settings.as_ref().and_then(Sender::new) {
            // The server ends, whoever listens.
            _ = tokio::time::timeout(LAST_WORDS, self.send_all(&sender)).await;
        }
    }

    async fn send_all(&self, sender: &Sender) -> Result<(), String> {
        let mut outcome = Ok(());
        loop {
            let spans: Vec<_> = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let count = waiting.len().min(TOGETHER);
                waiting.drain(..count).collect()
            };
            if spans.is_empty() {
                return outcome;
            }
            if let Err(why) = sender.send(self.document(&spans)).await {
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

/// The way to the receiver. It is the operator's own: it may be anywhere.
struct Sender {
    http: reqwest::Client,
    endpoint: String,
    headers: HeaderMap,
}

impl Sender {
    fn new(settings: &TraceSettings) -> Option<Sender> {
        // Some other part of this process may have been first.
        _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .timeout(PATIENCE)
            .build()
            .ok()?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let (name, mut value) = (
                http::HeaderName::try_from(name).ok()?,
                http::HeaderValue::try_from(value.as_str()).ok()?,
            );
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let endpoint = format!("{}/v1/traces", settings.endpoint.trim_end_matches('/'));
        Some(Sender {
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
        // Its own words would name the address; the operator knows that.
        let answer = request
            .send()
            .await
            .map_err(|error| match error.is_timeout() {
                true => "the receiver does not answer in time".to_owned(),
                false => "the receiver cannot be reached".to_owned(),
            })?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(format!("the receiver answers {}", answer.status().as_u16())),
        }
    }
}

/// Where the caller is in a trace. What is malformed, or there twice, is as if it were not there.
fn parent_of(headers: &HeaderMap) -> Option<TraceParent> {
    let mut told = headers.get_all("traceparent").iter();
    let (Some(one), None) = (told.next(), told.next()) else {
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

/// The same for everybody who sees this trace: by its last seven bytes.
fn is_chosen(trace: &[u8; 16], sample: f64) -> bool {
    let value = trace[9..]
        .iter()
        .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    (value as f64) < sample * (1_u64 << 56) as f64
}

/// Never all zeros: that is nobody's.
fn chance<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel's chance does not fail; if it did, what is left is still a name.
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
        let spot = tracer.begin(&headers(Some(GIVEN))).unwrap();
        assert_eq!(
            (spot.child().written(), spot.for_program()),
            (GIVEN.to_owned(), Some(GIVEN.to_owned()))
        );
        assert!(tracer.begin(&headers(None)).is_none());
        tracer.tell(&spot, "x", (0, 1), false, Vec::new());
        assert!(tracer.waiting.lock().unwrap().is_empty());
    }

    #[test]
    fn a_caller_who_does_not_record_is_not_recorded_and_one_without_a_trace_gives_none_to_programs()
    {
        let tracer = tracer(Some(1.0));
        let spot = tracer
            .begin(&headers(Some(&GIVEN.replace("-01", "-00"))))
            .unwrap();
        assert!(!spot.recorded);
        let own = tracer.begin(&headers(None)).unwrap();
        assert!(own.recorded && own.for_program().is_none());
        let child = tracer.begin(&headers(Some(GIVEN))).unwrap().child();
        assert!(child.for_program().unwrap().starts_with(&GIVEN[..36]));
        assert!(
            tracer_of_none()
                .begin(&headers(Some(GIVEN)))
                .is_some_and(|spot| !spot.recorded)
        );
    }

    fn tracer_of_none() -> Tracer {
        tracer(Some(0.0))
    }

    #[test]
    fn a_trace_that_is_named_twice_is_not_believed() {
        let mut twice = headers(Some(GIVEN));
        assert!(parent_of(&twice).is_some());
        twice.append("traceparent", GIVEN.parse().unwrap());
        assert!(parent_of(&twice).is_none());
    }

    #[test]
    fn a_part_of_all_traces_is_chosen_as_was_asked() {
        let chosen = |sample| (0..2000).filter(|_| is_chosen(&chance(), sample)).count();
        assert_eq!((chosen(0.0), chosen(1.0)), (0, 2000));
        // Six times what chance may differ by.
        let half = chosen(0.5);
        assert!((870..1130).contains(&half), "{half}");
    }

    #[test]
    fn the_queue_is_bounded_and_what_is_dropped_is_counted() {
        let tracer = tracer(Some(1.0));
        let spot = tracer.begin(&headers(None)).unwrap();
        (0..MOST_WAITING + 7).for_each(|_| tracer.tell(&spot, "x", (0, 1), false, Vec::new()));
        assert_eq!(tracer.dropped(), 7);
    }
}
