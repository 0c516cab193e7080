//! `result.json`: what a tool says came of it. Read by handle, bounded, and believed only as what it is: a tool's words.

use super::{
    handle::{Unread, Workspace},
    places,
};
use crate::wire::{
    answer,
    code::{Code, Refusal},
    fields, lenient, plain,
};
use serde_json::{Map, Value};

/// What it says.
#[derive(Debug, PartialEq)]
pub(crate) struct Said {
    /// The result, as an object.
    pub(crate) result: Map<String, Value>,
    /// What our runner knows of files in `output/`: `{"name", "mime_type", "description"}` each.
    pub(crate) artifacts: Value,
}

/// Reads it.
pub(crate) fn read(workspace: &Workspace, most: u64) -> Result<Said, Refusal> {
    let bytes = workspace.read(workspace.folder(), places::RESULT, most).map_err(|why| match why {
        Unread::Missing => Refusal::new(Code::InternalError, "the tool ended without a result"),
        Unread::TooLarge { size, most } => Refusal::new(
            Code::ExecutionError,
            format!(
                "the result has {size} bytes; it may have {most}. Let the tool write large results to files"
            ),
        ),
        Unread::Kind(_) | Unread::Other(_) => {
            Refusal::new(Code::InternalError, format!("the result of the tool cannot be used: {why}"))
        }
    })?;
    understand(&bytes)
}

/// How deep it may be is bounded by whoever parses; what its values take, here: `[{},{},…` takes a hundred times its text.
fn understand(bytes: &[u8]) -> Result<Said, Refusal> {
    let bad = |why: &str| {
        Refusal::new(
            Code::InternalError,
            format!("the result of the tool is {why}"),
        )
    };
    if fields::room(bytes) > fields::MOST_ROOM {
        let most = fields::MOST_ROOM;
        return Err(Refusal::new(
            Code::ExecutionError,
            format!(
                "the result has more values than fit into {most} bytes. Let the tool write large results to files"
            ),
        ));
    }
    let said = plain::read(&lenient::in_words(bytes))
        .map_err(|error| bad(&format!("no JSON: {error}")))?;
    let Value::Object(mut said) = said else {
        return Err(bad("no JSON object"));
    };
    match said.remove("error").filter(is_true) {
        Some(error) => Err(failure(error)),
        None => Ok(Said {
            result: said
                .remove("result")
                .map_or_else(Map::new, answer::tool_result),
            artifacts: said.remove("artifacts").unwrap_or_default(),
        }),
    }
}

/// As Python sees it.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Our runner says what kind of thing went wrong by how it begins; whatever a tool raised comes behind another beginning.
fn failure(error: Value) -> Refusal {
    let message = match error {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let code = match () {
        () if message.starts_with("Import error: ") => Code::ImportError,
        () if message.starts_with("Not found: ") => Code::ToolNotFound,
        () => Code::ToolError,
    };
    Refusal::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn of(value: Value) -> Result<Value, (Code, String)> {
        understand(value.to_string().as_bytes())
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
        let said = understand(format!(r#"{{"result":{{"a":{huge},"b":1e400,"c":1}}}}"#).as_bytes())
            .unwrap();
        assert_eq!(
            Value::Object(said.result),
            json!({"a": huge, "b": "1e400", "c": 1})
        );
        assert_eq!(
            understand(format!(r#"{{"result":{huge}}}"#).as_bytes())
                .unwrap()
                .result["text"],
            huge.as_str()
        );
    }

    #[test]
    fn errors_are_told_by_their_kind() {
        for (error, code) in [
            ("Import error: no", Code::ImportError),
            ("Not found: no", Code::ToolNotFound),
            ("Call error: no", Code::ToolError),
            ("Execution error: Import error: no", Code::ToolError),
        ] {
            assert_eq!(
                of(json!({"error": error, "result": {}})),
                Err((code, error.to_owned()))
            );
        }
        assert_eq!(
            of(json!({"error": {"a": 1}})),
            Err((Code::ToolError, "{\"a\":1}".to_owned()))
        );
        for bad in [&b"[1]"[..], b"", b"{", b"nul", b"\xff\xfe"] {
            assert_eq!(understand(bad).unwrap_err().code, Code::InternalError);
        }
        let deep = format!(
            "{{\"result\":{}1{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(
            understand(deep.as_bytes()).unwrap_err().code,
            Code::InternalError
        );
    }

    #[test]
    fn more_values_than_there_is_room_for_are_refused_before_they_are_parsed() {
        let of = |item: &str, count: usize| {
            format!("{{\"result\":{{\"a\":[{}0]}}}}", item.repeat(count))
        };
        assert!(
            understand(of("0,", 100_000).as_bytes()).is_ok(),
            "the control"
        );
        // The brackets say whether it was parsed: this is no JSON at its end.
        for text in [
            of("{},", 100_000),
            of("0,", 1_000_000),
            of("[],", 300_000) + "}",
        ] {
            let refusal = understand(text.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, Code::ExecutionError);
            assert!(
                refusal.message.contains("more values"),
                "{}",
                refusal.message
            );
        }
        let long = format!("{{\"result\":{{\"a\":\"{}\"}}}}", ",[{".repeat(1_000_000));
        assert!(
            understand(long.as_bytes()).is_ok(),
            "a long text is no list"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            _ = understand(&bytes);
        }
    }
}
