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
use serde_json::{Value, json};
use std::{convert::Infallible, io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};

/// Connections at once.
const MOST_CONNECTIONS: usize = 64;
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

/// Listens on all addresses: whoever asks is outside the container.
pub async fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
}

impl Health {
    /// Answers until the task is ended.
    pub async fn serve(self, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            let Ok(place) = room.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let health = self.clone();
                    tokio::spawn(async move {
                        let _place = place;
                        health.converse(stream).await;
                    });
                }
                Err(_) => tokio::time::sleep(BREATH).await,
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
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).keep_alive(false);
        builder.max_headers(MOST_HEADERS).max_buf_size(LARGEST_HEAD);
        // Whatever ended it: there is nobody to tell.
        _ = timeout(WHOLE_TIME, builder.serve_connection(TokioIo::new(stream), service)).await;
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
            refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
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
        let is_ready =
            broker == "connected" && !*self.is_draining.borrow() && *self.tools.borrow() != Tools::Pending;
        (code(is_ready), json!({"ok": is_ready, "broker": broker}))
    }

    fn startup(&self) -> (StatusCode, Value) {
        let (is_complete, sync) = match *self.tools.borrow() {
            Tools::Pending => (false, "pending"),
            Tools::Ready => (true, "ok"),
            Tools::SyncFailed => (true, "failed"),
        };
        (code(is_complete), json!({"ok": is_complete, "startup_complete": is_complete, "tool_sync": sync}))
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
            Ok(text) => {
                filled(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
            }
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
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn filled(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
