//! Request bodies of the admin API: JSON parsing and validation. Unknown fields are errors.

use super::problem::AdminProblem;
use crate::{
    registry::{NewSession, SessionSocket},
    secret::Secret,
    session::DoorKind,
    token::SessionToken,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use spec::{Budget, Id, ModelPattern, Money};
use std::time::Duration;
use zeroize::Zeroizing;

const MAX_MODELS: usize = 256;
const MAX_TTL_SECONDS: u64 = 365 * 24 * 3600;

/// Body of `POST /v1/sessions`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterBody {
    provider: Option<String>,
    sandbox_id: Option<String>,
    run_id: Option<String>,
    tenant: Option<String>,
    token: Option<Zeroizing<String>>,
    api_key: Option<Zeroizing<String>>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    budget: BudgetBody,
    ttl_s: Option<u64>,
    #[serde(default)]
    socket: bool,
    socket_uid: Option<u32>,
    #[serde(default)]
    inference: bool,
    /// Known only to be rejected with a hint: a credential must not be sent to an address that the
    /// caller names.
    upstream_url: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetBody {
    usd: Option<Value>,
    call_usd: Option<Value>,
    tokens: Option<u64>,
    requests: Option<u64>,
    concurrent: Option<u32>,
}

/// Body of `POST /v1/check`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckBody {
    pub(super) session: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) model: Option<String>,
}

/// Parses a JSON body. The error names the field.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, AdminProblem> {
    serde_json::from_slice(body)
        .map_err(|error| AdminProblem::invalid(format!("the body is not understood: {error}")))
}

/// Parses and validates the body of a registration.
pub(super) fn new_session(body: &[u8]) -> Result<NewSession, AdminProblem> {
    let request: RegisterBody = parse(body)?;
    if request.upstream_url.is_some() {
        let detail =
            "`upstream_url` is not taken: where calls go is said by the configuration alone";
        return Err(AdminProblem::invalid(detail)
            .hint("name a provider of the configuration as `provider`"));
    }
    let kind = if request.inference {
        DoorKind::Inference
    } else {
        DoorKind::Llm
    };
    let provider = match (kind, request.provider) {
        (DoorKind::Llm, Some(provider)) => provider,
        (DoorKind::Llm, None) => return Err(AdminProblem::invalid("missing field `provider`")),
        (DoorKind::Inference, None) => String::new(),
        (DoorKind::Inference, Some(_)) => {
            return Err(
                AdminProblem::invalid("`provider` and `inference` name two doors")
                    .hint("register two sessions"),
            );
        }
    };
    if kind == DoorKind::Inference && request.api_key.is_some() {
        return Err(AdminProblem::invalid(
            "`api_key` is not used at the inference door",
        ));
    }
    if request.socket_uid.is_some() && !request.socket {
        return Err(AdminProblem::invalid(
            "`socket_uid` is given without `socket`",
        ));
    }
    Ok(NewSession {
        kind,
        provider,
        sandbox: id("sandbox_id", request.sandbox_id)?,
        run: id("run_id", request.run_id)?,
        tenant: id("tenant", request.tenant)?,
        token: request.token.map(|text| token(&text)).transpose()?,
        key: request.api_key.map(|key| secret(&key)).transpose()?,
        models: models(&request.models)?,
        budget: budget(request.budget)?,
        ttl: request.ttl_s.map(ttl).transpose()?,
        socket: request.socket.then_some(SessionSocket {
            user: request.socket_uid,
        }),
    })
}

fn id(field: &str, text: Option<String>) -> Result<Option<Id>, AdminProblem> {
    let checked = text.map(|text| Id::new(&text)).transpose();
    checked.map_err(|bad| AdminProblem::invalid(format!("`{field}`: {bad}")))
}

fn token(text: &str) -> Result<SessionToken, AdminProblem> {
    SessionToken::parse(text).ok_or_else(|| {
        AdminProblem::invalid("`token` is no session token").hint(
            "use `session-` and 64 random digits of 0-9 a-f, or leave it away to have one made",
        )
    })
}

fn secret(text: &str) -> Result<Secret, AdminProblem> {
    let secret = Secret::new(text.as_bytes().to_vec());
    let secret = secret.and_then(|secret| secret.check_header().map(|()| secret));
    secret.map_err(|bad| AdminProblem::invalid(format!("`api_key`: {bad}")))
}

fn models(patterns: &[String]) -> Result<Vec<ModelPattern>, AdminProblem> {
    if patterns.len() > MAX_MODELS {
        return Err(AdminProblem::invalid(format!(
            "`models` has more than {MAX_MODELS} patterns"
        )));
    }
    let read = |pattern: &String| {
        pattern
            .parse()
            .map_err(|bad| AdminProblem::invalid(format!("`models`: {bad}")))
    };
    patterns.iter().map(read).collect()
}

