//! Topics: `{namespace}/a2a/v1/sam_remote_tool/…`. Names in them come from strangers, so that none is written or read that a
//! broker could take for a pattern, or that no broker of the mesh would carry.

use std::fmt;

/// The longest topic that a broker of the mesh takes, in bytes.
pub const LONGEST: usize = 250;
/// The most levels that such a broker takes.
pub const MOST_LEVELS: usize = 128;
/// The longest namespace, in bytes: an answer's topic has a UUID and an agent's name behind it, and must not be too long.
pub const LONGEST_NAMESPACE: usize = 160;

const OF_TOOLS: &str = "sam_remote_tool";
const DISCOVERY: &str = "discovery";

/// What all topics of one mesh begin with: its namespace and the version of what is spoken.
#[derive(Clone, PartialEq, Eq)]
pub struct Base(String);

impl fmt::Debug for Base {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Why a namespace is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNamespace {
    /// Neither it nor what stands for an empty one says anything.
    #[error("the namespace is empty")]
    Empty,
    /// The first level would be empty.
    #[error("the namespace begins with a slash")]
    LeadingSlash,
    /// It is part of paths elsewhere.
    #[error("the namespace has two dots in a row")]
    TwoDots,
    /// One that the mesh does not take.
    #[error("the namespace has {0:?}; it may have letters, digits and . _ / -")]
    Character(char),
    /// No answer's topic would fit.
    #[error("the namespace has {0} bytes; it may have {LONGEST_NAMESPACE}")]
    TooLong(usize),
}

/// Why there is no such topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTopic {
    /// A name is missing.
    #[error("a name in a topic is empty")]
    Empty,
    /// A wildcard of one of the protocols, a control character, no character at all, or a slash where a name is one level.
    #[error("a name in a topic has {0:?}")]
    Character(char),
    /// Brokers refuse it.
    #[error("the topic has {0} bytes; it may have {LONGEST}")]
    TooLong(usize),
    /// Brokers refuse it.
    #[error("the topic has more than {MOST_LEVELS} levels")]
    TooManyLevels,
}

/// What a topic is for. A tool's name and a correlation may have slashes in them, an agent's may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Topic<'a> {
    /// An agent asks for a tool to be run.
    Invoke(&'a str),
    /// The one answer to an invocation or to a question what a tool is.
    Response {
        agent: &'a str,
        correlation: &'a str,
    },
    /// What a tool says meanwhile.
    Status {
        agent: &'a str,
        correlation: &'a str,
    },
    /// A worker tells everybody what a tool is; older agents ask here.
    Init(&'a str),
    /// An agent asks what a tool is.
    InitRequest(&'a str),
    /// A worker has the tool no more.
    Removed(&'a str),
    /// The invocation of this correlation is not wanted any more.
    Cancel(&'a str),
    /// A worker could not learn what a tool is.
    FailedDiscovery(&'a str),
    /// Agents and gateways tell of themselves.
    Discovery(&'a str),
}

impl Base {
    /// The base of a namespace. An empty one is as if `default` had been said; slashes at its end are dropped.
    pub fn new(namespace: &str, default: &str) -> Result<Base, BadNamespace> {
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
        } else if namespace.len() > LONGEST_NAMESPACE {
            Err(BadNamespace::TooLong(namespace.len()))
        } else if let Some(letter) = namespace.chars().find(is_foreign) {
            Err(BadNamespace::Character(letter))
        } else if namespace.contains("..") {
            Err(BadNamespace::TwoDots)
        } else {
            Ok(Base(format!("{namespace}/a2a/v1")))
        }
    }

    /// The namespace, without slashes at its end.
    pub fn namespace(&self) -> &str {
        self.0.strip_suffix("/a2a/v1").unwrap_or(&self.0)
    }

    /// The topic's text.
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
        Ok(format!("{}/{OF_TOOLS}/{kind}/{}", self.0, name(tool)?))
    }

    fn to_agent(&self, kind: &str, agent: &str, correlation: &str) -> Result<String, BadTopic> {
        if agent.contains('/') {
            return Err(BadTopic::Character('/'));
        }
        Ok(format!(
            "{}/{OF_TOOLS}/{kind}/{}/{}",
            self.0,
            name(agent)?,
            name(correlation)?
        ))
    }

    /// What a topic is for; nothing if it is none of this mesh's, or one that could not be answered.
    pub fn read<'a>(&self, topic: &'a str) -> Option<Topic<'a>> {
        bounded(topic).ok()?;
        let (room, rest) = topic
            .strip_prefix(&self.0)?
            .strip_prefix('/')?
            .split_once('/')?;
        let rest = name(rest).ok()?;
        match room {
            DISCOVERY => Some(Topic::Discovery(rest)),
            OF_TOOLS => of_tools(rest),
            _ => None,
        }
    }

    /// Where a tool is invoked.
    pub fn invoke(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::Invoke(tool))
    }

    /// Where an agent waits for an answer.
    pub fn response(&self, agent: &str, correlation: &str) -> Result<String, BadTopic> {
        self.write(Topic::Response { agent, correlation })
    }

    /// Where an agent listens to what a tool says meanwhile.
    pub fn status(&self, agent: &str, correlation: &str) -> Result<String, BadTopic> {
        self.write(Topic::Status { agent, correlation })
    }

    /// Where everybody is told what a tool is, and where older agents ask.
    pub fn init(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::Init(tool))
    }

    /// Where it is asked what a tool is.
    pub fn init_request(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::InitRequest(tool))
    }

    /// Where everybody is told that a tool is gone.
    pub fn removed(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::Removed(tool))
    }

    /// Where an invocation is cancelled.
    pub fn cancel(&self, correlation: &str) -> Result<String, BadTopic> {
        self.write(Topic::Cancel(correlation))
    }

    /// Where it is told that a tool does not say what it is.
    pub fn failed_discovery(&self, tool: &str) -> Result<String, BadTopic> {
        self.write(Topic::FailedDiscovery(tool))
    }

    /// All questions what a tool is.
    pub fn init_requests(&self) -> String {
        format!("{}/{OF_TOOLS}/init_request/>", self.0)
    }

    /// All cancellations.
    pub fn cancellations(&self) -> String {
        format!("{}/{OF_TOOLS}/cancel/>", self.0)
    }

    /// All that agents and gateways tell of themselves.
    pub fn discovery(&self) -> String {
        format!("{}/{DISCOVERY}/>", self.0)
    }

    /// What the topics of all answers begin with, for messages.
    pub fn responses(&self) -> String {
        format!("{}/{OF_TOOLS}/response/", self.0)
    }
}

