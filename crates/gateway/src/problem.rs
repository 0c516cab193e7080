//! Refusals as problem documents (RFC 9457). The code is one of the contract's; nothing of this machine is in the words.

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

/// Goes with the answer to the gate, which writes it down.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) rule: Box<str>,
    /// A line says that it was allowed.
    pub(crate) was_allowed: bool,
}

/// What a handler answers.
pub(crate) type Answer<T> = Result<T, Problem>;

impl Problem {
    /// A problem with a code of the contract or of HTTP.
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

    /// There is no such thing, or it is somebody else's: nobody learns which.
    pub(crate) fn not_found(what: &str) -> Problem {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no such {what}"),
            None,
        )
    }

    /// It cannot be done as things are.
    pub(crate) fn conflict(title: impl Into<String>, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, "conflict", title, Some(detail.into()))
    }

    /// The request itself is wrong.
    pub(crate) fn invalid(title: impl Into<String>, detail: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid_spec",
            title,
            Some(detail.into()),
        )
    }

    /// There is no room on the disk where it would have to be written.
    pub(crate) fn full() -> Problem {
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

    /// Nothing begins any more.
    pub(crate) fn closing() -> Problem {
        let hint = "nothing was done; ask again once it is back".to_owned();
        let (status, title) = (
            StatusCode::SERVICE_UNAVAILABLE,
            "this server is ending, and takes no new work",
        );
        Problem::new(status, "unavailable", title, Some(hint)).ruled("server:closing")
    }

    /// The same with another status.
    pub(crate) fn with_status(self, status: StatusCode) -> Problem {
        Problem {
            status: status.as_u16(),
            ..self
        }
    }

    /// The same about this thing.
    pub(crate) fn about(self, instance: String) -> Problem {
        Problem {
            instance: Some(instance.into()),
            ..self
        }
    }

    /// The same as another kind.
    pub(crate) fn of_kind(self, kind: &str) -> Problem {
        Problem {
            kind: kind.into(),
            ..self
        }
    }

    /// As the error of something that was accepted before: code, message, hint.
    pub(crate) fn as_error(&self) -> String {
        serde_json::json!({ "code": self.code, "message": self.title, "hint": self.detail })
            .to_string()
    }

    /// The code of the contract.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Which rule said no: its code, unless somebody knew better.
    pub(crate) fn rule(&self) -> &str {
        self.rule.as_deref().unwrap_or(&self.code)
    }

    /// Whether this is what an error says (JSON), whatever it hints at: that may name the time.
    pub(crate) fn is_said_by(&self, error: &str) -> bool {
        let error: Option<serde_json::Value> = serde_json::from_str(error).ok();
        error.is_some_and(|error| error["code"] == *self.code && error["message"] == *self.title)
    }

    /// The same, which passes in so many seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Problem {
        Problem {
            retry_after: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
            ..self
        }
    }

    /// The same, said by this rule.
    pub(crate) fn ruled(self, rule: impl Into<Box<str>>) -> Problem {
        Problem {
            rule: Some(rule.into()),
            ..self
        }
    }

    /// The same, after a line was written that it is allowed.
    pub(crate) fn after_all(self) -> Problem {
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
        let rule = field(&error.message).filter(|_| error.code == ErrorCode::PolicyDenied);
        let rule = rule.map(|field| format!("policy_denied:{field}"));
        let problem = Problem::from(ErrorInfo {
            code: error.code,
            message: error.message,
            hint: Some(error.hint),
        });
        match rule {
            Some(rule) => problem.ruled(rule),
            None => problem,
        }
    }
}

/// The first name that a message says, if it is one of ours and nobody's words.
fn field(message: &str) -> Option<&str> {
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
            ErrorCode::Conflict => StatusCode::CONFLICT,
            ErrorCode::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let code = serde_json::to_value(error.code);
        let code = code.ok().and_then(|code| code.as_str().map(str::to_owned));
        Problem::new(
            status,
            code.as_deref().unwrap_or("internal"),
            error.message,
            error.hint,
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let passing = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        let seconds = self.retry_after.unwrap_or(1);
        // For those who say the same in other words.
        let kept = self.clone();
        let refused = Refused {
            rule: self.rule().into(),
            was_allowed: self.was_allowed,
        };
        let mut response = (self.status(), Json(self)).into_response();
        response.extensions_mut().insert(kept);
        response.extensions_mut().insert(refused);
        if passing {
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
