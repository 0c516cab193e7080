//! Requests: an invocation of a tool, a question what a tool is, a cancellation. Unknown fields are passed over, nulls are as
//! if absent where a field may be. Of texts that are not quite JSON only those that Python writes are taken: see `lenient.rs`.
//!
//! ```text
//! message ─┬─ not for workers, a broadcast ─▶ NotARequest
//!          ├─ read ─▶ Request
//!          ├─ not understood ─▶ Refused: its asker is told, under its own id if that could be read
//!          └─ not understood, and no topic to say so ─▶ Unanswerable
//! ```

use super::{
    code::{Code, Refusal},
    fields::{self, Fields},
    reply,
    topic::{Base, Topic},
};
use crate::transport::Properties;
use serde::Serialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use std::{collections::BTreeMap, fmt, time::Duration};

/// The longest id of a request, in bytes.
pub const LONGEST_ID: usize = 256;
/// The longest name of anything else: users, sessions, files.
pub const LONGEST_NAME: usize = 1024;
/// Files that come with a request; also, those that it refers to.
pub const MOST_FILES: usize = 256;
/// A request for less time, even for less than none, gets this: in no time no tool can be started.
pub const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);
/// A request for more time gets this.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);
/// The longest text about a user that is passed on, in bytes.
const LONGEST_USER_CONFIG: usize = 64 << 10;
/// What is kept of any request besides what it says: its names several times, where the answer goes, a place in tables.
const ROOM_OF_REQUEST: usize = 4 << 10;

/// A message as it came.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Message<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub properties: &'a Properties,
}

/// What somebody wants of a worker.
#[derive(Clone, Debug)]
pub enum Request {
    /// Run a tool.
    Invoke(Box<Invoke>),
    /// Say what a tool is.
    Init(Box<InitRequest>),
    /// Stop the invocation whose [`Invoke::id`] or [`Reply::correlation`] this is.
    Cancel(String),
}

/// Why there is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is something else, or somebody else's.
    NotARequest,
    /// Its asker is to be told.
    Refused(Box<Refused>),
    /// Its asker cannot be told: it says nowhere where it listens. For the log.
    Unanswerable(Refusal),
}

/// A refusal with its address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Refused {
    /// The request's own, else the one that its asker listens under.
    pub id: String,
    pub reply: Reply,
    pub refusal: Refusal,
}

/// An invocation, as far as it was understood.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Invoke {
    pub id: String,
    pub task_id: String,
    /// As the topic has it; what the message says is not looked at.
    pub tool: String,
    pub args: Object,
    /// Secrets are among it.
    pub tool_config: Object,
    /// May be empty, as may be the two below, and may be anything: they are no paths.
    pub app_name: String,
    pub user_id: String,
    pub session_id: String,
    /// By parameter, or `parameter[0]`, `parameter[1]`, … .
    pub preloaded: BTreeMap<String, Preloaded>,
    pub references: BTreeMap<String, Reference>,
    /// Between [`SHORTEST_TIMEOUT`] and [`LONGEST_TIMEOUT`]; none if nothing was said.
    pub timeout: Option<Duration>,
    pub profile: Option<String>,
    /// A JSON text about the user, by nobody's authority: context for the tool, nothing to decide by.
    pub user_config: Option<String>,
    pub reply: Reply,
}

/// An object as its sender wrote it: what a tool is given has the same digits and the same order, however many there are.
#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(transparent)]
pub struct Object(Box<RawValue>);

impl Object {
    /// Its text.
    pub fn text(&self) -> &str {
        self.0.get()
    }
}

impl From<Map<String, Value>> for Object {
    /// Keys are texts, which is all that could fail.
    fn from(map: Map<String, Value>) -> Object {
        Object(to_raw_value(&map).unwrap_or_default())
    }
}

/// Names only: arguments and configuration have secrets among them.
impl fmt::Debug for Invoke {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Invoke")
            .field("id", &self.id)
            .field("tool", &self.tool)
            .field("timeout", &self.timeout)
            .field("profile", &self.profile)
            .field("reply", &self.reply)
            .finish_non_exhaustive()
    }
}

/// A file that came with the request. Its name is not checked: it may be a path, and hostile.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Preloaded {
    pub filename: String,
    pub content: Vec<u8>,
    pub mime_type: String,
    pub version: i64,
}

impl fmt::Debug for Preloaded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Preloaded({:?}, version {}, {} bytes)",
            self.filename,
            self.version,
            self.content.len()
        )
    }
}

