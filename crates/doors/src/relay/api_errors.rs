//! API errors of the relay: what happened and what would help; never a key, an address or a list of
//! what others may use.

use crate::{
    budget::BudgetRefusal,
    dialect::{ApiError, Dialect, error_body},
    relay::ResponseBody,
    upstream::ConnectError,
};
use http::{HeaderValue, Response, StatusCode, header};

fn error(status: u16, code: &'static str, message: impl Into<String>) -> ApiError {
    ApiError {
        status,
        code,
        message: message.into(),
        retry: false,
        retry_after: None,
    }
}

pub(crate) fn no_such_path() -> ApiError {
    error(
        404,
        "not_found",
        "This path is not served here. The door forwards model calls and nothing else.",
    )
}

pub(crate) fn too_many_connections() -> ApiError {
    let message = "The session has too many connections open (limit `connections`).";
    ApiError {
        retry: true,
        retry_after: Some(1),
        ..error(429, "rate_limit_error", message)
    }
}

pub(crate) fn head_too_large(most: usize) -> ApiError {
    error(
        431,
        "request_too_large",
        format!("The head of the request is larger than {most} bytes."),
    )
}

pub(super) fn wrong_method() -> ApiError {
    error(
        405,
        "method_not_allowed",
        "This path is served here, but not with this method.",
    )
}

pub(super) fn unauthorized() -> ApiError {
    error(
        401,
        "authentication_error",
        "The session token is missing or not valid here.",
    )
}

pub(super) fn ended() -> ApiError {
    error(401, "authentication_error", "The session has ended.")
}

pub(super) fn other_dialect(speaks: Dialect) -> ApiError {
    let message = match speaks {
        Dialect::OpenAi => "OpenAI's API (/v1/chat/completions, /v1/responses, /v1/embeddings)",
        Dialect::Anthropic => "Anthropic's API (/v1/messages)",
        Dialect::Gemini => "Gemini's API (/v1beta/models/MODEL:generateContent)",
        Dialect::Ollama => "Ollama's API (/api/chat, /api/generate)",
    };
    error(
        404,
        "not_found",
        format!("The provider behind this door speaks {message}."),
    )
}

pub(super) fn bad_body(why: &str) -> ApiError {
    error(
        400,
        "invalid_request_error",
        format!("The request body was refused: {why}."),
    )
}

pub(super) fn body_too_large(most: u64) -> ApiError {
    error(
        413,
        "request_too_large",
        format!("The request body is larger than {most} bytes."),
    )
}

pub(super) fn body_too_slow() -> ApiError {
    error(
        408,
        "request_timeout",
        "The request body did not arrive in time.",
    )
}

pub(super) fn no_room() -> ApiError {
    let message =
        "The session has so many large requests under way that there is no room for this one yet.";
    ApiError {
        retry: true,
        retry_after: Some(1),
        ..error(429, "rate_limit_error", message)
    }
}

pub(super) fn model_refused() -> ApiError {
    error(
        403,
        "permission_error",
        "This model may not be used here (rule `allow_models`).",
    )
}

pub(super) fn server_tools_refused(what: &str) -> ApiError {
    let message = format!(
        "`{}` is refused: tools that the provider runs by itself, and addresses that it is to fetch from, reach the \
         network past this sandbox and are not allowed here (rule `server_tools`). Send content itself instead.",
        what.escape_debug()
    );
    error(403, "permission_error", message)
}

pub(super) fn priced_otherwise() -> ApiError {
    error(
        403,
        "permission_error",
        "A service tier with another price is not allowed here (rule `service_tier`).",
    )
}

pub(super) fn price_unknown() -> ApiError {
    let message = "The price of this model is not known, so it cannot be paid for (rule `unknown_price`). The \
                   operator can set it under [prices].";
    error(403, "permission_error", message)
}

pub(super) fn unbounded_input() -> ApiError {
    let message = "The request refers to content outside itself, and the size of this model's context is not known, \
                   so its cost cannot be bounded (rule `unknown_price`).";
    error(403, "permission_error", message)
}

