//! Response bodies of the admin API. They contain no credential, and no token except the one that
//! was just generated.

use crate::{
    budget::AccountUsage,
    registry::{DoorSessionState, RegisteredSession, Registry, SessionInfo},
    session::DoorKind,
};
use serde_json::{Map, Value, json};
use spec::{Budget, Id, Money, Timestamp};

pub(super) fn registered(registered: &RegisteredSession) -> Value {
    json!({
        "status": "registered",
        "id": registered.id,
        "token": *registered.token.expose(),
        "socket": registered.socket,
        "expires_at": time(registered.expires_at),
    })
}

pub(super) fn session(view: &SessionInfo) -> Value {
    let meta = &view.meta;
    let models: Vec<_> = meta.models.iter().map(spec::ModelPattern::as_str).collect();
    let text = |id: &Option<Id>| id.as_ref().map(Id::to_string);
    json!({
        "id": meta.id,
        "status": status(view.state),
        "door": match meta.kind { DoorKind::Llm => "llm", DoorKind::Inference => "inference" },
        "provider": meta.provider,
        "sandbox_id": text(&meta.sandbox),
        "run_id": text(&meta.run),
        "tenant": text(&meta.tenant),
        "models": models,
        "budget": budget(&meta.budget),
        "socket": meta.socket,
        "created_at": meta.created_at.to_string(),
        "expires_at": time(meta.expires_at),
        "usage": used(&view.used),
        "denials": view.denials,
    })
}

pub(super) fn usage_of(view: &SessionInfo) -> Value {
    let mut answer = used(&view.used);
    answer["id"] = json!(view.meta.id);
    answer["status"] = json!(status(view.state));
    answer["budget"] = budget(&view.meta.budget);
    answer
}

pub(super) fn revoked(view: &SessionInfo) -> Value {
    json!({ "status": "revoked", "id": view.meta.id, "usage": used(&view.used) })
}

/// Usage of each tenant and of each live session.
pub(super) fn usage(registry: &Registry) -> Value {
    let tenants: Map<_, _> = registry
        .tenants()
        .into_iter()
        .map(|(name, spent)| (name, used(&spent)))
        .collect();
    let sessions: Map<_, _> = registry
        .list()
        .into_iter()
        .map(|view| (view.meta.id.clone(), used(&view.used)))
        .collect();
    json!({ "tenants": tenants, "sessions": sessions })
}

fn used(used: &AccountUsage) -> Value {
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

fn status(state: DoorSessionState) -> &'static str {
    match state {
        DoorSessionState::Open => "open",
        DoorSessionState::Revoked => "revoked",
        DoorSessionState::Expired => "expired",
    }
}

fn time(time: Option<Timestamp>) -> Option<String> {
    time.map(|time| time.to_string())
}
