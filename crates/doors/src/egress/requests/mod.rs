//! HTTP requests that are checked one by one: at the proxy, to port 80, and inside intercepted TLS.
//!
//! ```text
//! head ─ destination ─ rules ─ limits ─ log ─ connect ─ credential ─ forward ─ response, scrubbed
//! ```
//!
//! Nothing but the connection is kept between two requests: each is checked anew.

mod exchange;
mod grant;
mod headers;
mod push;
mod status_page;
mod target;
mod upgrade;
mod upstream;

#[cfg(test)]
mod tests;

pub(crate) use upstream::UpstreamSettings;

use super::{
    Direction, Egress, Refusal, dial::DialError, forward, git::PushRequest, policy::Permission,
    prefixed_stream::PrefixedStream, responses, responses::Body,
};
use crate::{
    connections::ConnectionHandle,
    http_server::{self, MAX_HEAD_BYTES},
    relay,
    upstream::SendError,
};
use exchange::{Exchange, ExchangeContext, RequestSummary, Upload, UpstreamBody};
use grant::{RequestGrant, truncated};
use http::{
    HeaderValue, Request, Response, StatusCode, header::CONNECTION, request::Parts, response,
};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use spec::{Destination, Host};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use target::RequestTarget;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::timeout,
};
use tokio_rustls::server::TlsStream;
use upgrade::UpgradedConnection;
use upstream::{ConnectionKey, IdleSlot, UpstreamConnection};

/// Until the response head, once no more of the request is being sent.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(120);

/// For the next request head, and until it starts: hyper knows one timeout for both. A shorter one
/// would break programs that keep connections; a slow client only occupies its own connection.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// A credential is only used if the use can be logged.
const NO_RECORD: &str = "its record cannot be written; nothing was sent";

/// Where the requests of a connection may go.
#[derive(Clone, Debug)]
pub(crate) enum RequestScope {
    /// A proxy: wherever each request says.
    Proxy,
    /// One destination only.
    To {
        /// The destination.
        to: Destination,
        /// The client used TLS, so the server connection must, too.
        secure: bool,
    },
}

/// Forwards the requests of one client connection.
pub(crate) struct RequestProxy {
    egress: Arc<Egress>,
    handle: Arc<ConnectionHandle>,
    scope: RequestScope,
    idle: Arc<IdleSlot>,
    /// A response was truncated.
    cut: Arc<AtomicBool>,
    upgraded: upgrade::UpgradeSlot,
}

/// A client connection, with or without TLS.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The TCP stream.
    fn stream(&self) -> &TcpStream;
}

impl ClientStream for PrefixedStream {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl ClientStream for TlsStream<PrefixedStream> {
    fn stream(&self) -> &TcpStream {
        &self.get_ref().0.stream
    }
}

/// A request that the rules allow, and its destination.
struct PermittedRequest {
    to: Destination,
    secure: bool,
    permission: Permission,
    grant: RequestGrant,
    /// The program asks for a WebSocket, and may have it.
    upgrade: bool,
    /// Notified of rule changes.
    changed: watch::Receiver<()>,
}

impl PermittedRequest {
    fn exchange(&self, egress: &Arc<Egress>, summary: RequestSummary<'_>) -> Arc<Exchange> {
        let credential = self
            .grant
            .credential
            .as_ref()
            .map(|credential| credential.name.as_str());
        let context = ExchangeContext {
            active: self.grant.active.clone(),
            to: self.to.clone(),
            learned: self.permission.learned,
            credential: credential.unwrap_or_default().to_owned(),
            changed: self.changed.clone(),
        };
        Exchange::new(egress, context, summary)
    }

    fn connection_key(&self) -> ConnectionKey {
        ConnectionKey {
            to: self.to.clone(),
            secure: self.secure,
            allows_private: self.permission.allows_private(),
            credential: self.grant.credential.clone(),
        }
    }
}

impl RequestProxy {
    pub(crate) fn new(
        egress: Arc<Egress>,
        handle: Arc<ConnectionHandle>,
        scope: RequestScope,
    ) -> RequestProxy {
        let idle = Arc::default();
        let cut = Arc::default();
        let upgraded = upgrade::UpgradeSlot::default();
        RequestProxy {
            egress,
            handle,
            scope,
            idle,
            cut,
            upgraded,
        }
    }

