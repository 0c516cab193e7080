//! Path parameter extractor that answers decoding errors with a problem document.

use crate::{Gateway, Problem};
use axum::extract::FromRequestParts;
use http::request::Parts;
use serde::de::DeserializeOwned;

/// Decoded path parameters.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Gateway> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, gateway: &Gateway) -> Result<Path<T>, Problem> {
        match axum::extract::Path::from_request_parts(parts, gateway).await {
            Ok(axum::extract::Path(inside)) => Ok(Path(inside)),
            Err(_) => Err(Problem::invalid(
                "the path cannot be read",
                "send UTF-8, percent-encoded",
            )),
        }
    }
}
