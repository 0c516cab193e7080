//! Topics of the mesh: `{namespace}/a2a/v1/sam_remote_tool/…`. Names are untrusted: a name that a
//! broker could take for a wildcard, or would not transport, is neither written nor accepted.

use std::fmt;

/// Maximum length of a topic on the mesh's brokers, in bytes.
pub const MAX_TOPIC_BYTES: usize = 250;
/// Maximum number of levels.
pub const MAX_LEVELS: usize = 128;
/// Maximum length of a namespace: response topics append an agent's name and a UUID.
pub const MAX_NAMESPACE_BYTES: usize = 160;

const TOOLS: &str = "sam_remote_tool";
const DISCOVERY: &str = "discovery";

/// Prefix of all topics of a mesh: its namespace and the protocol version.
#[derive(Clone, PartialEq, Eq)]
pub struct TopicBase(String);

impl fmt::Debug for TopicBase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Why a namespace is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNamespace {
    /// Namespace and default are empty.
    #[error("the namespace is empty")]
    Empty,
    /// The first level would be empty.
    #[error("the namespace begins with a slash")]
    LeadingSlash,
    /// It is part of paths elsewhere.
    #[error("the namespace has two dots in a row")]
    TwoDots,
    /// A character that the mesh does not allow.
    #[error("the namespace has {0:?}; it may have letters, digits and . _ / -")]
    Character(char),
    /// Response topics would be too long.
    #[error("the namespace has {0} bytes; it may have {MAX_NAMESPACE_BYTES}")]
    TooLong(usize),
}

/// Why a topic is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTopic {
    /// A name is missing.
    #[error("a name in a topic is empty")]
    Empty,
    /// A wildcard of one of the protocols, a control character or noncharacter, or a slash where a
    /// name is one level.
    #[error("a name in a topic has {0:?}")]
    Character(char),
    /// Longer than brokers accept.
    #[error("the topic has {0} bytes; it may have {MAX_TOPIC_BYTES}")]
    TooLong(usize),
    /// More levels than brokers accept.
    #[error("the topic has more than {MAX_LEVELS} levels")]
    TooManyLevels,
}

