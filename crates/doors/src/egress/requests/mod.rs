//! Requests that are looked at one by one: at the proxy, to port 80, and inside TLS that ends here.
//!
//! ```text
//! head ─ where to ─ rules ─ limits ─ books ─ connect ─ credential ─ forward ─ answer, scrubbed
//! ```
//!
//! Nothing is remembered from one request to the next but a connection: each is judged anew.

mod exchange;
mod granted;
mod head;
mod outside;
mod page;
mod push;
mod target;
mod upgrade;

#[cfg(test)]
mod tests;

pub(crate) use outside::Outside;

use super::{
    Egress, Refusal, Way, answer, answer::Body, carry, dial::NoWay, git::Push, policy::Passage,
    rewound::Rewound,
};
use crate::{
    line::Line,
    relay,
    serve::{self, LARGEST_HEAD},
    upstream::NoAnswer,
};
use exchange::{Answer, Asked, Exchange, Under, Upload};
use granted::{Granted, short};
use http::{
    HeaderValue, Request, Response, StatusCode, header::CONNECTION, request::Parts, response,
};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use outside::{Kept, Link, Purpose};
use spec::{Destination, Host};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use target::Aim;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::timeout,
};
use tokio_rustls::server::TlsStream;
use upgrade::Upgraded;

/// Until the head of an answer, when no more of the request goes out.
const FIRST_BYTE: Duration = Duration::from_secs(120);

/// For the next head, and until it begins: to hyper both are one. Programs that keep connections would lose requests to a
/// shorter one; who is slow on purpose has a connection less for himself.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// No credential is used that is not written down.
const NO_RECORD: &str = "its record cannot be written; nothing was sent";

/// Where the requests of a connection may go.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// Wherever each of them says: a proxy.
    Proxy,
    /// To this destination and no other.
    To {
        /// The destination.
        to: Destination,
        /// Whether it came encrypted, and so must go on encrypted.
        secure: bool,
    },
}

/// The requests of one connection.
pub(crate) struct Conversation {
    egress: Arc<Egress>,
    line: Arc<Line>,
    scope: Scope,
    kept: Arc<Kept>,
    /// An answer was broken off.
    cut: Arc<AtomicBool>,
    upgraded: upgrade::Slot,
}

/// A client, whatever its connection is wrapped in.
pub(crate) trait Client: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The connection itself.
    fn stream(&self) -> &TcpStream;
}

impl Client for Rewound {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Client for TlsStream<Rewound> {
    fn stream(&self) -> &TcpStream {
        &self.get_ref().0.stream
    }
}

/// A request that may pass, and where to.
struct Passing {
    to: Destination,
    secure: bool,
    passage: Passage,
    granted: Granted,
    /// The program wants a WebSocket, and may have one.
    upgrade: bool,
    /// Tells of rules that changed since.
    changed: watch::Receiver<()>,
}

impl Passing {
    fn exchange(&self, egress: &Arc<Egress>, asked: Asked<'_>) -> Arc<Exchange> {
        let credential = self
            .granted
            .credential
            .as_ref()
            .map(|ready| ready.name.as_str());
        let under = Under {
            standing: self.granted.standing.clone(),
            to: self.to.clone(),
            learned: self.passage.learned,
            credential: credential.unwrap_or_default().to_owned(),
            changed: self.changed.clone(),
        };
        Exchange::new(egress, under, asked)
    }

    fn purpose(&self) -> Purpose {
        Purpose {
            to: self.to.clone(),
            secure: self.secure,
            may_be_private: self.passage.may_be_private(),
            credential: self.granted.credential.clone(),
        }
    }
}

impl Conversation {
    pub(crate) fn new(egress: Arc<Egress>, line: Arc<Line>, scope: Scope) -> Conversation {
        let (kept, cut, upgraded) = (Arc::default(), Arc::default(), upgrade::Slot::default());
        Conversation {
            egress,
            line,
            scope,
            kept,
            cut,
            upgraded,
        }
    }

