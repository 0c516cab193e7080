//! Tool schemas: output of programs asked with `--schema`, and descriptions in the manifest.
//! Untrusted and bounded.

use super::problem::{ToolProblem, word};
use crate::wire::{
    answer::{ArtifactParam, ToolCard},
    untrusted_json,
};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// Maximum output of a program, in bytes.
pub(crate) const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Maximum number of tools of one program.
const MAX_TOOLS: usize = 256;
const MAX_PARAMS: usize = 256;
const MAX_NAME_BYTES: usize = 128;
const MAX_TEXT_BYTES: usize = 32 << 10;
/// Maximum size of one part as JSON: agents get all parts in one message.
const MAX_PART_BYTES: usize = 256 << 10;
/// Maximum timeout that a tool may have.
pub(crate) const MAX_SECONDS: u64 = 86_400;

/// Description of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ToolSchema {
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Value>,
    pub(crate) artifact_params: BTreeMap<String, ArtifactParam>,
    pub(crate) instructions: Option<String>,
    pub(crate) config_schema: Option<Vec<Value>>,
    pub(crate) context: Option<String>,
    pub(crate) timeout: Option<Duration>,
    /// It refers to credentials that the mesh does not provide here.
    pub(crate) wants_credentials: bool,
}

impl ToolSchema {
    /// Whether it has nothing that an agent could use.
    pub(crate) fn is_unknown(&self) -> bool {
        self.description.is_none() && self.parameters.is_none()
    }

