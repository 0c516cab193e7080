//! The model relay: handles one call from route to response (route, body, policy, budget
//! reservation, credential, provider), with retries. Everything about the request is decided before
//! the first byte is sent.

mod api_errors;
mod attempt;
mod cost_ceiling;
mod headers;
mod local_routes;
mod metered_body;
mod request_body;
mod response_stream;

pub(crate) use api_errors::{
    head_too_large, no_such_path, response as refusal, too_many_connections,
};
pub(crate) use request_body::discard_body;

use crate::{
    catalogue::ModelTarget,
    connections::ConnectionHandle,
    dialect::{ApiError, Dialect, ParsedBody, Route, RouteError, parse_body, route},
    session::{DoorKind, DoorSession, OpenError},
    token,
    upstream::Upstream,
};
use attempt::Attempt;
use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use response_stream::ResponseStream;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// The first backoff delay; each further one doubles, with jitter.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(250);

/// A response body.
pub(crate) enum ResponseBody {
    /// A complete body.
    Whole(Option<Bytes>),
    /// A streamed body.
    Stream(Box<ResponseStream>),
}

/// A parsed request.
struct ModelRequest {
    route: Route,
    head: Parts,
    body: Bytes,
    parsed: ParsedBody,
    began: Instant,
    /// Deadline, if there is one.
    end: Option<Instant>,
}

/// The error of an attempt, and whether to retry.
struct AttemptError {
    error: ApiError,
    next: RetryDecision,
}

/// What to try next.
enum RetryDecision {
    /// Nothing: it would fail again.
    Stop,
    /// The same model after a delay; then the next model.
    Again { after: Option<Duration> },
    /// The next model.
    Elsewhere,
}

/// Handles one request.
pub(crate) async fn serve(
    session: Arc<DoorSession>,
    handle: Arc<ConnectionHandle>,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    if !session.is_open() || !handle.join(&session.connections) {
        return refusal(None, &api_errors::ended());
    }
    let (head, mut body) = request.into_parts();
    if token::carries_foreign_token(&head, session.terms.token.as_ref()) {
        session.record_denial(
            "token",
            "a token of another session",
            "token_listener_mismatch",
            "nothing",
        );
        return unauthorized_at(&head);
    }
    // hyper prefers the chunked length over Content-Length; closing the connection avoids request
    // smuggling.
    let ambiguous = head.headers.contains_key(header::TRANSFER_ENCODING);
    let ending = handle.clone();
    let mut response = tokio::select! {
        biased;
        () = ending.wait_ending() => refusal(None, &api_errors::ended()),
        answered = answer_or_refuse(&session, handle, head, &mut body) => answered,
    };
    if ambiguous {
        response
            .headers_mut()
            .insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    response
}

/// One response to every invalid credential, whatever is wrong with it.
pub(crate) fn unauthorized_at(head: &Parts) -> Response<ResponseBody> {
    let route = route(&head.method, head.uri.path(), head.uri.query());
    refusal(
        route.ok().and_then(|route| route.dialect),
        &api_errors::unauthorized(),
    )
}

async fn answer_or_refuse(
    session: &Arc<DoorSession>,
    handle: Arc<ConnectionHandle>,
    head: Parts,
    body: &mut Incoming,
) -> Response<ResponseBody> {
    match answer(session, handle, head, body).await {
        Ok(response) => response,
        Err((dialect, error)) => {
            request_body::discard_body(body).await;
            refusal(dialect, &error)
        }
    }
}

type RelayError = (Option<Dialect>, ApiError);

async fn answer(
    session: &Arc<DoorSession>,
    handle: Arc<ConnectionHandle>,
    head: Parts,
    body: &mut Incoming,
) -> Result<Response<ResponseBody>, RelayError> {
    if let Some(own) = local_routes::answer(session, &head) {
        return Ok(own);
    }
    let speaks = session.upstream.provider.dialect;
    let path = head.uri.path();
    let route = route(&head.method, path, head.uri.query()).map_err(|no_route| match no_route {
        RouteError::NotFound => (Some(speaks), api_errors::no_such_path()),
        RouteError::WrongMethod => (Some(speaks), api_errors::wrong_method()),
    })?;
    if route.dialect.is_some_and(|dialect| dialect != speaks) {
        return Err((route.dialect, api_errors::other_dialect(speaks)));
    }
    let refused = |error| (Some(speaks), error);
    // Held until the response starts, because a retry may send the body again.
    let (body, _room) = request_body::read(session, body).await.map_err(refused)?;
    let parsed = parse_body(route.operation, &body)
        .map_err(|bad| refused(api_errors::bad_body(&bad.to_string())))?;
    if let (Some(named), Some((other, _))) = (&route.model, &parsed.model)
        && named != other
    {
        return Err(refused(api_errors::bad_body(
            "it names another model than the path",
        )));
    }
    let began = Instant::now();
    let end = (session.kind == DoorKind::Inference)
        .then(|| began + session.doors.catalogue.limits.inference_timeout);
    let model_request = ModelRequest {
        route,
        head,
        body,
        parsed,
        began,
        end,
    };
    try_targets(session, handle, &model_request)
        .await
        .map_err(refused)
}

/// Tries each model of the alias, with the retries of its provider.
async fn try_targets(
    session: &Arc<DoorSession>,
    handle: Arc<ConnectionHandle>,
    model_request: &ModelRequest,
) -> Result<Response<ResponseBody>, ApiError> {
    let provider = &session.upstream.provider;
    if model_request.parsed.priced_otherwise {
        return Err(api_errors::priced_otherwise());
    }
    let named = model_request
        .parsed
        .model
        .as_ref()
        .map(|(model, _)| model.as_str());
    let model = model_request.route.model.as_deref().or(named);
    let targets = match model {
        None if !model_request.route.operation.is_free() => {
            return Err(api_errors::bad_body("it names no model"));
        }
        None => vec![ModelTarget {
            provider: provider.name.clone(),
            model: String::new(),
        }],
        Some(model) => session.targets(model).ok_or_else(|| {
            session.record_denial(
                "model",
                model,
                "allow_models",
                &format!("--allow-model '{model}'"),
            );
            api_errors::model_refused()
        })?,
    };
    let mut number = 0;
    let mut last = api_errors::no_such_path();
    for target in &targets {
        let upstream = match session.upstream_of(target).await {
            Ok(upstream)
                if uses_provider_tools(model_request) && !upstream.provider.server_tools =>
            {
                let what = provider_tool_name(model_request);
                let allow = format!(
                    "server_tools = true under [provider.{}]",
                    upstream.provider.name
                );
                session.record_denial("tool", what, "server_tools", &allow);
                last = api_errors::server_tools_refused(what);
                continue;
            }
            Ok(upstream) if upstream.provider.dialect == provider.dialect => upstream,
            Ok(_) => {
                last = api_errors::other_dialect(provider.dialect);
                continue;
            }
            Err(OpenError::Secret(_)) => {
                last = api_errors::no_credential();
                continue;
            }
            Err(_) => continue,
        };
        let mut tries = 0;
        loop {
            number += 1;
            let attempt = Attempt {
                session,
                handle: &handle,
                model_request,
                target,
                upstream: &upstream,
                number,
            };
            let failed = match attempt.run().await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            last = failed.error;
            match failed.next {
                RetryDecision::Stop => return Err(last),
                RetryDecision::Elsewhere => break,
                RetryDecision::Again { after } => match pause(tries, after, &upstream) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => break,
                },
            }
            tries += 1;
        }
    }
    Err(last)
}

