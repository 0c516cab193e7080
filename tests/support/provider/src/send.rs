//! Sends one answer, with whatever was ordered to go wrong.

use crate::{
    account::{End, Entry, Tokens},
    answer::{self, Shape},
    ask::{Flow, Plan},
    encode::{self, Encoder},
    route,
    settings::{Fault, Script, Verbatim},
    wire::{Gone, Wire},
};
use serde_json::Value;
use std::{fmt::Write as _, pin::pin, time::Duration};
use tokio::sync::Notify;

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Close,
    Reset,
}

/// One answer under way.
pub(crate) struct Sender<'a> {
    pub(crate) wire: &'a mut Wire,
    pub(crate) entry: &'a mut Entry,
    /// Wakes those that are held.
    pub(crate) release: &'a Notify,
    pub(crate) headers: &'a [(String, String)],
    pub(crate) keys: &'a [String],
}

const POISON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{\"poison\":\"mock\"}";
const COOKIES: [(&str, &str); 6] = [
    ("set-cookie", "mock=1; Path=/"),
    ("alt-svc", "h3=\":443\"; ma=86400"),
    ("link", "</v1/files>; rel=preload"),
    ("strict-transport-security", "max-age=31536000"),
    ("clear-site-data", "\"*\""),
    ("x-request-id", "req_mock"),
];

impl Sender<'_> {
    /// Answers as planned.
    pub(crate) async fn answer(&mut self, mut plan: Plan) -> Result<After, Gone> {
        if let Some(verbatim) = plan.script.verbatim.clone() {
            return self.verbatim(&verbatim).await;
        }
        if let Some(after) = self.before_head(&plan).await? {
            return Ok(after);
        }
        if plan.operation.bills() {
            self.entry.serve(Tokens {
                output: 0,
                ..plan.tokens
            });
        }
        match plan.script.fault {
            Some(Fault::EchoHeaders) => {
                let lines = self
                    .headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}\n"));
                plan.echo = Some(lines.collect());
            }
            Some(Fault::Giant(size)) => plan.script.reply_bytes = Some(size << 20),
            _ => {}
        }
        match plan.flow {
            Flow::Unary => self.unary(&plan).await,
            Flow::Events | Flow::Lines | Flow::Array => self.stream(&plan).await,
        }
    }

    /// An error of the dialect.
    pub(crate) async fn refuse(
        &mut self,
        plan: &Plan,
        status: u16,
        code: &str,
        message: &str,
        headers: &[(&str, &str)],
    ) -> Result<After, Gone> {
        let body = route::error(plan.operation.dialect(), status, code, message);
        self.plain(status, headers, &body).await
    }

    /// A whole answer with nothing wrong about its framing.
    pub(crate) async fn plain(
        &mut self,
        status: u16,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<After, Gone> {
        self.entry.status(status);
        let body = body.to_string();
        let mut head = Head::new(status);
        headers
            .iter()
            .for_each(|(name, value)| head.header(name, value));
        head.header("content-type", "application/json");
        self.wire.send(&head.with_body(body.as_bytes())).await?;
        self.entry.end(End::Whole);
        Ok(After::Keep)
    }

    /// Faults that need no answer, and those that come before one.
    async fn before_head(&mut self, plan: &Plan) -> Result<Option<After>, Gone> {
        let Some(fault) = &plan.script.fault else {
            return Ok(None);
        };
        match fault {
            Fault::Status { .. }
            | Fault::Refuse(_)
            | Fault::ErrorWithKey(_)
            | Fault::Redirect { .. } => {
                return self.error(plan, fault).await.map(Some);
            }
            Fault::Reset | Fault::Close => {
                self.entry.end(End::Fault);
                return Ok(Some(if *fault == Fault::Reset {
                    After::Reset
                } else {
                    After::Close
                }));
            }
            Fault::Silence => return Err(self.wire.gone().await),
            Fault::SlowHeaders(time) => self.wire.sleep(Duration::from_millis(*time)).await?,
            Fault::HoldHeaders => self.held().await?,
            Fault::Hold(_) if plan.flow == Flow::Unary => self.held().await?,
            Fault::Informational(count) => {
                for _ in 0..*count {
                    self.wire.send(b"HTTP/1.1 102 Processing\r\n\r\n").await?;
                }
            }
            _ => {}
        }
        Ok(None)
    }

    async fn held(&mut self) -> Result<(), Gone> {
        let mut released = pin!(self.release.notified());
        // Whoever reads of it in the account may release it at once.
        released.as_mut().enable();
        self.entry.held(true);
        self.wire.unless_gone(released).await?;
        self.entry.held(false);
        Ok(())
    }

    async fn error(&mut self, plan: &Plan, fault: &Fault) -> Result<After, Gone> {
        match fault {
            Fault::Status {
                code,
                retry_after,
                bills,
            } => {
                if *bills {
                    self.entry.serve(Tokens {
                        output: 0,
                        reasoning: 0,
                        ..plan.tokens
                    });
                }
                let headers: Vec<_> = retry_after
                    .iter()
                    .map(|value| ("retry-after", value.as_str()))
                    .collect();
                self.refuse(
                    plan,
                    *code,
                    "mock_fault",
                    "this fault was ordered",
                    &headers,
                )
                .await
            }
            Fault::Refuse(code) => self.refuse(plan, 400, code, code, &[]).await,
            Fault::ErrorWithKey(status) => {
                let message = format!("Incorrect API key provided: {}", self.keys.join(", "));
                self.refuse(plan, *status, "invalid_api_key", &message, &[])
                    .await
            }
            Fault::Redirect { code, location } => {
                self.refuse(
                    plan,
                    *code,
                    "moved",
                    "it is elsewhere",
                    &[("location", location)],
                )
                .await
            }
            _ => Ok(After::Close),
        }
    }

    async fn verbatim(&mut self, verbatim: &Verbatim) -> Result<After, Gone> {
        let (input, output) = verbatim.tokens;
        self.entry.status(verbatim.status);
        self.entry.serve(Tokens {
            input,
            output,
            ..Tokens::default()
        });
        let mut head = Head::new(verbatim.status);
        verbatim
            .headers
            .iter()
            .for_each(|(name, value)| head.header(name, value));
        let Some(size) = verbatim.split else {
            self.wire
                .send(&head.with_body(verbatim.body.as_bytes()))
                .await?;
            self.entry.end(End::Whole);
            return Ok(After::Keep);
        };
        self.wire.send(&head.chunked()).await?;
        for piece in verbatim.body.as_bytes().chunks(size.max(1)) {
            self.wire.send(&chunk(piece)).await?;
        }
        self.finish_chunks().await
    }

    async fn finish_chunks(&mut self) -> Result<After, Gone> {
        self.wire.send(b"0\r\n\r\n").await?;
        self.entry.end(End::Whole);
        Ok(After::Keep)
    }

    async fn unary(&mut self, plan: &Plan) -> Result<After, Gone> {
        let (body, encoding) = unary_body(plan);
        self.entry.status(200);
        self.entry.serve(Tokens {
            output: plan.tokens.output,
            ..Tokens::default()
        });
        let mut head = ordinary_head(plan);
        if let Some(encoding) = encoding {
            head.header("content-encoding", encoding);
        }
        self.unary_bytes(plan, head, &body).await
    }

    async fn unary_bytes(&mut self, plan: &Plan, head: Head, body: &[u8]) -> Result<After, Gone> {
        let half = body.len() / 2;
        match plan.script.fault {
            Some(Fault::TrickleHeaders(time)) => {
                self.trickle(&head.with_length(body.len()), time).await?;
                self.wire.send(body).await?;
            }
            Some(Fault::LongBody(extra)) => {
                self.wire
                    .send(&head.with_length(body.len().saturating_sub(extra)))
                    .await?;
                self.wire.send(body).await?;
            }
            Some(Fault::ShortBody(missing)) => {
                self.wire
                    .send(&head.with_length(body.len() + missing))
                    .await?;
                self.wire.send(body).await?;
                self.entry.end(End::Fault);
                return Ok(After::Close);
            }
            Some(Fault::Cut(_) | Fault::ResetAfter(_) | Fault::Stall(_)) => {
                self.wire.send(&head.with_length(body.len())).await?;
                self.wire.send(&body[..half]).await?;
                return self.broken(&plan.script).await;
            }
            Some(Fault::Poison) => {
                let whole = [head.with_body(body), POISON.into()].concat();
                self.wire.send(&whole).await?;
            }
            _ => self.wire.send(&head.with_body(body)).await?,
        }
        self.entry.end(End::Whole);
        Ok(After::Keep)
    }

    /// The end that was ordered in the middle of an answer.
    async fn broken(&mut self, script: &Script) -> Result<After, Gone> {
        match script.fault {
            Some(Fault::Stall(_)) => Err(self.wire.gone().await),
            Some(Fault::ResetAfter(_)) => {
                self.entry.end(End::Fault);
                Ok(After::Reset)
            }
            _ => {
                self.entry.end(End::Fault);
                Ok(After::Close)
            }
        }
    }

    async fn trickle(&mut self, head: &[u8], time: u64) -> Result<(), Gone> {
        for byte in head {
            self.wire.send(&[*byte]).await?;
            self.wire.sleep(Duration::from_millis(time)).await?;
        }
        Ok(())
    }

    async fn stream(&mut self, plan: &Plan) -> Result<After, Gone> {
        let mut encoder = None;
        let mut head = ordinary_head(plan);
        if let Some(Fault::Encoding(encoding)) = plan.script.fault {
            head.header("content-encoding", encode::name(encoding));
            encoder = Encoder::new(encoding).ok();
        }
        self.entry.status(200);
        match plan.script.fault {
            Some(Fault::TrickleHeaders(time)) => self.trickle(&head.chunked(), time).await?,
            _ => self.wire.send(&head.chunked()).await?,
        }
        let shape = answer::shape(plan.operation);
        for frame in shape.opening(plan) {
            self.frame(plan, &mut encoder, &frame).await?;
        }
        let after = match self.tokens(plan, shape, &mut encoder).await? {
            Some(after) => return Ok(after),
            None => self.end_of_stream(plan, shape, encoder).await?,
        };
        Ok(after)
    }

    /// One frame a token; says how it ended if that was before its time.
    async fn tokens(
        &mut self,
        plan: &Plan,
        shape: &dyn Shape,
        encoder: &mut Option<Encoder>,
    ) -> Result<Option<After>, Gone> {
        for index in 0..=plan.tokens.output {
            match &plan.script.fault {
                Some(Fault::Cut(at) | Fault::Stall(at) | Fault::ResetAfter(at)) if *at == index => {
                    return self.broken(&plan.script).await.map(Some);
                }
                Some(Fault::BadFraming(at)) if *at == index => {
                    self.wire.send(b"mock\r\nthis is no chunk\r\n").await?;
                    return self.broken(&plan.script).await.map(Some);
                }
                Some(Fault::BadJson(at)) if *at == index => {
                    let frame = shape.token(plan, index);
                    let broken = frame.replacen('}', "", 1);
                    self.frame(plan, encoder, &broken).await?;
                }
                Some(Fault::Fails(at)) if *at == index => {
                    for frame in shape.failure(plan, plan.sent(index)) {
                        self.frame(plan, encoder, &frame).await?;
                    }
                    return self.finish_chunks().await.map(Some);
                }
                Some(Fault::Hold(at)) if *at == index => self.held().await?,
                _ => {}
            }
            if index == plan.tokens.output {
                break;
            }
            if plan.script.pace_ms > 0 && index > 0 {
                self.wire
                    .sleep(Duration::from_millis(plan.script.pace_ms))
                    .await?;
            } else {
                self.wire.check().await?;
            }
            self.frame(plan, encoder, &shape.token(plan, index)).await?;
            self.entry.token();
        }
        Ok(None)
    }

    async fn end_of_stream(
        &mut self,
        plan: &Plan,
        shape: &dyn Shape,
        mut encoder: Option<Encoder>,
    ) -> Result<After, Gone> {
        for frame in shape.closing(plan, plan.tokens) {
            self.frame(plan, &mut encoder, &frame).await?;
        }
        if let Some(encoder) = encoder {
            let rest = encoder.end();
            if !rest.is_empty() {
                self.wire.send(&chunk(&rest)).await?;
            }
        }
        let after = self.finish_chunks().await?;
        if plan.script.has(&Fault::Poison) {
            self.wire.send(POISON.as_bytes()).await?;
        }
        Ok(after)
    }

    async fn frame(
        &mut self,
        plan: &Plan,
        encoder: &mut Option<Encoder>,
        frame: &str,
    ) -> Result<(), Gone> {
        let frame = laid_out(plan, frame);
        let bytes = match encoder {
            Some(encoder) => encoder.part(frame.as_bytes()),
            None => frame.into_bytes(),
        };
        match plan.script.split {
            None => self.wire.send(&chunk(&bytes)).await?,
            Some(size) => {
                for piece in bytes.chunks(size.max(1)) {
                    self.wire.send(&chunk(piece)).await?;
                }
            }
        }
        Ok(())
    }
}

