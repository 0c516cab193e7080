//! The secret by which a tenant's receivers know notices to be ours: shown to the tenant's own keys, and renewed.

use super::signature::{BOTH_MS, has_predecessor};
use crate::{Caller, Gateway, Problem, Scope, problem::Answer, writer};
use axum::{Json, extract::State, response::IntoResponse, response::Response};
use http::header::CACHE_CONTROL;
use serde::Serialize;
use spec::Timestamp;
use store::webhooks::{self, Generation};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The secret that signs a tenant's notices.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookSecret {
    /// `whsec_` and base64, as libraries for Standard Webhooks take it.
    secret: String,
    /// Until when the one before signs as well; null if none does.
    previous_until: Option<String>,
}

/// The secret that signs notices
///
/// One for each tenant. Headers and signature are those of Standard Webhooks.
#[utoipa::path(get, path = "/v1/webhook-secret", tag = "jobs", responses(
    (status = 200, description = "It", body = WebhookSecret),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn show(State(gateway): State<Gateway>, caller: Caller) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let tenant = caller.tenant.clone();
    let generation = gateway
        .look_up(move |served| served.webhook_generation(&tenant))
        .await?;
    answer(gateway, caller, generation).await
}

/// Renew the secret that signs notices
///
/// For a day notices are signed by both, so that receivers can be changed one after another.
#[utoipa::path(post, path = "/v1/webhook-secret/rotate", tag = "jobs", responses(
    (status = 200, description = "The new one", body = WebhookSecret),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn rotate(State(gateway): State<Gateway>, caller: Caller) -> Answer<Response> {
    caller.require(Scope::Runs)?;
    let (tenant, now) = (caller.tenant.clone(), engine::now().0);
    // Receivers are told of it at once: after a power cut it must not be the one before again.
    let generation = gateway
        .durable()
        .write(move |writing| webhooks::rotate(writing, &tenant, now))
        .await?;
    answer(gateway, caller, generation).await
}

async fn answer(gateway: Gateway, caller: Caller, generation: Generation) -> Answer<Response> {
    // The first time a key is read from the disk, or made.
    let shown = tokio::task::spawn_blocking(move || {
        gateway
            .webhooks()
            .signer
            .shown(&caller.tenant, generation.number)
            .map_err(Problem::from)
    });
    let secret = shown.await.map_err(|_| writer::busy())??;
    let previous_until = has_predecessor(generation, engine::now().0)
        .then(|| Timestamp(generation.since_ms.saturating_add(BOTH_MS)).to_string());
    Ok((
        [(CACHE_CONTROL, "no-store")],
        Json(WebhookSecret {
            secret,
            previous_until,
        }),
    )
        .into_response())
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(rotate))
}
