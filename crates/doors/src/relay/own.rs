//! What a door answers by itself: that it is there, and what is left of the budget.

use super::Outgoing;
use crate::session::{Kind, Session};
use http::{HeaderValue, Method, Response, header, request::Parts};

/// The answer, if it is ours to give.
pub(super) fn answer(session: &Session, head: &Parts) -> Option<Response<Outgoing>> {
    if head.method != Method::GET && head.method != Method::HEAD {
        return None;
    }
    match (head.uri.path(), session.kind) {
        ("/health" | "/v1/health" | "/healthz", _) => Some(health(session)),
        ("/door/v1/budget", _) => Some(budget(session)),
        // What Ollama's own clients look for.
        ("/", Kind::Inference) => Some(Response::new(Outgoing::whole("Ollama is running"))),
        _ => None,
    }
}

fn json(value: &serde_json::Value) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::whole(value.to_string()));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn health(session: &Session) -> Response<Outgoing> {
    json(&serde_json::json!({"status": "ok", "run_id": session.terms.run}))
}

/// So that an agent can plan.
fn budget(session: &Session) -> Response<Outgoing> {
    let (used, budget) = (session.used(), &session.terms.budget);
    let left = budget
        .money
        .map(|money| money.minus(used.money).minus(used.held).to_string());
    json(&serde_json::json!({
        "calls": used.calls,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "spent_usd": used.money.to_string(),
        "reserved_usd": used.held.to_string(),
        "limit_usd": budget.money.map(|money| money.to_string()),
        "left_usd": left,
        "limit_tokens": budget.tokens,
        "limit_requests": budget.requests,
    }))
}
