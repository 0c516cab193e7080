//! Reply addresses. A request could name any topic, and a worker that trusted it would publish a
//! stranger's text anywhere in the mesh. Agents receive answers below one topic of their mesh only,
//! so that no other is accepted.

use super::{
    code::CallRefusal,
    request::{ReplyAddress, invalid},
    topic::{Topic, TopicBase},
};
use crate::transport::Properties;

/// Maximum length of an echoed `traceId`; those of the mesh have 36 bytes.
const MAX_TRACE_BYTES: usize = 128;
/// Largest number of milliseconds that a float represents exactly.
const MAX_EXACT_MS: f64 = (1_u64 << 53) as f64;

/// The request has no valid reply address.
pub(super) struct NoReplyAddress {
    pub(super) why: CallRefusal,
    /// Where its requester may still be told of that.
    pub(super) instead: Option<ReplyAddress>,
}

/// Finds the reply address: `replyTo`, otherwise the topic where this agent waits for the answer to
/// this id.
pub(super) fn find(
    base: &TopicBase,
    properties: &Properties,
    id: Option<&str>,
    agent: Option<&str>,
) -> Result<ReplyAddress, Box<NoReplyAddress>> {
    let derived = || {
        let mut agents = [property(properties, "clientId"), agent]
            .into_iter()
            .flatten();
        agents.find_map(|agent| addressed(base, properties, agent, id?))
    };
    match property(properties, "replyTo").map(|topic| base.read(topic)) {
        Some(Some(Topic::Response { agent, correlation })) => {
            addressed(base, properties, agent, correlation).ok_or_else(|| elsewhere(base, None))
        }
        Some(_) => Err(elsewhere(base, derived())),
        None => derived().ok_or_else(nothing_said),
    }
}

fn elsewhere(base: &TopicBase, instead: Option<ReplyAddress>) -> Box<NoReplyAddress> {
    let why = invalid(format!(
        "`replyTo` must be a topic `{}AGENT/ID`",
        base.responses()
    ));
    Box::new(NoReplyAddress { why, instead })
}

fn nothing_said() -> Box<NoReplyAddress> {
    let why = invalid("there is neither `replyTo`, nor an agent's name and an id to answer to");
    Box::new(NoReplyAddress { why, instead: None })
}

fn addressed(
    base: &TopicBase,
    properties: &Properties,
    agent: &str,
    correlation: &str,
) -> Option<ReplyAddress> {
    // Only a status topic of the same agent, under any id.
    let is_status = |topic: &&str| matches!(base.read(topic), Some(Topic::Status { agent: other, .. }) if other == agent);
    let candidates = ["statusTo", "a2aStatusTopic"]
        .into_iter()
        .filter_map(|name| property(properties, name));
    // An invalid status topic is ignored: statuses are optional.
    let status_to = candidates.into_iter().find(is_status).map(str::to_owned);
    Some(ReplyAddress {
        to: base.response(agent, correlation).ok()?,
        status_to: status_to.or_else(|| base.status(agent, correlation).ok()),
        correlation: correlation.to_owned(),
        echoed: echoed(properties),
        sent_ms: property(properties, "timestamp").and_then(milliseconds),
    })
}

/// A property, unless it is empty.
pub(super) fn property<'a>(properties: &'a Properties, name: &str) -> Option<&'a str> {
    properties
        .get(name)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

/// Valid or omitted: truncated it would be another trace.
fn echoed(properties: &Properties) -> Properties {
    let is_plain = |text: &&str| {
        text.len() <= MAX_TRACE_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let trace = property(properties, "traceId").filter(is_plain);
    trace
        .map(|trace| ("traceId".to_owned(), trace.to_owned()))
        .into_iter()
        .collect()
}

/// Typed protocols may have turned it into a float.
fn milliseconds(text: &str) -> Option<u64> {
    let is_exact = |number: &f64| (0.0..=MAX_EXACT_MS).contains(number);
    text.parse().ok().or_else(|| {
        text.parse()
            .ok()
            .filter(is_exact)
            .map(|number| number as u64)
    })
}
