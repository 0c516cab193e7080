//! `runner_args.json`: what a tool's process is told, in the words of both generations at once. Secrets are among it.

use super::{places, stage::Staged};
use crate::{
    tools::{Tool, What},
    wire::request::{Invoke, Object},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Serialize)]
struct Written<'a> {
    args: &'a Object,
    tool_config: &'a Object,
    #[serde(flatten)]
    rest: Value,
}

/// The whole file. Arguments and configuration are as the request wrote them, to the last digit.
pub(crate) fn write(
    tool: &Tool,
    invoke: &mut Invoke,
    staged: &Staged,
    ipc: Option<&str>,
) -> serde_json::Result<Vec<u8>> {
    let mut rest = json!({
        "artifact_paths": paths(staged),
        "artifact_metadata": metadata(staged),
        "status_pipe": places::inside(places::STATUS),
        "result_file": places::inside(places::RESULT),
        "output_dir": places::inside(places::OUTPUT),
        "user_id": invoke.user_id,
        "session_id": invoke.session_id,
        "app_name": invoke.app_name,
        "tool_name": tool.name,
        "task_id": invoke.task_id,
        "ipc_socket": ipc.map(places::inside).unwrap_or_default(),
        "tool_oauth_token": "",
        "tool_auth_headers": {},
        "volume_mounts": [],
        "a2a_user_config": invoke.user_config.take().unwrap_or_default(),
    });
    if let Value::Object(fields) = &mut rest {
        name(fields, &tool.what);
    }
    serde_json::to_vec(&Written {
        args: &invoke.args,
        tool_config: &invoke.tool_config,
        rest,
    })
}

/// What is to be called. An executable knows itself, and its own name for what it shall do.
fn name(fields: &mut Map<String, Value>, what: &What) {
    let (module, function, class_name) = match what {
        What::Function { module, function } => (module, Some(function), None),
        What::Class { module, class_name } => (module, None, Some(class_name)),
        What::Executable { tool, .. } => {
            fields.insert("tool_name".to_owned(), json!(tool));
            return;
        }
    };
    fields.insert("module".to_owned(), json!(module));
    fields.insert("function".to_owned(), json!(function));
    fields.insert("class_name".to_owned(), json!(class_name));
}

fn paths(staged: &Staged) -> Map<String, Value> {
    staged
        .by_key
        .iter()
        .map(|(key, file)| (key.clone(), Value::String(file.path())))
        .collect()
}

fn metadata(staged: &Staged) -> Map<String, Value> {
    let one = |file: &super::stage::File| {
        json!({
            "filename": file.filename,
            "mime_type": file.mime_type,
            "version": file.version,
            "local_path": file.path(),
        })
    };
    staged
        .by_key
        .iter()
        .map(|(key, file)| (key.clone(), one(file)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_their_order_are_as_the_request_has_them() {
        let said = r#"{"z":1208925819614629174706176,"a":0.1000000000000000055511151231257827}"#;
        let object: Object = serde_json::from_str(said).unwrap();
        let written = Written {
            args: &object,
            tool_config: &object,
            rest: json!({"user_id": "u"}),
        };
        let wanted = format!(r#"{{"args":{said},"tool_config":{said},"user_id":"u"}}"#);
        assert_eq!(serde_json::to_string(&written).unwrap(), wanted);
    }
}
