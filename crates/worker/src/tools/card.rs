//! What tools say of themselves: what a program prints when it is asked with `--schema`, and what a manifest says in a tool's
//! stead. Hostile bytes are expected; what is read is within bounds.

use super::problem::{Problem, word};
use crate::wire::{
    answer::{ArtifactParam, ToolCard},
    plain,
};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// The most that a program may print, in bytes.
pub(crate) const LARGEST: usize = 1 << 20;
/// Tools of one program.
const MOST_TOOLS: usize = 256;
const MOST_PARAMS: usize = 256;
const LONGEST_NAME: usize = 128;
const LONGEST_TEXT: usize = 32 << 10;
/// What of one tool is kept, as JSON, in bytes: agents are sent it in one message.
const LARGEST_PART: usize = 256 << 10;
/// The longest time that a tool may ask for.
pub(crate) const LONGEST_TIME: u64 = 86_400;

/// What is known of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Value>,
    pub(crate) artifact_params: BTreeMap<String, ArtifactParam>,
    pub(crate) instructions: Option<String>,
    pub(crate) config_schema: Option<Vec<Value>>,
    pub(crate) context: Option<String>,
    pub(crate) timeout: Option<Duration>,
    /// It speaks of credentials that the mesh does not bring here.
    pub(crate) wants_credentials: bool,
}

impl Said {
    /// Whether an agent could make anything of it.
    pub(crate) fn is_bare(&self) -> bool {
        self.description.is_none() && self.parameters.is_none()
    }

    /// What agents are told. What is said later wins.
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

