//! Requests: invoke a tool, describe a tool, cancel. Unknown fields are ignored, and null counts as
//! absent where a field is optional. Of invalid JSON only what Python writes is accepted: see
//! `lenient.rs`.
//!
//! ```text
//! message ─┬─ for others, an announcement ─▶ NotARequest
//!          ├─ valid ─▶ WorkerRequest
//!          ├─ invalid ─▶ Refused: its requester is told, under its own id if that is readable
//!          └─ invalid, without a reply address ─▶ Unanswerable
//! ```

use super::{
    code::{CallRefusal, MeshErrorCode},
    fields::{self, Fields},
    reply_address,
    topic::{Topic, TopicBase},
};
use crate::transport::Properties;
use serde::Serialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use std::{collections::BTreeMap, fmt, time::Duration};

/// Maximum length of a request id, in bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Maximum length of other names: users, sessions, files.
pub const MAX_NAME_BYTES: usize = 1024;
/// Maximum number of files in a request; also of references.
pub const MAX_FILES: usize = 256;
/// Shorter timeouts are raised to this: no tool starts in no time.
pub const MIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Longer timeouts are reduced to this.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Maximum length of the user's configuration that is passed on, in bytes.
const MAX_USER_CONFIG_BYTES: usize = 64 << 10;
/// Memory of any request besides its content: copies of names, reply address, table entries.
const REQUEST_OVERHEAD_BYTES: usize = 4 << 10;

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct RawMessage<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// User properties.
    pub properties: &'a Properties,
}

/// A request to a worker.
#[derive(Clone, Debug)]
pub enum WorkerRequest {
    /// Run a tool.
    Invoke(Box<Invoke>),
    /// Describe a tool.
    Init(Box<InitRequest>),
    /// Cancel the invocation with this [`Invoke::id`] or [`ReplyAddress::correlation`].
    Cancel(String),
}

/// Why a message is no valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is something else, or for somebody else.
    NotARequest,
    /// Its requester is to be told.
    Refused(Box<AddressedRefusal>),
    /// It has no reply address. For the log.
    Unanswerable(CallRefusal),
}

/// A refusal with its reply address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressedRefusal {
    /// Id of the request, else the id that its requester listens for.
    pub id: String,
    /// Where to send the refusal.
    pub reply: ReplyAddress,
    /// The refusal.
    pub refusal: CallRefusal,
}

/// An invocation of a tool.
#[derive(Clone)]
pub struct Invoke {
    /// Id of the request.
    pub id: String,
    /// Task id of the agent.
    pub task_id: String,
    /// Name in the topic; the name in the message is ignored.
    pub tool: String,
    /// Arguments of the tool.
    pub args: RawObject,
    /// Contains secrets.
    pub tool_config: RawObject,
    /// May be empty, as the next two, and may be anything: they are not paths.
    pub app_name: String,
    /// User on whose behalf the agent acts.
    pub user_id: String,
    /// Session of the user.
    pub session_id: String,
    /// By parameter, or `parameter[0]`, `parameter[1]`, … .
    pub preloaded: BTreeMap<String, PreloadedFile>,
    /// References to stored artifacts, by parameter.
    pub references: BTreeMap<String, ArtifactReference>,
    /// Between [`MIN_TIMEOUT`] and [`MAX_TIMEOUT`]; none if absent.
    pub timeout: Option<Duration>,
    /// Profile that is requested.
    pub profile: Option<String>,
    /// Unverified JSON about the user: context for the tool, not for decisions.
    pub user_config: Option<String>,
    /// Where to send the answer.
    pub reply: ReplyAddress,
}

/// An object as raw JSON: the tool gets the same digits and the same order.
#[derive(Clone, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(transparent)]
pub struct RawObject(Box<RawValue>);

impl RawObject {
    /// The JSON text.
    pub fn text(&self) -> &str {
        self.0.get()
    }
}

impl From<Map<String, Value>> for RawObject {
    /// Cannot fail: all keys are strings.
    fn from(map: Map<String, Value>) -> RawObject {
        RawObject(to_raw_value(&map).unwrap_or_default())
    }
}

/// Leaves out arguments and configuration, which contain secrets.
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

/// A file in the request. Its name is not validated and may be a hostile path.
#[derive(Clone, PartialEq, Eq)]
pub struct PreloadedFile {
    /// File name.
    pub filename: String,
    /// Content.
    pub content: Vec<u8>,
    /// MIME type.
    pub mime_type: String,
    /// Version number.
    pub version: i64,
}