/// Purpose of a topic. Tool names and correlation ids may contain slashes, agent names may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic<'a> {
    /// Invocation of a tool.
    Invoke(&'a str),
    /// Answer to an invocation or a describe request.
    Response {
        /// Name of the agent.
        agent: &'a str,
        /// Correlation id.
        correlation: &'a str,
    },
    /// Status messages of a running tool.
    Status {
        /// Name of the agent.
        agent: &'a str,
        /// Correlation id.
        correlation: &'a str,
    },
    /// Announcement of a tool; older agents ask here.
    Init(&'a str),
    /// Request to describe a tool.
    InitRequest(&'a str),
    /// Announcement that a tool was removed.
    Removed(&'a str),
    /// Cancellation of the invocation with this id.
    Cancel(&'a str),
    /// Announcement that a tool cannot be described.
    FailedDiscovery(&'a str),
    /// Announcements of agents and gateways.
    Discovery(&'a str),
}

impl TopicBase {
    /// The base of a namespace. An empty one is replaced by `default`; trailing slashes are
    /// dropped.
    pub fn new(namespace: &str, default: &str) -> Result<TopicBase, BadNamespace> {
        let namespace = if namespace.is_empty() {
            default
        } else {
            namespace
        };
        if namespace.starts_with('/') {
            return Err(BadNamespace::LeadingSlash);
        }
        let namespace = namespace.trim_end_matches('/');
        let is_foreign =
            |letter: &char| !letter.is_ascii_alphanumeric() && !"._/-".contains(*letter);
        if namespace.is_empty() {
            Err(BadNamespace::Empty)
        } else if namespace.len() > MAX_NAMESPACE_BYTES {
            Err(BadNamespace::TooLong(namespace.len()))
        } else if let Some(letter) = namespace.chars().find(is_foreign) {
            Err(BadNamespace::Character(letter))
        } else if namespace.contains("..") {
            Err(BadNamespace::TwoDots)
        } else {
            Ok(TopicBase(format!("{namespace}/a2a/v1")))
        }
    }

    /// The namespace, without trailing slashes.
    pub fn namespace(&self) -> &str {
        self.0.strip_suffix("/a2a/v1").unwrap_or(&self.0)
    }

    /// Formats a topic.
    pub fn write(&self, topic: Topic<'_>) -> Result<String, BadTopic> {
        let text = match topic {
            Topic::Invoke(tool) => self.of_tool("invoke", tool)?,
            Topic::Init(tool) => self.of_tool("init", tool)?,
            Topic::InitRequest(tool) => self.of_tool("init_request", tool)?,
            Topic::Removed(tool) => self.of_tool("removed", tool)?,
            Topic::Cancel(correlation) => self.of_tool("cancel", correlation)?,
            Topic::FailedDiscovery(tool) => self.of_tool("failed_discovery", tool)?,
            Topic::Response { agent, correlation } => {
                self.to_agent("response", agent, correlation)?
            }
            Topic::Status { agent, correlation } => self.to_agent("status", agent, correlation)?,
            Topic::Discovery(kind) => format!("{}/{DISCOVERY}/{}", self.0, name(kind)?),
        };
        bounded(&text)?;
        Ok(text)
    }

    fn of_tool(&self, kind: &str, tool: &str) -> Result<String, BadTopic> {
        Ok(format!("{}/{TOOLS}/{kind}/{}", self.0, name(tool)?))
    }

    fn to_agent(&self, kind: &str, agent: &str, correlation: &str) -> Result<String, BadTopic> {
        if agent.contains('/') {
            return Err(BadTopic::Character('/'));
        }
        Ok(format!(
            "{}/{TOOLS}/{kind}/{}/{}",
            self.0,
            name(agent)?,
            name(correlation)?
        ))
    }

    /// Parses a topic; none if it is not of this mesh, or could not be answered.
    pub fn read<'a>(&self, topic: &'a str) -> Option<Topic<'a>> {
        bounded(topic).ok()?;
        let (area, rest) = topic
            .strip_prefix(&self.0)?
            .strip_prefix('/')?
            .split_once('/')?;
        let rest = name(rest).ok()?;
        match area {
            DISCOVERY => Some(Topic::Discovery(rest)),
            TOOLS => parse_tool_topic(rest),
            _ => None,
        }
    }

    /// Topic of a tool's invocations.
    pub fn invoke(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::Invoke(tool))
    }

    /// Topic of an answer.
    pub fn response(&self, agent: &str, correlation: &str) -> Result<String, BadTopic> {
        self.write(Topic::Response { agent, correlation })
    }

    /// Topic of status messages.
    pub fn status(&self, agent: &str, correlation: &str) -> Result<String, BadTopic> {
        self.write(Topic::Status { agent, correlation })
    }

    /// Topic of a tool's announcements, and of requests by older agents.
    pub fn init(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::Init(tool))
    }

    /// Topic of requests to describe a tool.
    pub fn init_request(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::InitRequest(tool))
    }

    /// Topic of the announcement that a tool was removed.
    pub fn removed(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::Removed(tool))
    }

    /// Topic of a cancellation.
    pub fn cancel(&self, correlation: &str) -> Result<String, BadTopic> {
        self.write(Topic::Cancel(correlation))
    }

    /// Topic of the announcement that a tool cannot be described.
    pub fn failed_discovery(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::FailedDiscovery(tool))
    }

    /// Pattern of all requests to describe a tool.
    pub fn init_requests(&self) -> String {
        format!("{}/{TOOLS}/init_request/>", self.0)
    }

    /// Pattern of all cancellations.
    pub fn cancellations(&self) -> String {
        format!("{}/{TOOLS}/cancel/>", self.0)
    }

    /// Pattern of all announcements of agents and gateways.
    pub fn discovery(&self) -> String {
        format!("{}/{DISCOVERY}/>", self.0)
    }

    /// Prefix of all response topics, for messages.
    pub fn responses(&self) -> String {
        format!("{}/{TOOLS}/response/", self.0)
    }
}

