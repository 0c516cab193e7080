//! Error responses of the admin API: problem documents (RFC 9457) with a code, a detail and a hint.

use crate::{registry::RegisterError, session::OpenError};
use http::StatusCode;
use serde_json::{Value, json};
use std::error::Error;

/// One problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminProblem {
    status: u16,
    code: &'static str,
    detail: String,
    hint: Option<String>,
}

impl AdminProblem {
    pub(super) fn new(status: u16, code: &'static str, detail: impl Into<String>) -> AdminProblem {
        AdminProblem {
            status,
            code,
            detail: detail.into(),
            hint: None,
        }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> AdminProblem {
        AdminProblem {
            hint: Some(hint.into()),
            ..self
        }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> AdminProblem {
        AdminProblem::new(400, "invalid_request", detail)
    }

    pub(super) fn unauthorized() -> AdminProblem {
        AdminProblem::new(401, "unauthorized", "the admin token is missing or wrong")
    }

    pub(super) fn no_session() -> AdminProblem {
        AdminProblem::new(404, "not_found", "there is no such session")
    }

    /// 404, or 405 if the path exists with another method.
    pub(super) fn no_route(path: &[&str]) -> AdminProblem {
        let known = matches!(
            path,
            ["v1", "sessions" | "usage" | "check" | "reload" | "health"]
                | ["v1", "sessions", _]
                | ["v1", "sessions", _, "usage"]
                | ["v1", "sandboxes", _, "sessions"]
        );
        if known {
            AdminProblem::new(
                405,
                "method_not_allowed",
                "this path does not know this method",
            )
        } else {
            AdminProblem::new(404, "not_found", "there is no such path")
        }
    }

    /// The problem document for a failed registration.
    pub(super) fn register(error: RegisterError) -> AdminProblem {
        let detail = with_causes(&error);
        match error {
            RegisterError::TokenTaken => AdminProblem::new(409, "token_taken", detail)
                .hint("leave `token` away to have one made; a token is never taken twice"),
            RegisterError::Full { .. } => AdminProblem::new(429, "quota_exceeded", detail)
                .hint("revoke sessions that are over"),
            RegisterError::NoTenant(_) => AdminProblem::new(400, "invalid_request", detail)
                .hint("add it as [tenant.NAME] to the configuration, then POST /v1/reload"),
            RegisterError::Stopping => AdminProblem::new(503, "stopping", detail),
            RegisterError::Open(OpenError::NoProvider { known, .. }) => {
                AdminProblem::new(400, "invalid_request", detail)
                    .hint(format!("the providers are {}", known.join(", ")))
            }
            RegisterError::Open(OpenError::Secret(secret)) => {
                AdminProblem::new(422, "no_credential", detail).hint(secret.hint)
            }
            RegisterError::Open(OpenError::Upstream(_)) => {
                AdminProblem::new(422, "invalid_provider", detail)
                    .hint("mend the key, or [provider.NAME] in the configuration")
            }
            RegisterError::Socket(_) => AdminProblem::new(422, "no_socket", detail)
                .hint("`socket_uid` needs root, unless it is the service's own user"),
            RegisterError::Open(OpenError::Listener(_) | OpenError::Authority(_))
            | RegisterError::Random(_) => AdminProblem::new(500, "internal", detail),
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(super) fn document(&self) -> Value {
        let title = self.status().canonical_reason().unwrap_or_default();
        let mut document = json!({
            "type": "about:blank",
            "title": title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        });
        if let Some(hint) = &self.hint {
            document["hint"] = json!(hint);
        }
        document
    }
}

fn with_causes(error: &RegisterError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
