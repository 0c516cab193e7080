//! A request and its answer on their way: every byte is counted and asked for before it goes on, and what came of it is
//! written down when both are over.

use super::{
    granted::short,
    outside::{Kept, Link},
};
use crate::{
    egress::{
        Egress, Way,
        books::Entry,
        policy::{Refusal, Standing},
    },
    scrub::Scrub,
    upstream::Piece,
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

/// Between two pieces of an answer.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);
/// Of a path, in the books.
const LONGEST_SHOWN: usize = 1000;

/// What is known of a request under way.
pub(super) struct Exchange {
    egress: Arc<Egress>,
    under: Under,
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
    /// Why nothing came of it.
    failed: OnceLock<&'static str>,
}

/// Under which rule it passes, and where to.
pub(super) struct Under {
    pub(super) standing: Arc<Standing>,
    pub(super) to: Destination,
    pub(super) learned: bool,
    /// The credential's name.
    pub(super) credential: String,
    /// Tells of rules that changed since.
    pub(super) changed: watch::Receiver<()>,
}

/// What is asked.
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    pub(super) url: String,
    /// What else there is to say of it.
    pub(super) note: String,
}

impl Exchange {
    pub(super) fn new(egress: &Arc<Egress>, under: Under, asked: Asked<'_>) -> Arc<Exchange> {
        Arc::new(Exchange {
            egress: egress.clone(),
            under,
            operation: short(asked.method, 32),
            target: asked.url,
            note: asked.note,
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

    /// Where it goes.
    pub(super) fn host(&self) -> &Host {
        &self.under.to.host
    }

    /// Writes down before anything leaves that a credential is about to be used, or what a push changes, ref by ref.
    pub(super) fn announce(&self, changes: &[String]) -> io::Result<()> {
        let with_credential = ["the credential is put in".to_owned()];
        let details = match changes.is_empty() {
            true if self.under.credential.is_empty() => return Ok(()),
            true => &with_credential,
            false => changes,
        };
        for detail in details {
            self.egress.books.write(&Entry {
                detail: detail.clone(),
                ..self.entry("allow")
            })?;
        }
        Ok(())
    }

    fn entry(&self, verdict: &'static str) -> Entry {
        Entry {
            operation: self.operation.clone(),
            target: self.target.clone(),
            verdict,
            rule: self.under.standing.rule.name.clone(),
            credential: self.under.credential.clone(),
            ..Entry::default()
        }
    }

    pub(super) fn is_at(&self, address: SocketAddr) {
        _ = self.address.set(address);
    }

    pub(super) fn is_answered(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Nothing came of it, or not all.
    pub(super) fn fails(&self, why: &'static str) {
        // The first reason is the reason.
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

    /// Bytes are about to pass; whether they may.
    pub(super) fn pass(&self, way: Way, bytes: usize) -> Result<(), Refusal> {
        let counter = if way == Way::Out {
            &self.sent
        } else {
            &self.received
        };
        let passes = self
            .still_stands()
            .and_then(|()| self.egress.count(&self.under.standing, way, bytes));
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

    /// It goes no further, for this reason unless there was one before.
    pub(super) fn stop(&self, refusal: &Refusal) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped.get_or_insert_with(|| refusal.clone());
    }

    /// Whether the rule still allows it. Rules are looked at anew only when they changed.
    pub(super) fn still_stands(&self) -> Result<(), Refusal> {
        let fell = self
            .under
            .standing
            .until
            .is_some_and(|until| until <= Instant::now());
        if !fell && !self.under.changed.has_changed().unwrap_or(true) {
            return Ok(());
        }
        let now = self.egress.judge(&self.under.to)?;
        let same = now.learned && self.under.learned
            || now
                .rules
                .iter()
                .any(|standing| Arc::ptr_eq(standing, &self.under.standing));
        match same {
            true => Ok(()),
            false => Err(Refusal::new(
                &self.under.standing.rule.name,
                "the rule was taken away",
                "nothing",
            )),
        }
    }
}

impl Drop for Exchange {
    /// Both are over, however they ended.
    fn drop(&mut self) {
        let stopped = self.stopped();
        let failed = self.failed.get().copied();
        let verdict = match (failed, self.under.learned) {
            (Some(_), _) if self.status.load(Ordering::Relaxed) == 0 => "failed",
            (_, true) => "learn",
            (_, false) => "allow",
        };
        if let Some(refusal) = &stopped {
            self.egress
                .books
                .refused(&self.operation, &self.target, refusal);
            // It never got as far as a server: nothing passed that could be told of.
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
        let entry = Entry {
            // What was counted beforehand did not go anywhere without a connection.
            sent: if address.is_some() { self.sent() } else { 0 },
            address: address.unwrap_or_default(),
            detail: detail.join("; "),
            status: self.status.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            duration_ms: self.begun.elapsed().as_millis() as u64,
            ..self.entry(verdict)
        };
        // It has passed; what cannot be written stops the next one.
        _ = self.egress.books.write(&entry);
    }
}

/// The address of a request without its query, which may hold anything.
pub(super) fn url(to: &Destination, secure: bool, path: &str) -> String {
    let scheme = if secure { "https" } else { "http" };
    format!("{scheme}://{to}{}", short(path, LONGEST_SHOWN))
}

/// A request's body on its way out.
pub(crate) struct Upload {
    /// As long as there is something early.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    /// What was read of it before it was allowed.
    pub(super) early: Bytes,
    /// The rest, unless that was all.
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
            let data = match (this.early.is_empty(), &mut this.body) {
                (false, _) => {
                    this.permit = None;
                    std::mem::take(&mut this.early)
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
                        // Trailers: they would be headers that nobody judged.
                        Err(_) => continue,
                    },
                },
            };
            return Poll::Ready(Some(match this.exchange.pass(Way::Out, data.len()) {
                Ok(()) => Ok(Frame::data(data)),
                Err(_) => Err(io::ErrorKind::PermissionDenied.into()),
            }));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.early.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self
            .body
            .as_ref()
            .map_or(SizeHint::with_exact(0), Body::size_hint);
        let early = self.early.len() as u64;
        rest.exact()
            .map(|rest| SizeHint::with_exact(early + rest))
            .unwrap_or_default()
    }
}

impl Drop for Upload {
    /// Nobody asks for more of it.
    fn drop(&mut self) {
        self.exchange.uploaded.store(true, Ordering::Relaxed);
    }
}

/// An answer's body on its way in.
pub(super) struct Answer {
    exchange: Arc<Exchange>,
    /// Until all of it has come.
    link: Option<Link>,
    body: Incoming,
    scrub: Scrub,
    kept: Arc<Kept>,
    cut: Arc<AtomicBool>,
    length: Option<u64>,
    alarm: Option<Pin<Box<Sleep>>>,
    last: Instant,
    broken: bool,
}

impl Answer {
    pub(super) fn new(
        exchange: Arc<Exchange>,
        link: Link,
        body: Incoming,
        kept: Arc<Kept>,
        cut: Arc<AtomicBool>,
    ) -> Answer {
        let length = body.size_hint().exact();
        let is_over = body.is_end_stream();
        let mut answer = Answer {
            exchange,
            link: Some(link),
            body,
            scrub: Scrub::default(),
            kept,
            cut,
            length,
            alarm: None,
            last: Instant::now(),
            broken: false,
        };
        if is_over {
            answer.end();
        }
        answer
    }

    /// All of it has come: the connection is kept, unless the request is still going out on it.
    fn end(&mut self) {
        if let Some(link) = self.link.take()
            && self.exchange.uploaded.load(Ordering::Relaxed)
        {
            self.kept.keep(link);
        }
    }

    /// The program must see that it is not all.
    fn fail(&mut self, why: &'static str) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.exchange.fails(why);
        self.cut.store(true, Ordering::Relaxed);
        (self.link, self.broken) = (None, true);
        Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())))
    }

    /// What may be passed on of a piece, without the credential.
    fn scrubbed(&mut self, data: Bytes, is_last: bool) -> Bytes {
        let credential = self
            .link
            .as_ref()
            .and_then(|link| link.purpose.credential.as_ref());
        let Some(credential) = credential else {
            return data;
        };
        let passed = self.scrub.feed(&credential.reflection, data);
        if !is_last {
            return passed;
        }
        let rest = self.scrub.rest(&credential.reflection);
        match (passed.is_empty(), rest.is_empty()) {
            (_, true) => passed,
            (true, false) => rest,
            (false, false) => [passed, rest].concat().into(),
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = |last: Instant| tokio::time::Instant::from_std(last + LONGEST_SILENCE);
        let last = self.last;
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due(last))));
        while alarm.as_mut().poll(cx).is_ready() {
            if last.elapsed() >= LONGEST_SILENCE {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(due(last));
        }
        Poll::Pending
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            let Some(link) = &mut this.link else {
                return Poll::Ready(None);
            };
            let (data, is_last) = match link.wire.poll_piece(&mut this.body, cx) {
                Poll::Ready(Piece::Data(data)) => (data, this.body.is_end_stream()),
                Poll::Ready(Piece::End) => (Bytes::new(), true),
                Poll::Ready(Piece::Broken) => return this.fail("the server broke off"),
                Poll::Pending => match this.poll_alarm(cx) {
                    Poll::Ready(()) => return this.fail("the server fell silent"),
                    Poll::Pending => return Poll::Pending,
                },
            };
            this.last = Instant::now();
            if this.exchange.pass(Way::In, data.len()).is_err() {
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
        self.link.is_none() && !self.broken
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl Drop for Answer {
    /// The reader left, or was made to.
    fn drop(&mut self) {
        if self.link.is_some() {
            self.exchange.fails("the program did not wait for the end");
        }
    }
}
