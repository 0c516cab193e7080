//! The way of one call: route, body, policy, reservation, credential, provider, and back. A straight line; what a
//! program may ask is decided before the first byte goes out.

mod body;
mod fault;
mod flow;
mod headers;
mod own;
mod passage;
mod worst;

pub(crate) use fault::{head_too_large, no_such_path, response as refusal, too_many_connections};

use crate::{
    catalogue::Target,
    dialect::{Ask, Change, Dialect, Fault, NoRoute, Operation, Route, Tap, TapKind, ask, rewrite, route},
    ledger::Call,
    line::Line,
    price::Price,
    session::{Kind, OpenError, Session},
    token,
    upstream::{NoAnswer, NoConnection, Upstream, Wire},
};
use bytes::{Bytes, BytesMut};
use flow::{Bill, Flow};
use http::{Request, Response, StatusCode, Uri, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use passage::Passage;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::time::timeout;
use worst::{Allowed, Worst};

/// An error document of a provider that is passed on.
const LONGEST_ERROR: usize = 64 << 10;
/// The first pause before another try; each further one may be twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A kept connection that had died is replaced, so often.
const MOST_STALE: usize = 8;

/// The body of an answer.
pub(crate) enum Outgoing {
    /// All of it.
    Whole(Option<Bytes>),
    /// As it comes.
    Passage(Box<Passage>),
}

/// A request that has been understood.
struct Asked {
    route: Route,
    head: Parts,
    body: Bytes,
    ask: Ask,
    began: Instant,
    /// When it has to be over, if that is limited.
    end: Option<Instant>,
}

/// Why a try gave no answer, and what may be tried next.
struct Failed {
    fault: Fault,
    next: Next,
}

/// What may be tried next.
enum Next {
    /// Nothing: it would be refused again.
    Stop,
    /// The same, after a pause; else another model.
    Again { after: Option<Duration> },
    /// Another model.
    Elsewhere,
}

/// Answers one request.
pub(crate) async fn serve(
    session: Arc<Session>,
    line: Arc<Line>,
    request: Request<Incoming>,
) -> Response<Outgoing> {
    if !session.is_open() || !line.enter(&session.crowd) {
        return refusal(None, &fault::ended());
    }
    let (head, mut body) = request.into_parts();
    if token::is_anothers(&head, session.terms.token.as_ref()) {
        session.denied("token", "a token of another session", "token_listener_mismatch", "nothing");
        return unauthorized_at(&head);
    }
    // hyper lets the chunked length win over the other; nobody gets to argue about where the next request begins.
    let ambiguous = head.headers.contains_key(header::TRANSFER_ENCODING);
    let asked = line.clone();
    let mut response = tokio::select! {
        biased;
        () = asked.asked() => refusal(None, &fault::ended()),
        answered = answer_or_refuse(&session, line, head, &mut body) => answered,
    };
    if ambiguous {
        response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    response
}

/// One answer to every credential that is not good here, whatever is wrong with it.
pub(crate) fn unauthorized_at(head: &Parts) -> Response<Outgoing> {
    let route = route(&head.method, head.uri.path(), head.uri.query());
    refusal(route.ok().and_then(|route| route.dialect), &fault::unauthorized())
}

async fn answer_or_refuse(
    session: &Arc<Session>,
    line: Arc<Line>,
    head: Parts,
    body: &mut Incoming,
) -> Response<Outgoing> {
    match answer(session, line, head, body).await {
        Ok(response) => response,
        Err((dialect, fault)) => {
            body::read_out(body).await;
            refusal(dialect, &fault)
        }
    }
}

type Refusal = (Option<Dialect>, Fault);

async fn answer(
    session: &Arc<Session>,
    line: Arc<Line>,
    head: Parts,
    body: &mut Incoming,
) -> Result<Response<Outgoing>, Refusal> {
    if let Some(own) = own::answer(session, &head) {
        return Ok(own);
    }
    let speaks = session.upstream.provider.dialect;
    let path = head.uri.path();
    let route = route(&head.method, path, head.uri.query()).map_err(|none| match none {
        NoRoute::NotFound => (Some(speaks), fault::no_such_path()),
        NoRoute::WrongMethod => (Some(speaks), fault::wrong_method()),
    })?;
    if route.dialect.is_some_and(|dialect| dialect != speaks) {
        return Err((route.dialect, fault::other_dialect(speaks)));
    }
    let refused = |fault| (Some(speaks), fault);
    // Held until the answer begins: so long the body may have to be sent again.
    let (body, _room) = body::read(session, body).await.map_err(refused)?;
    let ask = ask(route.operation, &body).map_err(|bad| refused(fault::bad_body(&bad.to_string())))?;
    if let (Some(named), Some((other, _))) = (&route.model, &ask.model)
        && named != other
    {
        return Err(refused(fault::bad_body("it names another model than the path")));
    }
    let began = Instant::now();
    let end =
        (session.kind == Kind::Inference).then(|| began + session.doors.catalogue.bounds.inference_time);
    let asked = Asked { route, head, body, ask, began, end };
    carry_out(session, line, &asked).await.map_err(refused)
}

/// Tries each model that the name stands for, each as often as its provider allows.
async fn carry_out(
    session: &Arc<Session>,
    line: Arc<Line>,
    asked: &Asked,
) -> Result<Response<Outgoing>, Fault> {
    let provider = &session.upstream.provider;
    if asked.ask.priced_otherwise {
        return Err(fault::priced_otherwise());
    }
    let named = asked.ask.model.as_ref().map(|(model, _)| model.as_str());
    let model = asked.route.model.as_deref().or(named);
    let targets = match model {
        None if !asked.route.operation.is_free() => return Err(fault::bad_body("it names no model")),
        None => vec![Target { provider: provider.name.clone(), model: String::new() }],
        Some(model) => session.targets(model).ok_or_else(|| {
            session.denied("model", model, "allow_models", &format!("--allow-model '{model}'"));
            fault::model_refused()
        })?,
    };
    let (mut number, mut last) = (0, fault::no_such_path());
    for target in &targets {
        let upstream = match session.upstream_of(target).await {
            Ok(upstream) if reaches_out(asked) && !upstream.provider.server_tools => {
                let allow = "server_tools = true for the provider";
                session.denied("tool", &upstream.provider.name, "server_tools", allow);
                last = fault::server_tools_refused();
                continue;
            }
            Ok(upstream) if upstream.provider.dialect == provider.dialect => upstream,
            Ok(_) => {
                last = fault::other_dialect(provider.dialect);
                continue;
            }
            Err(OpenError::Secret(_)) => {
                last = fault::no_credential();
                continue;
            }
            Err(_) => continue,
        };
        let mut tries = 0;
        loop {
            number += 1;
            let attempt = Attempt { session, line: &line, asked, target, upstream: &upstream, number };
            let failed = match attempt.carry_out().await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            last = failed.fault;
            match failed.next {
                Next::Stop => return Err(last),
                Next::Elsewhere => break,
                Next::Again { after } => match pause(tries, after, &upstream) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => break,
                },
            }
            tries += 1;
        }
    }
    Err(last)
}

/// Whether the provider is to reach into the network by itself: to run a tool, or to fetch something.
fn reaches_out(asked: &Asked) -> bool {
    asked.ask.server_tools || asked.ask.fetches
}

/// How long to wait before the next try; none if there is to be no other.
fn pause(tries: u32, after: Option<Duration>, upstream: &Upstream) -> Option<Duration> {
    let provider = &upstream.provider;
    if tries >= provider.retries {
        return None;
    }
    match after {
        // A provider that wants longer than anybody waits is not asked again.
        Some(after) if after > provider.patience.retry_after => None,
        Some(after) => Some(after),
        None => {
            let most = FIRST_PAUSE * 2u32.saturating_pow(tries.min(6));
            Some(most.mul_f64(jitter()))
        }
    }
}

/// Between 0 and 1, so that many who failed together do not come back together.
fn jitter() -> f64 {
    let mut bytes = [0; 4];
    let random = ring::rand::SystemRandom::new();
    match ring::rand::SecureRandom::fill(&random, &mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    }
}

/// One try at one model of one provider.
struct Attempt<'a> {
    session: &'a Arc<Session>,
    line: &'a Arc<Line>,
    asked: &'a Asked,
    target: &'a Target,
    upstream: &'a Arc<Upstream>,
    number: u32,
}

