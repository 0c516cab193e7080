//! Routes that a door answers itself: health and the remaining budget.

use super::ResponseBody;
use crate::session::{DoorKind, DoorSession};
use http::{HeaderValue, Method, Response, header, request::Parts};

/// The response, if the route is local.
pub(super) fn answer(session: &DoorSession, head: &Parts) -> Option<Response<ResponseBody>> {
    if head.method != Method::GET && head.method != Method::HEAD {
        return None;
    }
    match (head.uri.path(), session.kind) {
        ("/health" | "/v1/health" | "/healthz", _) => Some(health(session)),
        ("/door/v1/budget", _) => Some(budget(session)),
        // The health check of Ollama's own clients.
        ("/", DoorKind::Inference) => Some(Response::new(ResponseBody::full("Ollama is running"))),
        _ => None,
    }
}

fn json(value: &serde_json::Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(value.to_string()));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn health(session: &DoorSession) -> Response<ResponseBody> {
    json(&serde_json::json!({"status": "ok", "run_id": session.terms.run}))
}

/// The remaining budget, so that an agent can plan.
fn budget(session: &DoorSession) -> Response<ResponseBody> {
    let usage = session.used();
    let budget = &session.terms.budget;
    let left = budget
        .money
        .map(|money| money.minus(usage.money).minus(usage.held).to_string());
    json(&serde_json::json!({
        "calls": usage.calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "spent_usd": usage.money.to_string(),
        "reserved_usd": usage.held.to_string(),
        "limit_usd": budget.money.map(|money| money.to_string()),
        "left_usd": left,
        "limit_tokens": budget.tokens,
        "limit_requests": budget.requests,
    }))
}
