//! One HTTP exchange: every byte is counted and checked before it passes, and the log line is
//! written when request and response are over.

use super::{
    grant::truncated,
    upstream::{IdleSlot, UpstreamConnection},
};
use crate::{
    egress::{
        Direction, Egress,
        log::LogEntry,
        policy::{ActiveRule, Refusal},
    },
    scrub::Scrubber,
    upstream::ResponseChunk,
};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use spec::{Destination, Host};
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Sleep,
};

/// Between two chunks of a response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest path in the log.
const MAX_LOGGED_PATH: usize = 1000;

/// A request in flight.
pub(super) struct Exchange {
    egress: Arc<Egress>,
    context: ExchangeContext,
    operation: String,
    target: String,
    note: String,
    begun: Instant,
    address: OnceLock<SocketAddr>,
    status: AtomicU16,
    sent: AtomicU64,
    received: AtomicU64,
    uploaded: AtomicBool,
    /// Why it was stopped.
    stopped: Mutex<Option<Refusal>>,
    /// Why it failed.
    failed: OnceLock<&'static str>,
}

/// The rule and destination of an exchange.
pub(super) struct ExchangeContext {
    pub(super) active: Arc<ActiveRule>,
    pub(super) to: Destination,
    pub(super) learned: bool,
    /// Name of the credential.
    pub(super) credential: String,
    /// Notified of rule changes.
    pub(super) changed: watch::Receiver<()>,
}

/// What the log says about a request.
pub(super) struct RequestSummary<'a> {
    pub(super) method: &'a str,
    pub(super) url: String,
    /// Additional information.
    pub(super) note: String,
}

impl Exchange {
    pub(super) fn new(
        egress: &Arc<Egress>,
        context: ExchangeContext,
        summary: RequestSummary<'_>,
    ) -> Arc<Exchange> {
        Arc::new(Exchange {
            egress: egress.clone(),
            context,
            operation: truncated(summary.method, 32),
            target: summary.url,
            note: summary.note,
            begun: Instant::now(),
            address: OnceLock::new(),
            status: 0.into(),
            sent: 0.into(),
            received: 0.into(),
            uploaded: false.into(),
            stopped: Mutex::default(),
            failed: OnceLock::new(),
        })
    }

    /// The destination host.
    pub(super) fn host(&self) -> &Host {
        &self.context.to.host
    }

    /// Logs, before anything is sent, the use of a credential or the ref updates of a push.
    pub(super) fn log_before_sending(&self, changes: &[String]) -> io::Result<()> {
        let with_credential = ["the credential is put in".to_owned()];
        let details = match changes.is_empty() {
            true if self.context.credential.is_empty() => return Ok(()),
            true => &with_credential,
            false => changes,
        };
        for detail in details {
            self.egress.log.write(&LogEntry {
                detail: detail.clone(),
                ..self.entry("allow")
            })?;
        }
        Ok(())
    }

    fn entry(&self, verdict: &'static str) -> LogEntry {
        LogEntry {
            operation: self.operation.clone(),
            target: self.target.clone(),
            verdict,
            rule: self.context.active.rule.name.clone(),
            credential: self.context.credential.clone(),
            ..LogEntry::default()
        }
    }

    pub(super) fn set_address(&self, address: SocketAddr) {
        _ = self.address.set(address);
    }

