//! Health and metrics over HTTP, with the paths of both worker generations that this one replaces.
//!
//! A worker is alive until it gives up the broker: an outage must not restart every worker at once.
//! It is ready while it is connected, has its tools, and is not draining.
//!
//! | path | 200 | 503 |
//! |---|---|---|
//! | `/healthz`, `/health` | the process is alive | reconnect tries are used up |
//! | `/readyz`, `/ready` | connected | connecting, starting, draining |
//! | `/startup` | tools were scanned | not yet |
//! | `/metrics` | always | |

use crate::{metrics::Metrics, transport::LinkState};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CONTENT_TYPE},
    server::conn::http1::Builder,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_ipv6_v6only;
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{AbortHandle, yield_now},
    time::timeout,
};

/// Maximum number of connections; a new one replaces the oldest.
const MAX_CONNECTIONS: usize = 128;
/// Length of the accept queue.
const BACKLOG: u32 = 1024;
/// Limits of a request header; hyper needs at least this.
const MAX_HEADERS: usize = 64;
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Timeout of the request header, and of the whole connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept: long enough against a busy loop, short enough not to be noticed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// State of the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolsState {
    /// The first sync or scan is running.
    Pending,
    /// The tools are available.
    Ready,
    /// The last sync failed; the tools of before are served.
    SyncFailed,
}

/// Sources of the health state.
#[derive(Clone)]
pub struct Health {
    /// State of the broker link.
    pub link: watch::Receiver<LinkState>,
    /// State of the tools.
    pub tools: watch::Receiver<ToolsState>,
    /// Whether the worker is shutting down.
    pub is_draining: watch::Receiver<bool>,
    /// Metrics to expose.
    pub metrics: Arc<Metrics>,
    /// Returns the number of warm interpreters.
    pub warm_interpreters: Arc<dyn Fn() -> usize + Send + Sync>,
}

/// Listens on all IPv6 and IPv4 addresses: probes come from outside the container.
pub async fn listen(port: u16) -> io::Result<TcpListener> {
    match listen_on_both(port) {
        // With one family only, half of the probes would reach another process.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        Ok(listener) => Ok(listener),
    }
}

fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // The default depends on a sysctl.
    set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}

impl Health {
    /// Serves until the task is aborted. Requests are answered at once, so the oldest connection is
    /// an idle one: it is closed to make room.
    pub async fn serve(self, listener: TcpListener) {
        let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    open.retain(|connection| !connection.is_finished());
                    if open.len() >= MAX_CONNECTIONS {
                        open.pop_front().iter().for_each(AbortHandle::abort);
                    }
                    open.push_back(
                        tokio::spawn(self.clone().serve_connection(stream)).abort_handle(),
                    );
                    // Lets open connections proceed before accepting more.
                    yield_now().await;
                }
                Err(_) => {
                    // Most likely out of file descriptors.
                    open.pop_front().iter().for_each(AbortHandle::abort);
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Serves one request with a timeout.
    async fn serve_connection(self, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let answer = self.answer(request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .keep_alive(false);
        builder
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES);
        // The error cannot be reported to anybody.
        _ = timeout(
            CONNECTION_TIMEOUT,
            builder.serve_connection(TokioIo::new(stream), service),
        )
        .await;
    }

    /// hyper omits the body of a HEAD response.
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let answer = match path {
            "/healthz" => self.alive(),
            "/readyz" => self.ready(),
            "/startup" => self.startup(),
            "/health" => health_body(
                self.alive().0,
                "healthy",
                "unhealthy",
                self.unhealthy_reason(),
            ),
            "/ready" => health_body(
                self.ready().0,
                "ready",
                "not ready",
                self.unhealthy_reason(),
            ),
            "/metrics" if is_read => return self.metrics_response(),
            "/metrics" => (StatusCode::OK, Value::Null),
            _ => return empty(StatusCode::NOT_FOUND),
        };
        if !is_read {
            let mut refusal = empty(StatusCode::METHOD_NOT_ALLOWED);
            refusal
                .headers_mut()
                .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        let (status, body) = answer;
        response(status, "application/json", body.to_string())
    }

    fn alive(&self) -> (StatusCode, Value) {
        let broker = self.broker();
        let is_alive = broker != "lost";
        (code(is_alive), json!({"ok": is_alive, "broker": broker}))
    }

    fn ready(&self) -> (StatusCode, Value) {
        let broker = self.broker();
        let is_ready = broker == "connected"
            && !*self.is_draining.borrow()
            && *self.tools.borrow() != ToolsState::Pending;
        (code(is_ready), json!({"ok": is_ready, "broker": broker}))
    }

    fn startup(&self) -> (StatusCode, Value) {
        let (is_complete, sync) = match *self.tools.borrow() {
            ToolsState::Pending => (false, "pending"),
            ToolsState::Ready => (true, "ok"),
            ToolsState::SyncFailed => (true, "failed"),
        };
        (
            code(is_complete),
            json!({"ok": is_complete, "startup_complete": is_complete, "tool_sync": sync}),
        )
    }

    fn broker(&self) -> &'static str {
        match *self.link.borrow() {
            LinkState::Connected => "connected",
            LinkState::Connecting { .. } => "connecting",
            LinkState::Lost { .. } => "lost",
        }
    }

    /// Why the worker is not healthy. Not in the broker's words: the endpoint is public.
    fn unhealthy_reason(&self) -> &'static str {
        match self.broker() {
            "lost" => "the broker was given up",
            "connecting" => "the broker is not connected",
            _ if *self.is_draining.borrow() => "the worker is ending",
            _ => "the tools are not there yet",
        }
    }

    fn metrics_response(&self) -> Response<Full<Bytes>> {
        self.metrics
            .set_warm_interpreters((self.warm_interpreters)());
        match self.metrics.text() {
            Ok(text) => response(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                text,
            ),
            Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn health_body(status: StatusCode, good: &str, bad: &str, why: &str) -> (StatusCode, Value) {
    if status == StatusCode::OK {
        (status, json!({"status": good}))
    } else {
        (status, json!({"status": bad, "error": why}))
    }
}

fn code(is_well: bool) -> StatusCode {
    if is_well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