/// A file that lies where artifacts do. Its name is not checked: it may be a path, and hostile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name.
    pub filename: String,
    /// None is the latest.
    pub version: Option<i64>,
}

/// A question what a tool is.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct InitRequest {
    pub id: String,
    pub tool: String,
    /// Secrets are among it.
    pub tool_config: Map<String, Value>,
    pub words: Words,
    pub reply: Reply,
}

/// Names only: the configuration has secrets among it.
impl fmt::Debug for InitRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("InitRequest")
            .field("id", &self.id)
            .field("tool", &self.tool)
            .field("words", &self.words)
            .field("reply", &self.reply)
            .finish_non_exhaustive()
    }
}

/// In which words it is told what a tool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// `description`, `parameters`.
    Today,
    /// `tool_description`, `parameters_schema`: of agents that ask by `init/`.
    Old,
}

/// Where the answer goes, and what goes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The topic of the one answer: always one of answers, and of our own mesh.
    pub to: String,
    /// The topic of what is said meanwhile: always one of such.
    pub status_to: Option<String>,
    /// By which the asker knows the answer, and may cancel.
    pub correlation: String,
    /// What is sent back as it came: `traceId`.
    pub echoed: Properties,
    /// When it was sent, by the sender's clock; milliseconds since 1970.
    pub sent_ms: Option<u64>,
}

/// What a request takes in memory at most, once it is read: `[[],[],[]]` takes far more than it has bytes.
pub fn weight(payload: &[u8]) -> usize {
    payload
        .len()
        .saturating_add(fields::room(payload))
        .saturating_add(ROOM_OF_REQUEST)
}

/// What a message wants. `largest` is the most bytes that a message may have.
pub fn read(base: &Base, message: Message<'_>, largest: usize) -> Result<Request, Unread> {
    let topic = base.read(message.topic).ok_or(Unread::NotARequest)?;
    let text = fields::text(message.payload, largest);
    let open = || Letter::open(base, message.properties, text.as_deref());
    match topic {
        Topic::Invoke(tool) => {
            let letter = open()?;
            letter.answered(|letter, reply| letter.invoke(tool, reply))
        }
        Topic::InitRequest(tool) => {
            let letter = open()?;
            letter.answered(|letter, reply| letter.init(tool, Words::Today, reply))
        }
        Topic::Init(tool) => {
            let letter = open().map_err(|_| Unread::NotARequest)?;
            // Broadcasts have neither, ours among them.
            if !letter.fields.has("id") || reply::property(message.properties, "replyTo").is_none()
            {
                return Err(Unread::NotARequest);
            }
            letter.answered(|letter, reply| letter.init(tool, Words::Old, reply))
        }
        // What else it says nobody has published; whom it means is in the topic.
        Topic::Cancel(correlation) => Ok(Request::Cancel(correlation.to_owned())),
        Topic::Response { .. }
        | Topic::Status { .. }
        | Topic::Removed(_)
        | Topic::FailedDiscovery(_)
        | Topic::Discovery(_) => Err(Unread::NotARequest),
    }
}

/// A message that is a JSON object, while it is read.
struct Letter<'a> {
    base: &'a Base,
    properties: &'a Properties,
    fields: Fields<'a>,
    /// What the answer will be called, if it says so.
    id: Option<String>,
    /// To whom it goes if no property says so.
    agent: Option<String>,
}