    pub(super) fn set_status(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Records a failure.
    pub(super) fn set_failure(&self, why: &'static str) {
        // The first reason counts.
        _ = self.failed.set(why);
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Why it was stopped, if it was.
    pub(super) fn stopped(&self) -> Option<Refusal> {
        self.stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Counts bytes that are about to pass; an error if they may not.
    pub(super) fn pass(&self, direction: Direction, bytes: usize) -> Result<(), Refusal> {
        let counter = if direction == Direction::Out {
            &self.sent
        } else {
            &self.received
        };
        let passes = self
            .check_still_allowed()
            .and_then(|()| self.egress.count(&self.context.active, direction, bytes));
        match passes {
            Ok(()) => {
                counter.fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(())
            }
            Err(refusal) => {
                self.stop(&refusal);
                Err(refusal)
            }
        }
    }

    /// Stops the exchange; the first reason counts.
    pub(super) fn stop(&self, refusal: &Refusal) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.get_or_insert_with(|| refusal.clone());
    }

    /// Whether the rule still allows it. The rules are evaluated again only if they changed.
    pub(super) fn check_still_allowed(&self) -> Result<(), Refusal> {
        let fell = self
            .context
            .active
            .until
            .is_some_and(|until| until <= Instant::now());
        if !fell && !self.context.changed.has_changed().unwrap_or(true) {
            return Ok(());
        }
        let now = self.egress.evaluate(&self.context.to)?;
        let same = now.learned && self.context.learned
            || now
                .rules
                .iter()
                .any(|active| Arc::ptr_eq(active, &self.context.active));
        if same {
            Ok(())
        } else {
            Err(Refusal::new(
                &self.context.active.rule.name,
                "the rule was taken away",
                "nothing",
            ))
        }
    }
}

impl Drop for Exchange {
    /// Writes the log line, however the exchange ended.
    fn drop(&mut self) {
        let stopped = self.stopped();
        let failed = self.failed.get().copied();
        let verdict = match (failed, self.context.learned) {
            (Some(_), _) if self.status.load(Ordering::Relaxed) == 0 => "failed",
            (_, true) => "learn",
            (_, false) => "allow",
        };
        if let Some(refusal) = &stopped {
            self.egress
                .log
                .refused(&self.operation, &self.target, refusal);
            // It never reached a server, so nothing passed.
            if self.address.get().is_none() {
                return;
            }
        }
        let why = stopped.as_ref().map(|refusal| &*refusal.reason).or(failed);
        let detail: Vec<&str> = why
            .into_iter()
            .chain([&*self.note])
            .filter(|text| !text.is_empty())
            .collect();
        let address = self.address.get().map(|address| address.ip().to_string());
        let entry = LogEntry {
            // Bytes that were counted in advance went nowhere without a connection.
            sent: if address.is_some() { self.sent() } else { 0 },
            address: address.unwrap_or_default(),
            detail: detail.join("; "),
            status: self.status.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            duration_ms: self.begun.elapsed().as_millis() as u64,
            ..self.entry(verdict)
        };
        // It has passed already; a failed write stops the next request.
        _ = self.egress.log.write(&entry);
    }
}

/// The URL of a request without its query, which may contain secrets.
pub(super) fn url(to: &Destination, secure: bool, path: &str) -> String {
    let scheme = if secure { "https" } else { "http" };
    format!("{scheme}://{to}{}", truncated(path, MAX_LOGGED_PATH))
}

/// A request body on its way to the server.
pub(crate) struct Upload {
    /// Held until the buffered start is sent.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// The part that was read before the request was allowed.
    pub(super) buffered: Bytes,
    /// The rest, if there is one.
    pub(super) body: Option<Incoming>,
    pub(super) exchange: Arc<Exchange>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            let data = match (this.buffered.is_empty(), &mut this.body) {
                (false, _) => {
                    this.permit = None;
                    std::mem::take(&mut this.buffered)
                }
                (true, None) => return Poll::Ready(None),
                (true, Some(body)) => match Pin::new(body).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Some(Err(io::Error::other(error))));
                    }
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => data,
                        // Trailers would be headers that were never checked.
                        Err(_) => continue,
                    },
                },
            };
            return Poll::Ready(Some(match this.exchange.pass(Direction::Out, data.len()) {
                Ok(()) => Ok(Frame::data(data)),
                Err(_) => Err(io::ErrorKind::PermissionDenied.into()),
            }));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self
            .body
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint);
        let buffered = self.buffered.len() as u64;
        rest.exact()
            .map(|rest| SizeHint::with_exact(buffered + rest))
            .unwrap_or_default()
    }
}

impl Drop for Upload {
    /// The upload is over.
    fn drop(&mut self) {
        self.exchange.uploaded.store(true, Ordering::Relaxed);
    }
}