pub(super) fn refused(refused: &BudgetRefusal) -> ApiError {
    match refused {
        BudgetRefusal::Spent {
            limit,
            left,
            resets_in,
        } => {
            let left = left
                .map(|left| format!(" {left} USD are left, too little for this call."))
                .unwrap_or_default();
            let anew = resets_in
                .map(|wait| format!(" It begins anew in {wait} s."))
                .unwrap_or_default();
            error(
                402,
                "budget_exceeded",
                format!("The budget is spent (limit `{limit}`).{left}{anew}"),
            )
        }
        BudgetRefusal::Busy { limit, wait } => ApiError {
            retry: true,
            retry_after: Some(*wait),
            ..error(
                429,
                "rate_limit_error",
                format!("Too much at once (limit `{limit}`)."),
            )
        },
        BudgetRefusal::Ledger(_) => error(
            503,
            "ledger_unavailable",
            "The ledger cannot be written, so nothing may be spent.",
        ),
    }
}

pub(super) fn unreachable(why: ConnectError) -> ApiError {
    let why = match why {
        ConnectError::Address => "its name leads nowhere that may be dialled",
        ConnectError::Refused => "it does not accept connections",
        ConnectError::Tls => "its certificate could not be verified",
        ConnectError::TimedOut => "it did not accept a connection in time",
    };
    ApiError {
        retry: true,
        ..error(
            502,
            "upstream_unreachable",
            format!("The model provider cannot be reached: {why}."),
        )
    }
}

pub(super) fn lost() -> ApiError {
    let message = "The connection to the model provider broke before an answer came.";
    ApiError {
        retry: true,
        ..error(502, "upstream_unreachable", message)
    }
}

pub(super) fn first_byte_late() -> ApiError {
    ApiError {
        retry: true,
        ..error(
            504,
            "upstream_timeout",
            "The model provider did not answer in time.",
        )
    }
}

pub(super) fn credentials() -> ApiError {
    let message =
        "The model provider refused the credential of this door. The operator has to mend it.";
    error(502, "upstream_credentials", message)
}

pub(super) fn no_credential() -> ApiError {
    error(
        502,
        "upstream_credentials",
        "The credential of this door cannot be had. The operator has to mend it.",
    )
}

pub(super) fn redirected() -> ApiError {
    error(
        502,
        "upstream_redirect",
        "The model provider answered with a redirect, which is not followed.",
    )
}

pub(super) fn encoded() -> ApiError {
    error(
        502,
        "upstream_encoding",
        "The model provider sent an encoded answer, which cannot be metered.",
    )
}

pub(super) fn upstream_status(status: StatusCode, retry_after: Option<u64>) -> ApiError {
    ApiError {
        retry: true,
        retry_after,
        ..error(
            status.as_u16(),
            "upstream_error",
            format!("The model provider answered {}.", status.as_u16()),
        )
    }
}

// Errors in the middle of a stream.

pub(super) fn cut() -> ApiError {
    error(
        402,
        "budget_exceeded",
        "The money reserved for this call is spent; the stream was cut.",
    )
}

pub(super) fn overrun() -> ApiError {
    error(
        502,
        "upstream_overrun",
        "The model provider sent more than it was asked for; the stream was cut.",
    )
}

pub(super) fn broken() -> ApiError {
    ApiError {
        retry: true,
        ..error(
            502,
            "upstream_unreachable",
            "The connection to the model provider broke.",
        )
    }
}

pub(super) fn stalled() -> ApiError {
    ApiError {
        retry: true,
        ..error(
            504,
            "upstream_timeout",
            "The model provider stopped sending.",
        )
    }
}

pub(super) fn revoked() -> ApiError {
    error(401, "authentication_error", "The session was ended.")
}

/// A complete error response.
pub(crate) fn response(dialect: Option<Dialect>, error: &ApiError) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(error_body(dialect, error)));
    *response.status_mut() = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(
        "x-should-retry",
        HeaderValue::from_static(if error.retry { "true" } else { "false" }),
    );
    headers.insert("x-airlock-error", HeaderValue::from_static(error.code));
    if let Some(wait) = error.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait));
        headers.insert(
            "retry-after-ms",
            HeaderValue::from(wait.saturating_mul(1000)),
        );
    }
    response
}
