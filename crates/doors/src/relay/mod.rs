//! The way of one call: route, body, policy, reservation, credential, provider, and back. A straight line; what a
//! program may ask is decided before the first byte goes out.

mod attempt;
mod body;
mod fault;
mod flow;
mod headers;
mod own;
mod passage;
mod worst;

pub(crate) use body::read_out;
pub(crate) use fault::{head_too_large, no_such_path, response as refusal, too_many_connections};

use crate::{
    catalogue::Target,
    dialect::{Ask, Dialect, Fault, NoRoute, Route, ask, route},
    line::Line,
    session::{Kind, OpenError, Session},
    token,
    upstream::Upstream,
};
use attempt::Attempt;
use bytes::Bytes;
use http::{Request, Response, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use passage::Passage;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// The first pause before another try; each further one may be twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

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
        session.denied(
            "token",
            "a token of another session",
            "token_listener_mismatch",
            "nothing",
        );
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
        response
            .headers_mut()
            .insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    response
}

/// One answer to every credential that is not good here, whatever is wrong with it.
pub(crate) fn unauthorized_at(head: &Parts) -> Response<Outgoing> {
    let route = route(&head.method, head.uri.path(), head.uri.query());
    refusal(
        route.ok().and_then(|route| route.dialect),
        &fault::unauthorized(),
    )
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
    let ask =
        ask(route.operation, &body).map_err(|bad| refused(fault::bad_body(&bad.to_string())))?;
    if let (Some(named), Some((other, _))) = (&route.model, &ask.model)
        && named != other
    {
        return Err(refused(fault::bad_body(
            "it names another model than the path",
        )));
    }
    let began = Instant::now();
    let end = (session.kind == Kind::Inference)
        .then(|| began + session.doors.catalogue.bounds.inference_time);
    let asked = Asked {
        route,
        head,
        body,
        ask,
        began,
        end,
    };
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
        None if !asked.route.operation.is_free() => {
            return Err(fault::bad_body("it names no model"));
        }
        None => vec![Target {
            provider: provider.name.clone(),
            model: String::new(),
        }],
        Some(model) => session.targets(model).ok_or_else(|| {
            session.denied(
                "model",
                model,
                "allow_models",
                &format!("--allow-model '{model}'"),
            );
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
            let attempt = Attempt {
                session,
                line: &line,
                asked,
                target,
                upstream: &upstream,
                number,
            };
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

impl Outgoing {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Outgoing {
        let bytes = bytes.into();
        Outgoing::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
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