fn ttl(seconds: u64) -> Result<Duration, AdminProblem> {
    match seconds {
        1..=MAX_TTL_SECONDS => Ok(Duration::from_secs(seconds)),
        _ => Err(AdminProblem::invalid(format!(
            "`ttl_s` must be between 1 and {MAX_TTL_SECONDS}"
        ))),
    }
}

fn budget(limits: BudgetBody) -> Result<Budget, AdminProblem> {
    Ok(Budget {
        money: money("usd", limits.usd)?,
        call: money("call_usd", limits.call_usd)?,
        tokens: limits.tokens,
        requests: limits.requests,
        concurrent: limits.concurrent,
    })
}

/// Accepts a number or a string; a string keeps every digit.
fn money(field: &str, value: Option<Value>) -> Result<Option<Money>, AdminProblem> {
    let text = match value {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    let read = text.parse::<Money>().map(Some);
    read.map_err(|bad| {
        AdminProblem::invalid(format!("`budget.{field}`: {bad}")).hint("write it as \"0.50\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(body: &Value) -> String {
        let problem = new_session(body.to_string().as_bytes()).expect_err("it is refused");
        problem.document()["detail"].as_str().unwrap().to_owned()
    }

    #[test]
    fn every_word_reaches_the_order() {
        let token = "session-".to_owned() + &"ab".repeat(32);
        let body = json!({
            "provider": "p", "sandbox_id": "b", "run_id": "r", "tenant": "t", "token": token, "api_key": "sk-1",
            "models": ["m*"], "ttl_s": 60, "socket": true, "socket_uid": 7, "inference": false,
            "budget": {"usd": 0.5, "call_usd": "0.000000001", "tokens": 1, "requests": 2, "concurrent": 3},
        });
        let read = new_session(body.to_string().as_bytes()).unwrap();
        let budget = Budget {
            money: Some(Money(500_000_000)),
            call: Some(Money(1)),
            tokens: Some(1),
            requests: Some(2),
            concurrent: Some(3),
        };
        assert_eq!(
            (read.budget, read.ttl),
            (budget, Some(Duration::from_secs(60)))
        );
        assert_eq!(
            (read.socket, read.kind),
            (Some(SessionSocket { user: Some(7) }), DoorKind::Llm)
        );
        let id = |id: Option<Id>| id.unwrap().to_string();
        assert_eq!(
            (id(read.sandbox), id(read.run), id(read.tenant)),
            ("b".into(), "r".into(), "t".into())
        );
        assert_eq!(
            read.token.unwrap().hash(),
            SessionToken::parse(&token[8..]).unwrap().hash()
        );
        assert_eq!(
            (read.key.unwrap().expose(), read.models[0].as_str()),
            (b"sk-1".as_slice(), "m*")
        );
    }

    #[test]
    fn mistakes_are_named_and_none_shows_what_is_secret() {
        for (body, words) in [
            (json!({}), "missing field `provider`"),
            (
                json!({"provider": "p", "modles": []}),
                "unknown field `modles`",
            ),
            (
                json!({"provider": "p", "budget": {"eur": 1}}),
                "unknown field `eur`",
            ),
            (
                json!({"provider": "p", "upstream_url": "http://evil"}),
                "`upstream_url` is not taken",
            ),
            (
                json!({"provider": "p", "upstream_url": ""}),
                "`upstream_url` is not taken",
            ),
            (
                json!({"provider": "p", "token": "sk-canary"}),
                "`token` is no session token",
            ),
            (
                json!({"provider": "p", "api_key": "sk-canary\r\nx: y"}),
                "`api_key`: the secret has a character",
            ),
            (
                json!({"provider": "p", "api_key": ""}),
                "`api_key`: the secret is empty",
            ),
            (
                json!({"provider": "p", "sandbox_id": "../x"}),
                "`sandbox_id`: `../x` is not an identifier",
            ),
            (
                json!({"provider": "p", "ttl_s": 0}),
                "`ttl_s` must be between",
            ),
            (
                json!({"provider": "p", "budget": {"usd": -1}}),
                "`budget.usd`: `-1` is not an amount",
            ),
            (
                json!({"provider": "p", "models": ["a b"]}),
                "`models`: `a b` is no pattern",
            ),
            (
                json!({"provider": "p", "inference": true}),
                "`provider` and `inference`",
            ),
            (
                json!({"provider": "p", "socket_uid": 1}),
                "`socket_uid` is given without",
            ),
        ] {
            let detail = refusal(&body);
            assert!(detail.contains(words), "{body}: {detail}");
            assert!(!detail.contains("canary"), "{detail}");
        }
        assert!(
            new_session(b"{\"provider\":\"p\"}").is_ok()
                && new_session(b"{\"inference\":true}").is_ok(),
            "the controls"
        );
        assert!(new_session(b"{\"provider\":\"p\"} x").is_err() && new_session(b"").is_err());
    }
}
