//! The few changes that are made to a body, as splices of bytes: everything else arrives as it was sent.

use super::ask::{Ask, Given, Inside, Limit, Member};
use super::{Dialect, Operation};
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// What to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change<'a> {
    /// Another name for the model.
    pub model: Option<&'a str>,
    /// The limit of output tokens to set or lower to.
    pub cap: Option<u64>,
    /// What that limit is called if the body has none (chat only; other dialects know one name).
    pub cap_name: &'a str,
    /// Ask for the usage of a stream.
    pub ask_usage: bool,
    /// Who is calling, put in place of what the body says of that; empty leaves that as it is.
    pub identity: &'a str,
}

/// The body with the changes. Without any it is the same bytes, uncopied.
pub fn rewrite(operation: Operation, body: &Bytes, ask: &Ask, change: &Change<'_>) -> Bytes {
    let mut splices = Splices::default();
    if let Some(model) = change.model {
        splices.model(body, ask, model);
    }
    if let Some(tokens) = change.cap {
        splices.cap(operation, ask, tokens, change.cap_name);
    }
    if change.ask_usage && ask.stream && operation == Operation::Chat {
        splices.ask_usage(ask);
    }
    if !change.identity.is_empty() {
        let identity = quoted(change.identity);
        ask.identities
            .iter()
            .for_each(|at| splices.replace(at, &identity));
    }
    splices.apply(body, ask)
}

#[derive(Default)]
struct Splices {
    list: Vec<(Range<usize>, String)>,
    /// Members to be put at the front.
    members: Vec<String>,
}

impl Splices {
    fn replace(&mut self, at: &Range<usize>, text: &str) {
        self.list.push((at.clone(), text.to_owned()));
    }

    fn insert(&mut self, inside: Inside, members: &str) {
        let comma = if inside.is_empty { "" } else { "," };
        self.list
            .push((inside.at..inside.at, format!("{members}{comma}")));
    }

    /// Gemini's names keep their `models/`.
    fn model(&mut self, body: &Bytes, ask: &Ask, model: &str) {
        if ask.model.as_ref().is_some_and(|(name, _)| name == model) {
            return;
        }
        for at in &ask.places.models {
            let written: String = serde_json::from_slice(&body[at.clone()]).unwrap_or_default();
            let own = ask.model.as_ref().map_or("", |(name, _)| name);
            let prefix = written.strip_suffix(own).unwrap_or_default();
            self.replace(at, &quoted(&format!("{prefix}{model}")));
        }
    }

    fn cap(&mut self, operation: Operation, ask: &Ask, tokens: u64, chat_name: &str) {
        let Some(name) = limit_name(operation, chat_name) else {
            return;
        };
        let limits = &ask.places.limits;
        for limit in limits {
            let is_above = match limit.given {
                Given::Tokens(given) => given > tokens,
                Given::Unlimited => true,
                Given::Null => false,
            };
            if is_above {
                self.replace(&limit.at, &tokens.to_string());
            }
        }
        let holds =
            |limit: &&Limit| limit.given != Given::Null && is_honoured(operation, limit.name, name);
        if limits.iter().any(|limit| holds(&limit)) {
            return;
        }
        match limits.iter().find(|limit| limit.name == name) {
            Some(limit) => self.replace(&limit.at, &tokens.to_string()),
            None => self.put_limit(operation, ask, name, tokens),
        }
    }

    fn put_limit(&mut self, operation: Operation, ask: &Ask, name: &str, tokens: u64) {
        let member = format!("{}:{tokens}", quoted(name));
        let settings = match operation.dialect() {
            Some(Dialect::Ollama) => "options",
            Some(Dialect::Gemini) => "generationConfig",
            Some(Dialect::OpenAi | Dialect::Anthropic) | None => return self.members.push(member),
        };
        self.within(&ask.places.settings, settings, &member);
    }

    fn ask_usage(&mut self, ask: &Ask) {
        match &ask.places.include_usage {
            Some(_) if ask.wants_usage => {}
            Some(at) => self.replace(at, "true"),
            None => self.within(
                &ask.places.stream_options,
                "stream_options",
                "\"include_usage\":true",
            ),
        }
    }

    /// Puts a member into an object that may have to be made.
    fn within(&mut self, object: &Member, name: &str, member: &str) {
        match object {
            Member::Absent => self.members.push(format!("\"{name}\":{{{member}}}")),
            Member::Null(at) => self.replace(at, &format!("{{{member}}}")),
            Member::Object(inside) => self.insert(*inside, member),
        }
    }

    fn apply(mut self, body: &Bytes, ask: &Ask) -> Bytes {
        if !self.members.is_empty() {
            let members = std::mem::take(&mut self.members).join(",");
            self.insert(ask.places.root, &members);
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

/// Whether a provider that calls its limit so obeys this one, too. Others it may well drop in silence.
fn is_honoured(operation: Operation, given: &str, name: &str) -> bool {
    operation != Operation::Chat || given == name || given == "max_tokens"
}

/// What an operation calls its limit, if it has one.
fn limit_name(operation: Operation, chat_name: &str) -> Option<&str> {
    match operation {
        Operation::Chat if chat_name.is_empty() => Some("max_completion_tokens"),
        Operation::Chat => Some(chat_name),
        Operation::Responses => Some("max_output_tokens"),
        Operation::Messages => Some("max_tokens"),
        Operation::Generate => Some("maxOutputTokens"),
        Operation::OllamaChat | Operation::OllamaGenerate => Some("num_predict"),
        Operation::Embeddings
        | Operation::Models
        | Operation::CountTokens
        | Operation::GeminiModels
        | Operation::GeminiCountTokens
        | Operation::GeminiEmbed
        | Operation::OllamaEmbed
        | Operation::OllamaTags
        | Operation::OllamaShow
        | Operation::OllamaRunning
        | Operation::OllamaVersion => None,
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