fn of_tools(topic: &str) -> Option<Topic<'_>> {
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

/// A name as it may stand in a topic. What is a wildcard in one protocol is one in all: messages pass from one to another.
fn name(text: &str) -> Result<&str, BadTopic> {
    let is_foreign =
        |letter: &char| "*>+#".contains(*letter) || letter.is_control() || is_no_character(*letter);
    match text.chars().find(is_foreign) {
        Some(letter) => Err(BadTopic::Character(letter)),
        None if text.is_empty() => Err(BadTopic::Empty),
        None => Ok(text),
    }
}

/// What Unicode never gives a meaning. MQTT lets a broker end the connection over it.
fn is_no_character(letter: char) -> bool {
    let code = u32::from(letter);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

fn bounded(topic: &str) -> Result<(), BadTopic> {
    if topic.len() > LONGEST {
        Err(BadTopic::TooLong(topic.len()))
    } else if topic.split('/').count() > MOST_LEVELS {
        Err(BadTopic::TooManyLevels)
    } else {
        Ok(())
    }
}

/// Why a pattern cannot be said in MQTT.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be said in MQTT: there `*` is a whole level, `>` is the last, `+` and `#` are no letters"
)]
pub struct BadPattern(pub String);

/// A pattern of the mesh in the words of MQTT. It is a little wider: `#` is also the level above.
pub fn mqtt_filter(pattern: &str) -> Result<String, BadPattern> {
    let bad = || BadPattern(pattern.chars().take(LONGEST).collect());
    let last = pattern.split('/').count() - 1;
    let level = |(index, level): (usize, &str)| match level {
        "*" => Ok("+".to_owned()),
        ">" if index == last => Ok("#".to_owned()),
        plain if plain.is_empty() || name(plain).is_ok() => Ok(plain.to_owned()),
        _ => Err(bad()),
    };
    if pattern.is_empty() || pattern.len() > LONGEST {
        return Err(bad());
    }
    let levels: Vec<String> = pattern
        .split('/')
        .enumerate()
        .map(level)
        .collect::<Result<_, _>>()?;
    Ok(levels.join("/"))
}

/// What a last `>` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// At least one level, as brokers of the mesh have it.
    OneLevelOrMore,
    /// Also nothing behind the slash, as the broker for a laptop has it.
    AlsoNothing,
}

/// Whether a pattern of the mesh means a topic. `*` is a level, or the end of one.
pub fn matches(pattern: &str, topic: &str, rest: Rest) -> bool {
    let mut wanted = pattern.split('/').peekable();
    let mut levels = topic.split('/');
    while let Some(next) = wanted.next() {
        let level = levels.next();
        let is_rest = next == ">" && wanted.peek().is_none();
        match level {
            Some(level) if is_rest => {
                return rest == Rest::AlsoNothing || !level.is_empty() || levels.next().is_some();
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
