//! Where an answer goes. Whoever may ask could name any topic; a worker that believed it would say in its own name, anywhere in
//! the mesh, what strangers choose. Agents listen for answers below one topic of their mesh only, so nothing else is taken.

use super::{
    code::Refusal,
    request::{Reply, invalid},
    topic::{Base, Topic},
};
use crate::transport::Properties;

/// The longest `traceId` that is sent back, in bytes; theirs have 36.
const LONGEST_TRACE: usize = 128;
/// No whole number of milliseconds beyond this is exact in a float.
const LATEST: f64 = (1_u64 << 53) as f64;

/// The topic that a request names is not to be used, or it names none.
pub(super) struct Nowhere {
    pub(super) why: Refusal,
    /// Where its asker may hear of that all the same.
    pub(super) instead: Option<Reply>,
}

/// Where the answer goes: to `replyTo`, and otherwise to where the agent of this name waits for the answer to this id.
pub(super) fn find(
    base: &Base,
    properties: &Properties,
    id: Option<&str>,
    agent: Option<&str>,
) -> Result<Reply, Box<Nowhere>> {
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

fn elsewhere(base: &Base, instead: Option<Reply>) -> Box<Nowhere> {
    let why = invalid(format!(
        "`replyTo` must be a topic `{}AGENT/ID`",
        base.responses()
    ));
    Box::new(Nowhere { why, instead })
}

fn nothing_said() -> Box<Nowhere> {
    let why = invalid("there is neither `replyTo`, nor an agent's name and an id to answer to");
    Box::new(Nowhere { why, instead: None })
}

fn addressed(
    base: &Base,
    properties: &Properties,
    agent: &str,
    correlation: &str,
) -> Option<Reply> {
    // Nobody but whoever hears the answer: an agent hears what its own tools say, under whatever id it wants.
    let is_status = |topic: &&str| matches!(base.read(topic), Some(Topic::Status { agent: other, .. }) if other == agent);
    let said = ["statusTo", "a2aStatusTopic"]
        .into_iter()
        .filter_map(|name| property(properties, name));
    // What is said meanwhile is not worth a refusal: a topic that is none of it is passed over.
    let status_to = said.into_iter().find(is_status).map(str::to_owned);
    Some(Reply {
        to: base.response(agent, correlation).ok()?,
        status_to: status_to.or_else(|| base.status(agent, correlation).ok()),
        correlation: correlation.to_owned(),
        echoed: echoed(properties),
        sent_ms: property(properties, "timestamp").and_then(milliseconds),
    })
}

/// What a property says, unless that is nothing.
pub(super) fn property<'a>(properties: &'a Properties, name: &str) -> Option<&'a str> {
    properties
        .get(name)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

/// As it came or not at all: cut, it would name another trace.
fn echoed(properties: &Properties) -> Properties {
    let is_plain = |text: &&str| {
        text.len() <= LONGEST_TRACE && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let trace = property(properties, "traceId").filter(is_plain);
    trace
        .map(|trace| ("traceId".to_owned(), trace.to_owned()))
        .into_iter()
        .collect()
}

/// Protocols whose values have types may have made a float of it.
fn milliseconds(text: &str) -> Option<u64> {
    let is_exact = |number: &f64| (0.0..=LATEST).contains(number);
    text.parse().ok().or_else(|| {
        text.parse()
            .ok()
            .filter(is_exact)
            .map(|number| number as u64)
    })
}
