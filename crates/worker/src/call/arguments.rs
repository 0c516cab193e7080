//! `runner_args.json`: the arguments of a tool's process, with the field names of both runner
//! generations. It contains secrets.

use super::{paths, staging::StagedFiles};
use crate::{
    tools::{EntryPoint, Tool},
    wire::request::{Invoke, RawObject},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Serialize)]
struct RunnerArguments<'a> {
    args: &'a RawObject,
    tool_config: &'a RawObject,
    #[serde(flatten)]
    rest: Value,
}

/// Serializes the file. Arguments and configuration keep the text of the request, to the last
/// digit.
pub(crate) fn write(
    tool: &Tool,
    invoke: &mut Invoke,
    staged: &StagedFiles,
    ipc: Option<&str>,
) -> serde_json::Result<Vec<u8>> {
    let mut rest = json!({
        "artifact_paths": paths(staged),
        "artifact_metadata": metadata(staged),
        "status_pipe": paths::in_sandbox(paths::STATUS_FIFO),
        "result_file": paths::in_sandbox(paths::RESULT_FILE),
        "output_dir": paths::in_sandbox(paths::OUTPUT_FOLDER),
        "user_id": invoke.user_id,
        "session_id": invoke.session_id,
        "app_name": invoke.app_name,
        "tool_name": tool.name,
        "task_id": invoke.task_id,
        "ipc_socket": ipc.map(paths::in_sandbox).unwrap_or_default(),
        "tool_oauth_token": "",
        "tool_auth_headers": {},
        "volume_mounts": [],
        "a2a_user_config": invoke.user_config.take().unwrap_or_default(),
    });
    if let Value::Object(fields) = &mut rest {
        insert_entry_point(fields, &tool.what);
    }
    serde_json::to_vec(&RunnerArguments {
        args: &invoke.args,
        tool_config: &invoke.tool_config,
        rest,
    })
}

/// Adds what to call. An executable knows its own code and only needs the name of its tool.
fn insert_entry_point(fields: &mut Map<String, Value>, what: &EntryPoint) {
    let (module, function, class_name) = match what {
        EntryPoint::Function { module, function } => (module, Some(function), None),
        EntryPoint::Class { module, class_name } => (module, None, Some(class_name)),
        EntryPoint::Executable { tool, .. } => {
            fields.insert("tool_name".to_owned(), json!(tool));
            return;
        }
    };
    fields.insert("module".to_owned(), json!(module));
    fields.insert("function".to_owned(), json!(function));
    fields.insert("class_name".to_owned(), json!(class_name));
}

fn paths(staged: &StagedFiles) -> Map<String, Value> {
    staged
        .by_key
        .iter()
        .map(|(key, file)| (key.clone(), Value::String(file.path())))
        .collect()
}

fn metadata(staged: &StagedFiles) -> Map<String, Value> {
    let one = |file: &super::staging::StagedFile| {
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
        let object: RawObject = serde_json::from_str(said).unwrap();
        let written = RunnerArguments {
            args: &object,
            tool_config: &object,
            rest: json!({"user_id": "u"}),
        };
        let wanted = format!(r#"{{"args":{said},"tool_config":{said},"user_id":"u"}}"#);
        assert_eq!(serde_json::to_string(&written).unwrap(), wanted);
    }
}
