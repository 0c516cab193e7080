//! One question and its answer in each dialect. The door in between checks, counts and puts the key in.

use super::{Question, Settings};
use bytes::Bytes;
use doors::dialect::Dialect;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

/// The largest answer, in bytes.
const LARGEST: usize = 4 << 20;
/// What is told of a provider's complaint, in characters.
const LONGEST_COMPLAINT: usize = 500;

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
    /// The door refused, and no provider was asked, or its answer is not passed on.
    pub(super) is_of_door: bool,
}

/// Why there is no whole answer.
#[derive(Debug)]
pub(super) enum Broken {
    TooLarge,
    Line(Box<dyn std::error::Error + Send + Sync>),
}

/// Why an answer has no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoText {
    NoJson,
    Empty,
}

/// The request, as the dialect has it. In OpenAI's the limit of output tokens has two names: new models refuse the old one, and
/// old servers do not know the new one.
pub(super) fn request(
    (dialect, output_cap): (Dialect, &str),
    settings: &Settings,
    question: &Question,
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
    // A model's name that fits in no path leads to a path that the door does not serve.
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

/// No provider takes less than nothing, and none more than this.
fn temperature(question: &Question, most: f64) -> f64 {
    match question.temperature.is_finite() {
        true => question.temperature.clamp(0.0, most),
        false => super::usual_temperature(),
    }
}

fn messages(question: &Question) -> Vec<Value> {
    let system = json!({"role": "system", "content": question.system_prompt});
    let user = json!({"role": "user", "content": question.user_prompt});
    match question.system_prompt.is_empty() {
        true => vec![user],
        false => vec![system, user],
    }
}

fn openai(settings: &Settings, question: &Question, output_cap: &str) -> Value {
    json!({
        "model": settings.model,
        output_cap: settings.output_tokens,
        "messages": messages(question),
        "temperature": temperature(question, 2.0),
    })
}

fn anthropic(settings: &Settings, question: &Question) -> Value {
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

fn gemini(settings: &Settings, question: &Question) -> Value {
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

fn ollama(settings: &Settings, question: &Question) -> Value {
    json!({
        "model": settings.model,
        "messages": messages(question),
        "stream": false,
        "options": {"temperature": temperature(question, 2.0), "num_predict": settings.output_tokens},
    })
}

/// Sends it, and reads the whole answer.
pub(super) async fn exchange(
    line: UnixStream,
    request: Request<Full<Bytes>>,
) -> Result<Answer, Broken> {
    let broken = |error: hyper::Error| Broken::Line(error.into());
    let (mut sender, connection) = http1::handshake(TokioIo::new(line)).await.map_err(broken)?;
    let asking = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        let (status, is_of_door) = (
            answer.status().as_u16(),
            answer.headers().contains_key("x-airlock-error"),
        );
        let body = Limited::new(answer.into_body(), LARGEST)
            .collect()
            .await
            .map_err(|error| match error.is::<LengthLimitError>() {
                true => Broken::TooLarge,
                false => Broken::Line(error),
            })?;
        Ok(Answer {
            status,
            body: body.to_bytes(),
            is_of_door,
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
                // What was read before is still to be had.
                if let Err(error) = ended { return Err(Broken::Line(error.into())) }
            }
        }
    }
}

/// The text of an answer; of several parts that are text, one behind the other.
pub(super) fn text(dialect: Dialect, body: &[u8]) -> Result<String, NoText> {
    let said: Value = serde_json::from_slice(body).map_err(|_| NoText::NoJson)?;
    let found = match dialect {
        Dialect::OpenAi => content(&said["choices"][0]["message"]["content"]),
        Dialect::Anthropic => content(&said["content"]),
        Dialect::Gemini => content(&said["candidates"][0]["content"]["parts"]),
        Dialect::Ollama => content(&said["message"]["content"]),
    };
    found.filter(|text| !text.is_empty()).ok_or(NoText::Empty)
}

/// A text, or the texts among parts.
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

/// What a provider, or the door, says is wrong.
pub(super) fn complaint(body: &[u8]) -> String {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = match &said["error"] {
        Value::String(text) => Some(text.as_str()),
        error => error["message"].as_str(),
    };
    let said = said.unwrap_or("the provider refused without saying why");
    said.chars()
        .filter(|letter| !letter.is_control())
        .take(LONGEST_COMPLAINT)
        .collect()
}
