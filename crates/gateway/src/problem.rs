//! Problem documents (RFC 9457) for refused requests. They have an error code and contain no paths
//! of this machine.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde::Serialize;
use spec::{ErrorCode, ErrorInfo, SpecError};
use utoipa::ToSchema;

/// Why a request was not carried out.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// What kind it is: a name of the documentation.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: Box<str>,
    /// The status of the answer.
    status: u16,
    /// What happened, on one line.
    #[schema(value_type = String)]
    title: Box<str>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The code of the contract.
    #[schema(value_type = String)]
    code: Box<str>,
    /// The path of what it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    instance: Option<Box<str>>,
    /// Seconds until trying again may help; as a header.
    #[serde(skip)]
    retry_after: Option<u32>,
    /// Which rule said no, for the audit; its code, unless somebody knows better.
    #[serde(skip)]
    rule: Option<Box<str>>,
    /// Whether a line of the audit says that it was allowed.
    #[serde(skip)]
    was_allowed: bool,
}

/// Response extension by which the middleware writes the `refused` audit entry.
#[derive(Clone, Debug)]
pub(crate) struct RefusalInfo {
    pub(crate) rule: Box<str>,
    /// An `allowed` entry was written before.
    pub(crate) was_allowed: bool,
}

/// The result of a handler.
pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    /// A problem with an error code of Airlock or of HTTP.
    pub fn new(
        status: StatusCode,
        code: &str,
        title: impl Into<String>,
        detail: Option<String>,
    ) -> Problem {
        Problem {
            kind: format!("urn:airlock:{code}").into(),
            status: status.as_u16(),
            title: title.into().into(),
            detail,
            code: code.into(),
            instance: None,
            retry_after: None,
            rule: None,
            was_allowed: false,
        }
    }

    /// 404: the resource does not exist or belongs to another tenant; the answer does not tell
    /// which.
    pub(crate) fn not_found(what: &str) -> Problem {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no such {what}"),
            None,
        )
    }

    /// 409: the state of the resource does not allow it.
    pub(crate) fn conflict(title: impl Into<String>, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, "conflict", title, Some(detail.into()))
    }

    /// 400: the request is invalid.
    pub(crate) fn invalid(title: impl Into<String>, detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid_spec",
            title,
            Some(detail.into()),
        )
    }

    /// 507: the disk is full.
    pub(crate) fn disk_full() -> Problem {
        let hint =
            "nothing was done; remove artifacts or images, or ask the operator for room".to_owned();
        let title = "the disk of this server is full";
        Problem::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "quota_exceeded",
            title,
            Some(hint),
        )
    }

    /// 503: the server is shutting down.
    pub(crate) fn shutting_down() -> Problem {
        let hint = "nothing was done; ask again once it is back".to_owned();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let title = "this server is ending, and takes no new work";
        Problem::new(status, "unavailable", title, Some(hint)).with_rule("server:closing")
    }

    /// Replaces the status.
    pub(crate) fn with_status(self, status: StatusCode) -> Problem {
        Problem {
            status: status.as_u16(),
            ..self
        }
    }

    /// Replaces the hint.
    pub(crate) fn with_detail(self, detail: impl Into<String>) -> Problem {
        Problem {
            detail: Some(detail.into()),
            ..self
        }
    }

    /// Sets the path of the resource.
    pub(crate) fn with_instance(self, instance: String) -> Problem {
        Problem {
            instance: Some(instance.into()),
            ..self
        }
    }

    /// Replaces the problem type.
    pub(crate) fn with_type(self, kind: &str) -> Problem {
        Problem {
            kind: kind.into(),
            ..self
        }
    }

    /// The error of an accepted run or job, as JSON: code, message, hint.
    pub(crate) fn to_error_json(&self) -> String {
        serde_json::json!({ "code": self.code, "message": self.title, "hint": self.detail })
            .to_string()
    }

    /// The error code.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// The rule that refused the request; the error code by default.
    pub(crate) fn rule(&self) -> &str {
        self.rule.as_deref().unwrap_or(&self.code)
    }

    /// Whether a stored error (JSON) has this code and title. The hint is ignored: it may contain a
    /// time.
    pub(crate) fn matches_error(&self, error: &str) -> bool {
        let error: Option<serde_json::Value> = serde_json::from_str(error).ok();
        error.is_some_and(|error| error["code"] == *self.code && error["message"] == *self.title)
    }

    /// Sets `Retry-After`.
    pub(crate) fn with_retry_after(self, seconds: u64) -> Problem {
        Problem {
            retry_after: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
            ..self
        }
    }

    /// Sets the rule for the audit entry.
    pub(crate) fn with_rule(self, rule: impl Into<Box<str>>) -> Problem {
        Problem {
            rule: Some(rule.into()),
            ..self
        }
    }

    /// Marks that an `allowed` audit entry was written before.
    pub(crate) fn already_allowed(self) -> Problem {
        Problem {
            was_allowed: true,
            ..self
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<SpecError> for Problem {
    fn from(error: SpecError) -> Problem {
        let rule = quoted_field(&error.message).filter(|_| error.code == ErrorCode::PolicyDenied);
        let rule = rule.map(|field| format!("policy_denied:{field}"));
        let problem = Problem::from(ErrorInfo {
            code: error.code,
            message: error.message,
            hint: Some(error.hint),
        });
        match rule {
            Some(rule) => problem.with_rule(rule),
            None => problem,
        }
    }
}

/// The first quoted name in a message, if it is the name of a field and not text of the caller.
fn quoted_field(message: &str) -> Option<&str> {
    let named =
        |byte: u8| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'-' | b'.' | b':' | b' ');
    let name = message.split('`').nth(1)?;
    ((1..=40).contains(&name.len()) && name.bytes().all(named)).then_some(name)
}

impl From<ErrorInfo> for Problem {
    fn from(error: ErrorInfo) -> Problem {
        let status = match error.code {
            ErrorCode::InvalidSpec | ErrorCode::ImageMissing => StatusCode::BAD_REQUEST,
            ErrorCode::ImageRefused | ErrorCode::PolicyDenied => StatusCode::FORBIDDEN,
            ErrorCode::BarrierMissing | ErrorCode::BackendUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ErrorCode::Conflict | ErrorCode::WorkspaceConflict => StatusCode::CONFLICT,
            ErrorCode::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let hint = error.hint.map(hint_for_http);
        let code = serde_json::to_value(error.code);
        let code = code.ok().and_then(|code| code.as_str().map(str::to_owned));
        Problem::new(
            status,
            code.as_deref().unwrap_or("internal"),
            error.message,
            hint,
        )
    }
}

/// Replaces hints that are for users of the command line: a tenant has neither the command line nor
/// the secrets of the server.
fn hint_for_http(hint: String) -> String {
    if hint.starts_with("put the command after `--`") {
        "give it as `command`, such as [\"python3\", \"-c\", \"print(1)\"]".to_owned()
    } else if hint.contains("airlock secrets set") {
        "ask the operator: a credential of this server is missing".to_owned()
    } else {
        hint
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let is_temporary = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let seconds = self.retry_after.unwrap_or(1);
        // Kept so that the worker API can replace the problem type.
        let kept = self.clone();
        let refused = RefusalInfo {
            rule: self.rule().into(),
            was_allowed: self.was_allowed,
        };
        let mut response = (self.status(), Json(self)).into_response();
        response.extensions_mut().insert(kept);
        response.extensions_mut().insert(refused);
        if is_temporary {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}