    /// Whether an answer was broken off, so that the connection must not end as if all were well.
    pub(crate) fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// The answer to one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, mut body) = request.into_parts();
        // hyper looks at the size between two reads, and the last one may have brought more.
        let target = head
            .uri
            .path_and_query()
            .map_or(0, |target| target.as_str().len());
        if head::size(target, &head.headers) > LARGEST_HEAD {
            return too_large();
        }
        if !head::is_plainly_encoded(&head.headers) {
            return answer::bad("the body is encoded for the way, and not in chunks alone");
        }
        let aim = match target::aim(&self.scope, &head) {
            Ok(Aim::Door) => return page::answer(&self.egress, &head),
            Ok(Aim::At(to, secure)) => (self.meant(to), secure),
            Err(astray) => {
                relay::read_out(&mut body).await;
                return self.astray(&head, &astray);
            }
        };
        match self.judge(aim, &head) {
            Ok(passing) => self.forward(passing, head, body).await,
            Err(answer) => {
                // Whoever is refused may still be writing, and a connection that breaks meanwhile hides the refusal.
                relay::read_out(&mut body).await;
                *answer
            }
        }
    }

    /// At the proxy, an address may have been made up here for a name.
    fn meant(&self, to: Destination) -> Destination {
        match (&self.scope, to.host) {
            (Scope::Proxy, Host::Address(address)) => Destination {
                host: self.egress.host_at(address),
                port: to.port,
            },
            (_, host) => Destination {
                host,
                port: to.port,
            },
        }
    }