/// A response body on its way to the program.
pub(super) struct UpstreamBody {
    exchange: Arc<Exchange>,
    /// Until the response is complete.
    upstream_connection: Option<UpstreamConnection>,
    body: Incoming,
    scrubber: Scrubber,
    idle: Arc<IdleSlot>,
    cut: Arc<AtomicBool>,
    length: Option<u64>,
    idle_timer: Option<Pin<Box<Sleep>>>,
    last: Instant,
    broken: bool,
}

impl UpstreamBody {
    pub(super) fn new(
        exchange: Arc<Exchange>,
        upstream_connection: UpstreamConnection,
        body: Incoming,
        idle: Arc<IdleSlot>,
        cut: Arc<AtomicBool>,
    ) -> UpstreamBody {
        let length = body.size_hint().exact();
        let is_over = body.is_end_stream();
        let mut answer = UpstreamBody {
            exchange,
            upstream_connection: Some(upstream_connection),
            body,
            scrubber: Scrubber::default(),
            idle,
            cut,
            length,
            idle_timer: None,
            last: Instant::now(),
            broken: false,
        };
        if is_over {
            answer.end();
        }
        answer
    }

    /// The response is complete: keep the connection, unless the request is still being sent on it.
    fn end(&mut self) {
        if let Some(upstream_connection) = self.upstream_connection.take()
            && self.exchange.uploaded.load(Ordering::Relaxed)
        {
            self.idle.keep(upstream_connection);
        }
    }

    /// Ends the body with an error, so that the program sees the truncation.
    fn fail(&mut self, why: &'static str) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.exchange.set_failure(why);
        self.cut.store(true, Ordering::Relaxed);
        self.upstream_connection = None;
        self.broken = true;
        Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())))
    }

    /// A chunk without the credential.
    fn scrubbed(&mut self, data: Bytes, is_last: bool) -> Bytes {
        let credential = self
            .upstream_connection
            .as_ref()
            .and_then(|upstream_connection| upstream_connection.connection_key.credential.as_ref());
        let Some(credential) = credential else {
            return data;
        };
        let passed = self.scrubber.feed(&credential.patterns, data);
        if !is_last {
            return passed;
        }
        let rest = self.scrubber.flush(&credential.patterns);
        match (passed.is_empty(), rest.is_empty()) {
            (_, true) => passed,
            (true, false) => rest,
            (false, false) => [passed, rest].concat().into(),
        }
    }

    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = |last: Instant| tokio::time::Instant::from_std(last + IDLE_TIMEOUT);
        let last = self.last;
        let idle_timer = self
            .idle_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due(last))));
        while idle_timer.as_mut().poll(cx).is_ready() {
            if last.elapsed() >= IDLE_TIMEOUT {
                return Poll::Ready(());
            }
            idle_timer.as_mut().reset(due(last));
        }
        Poll::Pending
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            let Some(upstream_connection) = &mut this.upstream_connection else {
                return Poll::Ready(None);
            };
            let (data, is_last) = match upstream_connection
                .connection
                .poll_chunk(&mut this.body, cx)
            {
                Poll::Ready(ResponseChunk::Data(data)) => (data, this.body.is_end_stream()),
                Poll::Ready(ResponseChunk::End) => (Bytes::new(), true),
                Poll::Ready(ResponseChunk::Broken) => return this.fail("the server broke off"),
                Poll::Pending => match this.poll_idle_timeout(cx) {
                    Poll::Ready(()) => return this.fail("the server fell silent"),
                    Poll::Pending => return Poll::Pending,
                },
            };
            this.last = Instant::now();
            if this.exchange.pass(Direction::In, data.len()).is_err() {
                return this.fail("stopped");
            }
            let passed = this.scrubbed(data, is_last);
            if is_last {
                this.end();
            }
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.upstream_connection.is_none() && !self.broken
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl Drop for UpstreamBody {
    /// The client disconnected, or was disconnected.
    fn drop(&mut self) {
        if self.upstream_connection.is_some() {
            self.exchange
                .set_failure("the program did not wait for the end");
        }
    }
}
