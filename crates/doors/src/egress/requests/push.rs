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
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Between two pieces of the list.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// From the first piece to the last, with the wait for others whose lists are being read.
const LONGEST_LIST: Duration = Duration::from_secs(60);
/// What is read of a push that is refused already, and how long: git reads no answer before it has said everything.
const MOST_UNREAD: usize = 64 << 20;
const LONGEST_UNREAD: Duration = Duration::from_secs(20);
/// Of refs in one line of the books, which cut what is longer.
const LONGEST_LINE: usize = 400;

/// A push that may pass; nothing of all that for another request.
#[derive(Default)]
pub(super) struct Allowed {
    /// The beginning of its body.
    pub(super) early: Bytes,
    /// Whether that is all of it.
    pub(super) is_whole: bool,
    /// What it changes, in words, every ref of it.
    pub(super) changes: Vec<String>,
    /// To hold the beginning.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// A push that may not, and its answer in git's own words, if git asked for one.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    pub(super) answer: Option<Response<Body>>,
}

/// Reads the list, and judges it.
pub(super) async fn read(
    rule: &str,
    pushes: &Arc<Semaphore>,
    mut push: Push,
    headers: &mut HeaderMap,
    body: &mut Incoming,
) -> Result<Allowed, Box<Refused>> {
    let mut permit = None;
    let decision = match headers.contains_key(CONTENT_ENCODING) {
        true => Decision::Refused(unreadable("its body is compressed")),
        false => {
            let deciding = async {
                // Closed it never is.
                permit = pushes.clone().acquire_owned().await.ok();
                decide(&mut push, body).await
            };
            timeout(LONGEST_LIST, deciding)
                .await
                .unwrap_or(Decision::More)
        }
    };
    let is_whole = match decision {
        Decision::Allowed => false,
        Decision::Probe => true,
        Decision::More => {
            return Err(refused(
                rule,
                &push,
                &unreadable("its list of refs breaks off, or did not come in time"),
            )
            .into());
        }
        Decision::Refused(denied) => {
            read_out(body).await;
            return Err(refused(rule, &push, &denied).into());
        }
    };
    let changes = changes(push.commands());
    let mut early = push.into_held();
    early.shrink_to_fit();
    let early = Bytes::from(early);
    if is_whole {
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(early.len()));
    }
    Ok(Allowed {
        early,
        is_whole,
        changes,
        permit,
    })
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
    Denied {
        reason: format!("the push cannot be understood: {why}"),
        allow_with: "nothing".to_owned(),
    }
}

fn refused(rule: &str, push: &Push, denied: &Denied) -> Refused {
    let answer = push.refusal(denied).map(|report| {
        let mut answer = Response::new(full(report));
        let kind = HeaderValue::from_static("application/x-git-receive-pack-result");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    });
    Refused {
        refusal: Refusal::new(rule, denied.reason.clone(), denied.allow_with.clone()),
        answer,
    }
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

/// In lines, none of which is so long that a ref in it would not be seen.
fn changes(commands: &[Command]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for command in commands {
        let what = match command.change {
            Change::Create => "creates",
            Change::Update => "updates",
            Change::Delete => "deletes",
        };
        let change = format!("{what} {}", command.reference);
        match lines.last_mut() {
            Some(line) if line.len() + change.len() <= LONGEST_LINE => {
                line.push_str(", ");
                line.push_str(&change);
            }
            _ => lines.extend(pieces(&change)),
        }
    }
    lines
}

fn pieces(text: &str) -> Vec<String> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while rest.len() > LONGEST_LINE {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(LONGEST_LINE));
        pieces.push(format!("{piece}…"));
        rest = after;
    }
    pieces.push(rest.to_owned());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_ref_is_hidden_by_others() {
        let references: Vec<_> = (0..1000)
            .map(|number| {
                format!(
                    "refs/heads/{number}-{}",
                    "x".repeat([10, 900][usize::from(number % 7 == 0)])
                )
            })
            .collect();
        let command = |reference: &String| Command {
            reference: reference.clone(),
            change: Change::Create,
        };
        let lines = changes(&references.iter().map(command).collect::<Vec<_>>());
        assert!(
            lines.iter().all(|line| line.len() < 512),
            "the books cut what is longer"
        );
        let all = lines.join(", ").replace("…, ", "");
        assert!(
            references
                .iter()
                .all(|reference| all.contains(&format!("creates {reference}")))
        );
    }
}
