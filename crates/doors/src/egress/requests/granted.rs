//! Which rule lets a request pass, with which credential, and what is forwarded: the very path that was judged.

use crate::egress::{
    Egress,
    credential::Ready,
    git::{self, Push},
    policy::{Passage, Refusal, Standing},
};
use http::{Method, StatusCode, Uri, request::Parts, uri::PathAndQuery};
use spec::{Destination, EgressMode, Operation, Repository, RequestPath};
use std::sync::Arc;

/// Operations that are named to whoever asked for another.
const MOST_NAMED: usize = 16;

/// A request may pass.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) standing: Arc<Standing>,
    pub(super) credential: Option<Arc<Ready>>,
    /// Path and query as they are forwarded.
    pub(super) target: Uri,
    /// The connection may become something else.
    pub(super) may_upgrade: bool,
    /// It is looked at, and so must not be able to say two things at once.
    pub(super) looked_at: bool,
    /// What reads it, if it is a push.
    pub(super) push: Option<Push>,
}

/// It may not.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) status: StatusCode,
    pub(super) refusal: Refusal,
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Denied {
        Denied {
            status: StatusCode::FORBIDDEN,
            refusal,
        }
    }
}

/// What the rules of a passage say of a request.
pub(super) fn grant(
    egress: &Egress,
    passage: &Passage,
    to: &Destination,
    secure: bool,
    head: &Parts,
) -> Result<Granted, Denied> {
    if !passage.looks_inside() {
        let target = head
            .uri
            .path_and_query()
            .cloned()
            .map_or_else(Uri::default, Uri::from);
        let (standing, credential) = (passage.first().clone(), None);
        return Ok(Granted {
            standing,
            credential,
            target,
            may_upgrade: false,
            looked_at: false,
            push: None,
        });
    }
    let path: RequestPath = head
        .uri
        .path()
        .parse()
        .map_err(|bad: spec::BadRequestPath| Denied {
            status: StatusCode::BAD_REQUEST,
            refusal: Refusal::new("path", bad.to_string(), "nothing"),
        })?;
    let Found {
        standing,
        credential,
        may_upgrade,
        push,
    } = find(passage, head, &path)?;
    let credential = credential
        .map(|name| egress.credentials.get(name, &to.host))
        .transpose()?;
    if credential.is_some() {
        check_for_credential(standing, secure, &head.method)?;
    }
    let target = forwarded(&head.uri, &path).ok_or_else(|| Denied {
        status: StatusCode::BAD_REQUEST,
        refusal: Refusal::new("path", "the path cannot be forwarded", "nothing"),
    })?;
    Ok(Granted {
        standing: standing.clone(),
        credential,
        target,
        may_upgrade,
        looked_at: true,
        push,
    })
}

/// What a rule says of a request that it lets pass.
struct Found<'a> {
    standing: &'a Arc<Standing>,
    credential: Option<&'a str>,
    may_upgrade: bool,
    push: Option<Push>,
}

/// The first rule that has it among its operations.
fn find<'a>(passage: &'a Passage, head: &Parts, path: &RequestPath) -> Result<Found<'a>, Refusal> {
    let mut refused = None;
    for standing in &passage.rules {
        match &standing.rule.mode {
            EgressMode::Deny | EgressMode::Tunnel => {}
            EgressMode::Inspect {
                allow,
                credential,
                allow_upgrade,
            } => {
                let method = head.method.as_str();
                if allow.is_empty()
                    || allow
                        .iter()
                        .any(|operation| operation.matches(method, path))
                {
                    let (credential, may_upgrade) = (credential.as_deref(), *allow_upgrade);
                    return Ok(Found {
                        standing,
                        credential,
                        may_upgrade,
                        push: None,
                    });
                }
                refused.get_or_insert_with(|| not_among(standing, &head.method, path, allow));
            }
            EgressMode::Git { repositories } => match git(standing, repositories, head, path) {
                Ok(found) => return Ok(found),
                Err(refusal) => {
                    refused.get_or_insert(refusal);
                }
            },
        }
    }
    Err(refused
        .unwrap_or_else(|| Refusal::new("no rule", "no rule looks at this request", "nothing")))
}

/// git's own requests. What a push wants to change stands in its body.
fn git<'a>(
    standing: &'a Arc<Standing>,
    repositories: &'a [Repository],
    head: &Parts,
    path: &RequestPath,
) -> Result<Found<'a>, Refusal> {
    let rule = &standing.rule.name;
    let ask = git::ask(head.method.as_str(), path, head.uri.query()).map_err(|why| {
        Refusal::new(
            rule,
            format!("the rule is for git only, and {why}"),
            "nothing",
        )
    })?;
    let repository = git::decide(repositories, &ask)
        .map_err(|denied| Refusal::new(rule, denied.reason, denied.allow_with))?;
    let push = (ask.kind == git::Kind::Push).then(|| Push::new(repository));
    Ok(Found {
        standing,
        credential: repository.credential.as_deref(),
        may_upgrade: false,
        push,
    })
}

fn not_among(
    standing: &Standing,
    method: &Method,
    path: &RequestPath,
    allow: &[Operation],
) -> Refusal {
    let named: Vec<_> = allow
        .iter()
        .take(MOST_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = if allow.len() > MOST_NAMED {
        ", …"
    } else {
        ""
    };
    let rule = &standing.rule.name;
    Refusal::new(
        rule,
        format!(
            "{} {} is not among what the rule `{rule}` allows, which is {}{more}",
            short(method.as_str(), 32),
            short(path.as_str(), 200),
            named.join(", ")
        ),
        "another entry in `allow` of that rule in the configuration",
    )
}

/// A credential goes neither unencrypted, unless the rule says so, nor where it would only be read out again.
fn check_for_credential(standing: &Standing, secure: bool, method: &Method) -> Result<(), Refusal> {
    let rule = &standing.rule;
    if !secure && !rule.allow_plain_http {
        return Err(Refusal::new(
            &rule.name,
            "the rule's credential does not go out unencrypted: ask for https://",
            "allow_plain_http = true for that rule in the configuration",
        ));
    }
    match *method == Method::TRACE {
        true => Err(Refusal::new(
            &rule.name,
            "TRACE would send the credential back",
            "nothing",
        )),
        false => Ok(()),
    }
}

/// The path in its one spelling, and the query as it came.
fn forwarded(uri: &Uri, path: &RequestPath) -> Option<Uri> {
    let given = uri.path_and_query()?;
    if given.path() == path.as_str() {
        return Some(given.clone().into());
    }
    let text = match given.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_string(),
    };
    PathAndQuery::try_from(text).ok().map(Uri::from)
}

/// The beginning of a text.
pub(super) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
