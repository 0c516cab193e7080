//! The description of every route, as OpenAPI 3.1.

use crate::Gateway;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use std::sync::OnceLock;
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder,
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

const KEY: &str = "key";

/// What stands around the routes.
pub(crate) fn frame() -> OpenApi {
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
                .security_scheme(KEY, SecurityScheme::Http(scheme))
                .build(),
        ))
        .security(Some([SecurityRequirement::new(KEY, Vec::<String>::new())]))
        .build()
}

/// The document, as it is checked in.
pub fn document() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let (_, mut document) = crate::routes().split_for_parts();
        // The router writes a name that may hold slashes with a star, which the description does not know.
        let paths = std::mem::take(&mut document.paths.paths);
        document.paths.paths = paths
            .into_iter()
            .map(|(path, item)| (path.replace("{*", "{"), item))
            .collect();
        // Nothing in it can fail to be JSON.
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