    /// It is not for here: written down like everything else that is refused.
    fn astray(&self, head: &Parts, astray: &target::Astray) -> Response<Body> {
        let refusal = Refusal::new("host", astray.reason.clone(), "nothing");
        let target = match &self.scope {
            Scope::Proxy => short(&head.uri.to_string(), 200),
            Scope::To { to, secure } => exchange::url(to, *secure, head.uri.path()),
        };
        self.egress
            .books
            .refused(&short(head.method.as_str(), 32), &target, &refusal);
        let mut answer = answer::refused("the request", &self.egress.run, None, &refusal);
        *answer.status_mut() = astray.status;
        if astray.status == StatusCode::BAD_REQUEST {
            answer
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    /// What the rules say of it, now.
    fn judge(
        &self,
        (to, secure): (Destination, bool),
        head: &Parts,
    ) -> Result<Passing, Box<Response<Body>>> {
        let refused = |status, refusal: &Refusal| {
            let (url, method) = (
                exchange::url(&to, secure, head.uri.path()),
                short(head.method.as_str(), 32),
            );
            self.egress.books.refused(&method, &url, refusal);
            let what = format!("{method} {url}");
            let mut answer = answer::refused(&what, &self.egress.run, Some(&to.host), refusal);
            *answer.status_mut() = status;
            Box::new(answer)
        };
        let forbidden = |refusal: Refusal| refused(StatusCode::FORBIDDEN, &refusal);
        let changed = self.egress.changed.subscribe();
        let passage = self.egress.judge(&to).map_err(|refusal| {
            // It is the destination that is refused, whatever is asked of it.
            self.egress
                .books
                .refused(&short(head.method.as_str(), 32), &to.to_string(), &refusal);
            let what = format!(
                "{} {}",
                short(head.method.as_str(), 32),
                exchange::url(&to, secure, head.uri.path())
            );
            Box::new(answer::refused(
                &what,
                &self.egress.run,
                Some(&to.host),
                &refusal,
            ))
        })?;
        let granted = granted::grant(&self.egress, &passage, &to, secure, head)
            .map_err(|denied| refused(denied.status, &denied.refusal))?;
        let upgrade = head::asks_for_websocket(&head.headers);
        if upgrade {
            let is_proxy = matches!(self.scope, Scope::Proxy);
            upgrade::check(&granted, is_proxy).map_err(forbidden)?;
        }
        self.egress.begin(&granted.standing).map_err(forbidden)?;
        Ok(Passing {
            to,
            secure,
            passage,
            granted,
            upgrade,
            changed,
        })
    }

    /// Sends it, and brings the answer.
    async fn forward(
        &self,
        mut passing: Passing,
        mut head: Parts,
        mut body: Incoming,
    ) -> Response<Body> {
        let url = exchange::url(&passing.to, passing.secure, passing.granted.target.path());
        let what = format!("{} {url}", short(head.method.as_str(), 32));
        let allowed = match passing.granted.push.take() {
            None => push::Allowed::default(),
            Some(push) => match self
                .read_push(&passing, push, &mut head, &mut body, &url)
                .await
            {
                Ok(allowed) => allowed,
                Err(answer) => return *answer,
            },
        };
        let push::Allowed {
            early,
            is_whole,
            changes,
            permit,
        } = allowed;
        let note = changes.first().cloned().unwrap_or_default();
        let exchange = passing.exchange(
            &self.egress,
            Asked {
                method: head.method.as_str(),
                url,
                note,
            },
        );
        if let Err(no_way) = self.begin(&passing, &exchange, &changes, &mut head) {
            relay::read_out(&mut body).await;
            return self.no_way(&what, &exchange, &no_way);
        }
        let link = match self.connect(&exchange, passing.purpose()).await {
            Ok(link) => link,
            Err(no_way) => {
                relay::read_out(&mut body).await;
                return self.no_way(&what, &exchange, &no_way);
            }
        };
        // A rule for what leads inwards would not help.
        if passing.passage.learned {
            self.egress.books.learn(&passing.to);
        }
        let body = (!is_whole).then_some(body);
        let mut request = Request::new(Upload {
            permit,
            early,
            body,
            exchange: exchange.clone(),
        });
        (*request.method_mut(), *request.uri_mut()) = (head.method, passing.granted.target);
        *request.headers_mut() = head.headers;
        match self.send(&exchange, link, request).await {
            Ok((link, answered)) => self.pass_on(&what, exchange, link, answered, passing.upgrade),
            Err(no_way) => self.no_way(&what, &exchange, &no_way),
        }
    }

    /// What a push wants to change is judged before anything of it leaves.
    async fn read_push(
        &self,
        passing: &Passing,
        push: Push,
        head: &mut Parts,
        body: &mut Incoming,
        url: &str,
    ) -> Result<push::Allowed, Box<Response<Body>>> {
        let rule = &passing.granted.standing.rule.name;
        push::read(
            rule,
            &self.egress.outside.pushes,
            push,
            &mut head.headers,
            body,
        )
        .await
        .map_err(|refused| {
            self.egress.books.refused("git push", url, &refused.refusal);
            let (run, host) = (&self.egress.run, Some(&passing.to.host));
            Box::new(
                refused
                    .answer
                    .unwrap_or_else(|| answer::refused("the push", run, host, &refused.refusal)),
            )
        })
    }

    /// Written down if it has a credential or changes refs; with the headers that the server gets; counted.
    fn begin(
        &self,
        passing: &Passing,
        exchange: &Exchange,
        changes: &[String],
        head: &mut Parts,
    ) -> Result<(), NoWay> {
        let Passing {
            to,
            secure,
            granted,
            upgrade,
            ..
        } = passing;
        exchange
            .announce(changes)
            .map_err(|_| NoWay::Failed(NO_RECORD))?;
        head::out(
            &mut head.headers,
            to,
            *secure,
            granted.looked_at,
            granted.credential.as_deref(),
        );
        if *upgrade {
            upgrade::ask(&mut head.headers);
        }
        let target = granted
            .target
            .path_and_query()
            .map_or(1, |target| target.as_str().len());
        exchange
            .pass(Way::Out, head::size(target, &head.headers))
            .map_err(NoWay::Refused)
    }

    /// The connection of the last request, if it will do, or a new one.
    async fn connect(&self, exchange: &Exchange, purpose: Purpose) -> Result<Link, NoWay> {
        let link = match self.kept.take(&purpose).await {
            Some(link) => link,
            None => outside::dial(&self.egress, purpose).await?,
        };
        // It took its time, and the credential is not out yet.
        exchange.still_stands().map_err(NoWay::Refused)?;
        exchange.is_at(link.address);
        Ok(link)
    }

    /// Sends a request; once more, if a kept connection had died before anything of it went out.
    async fn send(
        &self,
        exchange: &Exchange,
        mut link: Link,
        mut request: Request<Upload>,
    ) -> Result<(Link, Response<Incoming>), NoWay> {
        let mut again = true;
        loop {
            let sent = with_patience(exchange, link.wire.send(request)).await?;
            let lost = match sent {
                Ok(answered) => return Ok((link, answered)),
                Err(lost) => lost,
            };
            match (lost, exchange.stopped()) {
                (_, Some(refusal)) => return Err(NoWay::Refused(refusal)),
                (NoAnswer::NotSent(unsent), None) if again => {
                    (request, again) = (*unsent, false);
                    link = self.connect(exchange, link.purpose.clone()).await?;
                }
                _ => return Err(NoWay::Failed("the server hung up without an answer")),
            }
        }
    }

    /// Nothing came of it. What was refused on the way is written down with the exchange, or here.
    fn no_way(&self, what: &str, exchange: &Exchange, no_way: &NoWay) -> Response<Body> {
        match no_way {
            NoWay::Failed(why) => exchange.fails(why),
            NoWay::Refused(refusal) => exchange.stop(refusal),
        }
        let mut answer = answer::no_way(what, &self.egress.run, Some(exchange.host()), no_way);
        if matches!(no_way, NoWay::Failed(why) if *why == NO_RECORD) {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        answer
    }

    /// The answer, as the program gets it.
    fn pass_on(
        &self,
        what: &str,
        exchange: Arc<Exchange>,
        link: Link,
        answered: Response<Incoming>,
        may_switch: bool,
    ) -> Response<Body> {
        let (mut head, body) = answered.into_parts();
        exchange.is_answered(head.status.as_u16());
        if exchange
            .pass(Way::In, head::size(0, &head.headers))
            .is_err()
        {
            let refusal = exchange
                .stopped()
                .unwrap_or_else(|| Refusal::new("egress_limits", "stopped", "nothing"));
            return answer::refused(what, &self.egress.run, None, &refusal);
        }
        if may_switch && head.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(exchange, link, head);
        }
        let credential = link.purpose.credential.clone();
        if let Err(why) = head::back(head.status, &mut head.headers, credential.as_deref()) {
            exchange.fails(why);
            return words(StatusCode::BAD_GATEWAY, what, why);
        }
        if credential.is_some() {
            // Words beside the status, which may be anything.
            head.extensions.clear();
        }
        let answer = Answer::new(exchange, link, body, self.kept.clone(), self.cut.clone());
        Response::from_parts(head, answer.map_err(Into::into).boxed_unsync())
    }

    /// The connection becomes something else when this answer is out.
    fn switch(
        &self,
        exchange: Arc<Exchange>,
        link: Link,
        mut head: response::Parts,
    ) -> Response<Body> {
        head.headers.remove(http::header::CONTENT_LENGTH);
        let (io, early) = link.wire.into_io();
        self.upgraded.put(Upgraded {
            io,
            early,
            exchange,
        });
        Response::from_parts(head, answer::full(""))
    }
}

/// Waits for the head of an answer, longer while the request is still going out.
async fn with_patience<T>(
    exchange: &Exchange,
    sending: impl Future<Output = T>,
) -> Result<T, NoWay> {
    tokio::pin!(sending);
    loop {
        let before = exchange.sent();
        match timeout(FIRST_BYTE, &mut sending).await {
            Ok(sent) => return Ok(sent),
            Err(_) if exchange.sent() > before => {}
            Err(_) => return Err(NoWay::Failed("the server does not answer")),
        }
    }
}

fn words(status: StatusCode, what: &str, why: &str) -> Response<Body> {
    answer::words(status, format!("airlock: {what} failed: {why}.\n"))
}

fn too_large() -> Response<Body> {
    let text = format!("airlock: the head of the request is larger than {LARGEST_HEAD} bytes.\n");
    let mut answer = answer::words(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text);
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Serves requests until the connection ends.
pub(crate) async fn serve<S: Client>(egress: Arc<Egress>, line: Arc<Line>, io: S, scope: Scope) {
    let conversation = Conversation::new(egress, line.clone(), scope);
    let service = service_fn(|request: Request<Incoming>| {
        let conversation = &conversation;
        // On its own: what it needs is given back with the head of the answer, not with the connection.
        Box::pin(async move { Ok::<_, Infallible>(conversation.answer(request).await) })
    });
    let mut connection = serve::builder(IDLE_TIME).serve_connection(TokioIo::new(io), service);
    let served = conversation.line.unless_ended(&mut connection).await;
    let parts = connection.into_parts();
    let (io, early) = (parts.io.into_inner(), parts.read_buf);
    let mut cut = served.is_none() || conversation.was_cut();
    let io = match conversation.upgraded.take() {
        Some(upgraded) if matches!(served, Some(Ok(()))) => {
            let (io, ended_well) = upgraded.relay(&line, io, early).await;
            cut = !ended_well;
            io
        }
        _ => io,
    };
    if cut {
        // A plain end would look as if it were all.
        carry::reset(io.stream());
    }
}
