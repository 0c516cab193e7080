//! `result.json`: the result as the tool wrote it. Read by descriptor, bounded, and untrusted.

use super::{
    paths,
    workspace::{ReadError, Workspace},
};
use crate::wire::{
    answer,
    code::{CallRefusal, MeshErrorCode},
    fields, lenient, untrusted_json,
};
use serde_json::{Map, Value};

/// A parsed result.
#[derive(Debug, PartialEq)]
pub(crate) struct ToolResult {
    /// The result, as an object.
    pub(crate) result: Map<String, Value>,
    /// Files in `output/` as the runner describes them: `{"name", "mime_type", "description"}`
    /// each.
    pub(crate) artifacts: Value,
}

/// Reads the file.
pub(crate) fn read(workspace: &Workspace, limit: u64) -> Result<ToolResult, CallRefusal> {
    let bytes = workspace.read(workspace.folder(), paths::RESULT_FILE, limit).map_err(|why| match why {
        ReadError::Missing => CallRefusal::new(MeshErrorCode::InternalError, "the tool ended without a result"),
        ReadError::TooLarge { size, limit } => CallRefusal::new(
            MeshErrorCode::ExecutionError,
            format!(
                "the result has {size} bytes; it may have {limit}. Let the tool write large results to files"
            ),
        ),
        ReadError::Kind(_) | ReadError::Other(_) => {
            CallRefusal::new(MeshErrorCode::InternalError, format!("the result of the tool cannot be used: {why}"))
        }
    })?;
    parse(&bytes)
}

/// The parser limits the depth; memory is limited here: `[{},{},…` takes a hundred times its text.
fn parse(bytes: &[u8]) -> Result<ToolResult, CallRefusal> {
    let bad = |why: &str| {
        CallRefusal::new(
            MeshErrorCode::InternalError,
            format!("the result of the tool is {why}"),
        )
    };
    if fields::memory_estimate(bytes) > fields::MAX_MEMORY_BYTES {
        let limit = fields::MAX_MEMORY_BYTES;
        return Err(CallRefusal::new(
            MeshErrorCode::ExecutionError,
            format!(
                "the result has more values than fit into {limit} bytes. Let the tool write large results to files"
            ),
        ));
    }
    let document = untrusted_json::read(&lenient::quote_large_numbers(bytes))
        .map_err(|error| bad(&format!("no JSON: {error}")))?;
    let Value::Object(mut document) = document else {
        return Err(bad("no JSON object"));
    };
    match document.remove("error").filter(is_truthy) {
        Some(error) => Err(classify_error(error)),
        None => Ok(ToolResult {
            result: document
                .remove("result")
                .map_or_else(Map::new, answer::tool_result),
            artifacts: document.remove("artifacts").unwrap_or_default(),
        }),
    }
}

/// Truthiness as in Python.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// The runner marks the kind of an error by its prefix; an exception of the tool has another
/// prefix.
fn classify_error(error: Value) -> CallRefusal {
    let message = match error {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let code = match () {
        () if message.starts_with("Import error: ") => MeshErrorCode::ImportError,
        () if message.starts_with("Not found: ") => MeshErrorCode::ToolNotFound,
        () => MeshErrorCode::ToolError,
    };
    CallRefusal::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn of(value: Value) -> Result<Value, (MeshErrorCode, String)> {
        parse(value.to_string().as_bytes())
            .map(|said| Value::Object(said.result))
            .map_err(|refusal| (refusal.code, refusal.message))
    }

    #[test]
    fn results_of_any_kind_become_objects() {
        assert_eq!(
            of(json!({"result": {"a": 1}, "error": ""})),
            Ok(json!({"a": 1}))
        );
        assert_eq!(
            of(json!({"result": null})),
            Ok(json!({"text": null, "data_objects": []}))
        );
        assert_eq!(
            of(json!({"result": 7, "error": null})),
            Ok(json!({"text": "7", "data_objects": []}))
        );
        assert_eq!(
            of(json!({"result": "hi", "error": 0})),
            Ok(json!({"text": "hi", "data_objects": []}))
        );
        assert_eq!(of(json!({"error": false})), Ok(json!({})));
        assert_eq!(
            of(json!({"result": {"error": "mine"}})),
            Ok(json!({"error": "mine"})),
            "a tool's own"
        );
    }

    #[test]
    fn no_number_becomes_another_one() {
        let huge = "7".repeat(400);
        let said =
            parse(format!(r#"{{"result":{{"a":{huge},"b":1e400,"c":1}}}}"#).as_bytes()).unwrap();
        assert_eq!(
            Value::Object(said.result),
            json!({"a": huge, "b": "1e400", "c": 1})
        );
        assert_eq!(
            parse(format!(r#"{{"result":{huge}}}"#).as_bytes())
                .unwrap()
                .result["text"],
            huge.as_str()
        );
    }

    #[test]
    fn errors_are_told_by_their_kind() {
        for (error, code) in [
            ("Import error: no", MeshErrorCode::ImportError),
            ("Not found: no", MeshErrorCode::ToolNotFound),
            ("Call error: no", MeshErrorCode::ToolError),
            (
                "Execution error: Import error: no",
                MeshErrorCode::ToolError,
            ),
        ] {
            assert_eq!(
                of(json!({"error": error, "result": {}})),
                Err((code, error.to_owned()))
            );
        }
        assert_eq!(
            of(json!({"error": {"a": 1}})),
            Err((MeshErrorCode::ToolError, "{\"a\":1}".to_owned()))
        );
        for bad in [&b"[1]"[..], b"", b"{", b"nul", b"\xff\xfe"] {
            assert_eq!(parse(bad).unwrap_err().code, MeshErrorCode::InternalError);
        }
        let deep = format!(
            "{{\"result\":{}1{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(
            parse(deep.as_bytes()).unwrap_err().code,
            MeshErrorCode::InternalError
        );
    }

    #[test]
    fn more_values_than_there_is_room_for_are_refused_before_they_are_parsed() {
        let of = |item: &str, count: usize| {
            format!("{{\"result\":{{\"a\":[{}0]}}}}", item.repeat(count))
        };
        assert!(parse(of("0,", 100_000).as_bytes()).is_ok(), "the control");
        // The brackets say whether it was parsed: this is no JSON at its end.
        for text in [
            of("{},", 100_000),
            of("0,", 1_000_000),
            of("[],", 300_000) + "}",
        ] {
            let refusal = parse(text.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, MeshErrorCode::ExecutionError);
            assert!(
                refusal.message.contains("more values"),
                "{}",
                refusal.message
            );
        }
        let long = format!("{{\"result\":{{\"a\":\"{}\"}}}}", ",[{".repeat(1_000_000));
        assert!(parse(long.as_bytes()).is_ok(), "a long text is no list");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            _ = parse(&bytes);
        }
    }
}
