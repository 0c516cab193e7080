//! What a program is told when it gets no answer: what happened and what would help; never a key, an address or a
//! list of what others may do.

use crate::{
    dialect::{Dialect, Fault, answer},
    relay::Outgoing,
    till::Refused,
    upstream::NoConnection,
};
use http::{HeaderValue, Response, StatusCode, header};

fn fault(status: u16, code: &'static str, message: impl Into<String>) -> Fault {
    Fault {
        status,
        code,
        message: message.into(),
        retry: false,
        retry_after: None,
    }
}

pub(crate) fn no_such_path() -> Fault {
    fault(
        404,
        "not_found",
        "This path is not served here. The door forwards model calls and nothing else.",
    )
}

pub(crate) fn too_many_connections() -> Fault {
    let message = "The session has too many connections open (limit `connections`).";
    Fault {
        retry: true,
        retry_after: Some(1),
        ..fault(429, "rate_limit_error", message)
    }
}

pub(crate) fn head_too_large(most: usize) -> Fault {
    fault(
        431,
        "request_too_large",
        format!("The head of the request is larger than {most} bytes."),
    )
}

pub(super) fn wrong_method() -> Fault {
    fault(
        405,
        "method_not_allowed",
        "This path is served here, but not with this method.",
    )
}

pub(super) fn unauthorized() -> Fault {
    fault(
        401,
        "authentication_error",
        "The session token is missing or not valid here.",
    )
}

pub(super) fn ended() -> Fault {
    fault(401, "authentication_error", "The session has ended.")
}

pub(super) fn other_dialect(speaks: Dialect) -> Fault {
    let words = match speaks {
        Dialect::OpenAi => "OpenAI's API (/v1/chat/completions, /v1/responses, /v1/embeddings)",
        Dialect::Anthropic => "Anthropic's API (/v1/messages)",
        Dialect::Gemini => "Gemini's API (/v1beta/models/MODEL:generateContent)",
        Dialect::Ollama => "Ollama's API (/api/chat, /api/generate)",
    };
    fault(
        404,
        "not_found",
        format!("The provider behind this door speaks {words}."),
    )
}

pub(super) fn bad_body(why: &str) -> Fault {
    fault(
        400,
        "invalid_request_error",
        format!("The request body was refused: {why}."),
    )
}

pub(super) fn body_too_large(most: u64) -> Fault {
    fault(
        413,
        "request_too_large",
        format!("The request body is larger than {most} bytes."),
    )
}

pub(super) fn body_too_slow() -> Fault {
    fault(
        408,
        "request_timeout",
        "The request body did not arrive in time.",
    )
}

pub(super) fn no_room() -> Fault {
    let message =
        "The session has so many large requests under way that there is no room for this one yet.";
    Fault {
        retry: true,
        retry_after: Some(1),
        ..fault(429, "rate_limit_error", message)
    }
}

pub(super) fn model_refused() -> Fault {
    fault(
        403,
        "permission_error",
        "This model may not be used here (rule `allow_models`).",
    )
}

pub(super) fn server_tools_refused() -> Fault {
    let message = "Tools that the provider runs by itself, and addresses that it is to fetch from, reach the network \
                   past this sandbox and are not allowed here (rule `server_tools`). Send content itself instead.";
    fault(403, "permission_error", message)
}

pub(super) fn priced_otherwise() -> Fault {
    fault(
        403,
        "permission_error",
        "A service tier with another price is not allowed here (rule `service_tier`).",
    )
}

pub(super) fn price_unknown() -> Fault {
    let message = "The price of this model is not known, so it cannot be paid for (rule `unknown_price`). The \
                   operator can set it under [prices].";
    fault(403, "permission_error", message)
}

pub(super) fn unbounded_input() -> Fault {
    let message = "The request refers to content outside itself, and the size of this model's context is not known, \
                   so its cost cannot be bounded (rule `unknown_price`).";
    fault(403, "permission_error", message)
}

pub(super) fn refused(refused: &Refused) -> Fault {
    match refused {
        Refused::Spent {
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
            fault(
                402,
                "budget_exceeded",
                format!("The budget is spent (limit `{limit}`).{left}{anew}"),
            )
        }
        Refused::Busy { limit, wait } => Fault {
            retry: true,
            retry_after: Some(*wait),
            ..fault(
                429,
                "rate_limit_error",
                format!("Too much at once (limit `{limit}`)."),
            )
        },
        Refused::Ledger(_) => fault(
            503,
            "ledger_unavailable",
            "The ledger cannot be written, so nothing may be spent.",
        ),
    }
}

pub(super) fn unreachable(why: NoConnection) -> Fault {
    let why = match why {
        NoConnection::Address => "its name leads nowhere that may be dialled",
        NoConnection::Refused => "it does not accept connections",
        NoConnection::Tls => "its certificate could not be verified",
        NoConnection::TimedOut => "it did not accept a connection in time",
    };
    Fault {
        retry: true,
        ..fault(
            502,
            "upstream_unreachable",
            format!("The model provider cannot be reached: {why}."),
        )
    }
}

pub(super) fn lost() -> Fault {
    let message = "The connection to the model provider broke before an answer came.";
    Fault {
        retry: true,
        ..fault(502, "upstream_unreachable", message)
    }
}

pub(super) fn first_byte_late() -> Fault {
    Fault {
        retry: true,
        ..fault(
            504,
            "upstream_timeout",
            "The model provider did not answer in time.",
        )
    }
}

pub(super) fn credentials() -> Fault {
    let message =
        "The model provider refused the credential of this door. The operator has to mend it.";
    fault(502, "upstream_credentials", message)
}

pub(super) fn no_credential() -> Fault {
    fault(
        502,
        "upstream_credentials",
        "The credential of this door cannot be had. The operator has to mend it.",
    )
}

pub(super) fn redirected() -> Fault {
    fault(
        502,
        "upstream_redirect",
        "The model provider answered with a redirect, which is not followed.",
    )
}

pub(super) fn encoded() -> Fault {
    fault(
        502,
        "upstream_encoding",
        "The model provider sent an encoded answer, which cannot be metered.",
    )
}

pub(super) fn upstream_status(status: StatusCode, retry_after: Option<u64>) -> Fault {
    Fault {
        retry: true,
        retry_after,
        ..fault(
            status.as_u16(),
            "upstream_error",
            format!("The model provider answered {}.", status.as_u16()),
        )
    }
}

// In the middle of a stream.

pub(super) fn cut() -> Fault {
    fault(
        402,
        "budget_exceeded",
        "The money reserved for this call is spent; the stream was cut.",
    )
}

pub(super) fn broken() -> Fault {
    Fault {
        retry: true,
        ..fault(
            502,
            "upstream_unreachable",
            "The connection to the model provider broke.",
        )
    }
}

pub(super) fn stalled() -> Fault {
    Fault {
        retry: true,
        ..fault(
            504,
            "upstream_timeout",
            "The model provider stopped sending.",
        )
    }
}

pub(super) fn revoked() -> Fault {
    fault(401, "authentication_error", "The session was ended.")
}

/// The whole answer.
pub(crate) fn response(dialect: Option<Dialect>, fault: &Fault) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::whole(answer(dialect, fault)));
    *response.status_mut() = StatusCode::from_u16(fault.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(
        "x-should-retry",
        HeaderValue::from_static(if fault.retry { "true" } else { "false" }),
    );
    headers.insert("x-airlock-error", HeaderValue::from_static(fault.code));
    if let Some(wait) = fault.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(wait));
        headers.insert(
            "retry-after-ms",
            HeaderValue::from(wait.saturating_mul(1000)),
        );
    }
    response
}
