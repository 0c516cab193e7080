//! One attempt at a model call: reserves the budget, sends the request, and decides by the response
//! head whether to stream, retry or fail.

use super::{
    AttemptError, ModelRequest, ResponseBody, RetryDecision, api_errors,
    cost_ceiling::{CallLimits, CostCeiling},
    headers,
    metered_body::{MeteredBody, OpenCharge},
    response_stream::ResponseStream,
};
use crate::{
    budget::BudgetRefusal,
    catalogue::ModelTarget,
    connections::ConnectionHandle,
    dialect::{ApiError, BodyEdits, ModelOperation, ParsedBody, ResponseFormat, Tap, rewrite},
    ledger::ModelCall,
    price::Price,
    scrub,
    session::{DoorKind, DoorSession},
    upstream::{ConnectError, HttpConnection, ResponseChunk, SendError, Upstream},
};
use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode, Uri, header};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// Largest error document of a provider that is forwarded.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// How many stale idle connections are replaced.
const MAX_STALE_CONNECTIONS: usize = 8;

/// One attempt at one model of one provider.
pub(super) struct Attempt<'a> {
    pub(super) session: &'a Arc<DoorSession>,
    pub(super) handle: &'a Arc<ConnectionHandle>,
    pub(super) model_request: &'a ModelRequest,
    pub(super) target: &'a ModelTarget,
    pub(super) upstream: &'a Arc<Upstream>,
    pub(super) number: u32,
}

fn stop(error: ApiError) -> AttemptError {
    AttemptError {
        error,
        next: RetryDecision::Stop,
    }
}

