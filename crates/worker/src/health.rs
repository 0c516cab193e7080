//! Tells how the worker is, over HTTP, in the words of both generations of those before it, and its numbers.
//!
//! Alive is whoever lives and has not given the broker up: an outage must not restart every worker at once. Ready is whoever
//! is connected, has its tools, and is not about to end.
//!
//! | path | 200 | 503 |
//! |---|---|---|
//! | `/healthz`, `/health` | the process lives | the retries are spent |
//! | `/readyz`, `/ready` | connected | connecting, starting, draining |
//! | `/startup` | tools were looked for | not yet |
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

/// Connections at once; whoever comes beyond them takes the place of the oldest.
const MOST_CONNECTIONS: usize = 128;
/// Those that the system holds until they are taken.
const BACKLOG: u32 = 1024;
/// Headers of a request, and their bytes; hyper wants no less.
const MOST_HEADERS: usize = 64;
const LARGEST_HEAD: usize = 8 << 10;
/// Until a request has been read, and until its answer has been taken.
const HEAD_TIME: Duration = Duration::from_secs(5);
const WHOLE_TIME: Duration = Duration::from_secs(10);
/// After a failed accept: long enough not to spin, short enough not to be noticed.
const BREATH: Duration = Duration::from_millis(20);

/// How far the worker is with its tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tools {
    /// They are being fetched or read for the first time.
    Pending,
    /// They are there.
    Ready,
    /// They could not be fetched; those that were there before are served.
    SyncFailed,
}

/// Where it is known how the worker is.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Health {
    pub link: watch::Receiver<LinkState>,
    pub tools: watch::Receiver<Tools>,
    pub is_draining: watch::Receiver<bool>,
    pub metrics: Arc<Metrics>,
    /// Interpreters that are ready, whenever that is asked for.
    pub parked: Arc<dyn Fn() -> usize + Send + Sync>,
}

/// Listens on all addresses, of both kinds where the machine has both: whoever asks is outside the container.
pub async fn listen(port: u16) -> io::Result<TcpListener> {
    match listen_on_both(port) {
        // The other kind alone would leave half of the askers to a stranger.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        Ok(listener) => Ok(listener),
    }
}

fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // Machines can have it otherwise.
    set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}

impl Health {
    /// Answers until the task is ended. Whoever asks is answered at once, so the oldest connection is one that does not ask:
    /// it goes where there is no room for another.
    pub async fn serve(self, listener: TcpListener) {
        let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MOST_CONNECTIONS);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    open.retain(|connection| !connection.is_finished());
                    if open.len() >= MOST_CONNECTIONS {
                        open.pop_front().iter().for_each(AbortHandle::abort);
                    }
                    open.push_back(tokio::spawn(self.clone().converse(stream)).abort_handle());
                    // Those who have asked come before those who connect.
                    yield_now().await;
                }
                Err(_) => {
                    // Most likely there are no descriptors left.
                    open.pop_front().iter().for_each(AbortHandle::abort);
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    /// One request and its answer; what takes longer is cut off.
    async fn converse(self, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let answer = self.answer(request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .keep_alive(false);
        builder.max_headers(MOST_HEADERS).max_buf_size(LARGEST_HEAD);
        // Whatever ended it: there is nobody to tell.
        _ = timeout(
            WHOLE_TIME,
            builder.serve_connection(TokioIo::new(stream), service),
        )
        .await;
    }

    /// hyper leaves the body away where the method is HEAD.
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let answer = match path {
            "/healthz" => self.alive(),
            "/readyz" => self.ready(),
            "/startup" => self.startup(),
            "/health" => newer(self.alive().0, "healthy", "unhealthy", self.trouble()),
            "/ready" => newer(self.ready().0, "ready", "not ready", self.trouble()),
            "/metrics" if is_read => return self.numbers(),
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
        filled(status, "application/json", body.to_string())
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
            && *self.tools.borrow() != Tools::Pending;
        (code(is_ready), json!({"ok": is_ready, "broker": broker}))
    }

    fn startup(&self) -> (StatusCode, Value) {
        let (is_complete, sync) = match *self.tools.borrow() {
            Tools::Pending => (false, "pending"),
            Tools::Ready => (true, "ok"),
            Tools::SyncFailed => (true, "failed"),
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

    /// Why it is not well. Not in the broker's words: anybody may ask.
    fn trouble(&self) -> &'static str {
        match self.broker() {
            "lost" => "the broker was given up",
            "connecting" => "the broker is not connected",
            _ if *self.is_draining.borrow() => "the worker is ending",
            _ => "the tools are not there yet",
        }
    }

    fn numbers(&self) -> Response<Full<Bytes>> {
        self.metrics.parked((self.parked)());
        match self.metrics.text() {
            Ok(text) => filled(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                text,
            ),
            Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn newer(status: StatusCode, good: &str, bad: &str, why: &str) -> (StatusCode, Value) {
    match status == StatusCode::OK {
        true => (status, json!({"status": good})),
        false => (status, json!({"status": bad, "error": why})),
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

fn filled(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
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
