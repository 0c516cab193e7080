//! Reads and checks the ref list of a push before anything of it is sent; the rest then streams.

use crate::egress::{
    Refusal,
    git::{GitRefusal, PushDecision, PushRequest, RefChange, RefUpdate},
    responses::{Body, full},
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

/// Between two chunks of the list.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// For the whole list, including the wait for other pushes.
const REF_LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a refused push is read, and for how long: git reads no response before it has sent
/// everything.
const MAX_DISCARDED_BYTES: usize = 64 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(20);
/// Refs per log line; the log cuts longer lines.
const MAX_LINE_BYTES: usize = 400;

/// A push that may pass; the default for other requests.
#[derive(Default)]
pub(super) struct AllowedPush {
    /// The start of its body.
    pub(super) buffered: Bytes,
    /// Whether that is all of it.
    pub(super) is_whole: bool,
    /// Its ref updates, in words.
    pub(super) ref_changes: Vec<String>,
    /// Limits the memory for held bytes.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// A refused push, and its response in git's format, if git asked for one.
pub(super) struct RefusedPush {
    pub(super) refusal: Refusal,
    pub(super) answer: Option<Response<Body>>,
}

/// Reads and checks the ref list.
pub(super) async fn read(
    rule: &str,
    pushes: &Arc<Semaphore>,
    mut push: PushRequest,
    headers: &mut HeaderMap,
    body: &mut Incoming,
) -> Result<AllowedPush, Box<RefusedPush>> {
    let mut permit = None;
    let decision = if headers.contains_key(CONTENT_ENCODING) {
        PushDecision::Refused(unreadable("its body is compressed"))
    } else {
        let deciding = async {
            // The semaphore is never closed.
            permit = pushes.clone().acquire_owned().await.ok();
            decide(&mut push, body).await
        };
        timeout(REF_LIST_TIMEOUT, deciding)
            .await
            .unwrap_or(PushDecision::Incomplete)
    };
    let is_whole = match decision {
        PushDecision::Allowed => false,
        PushDecision::Probe => true,
        PushDecision::Incomplete => {
            return Err(refused(
                rule,
                &push,
                &unreadable("its list of refs breaks off, or did not come in time"),
            )
            .into());
        }
        PushDecision::Refused(denied) => {
            discard_body(body).await;
            return Err(refused(rule, &push, &denied).into());
        }
    };
    let ref_changes = ref_changes(push.commands());
    let mut buffered = push.into_held();
    buffered.shrink_to_fit();
    let buffered = Bytes::from(buffered);
    if is_whole {
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(buffered.len()));
    }
    Ok(AllowedPush {
        buffered,
        is_whole,
        ref_changes,
        permit,
    })
}

async fn decide(push: &mut PushRequest, body: &mut Incoming) -> PushDecision {
    let mut decision = PushDecision::Incomplete;
    while decision == PushDecision::Incomplete {
        match timeout(READ_TIMEOUT, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    decision = push.feed(&data);
                }
            }
            // The body has ended, or does not continue.
            _ => break,
        }
    }
    decision
}

fn unreadable(why: &str) -> GitRefusal {
    GitRefusal {
        reason: format!("the push cannot be understood: {why}"),
        allow_with: "nothing".to_owned(),
    }
}

fn refused(rule: &str, push: &PushRequest, denied: &GitRefusal) -> RefusedPush {
    let answer = push.refusal(denied).map(|report| {
        let mut answer = Response::new(full(report));
        let kind = HeaderValue::from_static("application/x-git-receive-pack-result");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    });
    RefusedPush {
        refusal: Refusal::new(rule, denied.reason.clone(), denied.allow_with.clone()),
        answer,
    }
}

async fn discard_body(body: &mut Incoming) {
    let reading = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await
            && seen <= MAX_DISCARDED_BYTES
        {
            seen += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // After that the request ends without a response.
    _ = timeout(DISCARD_TIMEOUT, reading).await;
}

/// Describes the updates in lines short enough that no ref is cut off.
fn ref_changes(commands: &[RefUpdate]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for command in commands {
        let what = match command.change {
            RefChange::Create => "creates",
            RefChange::Update => "updates",
            RefChange::Delete => "deletes",
        };
        let change = format!("{what} {}", command.reference);
        match lines.last_mut() {
            Some(line) if line.len() + change.len() <= MAX_LINE_BYTES => {
                line.push_str(", ");
                line.push_str(&change);
            }
            _ => lines.extend(split_line(&change)),
        }
    }
    lines
}

fn split_line(text: &str) -> Vec<String> {
    let mut split_line = Vec::new();
    let mut rest = text;
    while rest.len() > MAX_LINE_BYTES {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(MAX_LINE_BYTES));
        split_line.push(format!("{piece}…"));
        rest = after;
    }
    split_line.push(rest.to_owned());
    split_line
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
        let command = |reference: &String| RefUpdate {
            reference: reference.clone(),
            change: RefChange::Create,
        };
        let lines = ref_changes(&references.iter().map(command).collect::<Vec<_>>());
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
