//! Edits to a request body, as splices of bytes: everything else is forwarded as it was sent.

use super::body::{LimitMember, LimitValue, ObjectMember, ObjectStart, ParsedBody};
use super::{Dialect, ModelOperation};
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// The edits to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyEdits<'a> {
    /// The model name to set.
    pub model: Option<&'a str>,
    /// The output token limit to set, or to lower to.
    pub cap: Option<u64>,
    /// Name of the limit if the body has none (chat only; other dialects have one name).
    pub cap_name: &'a str,
    /// Ask for the usage of a stream.
    pub ask_usage: bool,
    /// Replaces what the body says about the user; empty leaves it unchanged.
    pub identity: &'a str,
}

/// Applies the edits. Without edits the same bytes are returned, uncopied.
pub fn rewrite(
    operation: ModelOperation,
    body: &Bytes,
    parsed: &ParsedBody,
    edits: &BodyEdits<'_>,
) -> Bytes {
    let mut splices = Splices::default();
    if let Some(model) = edits.model {
        splices.model(body, parsed, model);
    }
    if let Some(tokens) = edits.cap {
        splices.cap(operation, parsed, tokens, edits.cap_name);
    }
    if edits.ask_usage && parsed.stream && operation == ModelOperation::Chat {
        splices.ask_usage(parsed);
    }
    if !edits.identity.is_empty() {
        let identity = quoted(edits.identity);
        parsed
            .identities
            .iter()
            .for_each(|at| splices.replace(at, &identity));
    }
    splices.apply(body, parsed)
}

#[derive(Default)]
struct Splices {
    list: Vec<(Range<usize>, String)>,
    /// Members to insert at the front of the root object.
    members: Vec<String>,
}

impl Splices {
    fn replace(&mut self, at: &Range<usize>, text: &str) {
        self.list.push((at.clone(), text.to_owned()));
    }

    fn insert(&mut self, inside: ObjectStart, members: &str) {
        let comma = if inside.is_empty { "" } else { "," };
        self.list
            .push((inside.at..inside.at, format!("{members}{comma}")));
    }

    /// Gemini's names keep their `models/` prefix.
    fn model(&mut self, body: &Bytes, parsed: &ParsedBody, model: &str) {
        if parsed.model.as_ref().is_some_and(|(name, _)| name == model) {
            return;
        }
        for at in &parsed.edit_points.models {
            let written: String = serde_json::from_slice(&body[at.clone()]).unwrap_or_default();
            let own = parsed.model.as_ref().map_or("", |(name, _)| name);
            let prefix = written.strip_suffix(own).unwrap_or_default();
            self.replace(at, &quoted(&format!("{prefix}{model}")));
        }
    }

    fn cap(
        &mut self,
        operation: ModelOperation,
        parsed: &ParsedBody,
        tokens: u64,
        chat_name: &str,
    ) {
        let Some(name) = limit_name(operation, chat_name) else {
            return;
        };
        let limits = &parsed.edit_points.limits;
        for limit in limits {
            let is_above = match limit.given {
                LimitValue::Tokens(given) => given > tokens,
                LimitValue::Unlimited => true,
                LimitValue::Null => false,
            };
            if is_above {
                self.replace(&limit.at, &tokens.to_string());
            }
        }
        let holds = |limit: &&LimitMember| {
            limit.given != LimitValue::Null && is_honoured(operation, limit.name, name)
        };
        if limits.iter().any(|limit| holds(&limit)) {
            return;
        }
        match limits.iter().find(|limit| limit.name == name) {
            Some(limit) => self.replace(&limit.at, &tokens.to_string()),
            None => self.put_limit(operation, parsed, name, tokens),
        }
    }

    fn put_limit(
        &mut self,
        operation: ModelOperation,
        parsed: &ParsedBody,
        name: &str,
        tokens: u64,
    ) {
        let member = format!("{}:{tokens}", quoted(name));
        let settings = match operation.dialect() {
            Some(Dialect::Ollama) => "options",
            Some(Dialect::Gemini) => "generationConfig",
            Some(Dialect::OpenAi | Dialect::Anthropic) | None => return self.members.push(member),
        };
        self.within(&parsed.edit_points.settings, settings, &member);
    }

    fn ask_usage(&mut self, parsed: &ParsedBody) {
        match &parsed.edit_points.include_usage {
            Some(_) if parsed.wants_usage => {}
            Some(at) => self.replace(at, "true"),
            None => self.within(
                &parsed.edit_points.stream_options,
                "stream_options",
                "\"include_usage\":true",
            ),
        }
    }

    /// Adds a member to an object, which is created if necessary.
    fn within(&mut self, object: &ObjectMember, name: &str, member: &str) {
        match object {
            ObjectMember::Absent => self.members.push(format!("\"{name}\":{{{member}}}")),
            ObjectMember::Null(at) => self.replace(at, &format!("{{{member}}}")),
            ObjectMember::Object(inside) => self.insert(*inside, member),
        }
    }

    fn apply(mut self, body: &Bytes, parsed: &ParsedBody) -> Bytes {
        if !self.members.is_empty() {
            let members = std::mem::take(&mut self.members).join(",");
            self.insert(parsed.edit_points.root, &members);
        }
        if self.list.is_empty() {
            return body.clone();
        }
        self.list.sort_by_key(|(at, _)| at.start);
        let added: usize = self.list.iter().map(|(_, text)| text.len()).sum();
        let mut changed = BytesMut::with_capacity(body.len() + added);
        let mut from = 0;
        for (at, text) in &self.list {
            changed.extend_from_slice(&body[from..at.start]);
            changed.extend_from_slice(text.as_bytes());
            from = at.end;
        }
        changed.extend_from_slice(&body[from..]);
        changed.freeze()
    }
}

/// Whether a provider whose limit is called `name` also obeys `given`. Other names may be ignored
/// silently.
fn is_honoured(operation: ModelOperation, given: &str, name: &str) -> bool {
    operation != ModelOperation::Chat || given == name || given == "max_tokens"
}

/// The operation's name for its output token limit, if it has one.
fn limit_name(operation: ModelOperation, chat_name: &str) -> Option<&str> {
    match operation {
        ModelOperation::Chat if chat_name.is_empty() => Some("max_completion_tokens"),
        ModelOperation::Chat => Some(chat_name),
        ModelOperation::Responses => Some("max_output_tokens"),
        ModelOperation::Messages => Some("max_tokens"),
        ModelOperation::Generate => Some("maxOutputTokens"),
        ModelOperation::OllamaChat | ModelOperation::OllamaGenerate => Some("num_predict"),
        ModelOperation::Embeddings
        | ModelOperation::Models
        | ModelOperation::CountTokens
        | ModelOperation::GeminiModels
        | ModelOperation::GeminiCountTokens
        | ModelOperation::GeminiEmbed
        | ModelOperation::OllamaEmbed
        | ModelOperation::OllamaTags
        | ModelOperation::OllamaShow
        | ModelOperation::OllamaRunning
        | ModelOperation::OllamaVersion => None,
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
