//! Status page of the egress proxy: a short text, and the rules as JSON, so that an agent inside
//! can plan.

use crate::egress::{
    Egress, RuleView,
    responses::{Body, full, text_response},
};
use http::{HeaderValue, Method, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use serde_json::{Value, json};
use spec::{EgressMode, Ports, Repository};
use std::time::Instant;

/// The response to a request for the door itself.
pub(super) fn answer(egress: &Egress, head: &Parts) -> Response<Body> {
    let reads = head.method == Method::GET || head.method == Method::HEAD;
    match head.uri.path() {
        "/" if reads => text_response(StatusCode::OK, overview(egress)),
        "/v1/rules" if reads => rules(egress),
        _ => text_response(
            StatusCode::NOT_FOUND,
            "airlock: this is a proxy; it has / and /v1/rules for those who want to know what it allows.\n"
                .to_owned(),
        ),
    }
}

fn overview(egress: &Egress) -> String {
    let mut text = format!(
        "This is the way out of the sandbox `{}`: an HTTP proxy (HTTP_PROXY, HTTPS_PROXY, CONNECT, SOCKS 5).\n\
         What is not allowed here is allowed by nobody inside. GET /v1/rules has the same as JSON.\n",
        egress.run
    );
    for view in egress.rules() {
        text.push_str(&format!(
            "{:8} {}  ({})\n",
            mode(&view),
            view.rule.host,
            view.rule.name
        ));
    }
    text
}

fn mode(view: &RuleView) -> &'static str {
    match view.rule.mode {
        EgressMode::Deny => "deny",
        EgressMode::Tunnel => "tunnel",
        EgressMode::Inspect { .. } => "inspect",
        EgressMode::Git { .. } => "git",
    }
}

fn rules(egress: &Egress) -> Response<Body> {
    let rules: Vec<_> = egress.rules().iter().map(rule).collect();
    let mut answer = Response::new(full(json!({ "rules": rules }).to_string()));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Credentials are listed by name only.
fn rule(view: &RuleView) -> Value {
    let rule = &view.rule;
    let ports = match &rule.ports {
        Ports::Any => json!("any"),
        Ports::These(ports) => json!(ports),
    };
    let mut value = json!({
        "name": rule.name,
        "host": rule.host.to_string(),
        "ports": ports,
        "mode": mode(view),
    });
    match &rule.mode {
        EgressMode::Deny | EgressMode::Tunnel => {}
        EgressMode::Inspect {
            allow,
            credential,
            allow_upgrade,
        } => {
            value["allow"] = if allow.is_empty() {
                json!(["* /**"])
            } else {
                allow.iter().map(ToString::to_string).collect()
            };
            value["credential"] = json!(credential);
            value["allow_upgrade"] = json!(allow_upgrade);
        }
        EgressMode::Git { repositories } => {
            value["repositories"] = repositories.iter().map(repository).collect();
        }
    }
    if let Some(until) = view.until {
        value["seconds_left"] = json!(until.saturating_duration_since(Instant::now()).as_secs());
    }
    value
}

fn repository(repository: &Repository) -> Value {
    let push: Vec<_> = repository
        .push
        .iter()
        .map(spec::RefPattern::as_str)
        .collect();
    json!({
        "path": repository.path,
        "fetch": repository.fetch,
        "push": push,
        "update": repository.update,
        "delete": repository.delete,
        "credential": repository.credential,
    })
}