fn stop(fault: Fault) -> Failed {
    Failed { fault, next: Next::Stop }
}

impl Attempt<'_> {
    async fn carry_out(&self) -> Result<Response<Outgoing>, Failed> {
        let target = self.path().ok_or(Failed { fault: fault::no_such_path(), next: Next::Elsewhere })?;
        let bill = self.reserve().await?;
        let (request, strips) = self.request(target, bill.allowed);
        let (wire, answered) = match self.send(request).await {
            Ok(sent) => sent,
            Err((fault, nothing)) => {
                match nothing {
                    true => bill.nothing("not_sent"),
                    false => bill.everything("no_answer"),
                }
                let late = self.asked.end.is_some_and(|end| end <= Instant::now());
                let next = if late { Next::Stop } else { Next::Again { after: None } };
                return Err(Failed { fault, next });
            }
        };
        self.pass_on(bill, wire, answered, strips).await
    }

    /// Reserves the worst case. It is written down when this returns.
    async fn reserve(&self) -> Result<Bill, Failed> {
        let (operation, ask) = (self.asked.route.operation, &self.asked.ask);
        let price = self.price().ok_or_else(|| {
            self.session.denied(
                "model",
                &self.target.model,
                "unknown_price",
                "[prices] in the configuration",
            );
            Failed { fault: fault::price_unknown(), next: Next::Elsewhere }
        })?;
        let worst = match operation.is_free() {
            false => Worst::of(operation, self.asked.body.len(), ask, price.clone()),
            true => Worst::of(Operation::Embeddings, 0, &Ask::default(), Arc::default()),
        };
        let worst = worst.ok_or_else(|| stop(fault::unbounded_input()))?;
        let mut allowed = None;
        let reserved = self.session.doors.till.reserve(&self.session.account, self.call(), |room| {
            allowed = worst.within(room);
            allowed.map(|allowed| allowed.claim)
        });
        let hold = reserved.await.map_err(|refused| {
            if matches!(refused, crate::till::Refused::Spent { .. }) {
                self.session.note_budget();
            }
            stop(fault::refused(&refused))
        })?;
        let allowed = allowed.unwrap_or(Allowed { claim: hold.claim, cap: None, cut: None, limited: false });
        let asked = self.asked.body.len() as u64;
        let (price, most_input) = (worst.price().clone(), worst.input());
        Ok(Bill { hold, price, allowed, asked, most_input, began: self.asked.began, status: 0 })
    }

    fn price(&self) -> Option<Arc<Price>> {
        match self.session.kind {
            // The node's own server sends no bill.
            Kind::Inference => Some(Arc::default()),
            Kind::Llm if self.asked.route.operation.is_free() => Some(Arc::default()),
            Kind::Llm => self.session.doors.catalogue.prices.price(&self.target.provider, &self.target.model),
        }
    }

    fn call(&self) -> Call {
        let terms = &self.session.terms;
        Call {
            run: terms.run.clone(),
            session: terms.id.clone(),
            tenant: terms.tenant.clone(),
            door: match self.session.kind {
                Kind::Llm => "llm".to_owned(),
                Kind::Inference => "inference".to_owned(),
            },
            provider: self.target.provider.clone(),
            model: self.target.model.clone(),
            operation: format!("{:?}", self.asked.route.operation),
            attempt: self.number,
            price_book: self.session.doors.catalogue.prices.version().to_owned(),
        }
    }

    /// Where the request goes; nowhere, if the model's name cannot stand in its path.
    fn path(&self) -> Option<Uri> {
        let route = &self.asked.route;
        let target = match (&route.model, self.target.model.as_str()) {
            (Some(_), model) if !model.is_empty() => route.target_for(model)?,
            _ => route.target.clone(),
        };
        self.upstream.path(&target).parse().ok()
    }

    /// The request as the provider gets it, and whether the usage that we ask for is to be taken out again.
    fn request(&self, target: Uri, allowed: Allowed) -> (Request<Full<Bytes>>, bool) {
        let (asked, provider) = (self.asked, &self.upstream.provider);
        let named = asked.ask.model.as_ref().map(|(name, _)| name.as_str());
        let chat = asked.route.operation == Operation::Chat;
        let ask_usage = chat && asked.ask.stream && !asked.ask.wants_usage && provider.ask_usage;
        let change = Change {
            model: named.filter(|name| *name != self.target.model).map(|_| self.target.model.as_str()),
            cap: allowed.cap,
            cap_name: provider.output_cap,
            ask_usage,
            identity: &self.session.terms.id,
        };
        let body = match asked.body.is_empty() {
            true => Bytes::new(),
            false => rewrite(asked.route.operation, &asked.body, &asked.ask, &change),
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = asked.head.method.clone();
        *request.uri_mut() = target;
        *request.headers_mut() = headers::upstream(self.upstream, self.session, &asked.head.headers);
        (request, ask_usage)
    }

    /// Sends it on a connection that lives. The flag of an error says that nothing went out.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Wire, Response<Incoming>), (Fault, bool)> {
        let unreachable = |why: NoConnection| (fault::unreachable(why), true);
        for _ in 0..MOST_STALE {
            let (mut wire, kept) = self.upstream.connect().await.map_err(unreachable)?;
            let patience = self.patience();
            match timeout(patience, wire.send(request.clone())).await {
                Ok(Ok(response)) => return Ok((wire, response)),
                Ok(Err(NoAnswer::NotSent)) if kept => continue,
                Ok(Err(NoAnswer::NotSent)) => return Err((fault::lost(), true)),
                Ok(Err(NoAnswer::Lost)) => return Err((fault::lost(), false)),
                Err(_) => return Err((fault::first_byte_late(), false)),
            }
        }
        Err((fault::lost(), true))
    }

    /// How long the head of the answer is waited for.
    fn patience(&self) -> Duration {
        let most = self.upstream.provider.patience.first_byte;
        self.asked.end.map_or(most, |end| most.min(end.saturating_duration_since(Instant::now())))
    }

    /// Decides what an answer is by its head.
    async fn pass_on(
        &self,
        mut bill: Bill,
        mut wire: Wire,
        answered: Response<Incoming>,
        strips: bool,
    ) -> Result<Response<Outgoing>, Failed> {
        let (head, mut body) = answered.into_parts();
        bill.status = head.status.as_u16();
        let status = head.status;
        if status.is_success() {
            return self.stream(bill, wire, (head, body), strips);
        }
        match status.as_u16() {
            // A gateway gave up waiting: what it waited for may have been served to its end.
            408 | 504 | 522 | 524 => bill.everything("upstream_timeout"),
            _ => bill.nothing("refused_upstream"),
        }
        if status.is_redirection() || status.is_informational() {
            return Err(stop(fault::redirected()));
        }
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return Err(Failed { fault: fault::credentials(), next: Next::Elsewhere });
        }
        let after = headers::retry_after(&head.headers);
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            let clamped =
                after.map(|after| after.min(self.upstream.provider.patience.retry_after).as_secs().max(1));
            let fault = fault::upstream_status(status, clamped);
            return Err(Failed { fault, next: Next::Again { after } });
        }
        // About the request itself: the provider's own words help most.
        let text = error_text(&mut wire, &mut body).await;
        // Blanked as a whole: of a key that is cut in two, most would be left.
        let mut text = match self.upstream.reflection() {
            Some(reflection) => crate::scrub::blank(reflection, text),
            None => text,
        };
        text.truncate(LONGEST_ERROR);
        let mut response = Response::new(Outgoing::whole(text));
        *response.status_mut() = status;
        *response.headers_mut() = headers::downstream(&head.headers, self.upstream.reflection());
        response.headers_mut().remove(header::CONTENT_LENGTH);
        Ok(response)
    }

    fn stream(
        &self,
        bill: Bill,
        wire: Wire,
        (head, body): (http::response::Parts, Incoming),
        strips: bool,
    ) -> Result<Response<Outgoing>, Failed> {
        let encoded = head.headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity");
        if encoded {
            bill.everything("encoded");
            return Err(stop(fault::encoded()));
        }
        let operation = self.asked.route.operation;
        let kind = headers::kind(&head.headers, operation, self.asked.route.streams);
        let strips = strips && kind == TapKind::Events;
        // Last words may have to be put behind a part of anything but one document.
        let length = body.size_hint().exact().filter(|_| kind == TapKind::Whole);
        let delimited =
            body.size_hint().exact().is_some() || head.headers.contains_key(header::TRANSFER_ENCODING);
        let tap = Tap::new(operation, kind, strips);
        let flow = Flow {
            upstream: self.upstream.clone(),
            wire,
            body,
            tap,
            scrub: Default::default(),
            bill,
            delimited,
        };
        let end = self.asked.end.map(Into::into);
        let passage = Passage::new(self.session.clone(), self.line.clone(), flow, length, end);
        let mut response = Response::new(Outgoing::Passage(Box::new(passage)));
        *response.status_mut() = head.status;
        *response.headers_mut() = headers::downstream(&head.headers, self.upstream.reflection());
        if length.is_none() {
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        Ok(response)
    }
}

/// What a provider says about a request it refused, within bounds.
async fn error_text(wire: &mut Wire, body: &mut Incoming) -> Bytes {
    let mut text = BytesMut::new();
    let read = async {
        while text.len() < LONGEST_ERROR {
            match std::future::poll_fn(|cx| wire.poll_piece(body, cx)).await {
                crate::upstream::Piece::Data(data) => text.extend_from_slice(&data),
                crate::upstream::Piece::End | crate::upstream::Piece::Broken => break,
            }
        }
    };
    _ = timeout(Duration::from_secs(10), read).await;
    text.freeze()
}

impl Outgoing {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Outgoing {
        let bytes = bytes.into();
        Outgoing::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Outgoing::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Outgoing::Passage(passage) => Pin::new(passage.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Whole(bytes) => bytes.is_none(),
            Outgoing::Passage(passage) => passage.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Outgoing::Passage(passage) => passage.size_hint(),
        }
    }
}
