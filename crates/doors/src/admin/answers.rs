//! What the admin API answers. No token but the one that was just made, and no key ever.

use crate::{
    registry::{Registered, Registry, State, View},
    session::Kind,
    till::Used,
};
use serde_json::{Map, Value, json};
use spec::{Budget, Id, Money, Timestamp};

pub(super) fn registered(registered: &Registered) -> Value {
    json!({
        "status": "registered",
        "id": registered.id,
        "token": *registered.token.expose(),
        "socket": registered.socket,
        "expires_at": time(registered.expires_at),
    })
}

pub(super) fn session(view: &View) -> Value {
    let about = &view.about;
    let models: Vec<_> = about
        .models
        .iter()
        .map(spec::ModelPattern::as_str)
        .collect();
    let text = |id: &Option<Id>| id.as_ref().map(Id::to_string);
    json!({
        "id": about.id,
        "status": status(view.state),
        "door": match about.kind { Kind::Llm => "llm", Kind::Inference => "inference" },
        "provider": about.provider,
        "sandbox_id": text(&about.sandbox),
        "run_id": text(&about.run),
        "tenant": text(&about.tenant),
        "models": models,
        "budget": budget(&about.budget),
        "socket": about.socket,
        "created_at": about.created_at.to_string(),
        "expires_at": time(about.expires_at),
        "usage": used(&view.used),
        "denials": view.denials,
    })
}

pub(super) fn usage_of(view: &View) -> Value {
    let mut answer = used(&view.used);
    answer["id"] = json!(view.about.id);
    answer["status"] = json!(status(view.state));
    answer["budget"] = budget(&view.about.budget);
    answer
}

pub(super) fn revoked(view: &View) -> Value {
    json!({ "status": "revoked", "id": view.about.id, "usage": used(&view.used) })
}

/// Of each tenant, and of each session that lives.
pub(super) fn usage(registry: &Registry) -> Value {
    let tenants: Map<_, _> = registry
        .tenants()
        .into_iter()
        .map(|(name, spent)| (name, used(&spent)))
        .collect();
    let sessions: Map<_, _> = registry
        .list()
        .into_iter()
        .map(|view| (view.about.id.clone(), used(&view.used)))
        .collect();
    json!({ "tenants": tenants, "sessions": sessions })
}

fn used(used: &Used) -> Value {
    json!({
        "calls": used.calls,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cached_tokens,
        "cost_usd": used.money.dollars(),
        "overrun_usd": used.overrun.dollars(),
        "reserved_usd": used.held.dollars(),
    })
}

fn budget(budget: &Budget) -> Value {
    json!({
        "usd": budget.money.map(Money::dollars),
        "call_usd": budget.call.map(Money::dollars),
        "tokens": budget.tokens,
        "requests": budget.requests,
        "concurrent": budget.concurrent,
    })
}

fn status(state: State) -> &'static str {
    match state {
        State::Open => "open",
        State::Revoked => "revoked",
        State::Expired => "expired",
    }
}

fn time(time: Option<Timestamp>) -> Option<String> {
    time.map(|time| time.to_string())
}
