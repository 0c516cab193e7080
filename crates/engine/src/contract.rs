//! Output contracts: standard output must be exactly one JSON object of a known shape that agrees
//! with the exit status. Otherwise the run has failed.
//!
//! The program may be hostile: sizes are checked before parsing, and the message of a violation
//! quotes no more of the output than a short, escaped name.

use spec::{Contract, ErrorCode, ErrorInfo, Json, RunResult, Status};
use std::collections::BTreeMap;

/// The longest object; its tree takes at most a few dozen times as much memory.
const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting: results, jobs and events are wrapped around the object, and most readers
/// accept 127 levels in all.
const MAX_DEPTH: usize = 100;
const MAX_PAYLOADS: usize = 1000;
const MAX_TOOL_CALLS: usize = 10_000;

/// A violation of a contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("stdout is longer than what was kept of it")]
    Cut,
    #[error("stdout is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("stdout is empty")]
    Empty,
    #[error("stdout is not exactly one JSON object: line {line}, column {column}")]
    NotOneObject { line: usize, column: usize },
    #[error("stdout is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("`{place}` {what}")]
    Shape { place: String, what: &'static str },
    #[error("{said}, but the program exited with {code}")]
    Contradiction { said: &'static str, code: i32 },
}

/// Parses the output of a program that exited by itself; a violation makes the run failed.
pub(crate) fn enforce(contract: Contract, result: &mut RunResult) {
    let exited = match result.status {
        Status::Succeeded | Status::Failed => result.exit_code,
        Status::Queued
        | Status::Running
        | Status::TimedOut
        | Status::OomKilled
        | Status::Cancelled
        | Status::NotStarted
        | Status::Lost => None,
    };
    let Some(code) = exited else { return };
    match read(contract, &result.stdout, result.truncated.stdout, code) {
        Ok(output) => result.output = output,
        Err(violation) => {
            result.status = Status::Failed;
            result.exit_status = result.exit_status.max(1);
            result.error = Some(ErrorInfo {
                code: ErrorCode::ContractViolated,
                message: format!("the program broke the contract `{contract}`: {violation}"),
                hint: Some(
                    "its log belongs on stderr; docs/agent.md shows what stdout must be".to_owned(),
                ),
            });
        }
    }
}

/// The output as the contract defines it; none for a raw contract.
pub(crate) fn read(
    contract: Contract,
    stdout: &[u8],
    cut: bool,
    code: i32,
) -> Result<Option<Json>, Violation> {
    let check: fn(&Json, i32) -> Result<(), Violation> = match contract {
        Contract::Raw => return Ok(None),
        Contract::Task => check_task,
        Contract::Envelope => check_envelope,
    };
    match stdout {
        _ if cut => return Err(Violation::Cut),
        _ if stdout.len() > MAX_BYTES => return Err(Violation::TooLong),
        blank if blank.iter().all(u8::is_ascii_whitespace) => return Err(Violation::Empty),
        _ => {}
    }
    let read: Json = serde_json::from_slice(stdout).map_err(|error| Violation::NotOneObject {
        line: error.line(),
        column: error.column(),
    })?;
    if depth(&read) > MAX_DEPTH {
        return Err(Violation::TooDeep);
    }
    check(&read, code)?;
    Ok(Some(read))
}

fn depth(value: &Json) -> usize {
    match value {
        Json::List(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Json::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Json::Null
        | Json::Bool(_)
        | Json::Whole(_)
        | Json::Negative(_)
        | Json::Fraction(_)
        | Json::Text(_) => 0,
    }
}

/// Exit status 0 is `completed`, 1 `failed`, 2 `rejected`; any other is a crash.
fn check_task(read: &Json, code: i32) -> Result<(), Violation> {
    let known = [
        "task_id",
        "status",
        "result",
        "error",
        "tool_calls",
        "tokens_used",
    ];
    let task = Fields::of(read, String::new(), &known)?;
    task.text("task_id")?;
    let (said, expected) = match task.text("status")? {
        "completed" => ("the task is `completed`", 0),
        "failed" => ("the task is `failed`", 1),
        "rejected" => ("the task is `rejected`", 2),
        _ => return Err(task.shape_error("status", "is not completed, failed or rejected")),
    };
    match (expected, task.get("result"), task.get("error")) {
        (0, None, _) => return Err(task.shape_error("result", "is missing")),
        (0, Some(_), None | Some(Json::Null)) => {}
        (0, Some(_), Some(_)) => {
            return Err(task.shape_error("error", "is there although the task is completed"));
        }
        (_, _, None | Some(Json::Null)) => return Err(task.shape_error("error", "is missing")),
        (_, _, Some(Json::Text(_))) => {}
        (_, _, Some(_)) => return Err(task.shape_error("error", "is not a text")),
    }
    for call in task.objects("tool_calls", MAX_TOOL_CALLS, &["tool", "input", "output"])? {
        call.text("tool")?;
        call.required("input")?;
        call.required("output")?;
    }
    if let Some(used) = task.object("tokens_used", &["input", "output"])? {
        used.whole("input")?;
        used.whole("output")?;
    }
    agree(said, expected == code, code)
}

/// Exit status 0 without an error, any other with one. Beyond the plain form only fields that
/// OpenClaw is known to add are accepted.
fn check_envelope(read: &Json, code: i32) -> Result<(), Violation> {
    let envelope = Fields::of(read, String::new(), &["payloads", "meta"])?;
    envelope.required("payloads")?;
    for payload in envelope.objects("payloads", MAX_PAYLOADS, &["text", "mediaUrl"])? {
        payload.text("text")?;
        payload.optional_text("mediaUrl")?;
    }
    let known = [
        "durationMs",
        "error",
        "litellmCallId",
        "aborted",
        "agentMeta",
    ];
    let meta = envelope
        .object("meta", &known)?
        .ok_or_else(|| envelope.shape_error("meta", "is missing"))?;
    meta.whole("durationMs")?;
    meta.optional_text("litellmCallId")?;
    if let Some(about) = meta.object("agentMeta", &["sessionId", "provider", "model", "usage"])? {
        ["sessionId", "provider", "model"]
            .iter()
            .try_for_each(|name| about.optional_text(name))?;
    }
    let aborted = match meta.get("aborted") {
        None | Some(Json::Null) => false,
        Some(Json::Bool(aborted)) => *aborted,
        Some(_) => return Err(meta.shape_error("aborted", "is neither true nor false")),
    };
    meta.required("error")?;
    let error = meta.object("error", &["code", "kind", "message"])?;
    if let Some(error) = &error {
        error.text(if error.get("kind").is_some() {
            "kind"
        } else {
            "code"
        })?;
        error.optional_text("code")?;
        error.text("message")?;
    }
    match (error, aborted) {
        (None, false) => agree("`meta.error` is null", code == 0, code),
        (Some(_), _) => agree("`meta.error` tells of an error", code != 0, code),
        (None, true) => agree("`meta.aborted` is true", code != 0, code),
    }
}

fn agree(said: &'static str, agrees: bool, code: i32) -> Result<(), Violation> {
    if agrees {
        Ok(())
    } else {
        Err(Violation::Contradiction { said, code })
    }
}

/// An object with a known set of names, and its path.
struct Fields<'a> {
    place: String,
    fields: &'a BTreeMap<String, Json>,
}

impl<'a> Fields<'a> {
    fn of(value: &'a Json, place: String, known: &[&str]) -> Result<Self, Violation> {
        let Json::Object(fields) = value else {
            return Err(if place.is_empty() {
                Violation::NotOneObject { line: 1, column: 1 }
            } else {
                Violation::Shape {
                    place,
                    what: "is not an object",
                }
            });
        };
        let this = Fields { place, fields };
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => {
                let name: String = unknown
                    .chars()
                    .take(40)
                    .flat_map(char::escape_debug)
                    .collect();
                Err(this.shape_error(&name, "is not a field of this contract"))
            }
            None => Ok(this),
        }
    }

    fn shape_error(&self, name: &str, what: &'static str) -> Violation {
        Violation::Shape {
            place: self.below(name),
            what,
        }
    }

    fn below(&self, name: &str) -> String {
        match self.place.as_str() {
            "" => name.to_owned(),
            place => format!("{place}.{name}"),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Json> {
        self.fields.get(name)
    }

    fn required(&self, name: &str) -> Result<&'a Json, Violation> {
        self.get(name)
            .ok_or_else(|| self.shape_error(name, "is missing"))
    }

    fn text(&self, name: &str) -> Result<&'a str, Violation> {
        match self.required(name)? {
            Json::Text(text) => Ok(text),
            _ => Err(self.shape_error(name, "is not a text")),
        }
    }

    fn optional_text(&self, name: &str) -> Result<(), Violation> {
        match self.get(name) {
            None | Some(Json::Null | Json::Text(_)) => Ok(()),
            Some(_) => Err(self.shape_error(name, "is not a text")),
        }
    }

    fn whole(&self, name: &str) -> Result<u64, Violation> {
        match self.required(name)? {
            Json::Whole(number) => Ok(*number),
            _ => Err(self.shape_error(name, "is not a whole number")),
        }
    }

    fn object(&self, name: &str, known: &[&str]) -> Result<Option<Fields<'a>>, Violation> {
        match self.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => Fields::of(value, self.below(name), known).map(Some),
        }
    }

    fn objects(
        &self,
        name: &str,
        most: usize,
        known: &[&str],
    ) -> Result<Vec<Fields<'a>>, Violation> {
        let values = match self.get(name) {
            None => return Ok(Vec::new()),
            Some(Json::List(values)) if values.len() > most => {
                return Err(self.shape_error(name, "is too long"));
            }
            Some(Json::List(values)) => values,
            Some(_) => return Err(self.shape_error(name, "is not a list")),
        };
        let place = |at| format!("{}[{at}]", self.below(name));
        values
            .iter()
            .enumerate()
            .map(|(at, value)| Fields::of(value, place(at), known))
            .collect()
    }
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod tests;
