//! What the admin API is asked, in its own words, and what that means. Nothing unknown is passed over.

use super::problem::Problem;
use crate::{
    registry::{Order, Socket},
    secret::Secret,
    session::Kind,
    token::Token,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use spec::{Budget, Id, ModelPattern, Money};
use std::time::Duration;
use zeroize::Zeroizing;

const MOST_MODELS: usize = 256;
const LONGEST_TTL: u64 = 365 * 24 * 3600;

/// `POST /v1/sessions`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    provider: Option<String>,
    sandbox_id: Option<String>,
    run_id: Option<String>,
    tenant: Option<String>,
    token: Option<Zeroizing<String>>,
    api_key: Option<Zeroizing<String>>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    budget: Limits,
    ttl_s: Option<u64>,
    #[serde(default)]
    socket: bool,
    socket_uid: Option<u32>,
    #[serde(default)]
    inference: bool,
    /// Known, to be refused: a key must not follow whoever asks to wherever they say.
    upstream_url: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    usd: Option<Value>,
    call_usd: Option<Value>,
    tokens: Option<u64>,
    requests: Option<u64>,
    concurrent: Option<u32>,
}

/// `POST /v1/check`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    pub(super) session: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) model: Option<String>,
}

/// Reads a body. A mistake is named, with the field.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body is not understood: {error}")))
}

/// Reads and checks what a session is to be.
pub(super) fn order(body: &[u8]) -> Result<Order, Problem> {
    let asked: Register = parse(body)?;
    if asked.upstream_url.is_some() {
        let detail =
            "`upstream_url` is not taken: where calls go is said by the configuration alone";
        return Err(
            Problem::invalid(detail).hint("name a provider of the configuration as `provider`")
        );
    }
    let kind = if asked.inference {
        Kind::Inference
    } else {
        Kind::Llm
    };
    let provider = match (kind, asked.provider) {
        (Kind::Llm, Some(provider)) => provider,
        (Kind::Llm, None) => return Err(Problem::invalid("missing field `provider`")),
        (Kind::Inference, None) => String::new(),
        (Kind::Inference, Some(_)) => {
            return Err(
                Problem::invalid("`provider` and `inference` name two doors")
                    .hint("register two sessions"),
            );
        }
    };
    if kind == Kind::Inference && asked.api_key.is_some() {
        return Err(Problem::invalid(
            "`api_key` is not used at the inference door",
        ));
    }
    if asked.socket_uid.is_some() && !asked.socket {
        return Err(Problem::invalid("`socket_uid` is given without `socket`"));
    }
    Ok(Order {
        kind,
        provider,
        sandbox: id("sandbox_id", asked.sandbox_id)?,
        run: id("run_id", asked.run_id)?,
        tenant: id("tenant", asked.tenant)?,
        token: asked.token.map(|text| token(&text)).transpose()?,
        key: asked.api_key.map(|key| secret(&key)).transpose()?,
        models: models(&asked.models)?,
        budget: budget(asked.budget)?,
        ttl: asked.ttl_s.map(ttl).transpose()?,
        socket: asked.socket.then_some(Socket {
            user: asked.socket_uid,
        }),
    })
}

fn id(field: &str, text: Option<String>) -> Result<Option<Id>, Problem> {
    let checked = text.map(|text| Id::new(&text)).transpose();
    checked.map_err(|bad| Problem::invalid(format!("`{field}`: {bad}")))
}

fn token(text: &str) -> Result<Token, Problem> {
    Token::parse(text).ok_or_else(|| {
        Problem::invalid("`token` is no session token").hint(
            "use `session-` and 64 random digits of 0-9 a-f, or leave it away to have one made",
        )
    })
}

fn secret(text: &str) -> Result<Secret, Problem> {
    let secret = Secret::new(text.as_bytes().to_vec());
    let secret = secret.and_then(|secret| secret.check_header().map(|()| secret));
    secret.map_err(|bad| Problem::invalid(format!("`api_key`: {bad}")))
}

fn models(patterns: &[String]) -> Result<Vec<ModelPattern>, Problem> {
    if patterns.len() > MOST_MODELS {
        return Err(Problem::invalid(format!(
            "`models` has more than {MOST_MODELS} patterns"
        )));
    }
    let read = |pattern: &String| {
        pattern
            .parse()
            .map_err(|bad| Problem::invalid(format!("`models`: {bad}")))
    };
    patterns.iter().map(read).collect()
}

fn ttl(seconds: u64) -> Result<Duration, Problem> {
    match seconds {
        1..=LONGEST_TTL => Ok(Duration::from_secs(seconds)),
        _ => Err(Problem::invalid(format!(
            "`ttl_s` must be between 1 and {LONGEST_TTL}"
        ))),
    }
}

fn budget(limits: Limits) -> Result<Budget, Problem> {
    Ok(Budget {
        money: money("usd", limits.usd)?,
        call: money("call_usd", limits.call_usd)?,
        tokens: limits.tokens,
        requests: limits.requests,
        concurrent: limits.concurrent,
    })
}

/// A number or a text: a text is exact to the last digit.
fn money(field: &str, value: Option<Value>) -> Result<Option<Money>, Problem> {
    let text = match value {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    let read = text.parse::<Money>().map(Some);
    read.map_err(|bad| {
        Problem::invalid(format!("`budget.{field}`: {bad}")).hint("write it as \"0.50\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(body: &Value) -> String {
        let problem = order(body.to_string().as_bytes()).expect_err("it is refused");
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
        let read = order(body.to_string().as_bytes()).unwrap();
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
            (Some(Socket { user: Some(7) }), Kind::Llm)
        );
        let id = |id: Option<Id>| id.unwrap().to_string();
        assert_eq!(
            (id(read.sandbox), id(read.run), id(read.tenant)),
            ("b".into(), "r".into(), "t".into())
        );
        assert_eq!(
            read.token.unwrap().hash(),
            Token::parse(&token[8..]).unwrap().hash()
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
            order(b"{\"provider\":\"p\"}").is_ok() && order(b"{\"inference\":true}").is_ok(),
            "the controls"
        );
        assert!(order(b"{\"provider\":\"p\"} x").is_err() && order(b"").is_err());
    }
}