impl Attempt<'_> {
    pub(super) async fn run(&self) -> Result<Response<ResponseBody>, AttemptError> {
        let target = self.path().ok_or(AttemptError {
            error: api_errors::no_such_path(),
            next: RetryDecision::Elsewhere,
        })?;
        let charge = self.reserve().await?;
        let (request, strip_usage) = self.request(target, charge.call_limits);
        let (connection, response) = match self.send(request).await {
            Ok(sent) => sent,
            Err((error, not_sent)) => {
                if not_sent {
                    charge.settle_zero("not_sent")
                } else {
                    charge.settle_full("no_answer")
                }
                let late = self
                    .model_request
                    .end
                    .is_some_and(|end| end <= Instant::now());
                let next = if late {
                    RetryDecision::Stop
                } else {
                    RetryDecision::Again { after: None }
                };
                return Err(AttemptError { error, next });
            }
        };
        self.pass_on(charge, connection, response, strip_usage)
            .await
    }

    /// Reserves the worst-case cost. The reservation is recorded when this returns.
    async fn reserve(&self) -> Result<OpenCharge, AttemptError> {
        let operation = self.model_request.route.operation;
        let parsed = &self.model_request.parsed;
        let price = self.price().ok_or_else(|| {
            self.session.record_denial(
                "model",
                &self.target.model,
                "unknown_price",
                "[prices] in the configuration",
            );
            AttemptError {
                error: api_errors::price_unknown(),
                next: RetryDecision::Elsewhere,
            }
        })?;
        let ceiling = if operation.is_free() {
            CostCeiling::of(
                ModelOperation::Embeddings,
                0,
                &ParsedBody::default(),
                Arc::default(),
            )
        } else {
            CostCeiling::of(
                operation,
                self.model_request.body.len(),
                parsed,
                price.clone(),
            )
        };
        let ceiling = ceiling.ok_or_else(|| stop(api_errors::unbounded_input()))?;
        let mut call_limits = None;
        let reserved =
            self.session
                .doors
                .budgets
                .reserve(&self.session.account, self.call(), |remaining| {
                    call_limits = ceiling.within(remaining);
                    call_limits.map(|call_limits| call_limits.amount)
                });
        let reservation = reserved.await.map_err(|refused| {
            if matches!(refused, BudgetRefusal::Spent { .. }) {
                self.session.mark_budget_hit();
            }
            stop(api_errors::refused(&refused))
        })?;
        let call_limits = call_limits.unwrap_or(CallLimits {
            amount: reservation.amount,
            cap: None,
            cut: None,
            limited: false,
            shortened: false,
        });
        let request_bytes = self.model_request.body.len() as u64;
        let price = ceiling.price().clone();
        let max_input = ceiling.input();
        Ok(OpenCharge {
            reservation,
            price,
            call_limits,
            request_bytes,
            max_input,
            began: self.model_request.began,
            status: 0,
        })
    }

    fn price(&self) -> Option<Arc<Price>> {
        match self.session.kind {
            // The node's own server is free.
            DoorKind::Inference => Some(Arc::default()),
            DoorKind::Llm if self.model_request.route.operation.is_free() => Some(Arc::default()),
            DoorKind::Llm => self
                .session
                .doors
                .catalogue
                .prices
                .price(&self.target.provider, &self.target.model),
        }
    }

    fn call(&self) -> ModelCall {
        let terms = &self.session.terms;
        ModelCall {
            run: terms.run.clone(),
            session: terms.id.clone(),
            tenant: terms.tenant.clone(),
            door: match self.session.kind {
                DoorKind::Llm => "llm".to_owned(),
                DoorKind::Inference => "inference".to_owned(),
            },
            provider: self.target.provider.clone(),
            model: self.target.model.clone(),
            operation: format!("{:?}", self.model_request.route.operation),
            attempt: self.number,
            price_book: self.session.doors.catalogue.prices.version().to_owned(),
        }
    }

    /// The upstream path; `None` if the model name cannot be part of one.
    fn path(&self) -> Option<Uri> {
        let route = &self.model_request.route;
        let target = match (&route.model, self.target.model.as_str()) {
            (Some(_), model) if !model.is_empty() => route.target_for(model)?,
            _ => route.target.clone(),
        };
        self.upstream.path(&target).parse().ok()
    }

    /// The upstream request, and whether the usage in the response must be stripped.
    fn request(&self, target: Uri, call_limits: CallLimits) -> (Request<Full<Bytes>>, bool) {
        let model_request = self.model_request;
        let provider = &self.upstream.provider;
        let named = model_request
            .parsed
            .model
            .as_ref()
            .map(|(name, _)| name.as_str());
        let chat = model_request.route.operation == ModelOperation::Chat;
        let ask_usage = chat
            && model_request.parsed.stream
            && !model_request.parsed.wants_usage
            && provider.ask_usage;
        let edits = BodyEdits {
            model: named
                .filter(|name| *name != self.target.model)
                .map(|_| self.target.model.as_str()),
            cap: call_limits.cap,
            cap_name: provider.output_cap,
            ask_usage,
            identity: &self.session.terms.id,
        };
        let body = if model_request.body.is_empty() {
            Bytes::new()
        } else {
            rewrite(
                model_request.route.operation,
                &model_request.body,
                &model_request.parsed,
                &edits,
            )
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = model_request.head.method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() =
            headers::upstream(self.upstream, self.session, &model_request.head.headers);
        (request, ask_usage)
    }

    /// Sends the request on a live connection. The flag of an error says that nothing was sent.
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(HttpConnection, Response<Incoming>), (ApiError, bool)> {
        let unreachable = |why: ConnectError| (api_errors::unreachable(why), true);
        for _ in 0..MAX_STALE_CONNECTIONS {
            let (mut connection, kept) = self
                .upstream
                .connect(&self.session.terms.tenant)
                .await
                .map_err(unreachable)?;
            let head_timeout = self.head_timeout();
            match timeout(head_timeout, connection.send(request.clone())).await {
                Ok(Ok(response)) => return Ok((connection, response)),
                Ok(Err(SendError::NotSent(_))) if kept => continue,
                Ok(Err(SendError::NotSent(_))) => return Err((api_errors::lost(), true)),
                Ok(Err(SendError::Lost)) => return Err((api_errors::lost(), false)),
                Err(_) => return Err((api_errors::first_byte_late(), false)),
            }
        }
        Err((api_errors::lost(), true))
    }

    /// Timeout for the response head.
    fn head_timeout(&self) -> Duration {
        let most = self.upstream.provider.timeouts.first_byte;
        self.model_request.end.map_or(most, |end| {
            most.min(end.saturating_duration_since(Instant::now()))
        })
    }

    /// Decides by the response head.
    async fn pass_on(
        &self,
        mut charge: OpenCharge,
        mut connection: HttpConnection,
        response: Response<Incoming>,
        strip_usage: bool,
    ) -> Result<Response<ResponseBody>, AttemptError> {
        let (head, mut body) = response.into_parts();
        charge.status = head.status.as_u16();
        let status = head.status;
        if status.is_success() {
            return self.stream(charge, connection, (head, body), strip_usage);
        }
        match status.as_u16() {
            // A gateway timed out: the call behind it may have been completed.
            408 | 504 | 522 | 524 => charge.settle_full("upstream_timeout"),
            _ => charge.settle_zero("refused_upstream"),
        }
        if status.is_redirection() || status.is_informational() {
            return Err(stop(api_errors::redirected()));
        }
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return Err(AttemptError {
                error: api_errors::credentials(),
                next: RetryDecision::Elsewhere,
            });
        }
        let after = headers::retry_after(&head.headers);
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            let clamped = after.map(|after| {
                after
                    .min(self.upstream.provider.timeouts.max_retry_after)
                    .as_secs()
                    .max(1)
            });
            let error = api_errors::upstream_status(status, clamped);
            return Err(AttemptError {
                error,
                next: RetryDecision::Again { after },
            });
        }
        // The provider's own message about the request helps most.
        let text = error_text(&mut connection, &mut body).await;
        // Redacted before it is truncated: most of a key that is cut in two would be left.
        let mut text = match self.upstream.patterns() {
            Some(patterns) => scrub::redact(patterns, text),
            None => text,
        };
        text.truncate(MAX_ERROR_BYTES);
        let mut response = Response::new(ResponseBody::full(text));
        *response.status_mut() = status;
        *response.headers_mut() = headers::downstream(&head.headers, self.upstream.patterns());
        response.headers_mut().remove(header::CONTENT_LENGTH);
        Ok(response)
    }

    fn stream(
        &self,
        charge: OpenCharge,
        connection: HttpConnection,
        (head, body): (http::response::Parts, Incoming),
        strip_usage: bool,
    ) -> Result<Response<ResponseBody>, AttemptError> {
        let encoded = head
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|value| value != "identity");
        if encoded || !headers::has_plain_transfer_coding(&head.headers) {
            charge.settle_full("encoded");
            return Err(stop(api_errors::encoded()));
        }
        let operation = self.model_request.route.operation;
        let kind = headers::kind(&head.headers, operation, self.model_request.route.streams);
        let strip_usage = strip_usage && kind == ResponseFormat::Events;
        // An error event may have to follow, except in a single document.
        let length = body
            .size_hint()
            .exact()
            .filter(|_| kind == ResponseFormat::Whole);
        let delimited = body.size_hint().exact().is_some()
            || head.headers.contains_key(header::TRANSFER_ENCODING);
        let tap = Tap::new(operation, kind, strip_usage);
        let metered = MeteredBody {
            upstream: self.upstream.clone(),
            tenant: self.session.terms.tenant.clone(),
            connection,
            body,
            tap,
            scrubber: Default::default(),
            charge,
            delimited,
        };
        let end = self.model_request.end.map(Into::into);
        let response_stream = ResponseStream::new(
            self.session.clone(),
            self.handle.clone(),
            metered,
            length,
            end,
        );
        let mut response = Response::new(ResponseBody::Stream(Box::new(response_stream)));
        *response.status_mut() = head.status;
        *response.headers_mut() = headers::downstream(&head.headers, self.upstream.patterns());
        if length.is_none() {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        Ok(response)
    }
}

/// Reads a provider's error document, within limits.
async fn error_text(connection: &mut HttpConnection, body: &mut Incoming) -> Bytes {
    let mut text = BytesMut::new();
    let read = async {
        while text.len() < MAX_ERROR_BYTES {
            match std::future::poll_fn(|cx| connection.poll_chunk(body, cx)).await {
                ResponseChunk::Data(data) => text.extend_from_slice(&data),
                ResponseChunk::End | ResponseChunk::Broken => break,
            }
        }
    };
    _ = timeout(Duration::from_secs(10), read).await;
    text.freeze()
}