impl fmt::Debug for PreloadedFile {
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

/// A reference to a stored artifact. Its name is not validated and may be a hostile path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactReference {
    /// Name.
    pub filename: String,
    /// Version; none for the latest.
    pub version: Option<i64>,
}

/// A request to describe a tool.
#[derive(Clone)]
pub struct InitRequest {
    /// Id of the request.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// Contains secrets.
    pub tool_config: Map<String, Value>,
    /// Format of the answer.
    pub format: CardFormat,
    /// Where to send the answer.
    pub reply: ReplyAddress,
}

/// Leaves out the configuration, which contains secrets.
impl fmt::Debug for InitRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("InitRequest")
            .field("id", &self.id)
            .field("tool", &self.tool)
            .field("words", &self.format)
            .field("reply", &self.reply)
            .finish_non_exhaustive()
    }
}

/// Format of a tool's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardFormat {
    /// `description`, `parameters`.
    Current,
    /// `tool_description`, `parameters_schema`: for agents that ask by `init/`.
    Legacy,
}

/// Where the answer goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyAddress {
    /// Topic of the answer: always a response topic of our own mesh.
    pub to: String,
    /// Topic of statuses: always a status topic of our own mesh.
    pub status_to: Option<String>,
    /// Id by which the requester knows the answer and may cancel.
    pub correlation: String,
    /// Properties that are sent back: `traceId`.
    pub echoed: Properties,
    /// Time of sending by the sender's clock, in milliseconds since 1970.
    pub sent_ms: Option<u64>,
}

/// Upper bound of a parsed request's memory: `[[],[],[]]` takes far more than its length.
pub fn weight(payload: &[u8]) -> usize {
    payload
        .len()
        .saturating_add(fields::memory_estimate(payload))
        .saturating_add(REQUEST_OVERHEAD_BYTES)
}

/// Parses a message of at most `largest` bytes.
pub fn read(
    base: &TopicBase,
    message: RawMessage<'_>,
    largest: usize,
) -> Result<WorkerRequest, RequestError> {
    let topic = base.read(message.topic).ok_or(RequestError::NotARequest)?;
    let text = fields::text(message.payload, largest);
    let open = || RequestParser::open(base, message.properties, text.as_deref());
    match topic {
        Topic::Invoke(tool) => {
            let parser = open()?;
            parser.answered(|parser, reply| parser.invoke(tool, reply))
        }
        Topic::InitRequest(tool) => {
            let parser = open()?;
            parser.answered(|parser, reply| parser.init(tool, CardFormat::Current, reply))
        }
        Topic::Init(tool) => {
            let parser = open().map_err(|_| RequestError::NotARequest)?;
            // Announcements have neither, ours among them.
            if !parser.fields.has("id")
                || reply_address::property(message.properties, "replyTo").is_none()
            {
                return Err(RequestError::NotARequest);
            }
            parser.answered(|parser, reply| parser.init(tool, CardFormat::Legacy, reply))
        }
        // The rest of the message is not specified; the topic has the id.
        Topic::Cancel(correlation) => Ok(WorkerRequest::Cancel(correlation.to_owned())),
        Topic::Response { .. }
        | Topic::Status { .. }
        | Topic::Removed(_)
        | Topic::FailedDiscovery(_)
        | Topic::Discovery(_) => Err(RequestError::NotARequest),
    }
}

/// A message that is a JSON object, while it is parsed.
struct RequestParser<'a> {
    base: &'a TopicBase,
    properties: &'a Properties,
    fields: Fields<'a>,
    /// Id of the answer, if the message has one.
    id: Option<String>,
    /// Agent to answer, if no property names one.
    agent: Option<String>,
}

