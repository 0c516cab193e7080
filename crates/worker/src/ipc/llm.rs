//! HTTP requests to a model in each provider's dialect. The door in between checks, counts and adds
//! the key.

use super::{LlmRequest, ModelSettings};
use bytes::Bytes;
use doors::dialect::Dialect;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

/// Maximum size of a response, in bytes.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Characters of a provider's error message that are passed on.
const MAX_COMPLAINT_CHARS: usize = 500;

/// A response of the door.
#[derive(Debug)]
pub(super) struct LlmResponse {
    pub(super) status: u16,
    pub(super) body: Bytes,
    /// The door refused: no provider was asked, or its response is not passed on.
    pub(super) is_from_door: bool,
}

/// Why there is no complete response.
#[derive(Debug)]
pub(super) enum ExchangeError {
    TooLarge,
    Connection(Box<dyn std::error::Error + Send + Sync>),
}

/// Why a response has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextError {
    InvalidJson,
    Empty,
}

/// Builds the request. OpenAI has two names for the output limit: new models refuse the old one,
/// old servers do not know the new one.
pub(super) fn request(
    (dialect, output_cap): (Dialect, &str),
    settings: &ModelSettings,
    question: &LlmRequest,
) -> Request<Full<Bytes>> {
    let (path, body) = match dialect {
        Dialect::OpenAi => (
            "/v1/chat/completions".to_owned(),
            openai(settings, question, output_cap),
        ),
        Dialect::Anthropic => ("/v1/messages".to_owned(), anthropic(settings, question)),
        Dialect::Gemini => (
            format!("/v1beta/models/{}:generateContent", settings.model),
            gemini(settings, question),
        ),
        Dialect::Ollama => ("/api/chat".to_owned(), ollama(settings, question)),
    };
    let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
    *request.method_mut() = hyper::Method::POST;
    // A model name that is no valid path leads to one that the door does not serve.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(header::HOST, header::HeaderValue::from_static("door"));
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    if dialect == Dialect::Anthropic {
        headers.insert(
            "anthropic-version",
            header::HeaderValue::from_static("2023-06-01"),
        );
    }
    request
}

/// Clamps the temperature to the provider's range.
fn temperature(question: &LlmRequest, limit: f64) -> f64 {
    if question.temperature.is_finite() {
        question.temperature.clamp(0.0, limit)
    } else {
        super::default_temperature()
    }
}

fn messages(question: &LlmRequest) -> Vec<Value> {
    let system = json!({"role": "system", "content": question.system_prompt});
    let user = json!({"role": "user", "content": question.user_prompt});
    if question.system_prompt.is_empty() {
        vec![user]
    } else {
        vec![system, user]
    }
}

fn openai(settings: &ModelSettings, question: &LlmRequest, output_cap: &str) -> Value {
    json!({
        "model": settings.model,
        output_cap: settings.output_tokens,
        "messages": messages(question),
        "temperature": temperature(question, 2.0),
    })
}

fn anthropic(settings: &ModelSettings, question: &LlmRequest) -> Value {
    let mut asked = json!({
        "model": settings.model,
        "max_tokens": settings.output_tokens,
        "messages": [{"role": "user", "content": question.user_prompt}],
        "temperature": temperature(question, 1.0),
    });
    if !question.system_prompt.is_empty() {
        asked["system"] = json!(question.system_prompt);
    }
    asked
}

fn gemini(settings: &ModelSettings, question: &LlmRequest) -> Value {
    let config = json!({
        "temperature": temperature(question, 2.0),
        "maxOutputTokens": settings.output_tokens,
    });
    let mut asked = json!({
        "contents": [{"role": "user", "parts": [{"text": question.user_prompt}]}],
        "generationConfig": config,
    });
    if !question.system_prompt.is_empty() {
        asked["systemInstruction"] = json!({"parts": [{"text": question.system_prompt}]});
    }
    asked
}

fn ollama(settings: &ModelSettings, question: &LlmRequest) -> Value {
    json!({
        "model": settings.model,
        "messages": messages(question),
        "stream": false,
        "options": {"temperature": temperature(question, 2.0), "num_predict": settings.output_tokens},
    })
}

/// Sends the request and reads the whole response.
pub(super) async fn exchange(
    line: UnixStream,
    request: Request<Full<Bytes>>,
) -> Result<LlmResponse, ExchangeError> {
    let broken = |error: hyper::Error| ExchangeError::Connection(error.into());
    let (mut sender, connection) = http1::handshake(TokioIo::new(line)).await.map_err(broken)?;
    let asking = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status().as_u16();
        let is_from_door = answer.headers().contains_key("x-airlock-error");
        let body = Limited::new(answer.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(|error| {
                if error.is::<LengthLimitError>() {
                    ExchangeError::TooLarge
                } else {
                    ExchangeError::Connection(error)
                }
            })?;
        Ok(LlmResponse {
            status,
            body: body.to_bytes(),
            is_from_door,
        })
    };
    tokio::pin!(asking);
    let mut connection = std::pin::pin!(connection);
    let mut has_ended = false;
    loop {
        tokio::select! {
            answer = &mut asking => return answer,
            ended = &mut connection, if !has_ended => {
                has_ended = true;
                // What was received before is still available.
                if let Err(error) = ended { return Err(ExchangeError::Connection(error.into())) }
            }
        }
    }
}

/// The text of a response; several text parts are concatenated.
pub(super) fn text(dialect: Dialect, body: &[u8]) -> Result<String, TextError> {
    let response: Value = serde_json::from_slice(body).map_err(|_| TextError::InvalidJson)?;
    let found = match dialect {
        Dialect::OpenAi => content(&response["choices"][0]["message"]["content"]),
        Dialect::Anthropic => content(&response["content"]),
        Dialect::Gemini => content(&response["candidates"][0]["content"]["parts"]),
        Dialect::Ollama => content(&response["message"]["content"]),
    };
    found
        .filter(|text| !text.is_empty())
        .ok_or(TextError::Empty)
}

/// A text, or the text parts of a list.
fn content(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let is_thought = |part: &&Value| part["thought"] == Value::Bool(true);
            let parts = parts.iter().filter(|part| !is_thought(part));
            Some(parts.filter_map(|part| part["text"].as_str()).collect())
        }
        _ => None,
    }
}

/// The error message of the provider or the door.
pub(super) fn complaint(body: &[u8]) -> String {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = match &said["error"] {
        Value::String(text) => Some(text.as_str()),
        error => error["message"].as_str(),
    };
    let said = said.unwrap_or("the provider refused without saying why");
    said.chars()
        .filter(|letter| !letter.is_control())
        .take(MAX_COMPLAINT_CHARS)
        .collect()
}
