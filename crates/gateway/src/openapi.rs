//! The OpenAPI 3.1 description of all routes.

use crate::Gateway;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use std::sync::OnceLock;
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder,
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

const SECURITY_SCHEME: &str = "key";

/// The document without its routes: title, version, security scheme.
pub(crate) fn base_document() -> OpenApi {
    let about = "Runs commands in sandboxes. Every route needs a key as `Authorization: Bearer`, except those that say so.";
    let info = InfoBuilder::new()
        .title("Airlock")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(about));
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    OpenApiBuilder::new()
        .info(info)
        .components(Some(
            ComponentsBuilder::new()
                .security_scheme(SECURITY_SCHEME, SecurityScheme::Http(scheme))
                .build(),
        ))
        .security(Some([SecurityRequirement::new(
            SECURITY_SCHEME,
            Vec::<String>::new(),
        )]))
        .build()
}

/// The document as it is checked in at `docs/openapi.json`.
pub fn document() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let (_, mut document) = crate::routes().split_for_parts();
        // The router marks a catch-all parameter with `*`, which OpenAPI does not know.
        let paths = std::mem::take(&mut document.paths.paths);
        document.paths.paths = paths
            .into_iter()
            .map(|(path, item)| (path.replace("{*", "{"), item))
            .collect();
        // Serialization cannot fail.
        document.to_pretty_json().unwrap_or_default() + "\n"
    })
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "health", security(()), responses(
    (status = 200, description = "OpenAPI 3.1", body = Object),
    (status = "default", description = "Refused", body = crate::Problem, content_type = "application/problem+json")))]
async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], document())
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(openapi))
}
