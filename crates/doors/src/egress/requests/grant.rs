//! Authorises a request: the rule that allows it, its credential, and the exact path that is
//! forwarded.

use super::headers::has_unexpected_body;
use crate::egress::{
    Egress,
    credential::ResolvedCredential,
    git::{self, PushRequest},
    policy::{ActiveRule, Permission, Refusal},
};
use http::{Method, StatusCode, Uri, request::Parts, uri::PathAndQuery};
use spec::{Destination, EgressMode, Operation, Repository, RequestPath};
use std::sync::Arc;

/// Allowed operations that a refusal lists.
const MAX_NAMED_OPERATIONS: usize = 16;

/// An authorised request.
#[derive(Debug)]
pub(super) struct RequestGrant {
    pub(super) active: Arc<ActiveRule>,
    pub(super) credential: Option<Arc<ResolvedCredential>>,
    /// Path and query to forward.
    pub(super) target: Uri,
    /// The connection may be upgraded.
    pub(super) may_upgrade: bool,
    /// The request is inspected, so it must not be ambiguous.
    pub(super) inspected: bool,
    /// The parser of its body, if it is a push.
    pub(super) push: Option<PushRequest>,
}

/// A refused request.
#[derive(Debug)]
pub(super) struct DeniedRequest {
    pub(super) status: StatusCode,
    pub(super) refusal: Refusal,
}

impl From<Refusal> for DeniedRequest {
    fn from(refusal: Refusal) -> DeniedRequest {
        DeniedRequest {
            status: StatusCode::FORBIDDEN,
            refusal,
        }
    }
}

/// Evaluates the rules for a request.
pub(super) fn grant(
    egress: &Egress,
    permission: &Permission,
    to: &Destination,
    secure: bool,
    head: &Parts,
) -> Result<RequestGrant, DeniedRequest> {
    if !permission.looks_inside() {
        let target = head
            .uri
            .path_and_query()
            .cloned()
            .map_or_else(Uri::default, Uri::from);
        let active = permission.first().clone();
        let credential = None;
        return Ok(RequestGrant {
            active,
            credential,
            target,
            may_upgrade: false,
            inspected: false,
            push: None,
        });
    }
    if has_unexpected_body(&head.method, &head.headers) {
        let why = format!("a {} with a body is not forwarded", head.method);
        return Err(DeniedRequest {
            status: StatusCode::BAD_REQUEST,
            refusal: Refusal::new("framing", why, "nothing"),
        });
    }
    let path: RequestPath = head
        .uri
        .path()
        .parse()
        .map_err(|bad: spec::BadRequestPath| DeniedRequest {
            status: StatusCode::BAD_REQUEST,
            refusal: Refusal::new("path", bad.to_string(), "nothing"),
        })?;
    let RuleMatch {
        active,
        credential,
        may_upgrade,
        push,
    } = find_rule(permission, head, &path)?;
    let credential = credential
        .map(|name| egress.credentials.get(name, &to.host))
        .transpose()?;
    if credential.is_some() {
        check_for_credential(active, secure, &head.method)?;
    }
    let target = forwarded(&head.uri, &path).ok_or_else(|| DeniedRequest {
        status: StatusCode::BAD_REQUEST,
        refusal: Refusal::new("path", "the path cannot be forwarded", "nothing"),
    })?;
    Ok(RequestGrant {
        active: active.clone(),
        credential,
        target,
        may_upgrade,
        inspected: true,
        push,
    })
}

/// A rule that allows a request.
struct RuleMatch<'a> {
    active: &'a Arc<ActiveRule>,
    credential: Option<&'a str>,
    may_upgrade: bool,
    push: Option<PushRequest>,
}

/// The first rule that allows the operation.
fn find_rule<'a>(
    permission: &'a Permission,
    head: &Parts,
    path: &RequestPath,
) -> Result<RuleMatch<'a>, Refusal> {
    let mut refused = None;
    for active in &permission.rules {
        match &active.rule.mode {
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
                    let credential = credential.as_deref();
                    let may_upgrade = *allow_upgrade;
                    return Ok(RuleMatch {
                        active,
                        credential,
                        may_upgrade,
                        push: None,
                    });
                }
                refused.get_or_insert_with(|| not_allowed(active, &head.method, path, allow));
            }
            EgressMode::Git { repositories } => match git(active, repositories, head, path) {
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

/// git requests. The ref updates of a push are in its body.
fn git<'a>(
    active: &'a Arc<ActiveRule>,
    repositories: &'a [Repository],
    head: &Parts,
    path: &RequestPath,
) -> Result<RuleMatch<'a>, Refusal> {
    let rule = &active.rule.name;
    let request =
        git::parse_request(head.method.as_str(), path, head.uri.query()).map_err(|why| {
            Refusal::new(
                rule,
                format!("the rule is for git only, and {why}"),
                "nothing",
            )
        })?;
    let repository = git::authorize(repositories, &request)
        .map_err(|denied| Refusal::new(rule, denied.reason, denied.allow_with))?;
    let push = (request.kind == git::GitRequestKind::Push).then(|| PushRequest::new(repository));
    Ok(RuleMatch {
        active,
        credential: repository.credential.as_deref(),
        may_upgrade: false,
        push,
    })
}

fn not_allowed(
    active: &ActiveRule,
    method: &Method,
    path: &RequestPath,
    allow: &[Operation],
) -> Refusal {
    let named: Vec<_> = allow
        .iter()
        .take(MAX_NAMED_OPERATIONS)
        .map(ToString::to_string)
        .collect();
    let more = if allow.len() > MAX_NAMED_OPERATIONS {
        ", …"
    } else {
        ""
    };
    let rule = &active.rule.name;
    Refusal::new(
        rule,
        format!(
            "{} {} is not among what the rule `{rule}` allows, which is {}{more}",
            truncated(method.as_str(), 32),
            truncated(path.as_str(), 200),
            named.join(", ")
        ),
        "another entry in `allow` of that rule in the configuration",
    )
}

/// A credential is not sent unencrypted, unless the rule says so, nor where the server would echo
/// it.
fn check_for_credential(active: &ActiveRule, secure: bool, method: &Method) -> Result<(), Refusal> {
    let rule = &active.rule;
    if !secure && !rule.allow_plain_http {
        return Err(Refusal::new(
            &rule.name,
            "the rule's credential does not go out unencrypted: ask for https://",
            "allow_plain_http = true for that rule in the configuration",
        ));
    }
    if *method == Method::TRACE {
        Err(Refusal::new(
            &rule.name,
            "TRACE would send the credential back",
            "nothing",
        ))
    } else {
        Ok(())
    }
}

/// The canonical path with the original query.
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

/// The start of a text.
pub(super) fn truncated(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