    /// Whether a response was truncated, so that the connection must not be closed normally.
    pub(crate) fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Handles one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, mut body) = request.into_parts();
        // hyper checks the size between two reads, and the last read may exceed it.
        let target = head
            .uri
            .path_and_query()
            .map_or(0, |target| target.as_str().len());
        if headers::size(target, &head.headers) > MAX_HEAD_BYTES {
            return too_large();
        }
        if !headers::has_plain_transfer_coding(&head.headers) {
            return responses::bad_request(
                "the body is encoded for the way, and not in chunks alone",
            );
        }
        let resolve_target = match target::resolve_target(&self.scope, &head) {
            Ok(RequestTarget::Door) => return status_page::answer(&self.egress, &head),
            Ok(RequestTarget::At(to, secure)) => (self.restore_name(to), secure),
            Err(bad_target) => {
                relay::discard_body(&mut body).await;
                return self.bad_target(&head, &bad_target);
            }
        };
        match self.evaluate(resolve_target, &head) {
            Ok(permitted) => self.forward(permitted, head, body).await,
            Err(answer) => {
                // The client may still be sending, and a connection that breaks meanwhile would
                // hide the refusal.
                relay::discard_body(&mut body).await;
                *answer
            }
        }
    }

    /// In a proxy request the address may be a fake one.
    fn restore_name(&self, to: Destination) -> Destination {
        match (&self.scope, to.host) {
            (RequestScope::Proxy, Host::Address(address)) => Destination {
                host: self.egress.host_at(address),
                port: to.port,
            },
            (_, host) => Destination {
                host,
                port: to.port,
            },
        }
    }

    /// Refuses and logs a request for another host.
    fn bad_target(&self, head: &Parts, bad_target: &target::BadTarget) -> Response<Body> {
        let refusal = Refusal::new("host", bad_target.reason.clone(), "nothing");
        let target = match &self.scope {
            RequestScope::Proxy => truncated(&head.uri.to_string(), 200),
            RequestScope::To { to, secure } => exchange::url(to, *secure, head.uri.path()),
        };
        self.egress
            .log
            .refused(&truncated(head.method.as_str(), 32), &target, &refusal);
        let mut answer = responses::refused("the request", &self.egress.run, None, &refusal);
        *answer.status_mut() = bad_target.status;
        if bad_target.status == StatusCode::BAD_REQUEST {
            answer
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    /// Evaluates the rules for a request.
    fn evaluate(
        &self,
        (to, secure): (Destination, bool),
        head: &Parts,
    ) -> Result<PermittedRequest, Box<Response<Body>>> {
        let refused = |status, refusal: &Refusal| {
            let url = exchange::url(&to, secure, head.uri.path());
            let method = truncated(head.method.as_str(), 32);
            self.egress.log.refused(&method, &url, refusal);
            let what = format!("{method} {url}");
            let mut answer = responses::refused(&what, &self.egress.run, Some(&to.host), refusal);
            *answer.status_mut() = status;
            Box::new(answer)
        };
        let forbidden = |refusal: Refusal| refused(StatusCode::FORBIDDEN, &refusal);
        let changed = self.egress.changed.subscribe();
        let permission = self.egress.evaluate(&to).map_err(|refusal| {
            // The destination is refused, whatever the request is.
            self.egress.log.refused(
                &truncated(head.method.as_str(), 32),
                &to.to_string(),
                &refusal,
            );
            let what = format!(
                "{} {}",
                truncated(head.method.as_str(), 32),
                exchange::url(&to, secure, head.uri.path())
            );
            Box::new(responses::refused(
                &what,
                &self.egress.run,
                Some(&to.host),
                &refusal,
            ))
        })?;
        let grant = grant::grant(&self.egress, &permission, &to, secure, head)
            .map_err(|denied| refused(denied.status, &denied.refusal))?;
        let upgrade = headers::asks_for_websocket(&head.headers);
        if upgrade {
            let is_proxy = matches!(self.scope, RequestScope::Proxy);
            upgrade::check(&grant, is_proxy).map_err(forbidden)?;
        }
        self.egress.begin(&grant.active).map_err(forbidden)?;
        Ok(PermittedRequest {
            to,
            secure,
            permission,
            grant,
            upgrade,
            changed,
        })
    }

    /// Sends the request and returns the response.
    async fn forward(
        &self,
        mut permitted: PermittedRequest,
        mut head: Parts,
        mut body: Incoming,
    ) -> Response<Body> {
        let url = exchange::url(
            &permitted.to,
            permitted.secure,
            permitted.grant.target.path(),
        );
        let what = format!("{} {url}", truncated(head.method.as_str(), 32));
        let allowed = match permitted.grant.push.take() {
            None => push::AllowedPush::default(),
            Some(push) => match self
                .read_push(&permitted, push, &mut head, &mut body, &url)
                .await
            {
                Ok(allowed) => allowed,
                Err(answer) => return *answer,
            },
        };
        let push::AllowedPush {
            buffered,
            is_whole,
            ref_changes,
            permit,
        } = allowed;
        let note = ref_changes.first().cloned().unwrap_or_default();
        let exchange = permitted.exchange(
            &self.egress,
            RequestSummary {
                method: head.method.as_str(),
                url,
                note,
            },
        );
        if let Err(dial_error) = self.begin(&permitted, &exchange, &ref_changes, &mut head) {
            relay::discard_body(&mut body).await;
            return self.dial_error(&what, &exchange, &dial_error);
        }
        let upstream_connection = match self.connect(&exchange, permitted.connection_key()).await {
            Ok(upstream_connection) => upstream_connection,
            Err(dial_error) => {
                relay::discard_body(&mut body).await;
                return self.dial_error(&what, &exchange, &dial_error);
            }
        };
        // Learned only once connected: a rule for an internal address would not help.
        if permitted.permission.learned {
            self.egress.log.learn(&permitted.to);
        }
        let body = (!is_whole).then_some(body);
        let mut request = Request::new(Upload {
            permit,
            buffered,
            body,
            exchange: exchange.clone(),
        });
        (*request.method_mut(), *request.uri_mut()) = (head.method, permitted.grant.target);
        *request.headers_mut() = head.headers;
        match self.send(&exchange, upstream_connection, request).await {
            Ok((upstream_connection, answered)) => self.pass_on(
                &what,
                exchange,
                upstream_connection,
                answered,
                permitted.upgrade,
            ),
            Err(dial_error) => self.dial_error(&what, &exchange, &dial_error),
        }
    }

    /// Parses and checks the ref updates of a push before anything of it is sent.
    async fn read_push(
        &self,
        permitted: &PermittedRequest,
        push: PushRequest,
        head: &mut Parts,
        body: &mut Incoming,
        url: &str,
    ) -> Result<push::AllowedPush, Box<Response<Body>>> {
        let rule = &permitted.grant.active.rule.name;
        push::read(
            rule,
            &self.egress.upstream.pushes,
            push,
            &mut head.headers,
            body,
        )
        .await
        .map_err(|refused| {
            self.egress.log.refused("git push", url, &refused.refusal);
            let run = &self.egress.run;
            let host = Some(&permitted.to.host);
            Box::new(
                refused
                    .answer
                    .unwrap_or_else(|| responses::refused("the push", run, host, &refused.refusal)),
            )
        })
    }

    /// Logs credential use and ref updates, prepares the headers, and counts them.
    fn begin(
        &self,
        permitted: &PermittedRequest,
        exchange: &Exchange,
        ref_changes: &[String],
        head: &mut Parts,
    ) -> Result<(), DialError> {
        let PermittedRequest {
            to,
            secure,
            grant,
            upgrade,
            ..
        } = permitted;
        exchange
            .log_before_sending(ref_changes)
            .map_err(|_| DialError::Failed(NO_RECORD))?;
        headers::prepare_request(
            &mut head.headers,
            to,
            *secure,
            grant.inspected,
            grant.credential.as_deref(),
        );
        if *upgrade {
            upgrade::request_upgrade(&mut head.headers);
        }
        let target = grant
            .target
            .path_and_query()
            .map_or(1, |target| target.as_str().len());
        exchange
            .pass(Direction::Out, headers::size(target, &head.headers))
            .map_err(DialError::Refused)
    }

    /// Reuses the connection of the last request, if it fits, or opens a new one.
    async fn connect(
        &self,
        exchange: &Exchange,
        connection_key: ConnectionKey,
    ) -> Result<UpstreamConnection, DialError> {
        let upstream_connection = match self.idle.take(&connection_key).await {
            Some(upstream_connection) => upstream_connection,
            None => upstream::dial(&self.egress, connection_key).await?,
        };
        // Connecting took time, and the credential has not been sent yet.
        exchange.check_still_allowed().map_err(DialError::Refused)?;
        exchange.set_address(upstream_connection.address);
        Ok(upstream_connection)
    }

    /// Sends a request; retries once if an idle connection turns out to be dead before anything was
    /// sent.
    async fn send(
        &self,
        exchange: &Exchange,
        mut upstream_connection: UpstreamConnection,
        mut request: Request<Upload>,
    ) -> Result<(UpstreamConnection, Response<Incoming>), DialError> {
        let mut again = true;
        loop {
            let sent =
                wait_for_head(exchange, upstream_connection.connection.send(request)).await?;
            let lost = match sent {
                Ok(answered) => return Ok((upstream_connection, answered)),
                Err(lost) => lost,
            };
            match (lost, exchange.stopped()) {
                (_, Some(refusal)) => return Err(DialError::Refused(refusal)),
                (SendError::NotSent(unsent), None) if again => {
                    request = *unsent;
                    again = false;
                    upstream_connection = self
                        .connect(exchange, upstream_connection.connection_key.clone())
                        .await?;
                }
                _ => return Err(DialError::Failed("the server hung up without an answer")),
            }
        }
    }

    /// The response to a failed or refused request; the exchange logs the reason.
    fn dial_error(
        &self,
        what: &str,
        exchange: &Exchange,
        dial_error: &DialError,
    ) -> Response<Body> {
        match dial_error {
            DialError::Failed(why) => exchange.set_failure(why),
            DialError::Refused(refusal) => exchange.stop(refusal),
        }
        let mut answer =
            responses::dial_failed(what, &self.egress.run, Some(exchange.host()), dial_error);
        if matches!(dial_error, DialError::Failed(why) if *why == NO_RECORD) {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        answer
    }

    /// The response as the program gets it.
    fn pass_on(
        &self,
        what: &str,
        exchange: Arc<Exchange>,
        upstream_connection: UpstreamConnection,
        answered: Response<Incoming>,
        may_switch: bool,
    ) -> Response<Body> {
        let (mut head, body) = answered.into_parts();
        exchange.set_status(head.status.as_u16());
        if exchange
            .pass(Direction::In, headers::size(0, &head.headers))
            .is_err()
        {
            let refusal = exchange
                .stopped()
                .unwrap_or_else(|| Refusal::new("egress_limits", "stopped", "nothing"));
            return responses::refused(what, &self.egress.run, None, &refusal);
        }
        if may_switch && head.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(exchange, upstream_connection, head);
        }
        let credential = upstream_connection.connection_key.credential.clone();
        if let Err(why) =
            headers::prepare_response(head.status, &mut head.headers, credential.as_deref())
        {
            exchange.set_failure(why);
            return failure_response(StatusCode::BAD_GATEWAY, what, why);
        }
        if credential.is_some() {
            // The reason phrase, which may contain anything.
            head.extensions.clear();
        }
        let answer = UpstreamBody::new(
            exchange,
            upstream_connection,
            body,
            self.idle.clone(),
            self.cut.clone(),
        );
        Response::from_parts(head, answer.map_err(Into::into).boxed_unsync())
    }

    /// Upgrades the connection after this response.
    fn switch(
        &self,
        exchange: Arc<Exchange>,
        upstream_connection: UpstreamConnection,
        mut head: response::Parts,
    ) -> Response<Body> {
        head.headers.remove(http::header::CONTENT_LENGTH);
        let (io, buffered) = upstream_connection.connection.into_io();
        self.upgraded.put(UpgradedConnection {
            io,
            buffered,
            exchange,
        });
        Response::from_parts(head, responses::full(""))
    }
}

/// Waits for the response head; the timeout restarts while the request is still being sent.
async fn wait_for_head<T>(
    exchange: &Exchange,
    sending: impl Future<Output = T>,
) -> Result<T, DialError> {
    tokio::pin!(sending);
    loop {
        let before = exchange.sent();
        match timeout(FIRST_BYTE_TIMEOUT, &mut sending).await {
            Ok(sent) => return Ok(sent),
            Err(_) if exchange.sent() > before => {}
            Err(_) => return Err(DialError::Failed("the server does not answer")),
        }
    }
}

fn failure_response(status: StatusCode, what: &str, why: &str) -> Response<Body> {
    responses::text_response(status, format!("airlock: {what} failed: {why}.\n"))
}

fn too_large() -> Response<Body> {
    let text = format!("airlock: the head of the request is larger than {MAX_HEAD_BYTES} bytes.\n");
    let mut answer = responses::text_response(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text);
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Serves requests until the connection ends.
pub(crate) async fn serve<S: ClientStream>(
    egress: Arc<Egress>,
    handle: Arc<ConnectionHandle>,
    io: S,
    scope: RequestScope,
) {
    let proxy = RequestProxy::new(egress, handle.clone(), scope);
    let service = service_fn(|request: Request<Incoming>| {
        let proxy = &proxy;
        // Boxed: its memory is released with the response head, not with the connection.
        Box::pin(async move { Ok::<_, Infallible>(proxy.answer(request).await) })
    });
    let mut connection =
        http_server::builder(KEEP_ALIVE_TIMEOUT).serve_connection(TokioIo::new(io), service);
    let served = proxy.handle.unless_ended(&mut connection).await;
    let parts = connection.into_parts();
    let io = parts.io.into_inner();
    let buffered = parts.read_buf;
    let mut cut = served.is_none() || proxy.was_cut();
    let io = match proxy.upgraded.take() {
        Some(upgraded) if matches!(served, Some(Ok(()))) => {
            let (io, ended_well) = upgraded.relay(&handle, io, buffered).await;
            cut = !ended_well;
            io
        }
        _ => io,
    };
    if cut {
        // A normal close would make a truncated response look complete.
        forward::reset(io.stream());
    }
}