/// The frame as the script lays lines out.
fn laid_out(plan: &Plan, frame: &str) -> String {
    let script = &plan.script;
    let mut text = frame.to_owned();
    if plan.flow == Flow::Events {
        if script.tight {
            text = text.replace("data: ", "data:").replace("event: ", "event:");
        }
        if script.comments {
            text = format!(": mock\n\n{text}");
        }
    }
    if script.crlf && plan.flow != Flow::Array {
        text = text.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    text
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(bytes.len() + 16);
    chunk.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// The body, and what it says of its encoding.
fn unary_body(plan: &Plan) -> (Vec<u8>, Option<&'static str>) {
    let value = if plan.operation.generates() {
        answer::shape(plan.operation).unary(plan)
    } else {
        answer::list(plan)
    };
    let json = value.to_string();
    match plan.script.fault {
        Some(Fault::Encoding(encoding)) => {
            let encoded = Encoder::new(encoding).map(|mut encoder| {
                let mut bytes = encoder.part(json.as_bytes());
                bytes.extend(encoder.end());
                bytes
            });
            (encoded.unwrap_or_default(), Some(encode::name(encoding)))
        }
        Some(Fault::Bomb(size)) => (encode::bomb(size, &json).unwrap_or_default(), Some("gzip")),
        Some(_) | None => (json.into_bytes(), None),
    }
}

fn ordinary_head(plan: &Plan) -> Head {
    let mut head = Head::new(200);
    head.header("content-type", plan.flow.content_type());
    match plan.script.fault {
        Some(Fault::Cookies) => COOKIES
            .iter()
            .for_each(|(name, value)| head.header(name, value)),
        Some(Fault::HeaderFlood(count)) => {
            (0..count).for_each(|number| head.header(&format!("x-flood-{number}"), "mock"));
        }
        Some(Fault::HeaderGiant(size)) => head.header("x-giant", &"x".repeat(size)),
        _ => {}
    }
    head
}

/// The head of an answer, as text.
struct Head(String);

impl Head {
    fn new(status: u16) -> Head {
        let reason = hyper::StatusCode::from_u16(status)
            .ok()
            .and_then(|code| code.canonical_reason());
        Head(format!(
            "HTTP/1.1 {status} {}\r\n",
            reason.unwrap_or("Mock")
        ))
    }

    fn header(&mut self, name: &str, value: &str) {
        // A text takes whatever is written to it.
        _ = write!(self.0, "{name}: {value}\r\n");
    }

    fn with_length(mut self, length: usize) -> Vec<u8> {
        self.header("content-length", &length.to_string());
        (self.0 + "\r\n").into_bytes()
    }

    fn with_body(self, body: &[u8]) -> Vec<u8> {
        let mut bytes = self.with_length(body.len());
        bytes.extend_from_slice(body);
        bytes
    }

    fn chunked(mut self) -> Vec<u8> {
        self.header("transfer-encoding", "chunked");
        (self.0 + "\r\n").into_bytes()
    }
}