/// Whether the provider would use the network by itself: to run a tool, or to fetch a URL.
fn uses_provider_tools(model_request: &ModelRequest) -> bool {
    model_request.parsed.server_tools || model_request.parsed.fetches
}

/// How it would use the network, for messages.
fn provider_tool_name(model_request: &ModelRequest) -> &str {
    let tool = model_request.parsed.server_tool.as_deref();
    tool.unwrap_or("an address to fetch from")
}

/// Delay before the next attempt; `None` if there is none.
fn pause(tries: u32, after: Option<Duration>, upstream: &Upstream) -> Option<Duration> {
    let provider = &upstream.provider;
    if tries >= provider.retries {
        return None;
    }
    match after {
        // A provider that asks for a longer delay than configured is not called again.
        Some(after) if after > provider.timeouts.max_retry_after => None,
        Some(after) => Some(after),
        None => {
            let most = FIRST_RETRY_DELAY * 2u32.saturating_pow(tries.min(6));
            Some(most.mul_f64(jitter()))
        }
    }
}

/// Random factor between 0 and 1, so that failed clients do not retry at the same time.
fn jitter() -> f64 {
    let mut bytes = [0; 4];
    let random = ring::rand::SystemRandom::new();
    match ring::rand::SecureRandom::fill(&random, &mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    }
}

impl ResponseBody {
    pub(crate) fn full(bytes: impl Into<Bytes>) -> ResponseBody {
        let bytes = bytes.into();
        ResponseBody::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            ResponseBody::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            ResponseBody::Stream(response_stream) => {
                Pin::new(response_stream.as_mut()).poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Whole(bytes) => bytes.is_none(),
            ResponseBody::Stream(response_stream) => response_stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            ResponseBody::Stream(response_stream) => response_stream.size_hint(),
        }
    }
}