fn parse_tool_topic(topic: &str) -> Option<Topic<'_>> {
    let (kind, rest) = topic.split_once('/')?;
    let to_agent = || {
        rest.split_once('/')
            .filter(|(agent, id)| !agent.is_empty() && !id.is_empty())
    };
    match kind {
        _ if rest.is_empty() => None,
        "invoke" => Some(Topic::Invoke(rest)),
        "init" => Some(Topic::Init(rest)),
        "init_request" => Some(Topic::InitRequest(rest)),
        "removed" => Some(Topic::Removed(rest)),
        "cancel" => Some(Topic::Cancel(rest)),
        "failed_discovery" => Some(Topic::FailedDiscovery(rest)),
        "response" => to_agent().map(|(agent, correlation)| Topic::Response { agent, correlation }),
        "status" => to_agent().map(|(agent, correlation)| Topic::Status { agent, correlation }),
        _ => None,
    }
}

/// A name that is valid in a topic. A wildcard of one protocol is invalid in all, because messages
/// are bridged.
fn name(text: &str) -> Result<&str, BadTopic> {
    let is_foreign =
        |letter: &char| "*>+#".contains(*letter) || letter.is_control() || is_no_character(*letter);
    match text.chars().find(is_foreign) {
        Some(letter) => Err(BadTopic::Character(letter)),
        None if text.is_empty() => Err(BadTopic::Empty),
        None => Ok(text),
    }
}

/// Unicode noncharacters, over which an MQTT broker may close the connection.
fn is_no_character(letter: char) -> bool {
    let code = u32::from(letter);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

fn bounded(topic: &str) -> Result<(), BadTopic> {
    if topic.len() > MAX_TOPIC_BYTES {
        Err(BadTopic::TooLong(topic.len()))
    } else if topic.split('/').count() > MAX_LEVELS {
        Err(BadTopic::TooManyLevels)
    } else {
        Ok(())
    }
}

/// Why a pattern has no MQTT equivalent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be said in MQTT: there `*` is a whole level, `>` is the last, `+` and `#` are no letters"
)]
pub struct BadPattern(pub String);

/// Converts a pattern to an MQTT topic filter. It matches slightly more: `#` includes the level
/// above.
pub fn mqtt_filter(pattern: &str) -> Result<String, BadPattern> {
    let bad = || BadPattern(pattern.chars().take(MAX_TOPIC_BYTES).collect());
    let last = pattern.split('/').count() - 1;
    let level = |(index, level): (usize, &str)| match level {
        "*" => Ok("+".to_owned()),
        ">" if index == last => Ok("#".to_owned()),
        plain if plain.is_empty() || name(plain).is_ok() => Ok(plain.to_owned()),
        _ => Err(bad()),
    };
    if pattern.is_empty() || pattern.len() > MAX_TOPIC_BYTES {
        return Err(bad());
    }
    let levels: Vec<String> = pattern
        .split('/')
        .enumerate()
        .map(level)
        .collect::<Result<_, _>>()?;
    Ok(levels.join("/"))
}

/// Meaning of a last `>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailingWildcard {
    /// At least one level, as on the mesh's brokers.
    OneLevelOrMore,
    /// Also nothing after the slash, as on the development broker.
    AlsoNothing,
}

/// Whether a pattern matches a topic. `*` matches a level, or the rest of one.
pub fn matches(pattern: &str, topic: &str, rest: TrailingWildcard) -> bool {
    let mut wanted = pattern.split('/').peekable();
    let mut levels = topic.split('/');
    while let Some(next) = wanted.next() {
        let level = levels.next();
        let is_rest = next == ">" && wanted.peek().is_none();
        match level {
            Some(level) if is_rest => {
                return rest == TrailingWildcard::AlsoNothing
                    || !level.is_empty()
                    || levels.next().is_some();
            }
            Some(level) if is_meant(next, level) => {}
            Some(_) | None => return false,
        }
    }
    levels.next().is_none()
}

fn is_meant(wanted: &str, level: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some("") => !level.is_empty(),
        Some(beginning) => level.starts_with(beginning),
        None => wanted == level,
    }
}

#[cfg(test)]
#[path = "topic_tests.rs"]
mod tests;
