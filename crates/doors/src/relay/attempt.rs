//! One try: reserve, send, and decide what an answer is by its head.

use super::{
    Asked, Failed, Next, Outgoing, fault,
    flow::{Bill, Flow},
    headers,
    passage::Passage,
    worst::{Allowed, Worst},
};
use crate::{
    catalogue::Target,
    dialect::{Ask, Change, Fault, Operation, Tap, TapKind, rewrite},
    ledger::Call,
    line::Line,
    price::Price,
    scrub,
    session::{Kind, Session},
    till::Refused,
    upstream::{NoAnswer, NoConnection, Piece, Upstream, Wire},
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

/// An error document of a provider that is passed on.
const LONGEST_ERROR: usize = 64 << 10;
/// A kept connection that had died is replaced, so often.
const MOST_STALE: usize = 8;

/// One try at one model of one provider.
pub(super) struct Attempt<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) line: &'a Arc<Line>,
    pub(super) asked: &'a Asked,
    pub(super) target: &'a Target,
    pub(super) upstream: &'a Arc<Upstream>,
    pub(super) number: u32,
}

fn stop(fault: Fault) -> Failed {
    Failed {
        fault,
        next: Next::Stop,
    }
}

impl Attempt<'_> {
    pub(super) async fn carry_out(&self) -> Result<Response<Outgoing>, Failed> {
        let target = self.path().ok_or(Failed {
            fault: fault::no_such_path(),
            next: Next::Elsewhere,
        })?;
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
                let next = if late {
                    Next::Stop
                } else {
                    Next::Again { after: None }
                };
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
            Failed {
                fault: fault::price_unknown(),
                next: Next::Elsewhere,
            }
        })?;
        let worst = match operation.is_free() {
            false => Worst::of(operation, self.asked.body.len(), ask, price.clone()),
            true => Worst::of(Operation::Embeddings, 0, &Ask::default(), Arc::default()),
        };
        let worst = worst.ok_or_else(|| stop(fault::unbounded_input()))?;
        let mut allowed = None;
        let reserved =
            self.session
                .doors
                .till
                .reserve(&self.session.account, self.call(), |room| {
                    allowed = worst.within(room);
                    allowed.map(|allowed| allowed.claim)
                });
        let hold = reserved.await.map_err(|refused| {
            if matches!(refused, Refused::Spent { .. }) {
                self.session.note_budget();
            }
            stop(fault::refused(&refused))
        })?;
        let allowed = allowed.unwrap_or(Allowed {
            claim: hold.claim,
            cap: None,
            cut: None,
            limited: false,
        });
        let asked = self.asked.body.len() as u64;
        let (price, most_input) = (worst.price().clone(), worst.input());
        Ok(Bill {
            hold,
            price,
            allowed,
            asked,
            most_input,
            began: self.asked.began,
            status: 0,
        })
    }

    fn price(&self) -> Option<Arc<Price>> {
        match self.session.kind {
            // The node's own server sends no bill.
            Kind::Inference => Some(Arc::default()),
            Kind::Llm if self.asked.route.operation.is_free() => Some(Arc::default()),
            Kind::Llm => self
                .session
                .doors
                .catalogue
                .prices
                .price(&self.target.provider, &self.target.model),
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
            model: named
                .filter(|name| *name != self.target.model)
                .map(|_| self.target.model.as_str()),
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
        *request.headers_mut() =
            headers::upstream(self.upstream, self.session, &asked.head.headers);
        (request, ask_usage)
    }

    /// Sends it on a connection that lives. The flag of an error says that nothing went out.
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Wire, Response<Incoming>), (Fault, bool)> {
        let unreachable = |why: NoConnection| (fault::unreachable(why), true);
        for _ in 0..MOST_STALE {
            let (mut wire, kept) = self.upstream.connect().await.map_err(unreachable)?;
            let patience = self.patience();
            match timeout(patience, wire.send(request.clone())).await {
                Ok(Ok(response)) => return Ok((wire, response)),
                Ok(Err(NoAnswer::NotSent(_))) if kept => continue,
                Ok(Err(NoAnswer::NotSent(_))) => return Err((fault::lost(), true)),
                Ok(Err(NoAnswer::Lost)) => return Err((fault::lost(), false)),
                Err(_) => return Err((fault::first_byte_late(), false)),
            }
        }
        Err((fault::lost(), true))
    }

    /// How long the head of the answer is waited for.
    fn patience(&self) -> Duration {
        let most = self.upstream.provider.patience.first_byte;
        self.asked.end.map_or(most, |end| {
            most.min(end.saturating_duration_since(Instant::now()))
        })
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
            return Err(Failed {
                fault: fault::credentials(),
                next: Next::Elsewhere,
            });
        }
        let after = headers::retry_after(&head.headers);
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            let clamped = after.map(|after| {
                after
                    .min(self.upstream.provider.patience.retry_after)
                    .as_secs()
                    .max(1)
            });
            let fault = fault::upstream_status(status, clamped);
            return Err(Failed {
                fault,
                next: Next::Again { after },
            });
        }
        // About the request itself: the provider's own words help most.
        let text = error_text(&mut wire, &mut body).await;
        // Blanked as a whole: of a key that is cut in two, most would be left.
        let mut text = match self.upstream.reflection() {
            Some(reflection) => scrub::blank(reflection, text),
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
        let encoded = head
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|value| value != "identity");
        if encoded {
            bill.everything("encoded");
            return Err(stop(fault::encoded()));
        }
        let operation = self.asked.route.operation;
        let kind = headers::kind(&head.headers, operation, self.asked.route.streams);
        let strips = strips && kind == TapKind::Events;
        // Last words may have to be put behind a part of anything but one document.
        let length = body.size_hint().exact().filter(|_| kind == TapKind::Whole);
        let delimited = body.size_hint().exact().is_some()
            || head.headers.contains_key(header::TRANSFER_ENCODING);
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
                Piece::Data(data) => text.extend_from_slice(&data),
                Piece::End | Piece::Broken => break,
            }
        }
    };
    _ = timeout(Duration::from_secs(10), read).await;
    text.freeze()
}