    /// What an entry says, and what is missing there as the tool says it.
    pub(crate) fn or(self, other: Said) -> Said {
        let artifact_params = if self.artifact_params.is_empty() {
            other.artifact_params
        } else {
            self.artifact_params
        };
        Said {
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

/// All tools of a program, by its own names for them; each that cannot be served with the reason.
pub(crate) type Tools = BTreeMap<String, Result<Said, Problem>>;

/// Reads what a program printed.
pub(crate) fn read(bytes: &[u8]) -> Result<Tools, Problem> {
    let hint = "it must print {\"tools\": {NAME: {\"description\": …, \"parameters\": …}}} when asked with --schema";
    let Value::Object(mut top) = json(bytes)? else {
        return Err(Problem::new("what it says of itself is no object", hint));
    };
    let Some(Value::Object(tools)) = top.remove("tools") else {
        return Err(Problem::new("it does not say which tools it has", hint));
    };
    if tools.is_empty() || tools.len() > MOST_TOOLS {
        let message = format!(
            "it has {} tools; from 1 to {MOST_TOOLS} are served",
            tools.len()
        );
        return Err(Problem::new(message, "split it"));
    }
    if let Some(long) = tools
        .keys()
        .find(|name| name.is_empty() || name.len() > LONGEST_NAME)
    {
        let message = format!(
            "its tool `{}` has no name, or one of more than {LONGEST_NAME} bytes",
            word(long)
        );
        return Err(Problem::new(message, "give it a short one"));
    }
    Ok(tools
        .into_iter()
        .map(|(name, tool)| (name, of_tool(tool)))
        .collect())
}

/// Reads what the runner printed of one tool.
pub(crate) fn read_one(bytes: &[u8]) -> Result<Said, Problem> {
    of_tool(json(bytes)?)
}

fn json(bytes: &[u8]) -> Result<Value, Problem> {
    if bytes.len() > LARGEST {
        let message = format!(
            "it says {} bytes of itself; {LARGEST} are read",
            bytes.len()
        );
        return Err(Problem::new(message, "say less"));
    }
    plain::read(bytes).map_err(|error| {
        let message = format!("what it says of itself is no JSON: {error}");
        Problem::new(
            message,
            "print nothing else to standard output; warnings belong to standard error",
        )
    })
}

fn of_tool(tool: Value) -> Result<Said, Problem> {
    match tool {
        Value::Object(tool) => said(&tool),
        _ => Err(Problem::new(
            "what is said of it is no object",
            "say {\"description\": …, \"parameters\": …}",
        )),
    }
}

/// Reads what is said of one tool. Keys that nobody knows yet are passed over: they come from newer programs.
fn said(tool: &Map<String, Value>) -> Result<Said, Problem> {
    if !is_empty(tool.get("volume_params")) {
        let message = "it wants volumes (`volume_params`), and there are none here";
        return Err(Problem::new(message, "let it keep what lasts in artifacts"));
    }
    // An empty text is none: providers of models refuse it.
    let get = |name: &str| {
        tool.get(name)
            .filter(|value| !value.is_null() && value.as_str() != Some(""))
    };
    Ok(Said {
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
pub(crate) fn text(key: &str, value: &Value) -> Result<String, Problem> {
    let text = value
        .as_str()
        .ok_or_else(|| Problem::new(format!("`{key}` is no text"), "put it in quotes"))?;
    match text.len() <= LONGEST_TEXT {
        true => Ok(text.to_owned()),
        false => {
            let message = format!(
                "`{key}` has {} bytes; it may have {LONGEST_TEXT}",
                text.len()
            );
            Err(Problem::new(message, "write less"))
        }
    }
}

/// A time; 0 is none, as the software development kits have it.
fn seconds(key: &str, value: &Value) -> Result<Option<Duration>, Problem> {
    match value
        .as_f64()
        .filter(|time| (0.0..=LONGEST_TIME as f64).contains(time))
    {
        Some(0.0) => Ok(None),
        Some(time) => Ok(Some(Duration::from_secs_f64(time.ceil()))),
        None => Err(Problem::new(
            format!("`{key}` is no number of seconds from 1 to {LONGEST_TIME}"),
            "write one such as 60",
        )),
    }
}

/// The schema of an object, whichever case its types are in.
pub(crate) fn parameters(value: &Value) -> Result<Value, Problem> {
    let hint = "write a JSON Schema: type: object, properties: {…}";
    let Value::Object(schema) = value else {
        return Err(Problem::new("`parameters` is no schema", hint));
    };
    let is_object = match schema.get("type") {
        None | Some(Value::Null) => true,
        Some(Value::String(kind)) => kind.eq_ignore_ascii_case("object"),
        Some(_) => false,
    };
    let properties = schema.get("properties").filter(|value| !value.is_null());
    if !is_object || properties.is_some_and(|properties| !properties.is_object()) {
        return Err(Problem::new(
            "`parameters` is not the schema of an object",
            hint,
        ));
    }
    small("parameters", value)?;
    Ok(value.clone())
}

fn small(key: &str, value: &Value) -> Result<(), Problem> {
    match value.to_string().len() {
        size if size > LARGEST_PART => {
            let message = format!("`{key}` has {size} bytes as JSON; it may have {LARGEST_PART}");
            Err(Problem::new(message, "write less"))
        }
        _ => Ok(()),
    }
}

/// Which parameters are files.
pub(crate) fn artifact_params(value: &Value) -> Result<BTreeMap<String, ArtifactParam>, Problem> {
    let hint = "write NAME: {is_list: false, is_optional: false}";
    let Value::Object(params) = value else {
        return Err(Problem::new(
            "`artifact_params` is no map of parameters",
            hint,
        ));
    };
    let is_bad = |name: &String| name.is_empty() || name.len() > LONGEST_NAME;
    if params.len() > MOST_PARAMS || params.keys().any(is_bad) {
        let message =
            format!("`artifact_params` has more than {MOST_PARAMS} names, or one that is too long");
        return Err(Problem::new(message, hint));
    }
    let param = |(name, value): (&String, &Value)| {
        let bad = || {
            Problem::new(
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
            Some(Value::String(key)) if key.len() <= LONGEST_NAME => Some(key.clone()),
            Some(_) => return Err(bad()),
        };
        let (is_list, is_optional) = (flag("is_list")?, flag("is_optional")?);
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

/// What an operator may set.
pub(crate) fn config_schema(value: &Value) -> Result<Vec<Value>, Problem> {
    let hint = "write a list of {key: NAME, type: string, required: true}";
    let bad = |message: String| Problem::new(message, hint);
    let Value::Array(list) = value else {
        return Err(bad("`config_schema` is no list".to_owned()));
    };
    if list.len() > MOST_PARAMS {
        return Err(bad(format!(
            "`config_schema` has {} keys; it may have {MOST_PARAMS}",
            list.len()
        )));
    }
    for item in list {
        let key = item.get("key").and_then(Value::as_str).unwrap_or_default();
        let kind = item.get("type").map_or(Some("string"), Value::as_str);
        if key.is_empty() || key.len() > LONGEST_NAME {
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
#[path = "card_tests.rs"]
mod tests;