impl<'a> RequestParser<'a> {
    fn open(
        base: &'a TopicBase,
        properties: &'a Properties,
        text: Result<&'a [u8], &CallRefusal>,
    ) -> Result<RequestParser<'a>, RequestError> {
        let (fields, refusal) = match text
            .map_err(CallRefusal::clone)
            .and_then(Fields::of_message)
        {
            Ok(fields) => (fields, None),
            Err(refusal) => (Fields::default(), Some(refusal)),
        };
        let id = fields
            .peek("id")
            .filter(|id| (1..=MAX_ID_BYTES).contains(&id.len()));
        let agent = fields.peek_within("params", "app_name");
        let parser = RequestParser {
            base,
            properties,
            fields,
            id,
            agent,
        };
        match refusal {
            None => Ok(parser),
            Some(refusal) => parser.answered(|_, _| Err(refusal)),
        }
    }

    /// Result of `read`, or a refusal with its reply address.
    fn answered<T>(
        mut self,
        read: impl FnOnce(&mut RequestParser<'a>, ReplyAddress) -> Result<T, CallRefusal>,
    ) -> Result<T, RequestError> {
        let found = reply_address::find(
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

    fn refuse(self, refusal: CallRefusal, reply: Option<ReplyAddress>) -> RequestError {
        match reply {
            Some(reply) => {
                // The requester waits for this id at that topic.
                let id = self.id.unwrap_or_else(|| reply.correlation.clone());
                RequestError::Refused(Box::new(AddressedRefusal { id, reply, refusal }))
            }
            None => RequestError::Unanswerable(refusal),
        }
    }

    fn invoke(&mut self, tool: &str, reply: ReplyAddress) -> Result<WorkerRequest, CallRefusal> {
        self.is_spoken(&["sam_remote_tool/invoke", "sandbox/invoke"])?;
        let id = self.id()?;
        let mut params = self.fields.inner("params", "params.")?;
        // Informational, but all agents of this mesh send it.
        params.text("tool_name", MAX_NAME_BYTES)?;
        Ok(WorkerRequest::Invoke(Box::new(Invoke {
            id,
            task_id: params.text("task_id", MAX_NAME_BYTES)?,
            tool: tool.to_owned(),
            args: object(&mut params, "args")?,
            tool_config: object(&mut params, "tool_config")?,
            app_name: params.text("app_name", MAX_NAME_BYTES)?,
            user_id: params.text("user_id", MAX_NAME_BYTES)?,
            session_id: params.text("session_id", MAX_NAME_BYTES)?,
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
                .optional_text("sandbox_profile", MAX_NAME_BYTES)?
                .filter(|name| !name.is_empty()),
            user_config: reply_address::property(self.properties, "a2aUserConfig")
                .filter(|text| text.len() <= MAX_USER_CONFIG_BYTES)
                .map(str::to_owned),
            reply,
        })))
    }

    /// The tool's name in the message is ignored: the topic has it.
    fn init(
        &mut self,
        tool: &str,
        format: CardFormat,
        reply: ReplyAddress,
    ) -> Result<WorkerRequest, CallRefusal> {
        self.is_spoken(&["sam_remote_tool/init_request", "sam_remote_tool/init"])?;
        let id = self.id()?;
        let mut params = if self.fields.has("params") {
            self.fields.inner("params", "params.")?
        } else {
            Fields::default()
        };
        let tool_config = params.object("tool_config")?;
        Ok(WorkerRequest::Init(Box::new(InitRequest {
            id,
            tool: tool.to_owned(),
            tool_config,
            format,
            reply,
        })))
    }

    /// Refuses other protocols and methods.
    fn is_spoken(&self, methods: &[&str]) -> Result<(), CallRefusal> {
        if self.fields.has("jsonrpc") && self.fields.peek("jsonrpc").as_deref() != Some("2.0") {
            return Err(invalid("`jsonrpc` must be \"2.0\""));
        }
        let is_known = self
            .fields
            .peek("method")
            .is_some_and(|method| methods.contains(&method.as_str()));
        if is_known || !self.fields.has("method") {
            Ok(())
        } else {
            Err(invalid(format!("`method` must be `{}`", methods[0])))
        }
    }

    fn id(&self) -> Result<String, CallRefusal> {
        let bad = || invalid(format!("`id` must be a text of 1 to {MAX_ID_BYTES} bytes"));
        self.id.clone().ok_or_else(bad)
    }
}

/// An INVALID_REQUEST refusal.
pub(super) fn invalid(message: impl Into<String>) -> CallRefusal {
    CallRefusal::new(MeshErrorCode::InvalidRequest, message)
}

fn object(params: &mut Fields<'_>, name: &str) -> Result<RawObject, CallRefusal> {
    Ok(params
        .written_object(name)?
        .map_or_else(|| RawObject::from(Map::new()), RawObject))
}

fn timeout(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).clamp(MIN_TIMEOUT, MAX_TIMEOUT)
}

fn preloaded(file: &mut Fields<'_>) -> Result<PreloadedFile, CallRefusal> {
    Ok(PreloadedFile {
        filename: file.text("filename", MAX_NAME_BYTES)?,
        content: file.base64("content")?,
        mime_type: file
            .optional_text("mime_type", MAX_NAME_BYTES)?
            .unwrap_or_else(|| "application/octet-stream".to_owned()),
        version: file
            .integer("version")?
            .ok_or_else(|| file.must("version", "an integer"))?,
    })
}

fn reference(file: &mut Fields<'_>) -> Result<ArtifactReference, CallRefusal> {
    Ok(ArtifactReference {
        filename: file.text("filename", MAX_NAME_BYTES)?,
        version: file.integer("version")?,
    })
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