    /// The description for agents.
    pub(crate) fn card(&self, name: &str) -> ToolCard {
        ToolCard {
            tool_name: name.to_owned(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
            artifact_params: self.artifact_params.clone(),
            instructions: self.instructions.clone(),
            config_schema: self.config_schema.clone(),
            ctx_facade_param_name: self.context.clone(),
        }
    }

    /// Merges two descriptions; this one wins.
    pub(crate) fn or(self, other: ToolSchema) -> ToolSchema {
        let artifact_params = if self.artifact_params.is_empty() {
            other.artifact_params
        } else {
            self.artifact_params
        };
        ToolSchema {
            description: self.description.or(other.description),
            parameters: self.parameters.or(other.parameters),
            artifact_params,
            instructions: self.instructions.or(other.instructions),
            config_schema: self.config_schema.or(other.config_schema),
            context: self.context.or(other.context),
            timeout: self.timeout.or(other.timeout),
            wants_credentials: self.wants_credentials || other.wants_credentials,
        }
    }
}

/// Tools of a program by their own names, or why one cannot be served.
pub(crate) type ProgramTools = BTreeMap<String, Result<ToolSchema, ToolProblem>>;

/// Parses the output of a program.
pub(crate) fn read(bytes: &[u8]) -> Result<ProgramTools, ToolProblem> {
    let hint = "it must print {\"tools\": {NAME: {\"description\": …, \"parameters\": …}}} when asked with --schema";
    let Value::Object(mut top) = json(bytes)? else {
        return Err(ToolProblem::new(
            "what it says of itself is no object",
            hint,
        ));
    };
    let Some(Value::Object(tools)) = top.remove("tools") else {
        return Err(ToolProblem::new("it does not say which tools it has", hint));
    };
    if tools.is_empty() || tools.len() > MAX_TOOLS {
        let message = format!(
            "it has {} tools; from 1 to {MAX_TOOLS} are served",
            tools.len()
        );
        return Err(ToolProblem::new(message, "split it"));
    }
    if let Some(long) = tools
        .keys()
        .find(|name| name.is_empty() || name.len() > MAX_NAME_BYTES)
    {
        let message = format!(
            "its tool `{}` has no name, or one of more than {MAX_NAME_BYTES} bytes",
            word(long)
        );
        return Err(ToolProblem::new(message, "give it a short one"));
    }
    Ok(tools
        .into_iter()
        .map(|(name, tool)| (name, parse_tool(tool)))
        .collect())
}

/// Parses the runner's description of one tool.
pub(crate) fn read_one(bytes: &[u8]) -> Result<ToolSchema, ToolProblem> {
    parse_tool(json(bytes)?)
}

fn json(bytes: &[u8]) -> Result<Value, ToolProblem> {
    if bytes.len() > MAX_OUTPUT_BYTES {
        let message = format!(
            "it says {} bytes of itself; {MAX_OUTPUT_BYTES} are read",
            bytes.len()
        );
        return Err(ToolProblem::new(message, "say less"));
    }
    untrusted_json::read(bytes).map_err(|error| {
        let message = format!("what it says of itself is no JSON: {error}");
        ToolProblem::new(
            message,
            "print nothing else to standard output; warnings belong to standard error",
        )
    })
}

fn parse_tool(tool: Value) -> Result<ToolSchema, ToolProblem> {
    match tool {
        Value::Object(tool) => said(&tool),
        _ => Err(ToolProblem::new(
            "what is said of it is no object",
            "say {\"description\": …, \"parameters\": …}",
        )),
    }
}

/// Parses a description. Unknown keys are ignored: they come from newer programs.
fn said(tool: &Map<String, Value>) -> Result<ToolSchema, ToolProblem> {
    if !is_empty(tool.get("volume_params")) {
        let message = "it wants volumes (`volume_params`), and there are none here";
        return Err(ToolProblem::new(
            message,
            "let it keep what lasts in artifacts",
        ));
    }
    // An empty text counts as none: model providers refuse it.
    let get = |name: &str| {
        tool.get(name)
            .filter(|value| !value.is_null() && value.as_str() != Some(""))
    };
    Ok(ToolSchema {
        description: get("description")
            .map(|value| text("description", value))
            .transpose()?,
        parameters: get("parameters").map(parameters).transpose()?,
        artifact_params: get("artifact_params")
            .map(artifact_params)
            .transpose()?
            .unwrap_or_default(),
        instructions: get("instructions")
            .map(|value| text("instructions", value))
            .transpose()?,
        config_schema: get("config_schema").map(config_schema).transpose()?,
        context: get("ctx_facade_param_name")
            .map(|value| text("ctx_facade_param_name", value))
            .transpose()?,
        timeout: get("timeout_seconds")
            .map(|value| seconds("timeout_seconds", value))
            .transpose()?
            .flatten(),
        wants_credentials: !is_empty(get("auth")),
    })
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Bool(true) | Value::Number(_) | Value::String(_)) => false,
    }
}

/// A text of bounded length.
pub(crate) fn text(key: &str, value: &Value) -> Result<String, ToolProblem> {
    let text = value
        .as_str()
        .ok_or_else(|| ToolProblem::new(format!("`{key}` is no text"), "put it in quotes"))?;
    if text.len() <= MAX_TEXT_BYTES {
        Ok(text.to_owned())
    } else {
        let message = format!(
            "`{key}` has {} bytes; it may have {MAX_TEXT_BYTES}",
            text.len()
        );
        Err(ToolProblem::new(message, "write less"))
    }
}

/// A timeout; 0 is none, as in the SDKs.
fn seconds(key: &str, value: &Value) -> Result<Option<Duration>, ToolProblem> {
    match value
        .as_f64()
        .filter(|time| (0.0..=MAX_SECONDS as f64).contains(time))
    {
        Some(0.0) => Ok(None),
        Some(time) => Ok(Some(Duration::from_secs_f64(time.ceil()))),
        None => Err(ToolProblem::new(
            format!("`{key}` is no number of seconds from 1 to {MAX_SECONDS}"),
            "write one such as 60",
        )),
    }
}

