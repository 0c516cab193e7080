//! Routes of a tenant's webhook signing secret: show and rotate.

use super::signature::{OVERLAP_MS, has_predecessor};
use crate::{Caller, Gateway, Problem, Scope, db_writer, problem::Answer};
use axum::{Json, extract::State, response::IntoResponse, response::Response};
use http::header::CACHE_CONTROL;
use serde::Serialize;
use spec::Timestamp;
use store::webhooks::{self, SecretGeneration};
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
        .query_database(move |database| database.webhook_generation(&tenant))
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
    let tenant = caller.tenant.clone();
    let now = engine::now().0;
    // Durable: receivers are configured with the new secret, which must survive power loss.
    let generation = gateway
        .durable_writer()
        .write(move |transaction| webhooks::rotate_secret(transaction, &tenant, now))
        .await?;
    answer(gateway, caller, generation).await
}

async fn answer(
    gateway: Gateway,
    caller: Caller,
    generation: SecretGeneration,
) -> Answer<Response> {
    // Blocking: the first call reads or creates the key on disk.
    let encoding = tokio::task::spawn_blocking(move || {
        gateway
            .webhooks()
            .signer
            .encoded_secret(&caller.tenant, generation.number)
            .map_err(Problem::from)
    });
    let secret = encoding.await.map_err(|_| db_writer::busy())??;
    let previous_until = has_predecessor(generation, engine::now().0)
        .then(|| Timestamp(generation.since_ms.saturating_add(OVERLAP_MS)).to_string());
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
