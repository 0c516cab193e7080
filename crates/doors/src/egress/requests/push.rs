//! A push: its list of refs is read and judged before anything of it leaves, then the rest streams.

use crate::egress::{
    Refusal,
    answer::{Body, full},
    git::{Change, Command, Decision, Denied, Push},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::time::Duration;
use tokio::time::timeout;

/// Between two pieces of the list.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What is read of a push that is refused already, and how long: git reads no answer before it has said everything.
const MOST_UNREAD: usize = 64 << 20;
const LONGEST_UNREAD: Duration = Duration::from_secs(20);
/// Refs that are named in the books.
const MOST_NAMED: usize = 16;

/// A push that may pass.
pub(super) struct Allowed {
    /// The beginning of its body.
    pub(super) early: Bytes,
    /// Whether that is all of it.
    pub(super) is_whole: bool,
    /// What it changes, in words.
    pub(super) changes: String,
}

/// A push that may not, and its answer in git's own words, if git asked for one.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    pub(super) answer: Option<Response<Body>>,
}

/// Reads the list, and judges it.
pub(super) async fn read(
    rule: &str,
    mut push: Push,
    headers: &mut HeaderMap,
    body: &mut Incoming,
) -> Result<Allowed, Box<Refused>> {
    let decision = match headers.contains_key(CONTENT_ENCODING) {
        true => Decision::Refused(unreadable("its body is compressed")),
        false => decide(&mut push, body).await,
    };
    let is_whole = match decision {
        Decision::Allowed => false,
        Decision::Probe => true,
        Decision::More => return Err(refused(rule, &push, &unreadable("it breaks off")).into()),
        Decision::Refused(denied) => {
            read_out(body).await;
            return Err(refused(rule, &push, &denied).into());
        }
    };
    let changes = changes(push.commands());
    let early = Bytes::from(push.into_held());
    if is_whole {
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(early.len()));
    }
    Ok(Allowed { early, is_whole, changes })
}

async fn decide(push: &mut Push, body: &mut Incoming) -> Decision {
    let mut decision = Decision::More;
    while decision == Decision::More {
        match timeout(LONGEST_PAUSE, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    decision = push.feed(&data);
                }
            }
            // At its end, or it will have none.
            _ => break,
        }
    }
    decision
}

fn unreadable(why: &str) -> Denied {
    Denied { reason: format!("the push cannot be understood: {why}"), allow_with: "nothing".to_owned() }
}

fn refused(rule: &str, push: &Push, denied: &Denied) -> Refused {
    let answer = push.refusal(denied).map(|report| {
        let mut answer = Response::new(full(report));
        let kind = HeaderValue::from_static("application/x-git-receive-pack-result");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    });
    Refused { refusal: Refusal::new(rule, denied.reason.clone(), denied.allow_with.clone()), answer }
}

async fn read_out(body: &mut Incoming) {
    let reading = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await
            && seen <= MOST_UNREAD
        {
            seen += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Longer than that, it has to go on without an answer.
    _ = timeout(LONGEST_UNREAD, reading).await;
}

fn changes(commands: &[Command]) -> String {
    let change = |command: &Command| {
        let what = match command.change {
            Change::Create => "creates",
            Change::Update => "updates",
            Change::Delete => "deletes",
        };
        format!("{what} {}", command.reference)
    };
    let mut named: Vec<_> = commands.iter().take(MOST_NAMED).map(change).collect();
    if commands.len() > MOST_NAMED {
        named.push(format!("and {} more", commands.len() - MOST_NAMED));
    }
    named.join(", ")
}