impl<'a> Letter<'a> {
    fn open(
        base: &'a Base,
        properties: &'a Properties,
        text: Result<&'a [u8], &Refusal>,
    ) -> Result<Letter<'a>, Unread> {
        let (fields, trouble) = match text.map_err(Refusal::clone).and_then(Fields::of_message) {
            Ok(fields) => (fields, None),
            Err(trouble) => (Fields::default(), Some(trouble)),
        };
        let id = fields
            .peek("id")
            .filter(|id| (1..=LONGEST_ID).contains(&id.len()));
        let agent = fields.peek_within("params", "app_name");
        let letter = Letter {
            base,
            properties,
            fields,
            id,
            agent,
        };
        match trouble {
            None => Ok(letter),
            Some(trouble) => letter.answered(|_, _| Err(trouble)),
        }
    }

    /// What `read` makes of it; otherwise a refusal with the address that the answer would have had.
    fn answered<T>(
        mut self,
        read: impl FnOnce(&mut Letter<'a>, Reply) -> Result<T, Refusal>,
    ) -> Result<T, Unread> {
        let found = reply::find(
            self.base,
            self.properties,
            self.id.as_deref(),
            self.agent.as_deref(),
        );
        let (reply, request) = match found {
            Ok(reply) => (Some(reply.clone()), read(&mut self, reply)),
            Err(nowhere) => (nowhere.instead, Err(nowhere.why)),
        };
        request.map_err(|refusal| self.refuse(refusal, reply))
    }

    fn refuse(self, refusal: Refusal, reply: Option<Reply>) -> Unread {
        match reply {
            Some(reply) => {
                // Whoever waits at that topic knows it by this name.
                let id = self.id.unwrap_or_else(|| reply.correlation.clone());
                Unread::Refused(Box::new(Refused { id, reply, refusal }))
            }
            None => Unread::Unanswerable(refusal),
        }
    }

    fn invoke(&mut self, tool: &str, reply: Reply) -> Result<Request, Refusal> {
        self.is_spoken(&["sam_remote_tool/invoke", "sandbox/invoke"])?;
        let id = self.id()?;
        let mut params = self.fields.inner("params", "params.")?;
        // Informative, but those who send none are no agents of this mesh.
        params.text("tool_name", LONGEST_NAME)?;
        Ok(Request::Invoke(Box::new(Invoke {
            id,
            task_id: params.text("task_id", LONGEST_NAME)?,
            tool: tool.to_owned(),
            args: object(&mut params, "args")?,
            tool_config: object(&mut params, "tool_config")?,
            app_name: params.text("app_name", LONGEST_NAME)?,
            user_id: params.text("user_id", LONGEST_NAME)?,
            session_id: params.text("session_id", LONGEST_NAME)?,
            preloaded: params.files(
                "preloaded_artifacts",
                "params.preloaded_artifacts[…].",
                preloaded,
            )?,
            references: params.files(
                "artifact_references",
                "params.artifact_references[…].",
                reference,
            )?,
            timeout: params.integer("timeout_seconds")?.map(timeout),
            profile: params
                .optional_text("sandbox_profile", LONGEST_NAME)?
                .filter(|name| !name.is_empty()),
            user_config: reply::property(self.properties, "a2aUserConfig")
                .filter(|text| text.len() <= LONGEST_USER_CONFIG)
                .map(str::to_owned),
            reply,
        })))
    }

    /// The tool's name in the message is not looked at: the topic has it.
    fn init(&mut self, tool: &str, words: Words, reply: Reply) -> Result<Request, Refusal> {
        self.is_spoken(&["sam_remote_tool/init_request", "sam_remote_tool/init"])?;
        let id = self.id()?;
        let mut params = match self.fields.has("params") {
            true => self.fields.inner("params", "params.")?,
            false => Fields::default(),
        };
        let tool_config = params.object("tool_config")?;
        Ok(Request::Init(Box::new(InitRequest {
            id,
            tool: tool.to_owned(),
            tool_config,
            words,
            reply,
        })))
    }

    /// Refuses other protocols, and other methods than these.
    fn is_spoken(&self, methods: &[&str]) -> Result<(), Refusal> {
        if self.fields.has("jsonrpc") && self.fields.peek("jsonrpc").as_deref() != Some("2.0") {
            return Err(invalid("`jsonrpc` must be \"2.0\""));
        }
        let is_known = self
            .fields
            .peek("method")
            .is_some_and(|method| methods.contains(&method.as_str()));
        match is_known || !self.fields.has("method") {
            true => Ok(()),
            false => Err(invalid(format!("`method` must be `{}`", methods[0]))),
        }
    }

    fn id(&self) -> Result<String, Refusal> {
        let bad = || invalid(format!("`id` must be a text of 1 to {LONGEST_ID} bytes"));
        self.id.clone().ok_or_else(bad)
    }
}

/// The request is not understood.
pub(super) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Code::InvalidRequest, message)
}

fn object(params: &mut Fields<'_>, name: &str) -> Result<Object, Refusal> {
    Ok(params
        .written_object(name)?
        .map_or_else(|| Object::from(Map::new()), Object))
}

fn timeout(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        .clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
}

fn preloaded(file: &mut Fields<'_>) -> Result<Preloaded, Refusal> {
    Ok(Preloaded {
        filename: file.text("filename", LONGEST_NAME)?,
        content: file.base64("content")?,
        mime_type: file
            .optional_text("mime_type", LONGEST_NAME)?
            .unwrap_or_else(|| "application/octet-stream".to_owned()),
        version: file
            .integer("version")?
            .ok_or_else(|| file.must("version", "an integer"))?,
    })
}

fn reference(file: &mut Fields<'_>) -> Result<Reference, Refusal> {
    Ok(Reference {
        filename: file.text("filename", LONGEST_NAME)?,
        version: file.integer("version")?,
    })
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