/// The schema of an object; types may have any case.
pub(crate) fn parameters(value: &Value) -> Result<Value, ToolProblem> {
    let hint = "write a JSON Schema: type: object, properties: {…}";
    let Value::Object(schema) = value else {
        return Err(ToolProblem::new("`parameters` is no schema", hint));
    };
    let is_object = match schema.get("type") {
        None | Some(Value::Null) => true,
        Some(Value::String(kind)) => kind.eq_ignore_ascii_case("object"),
        Some(_) => false,
    };
    let properties = schema.get("properties").filter(|value| !value.is_null());
    if !is_object || properties.is_some_and(|properties| !properties.is_object()) {
        return Err(ToolProblem::new(
            "`parameters` is not the schema of an object",
            hint,
        ));
    }
    small("parameters", value)?;
    Ok(value.clone())
}

fn small(key: &str, value: &Value) -> Result<(), ToolProblem> {
    match value.to_string().len() {
        size if size > MAX_PART_BYTES => {
            let message = format!("`{key}` has {size} bytes as JSON; it may have {MAX_PART_BYTES}");
            Err(ToolProblem::new(message, "write less"))
        }
        _ => Ok(()),
    }
}

/// Parameters that are files.
pub(crate) fn artifact_params(
    value: &Value,
) -> Result<BTreeMap<String, ArtifactParam>, ToolProblem> {
    let hint = "write NAME: {is_list: false, is_optional: false}";
    let Value::Object(params) = value else {
        return Err(ToolProblem::new(
            "`artifact_params` is no map of parameters",
            hint,
        ));
    };
    let is_bad = |name: &String| name.is_empty() || name.len() > MAX_NAME_BYTES;
    if params.len() > MAX_PARAMS || params.keys().any(is_bad) {
        let message =
            format!("`artifact_params` has more than {MAX_PARAMS} names, or one that is too long");
        return Err(ToolProblem::new(message, hint));
    }
    let param = |(name, value): (&String, &Value)| {
        let bad = || {
            ToolProblem::new(
                format!("`artifact_params.{}` is not right", word(name)),
                hint,
            )
        };
        let map = match value {
            Value::Null => &Map::new(),
            Value::Object(map) => map,
            _ => return Err(bad()),
        };
        let flag = |key: &str| match map.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value.as_bool().ok_or_else(bad),
        };
        let filename_key = match map.get("filename_key") {
            None | Some(Value::Null) => None,
            Some(Value::String(key)) if key.is_empty() => None,
            Some(Value::String(key)) if key.len() <= MAX_NAME_BYTES => Some(key.clone()),
            Some(_) => return Err(bad()),
        };
        let is_list = flag("is_list")?;
        let is_optional = flag("is_optional")?;
        Ok((
            name.clone(),
            ArtifactParam {
                is_list,
                is_optional,
                filename_key,
            },
        ))
    };
    params.iter().map(param).collect()
}

/// Configuration keys that an operator may set.
pub(crate) fn config_schema(value: &Value) -> Result<Vec<Value>, ToolProblem> {
    let hint = "write a list of {key: NAME, type: string, required: true}";
    let bad = |message: String| ToolProblem::new(message, hint);
    let Value::Array(list) = value else {
        return Err(bad("`config_schema` is no list".to_owned()));
    };
    if list.len() > MAX_PARAMS {
        return Err(bad(format!(
            "`config_schema` has {} keys; it may have {MAX_PARAMS}",
            list.len()
        )));
    }
    for item in list {
        let key = item.get("key").and_then(Value::as_str).unwrap_or_default();
        let kind = item.get("type").map_or(Some("string"), Value::as_str);
        if key.is_empty() || key.len() > MAX_NAME_BYTES {
            return Err(bad("an entry of `config_schema` has no `key`".to_owned()));
        }
        if key == "auth" {
            return Err(bad(
                "the key `auth` of `config_schema` is the mesh's own".to_owned()
            ));
        }
        if !kind.is_some_and(|kind| ["string", "integer", "number", "boolean"].contains(&kind)) {
            let message = format!(
                "`{}` of `config_schema` is neither string, integer, number nor boolean",
                word(key)
            );
            return Err(bad(message));
        }
    }
    small("config_schema", value)?;
    Ok(list.clone())
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
