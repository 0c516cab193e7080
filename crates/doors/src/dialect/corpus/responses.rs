//! The Responses API of OpenAI.

use super::{Ends, Shape, usage};
use crate::dialect::{ModelOperation, ResponseFormat};
use crate::usage::TokenUsage;

const CREATED: &str = r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","object":"response","status":"in_progress","output":[],"usage":null}}"#;
const DELTA: &str = r#"{"type":"response.output_text.delta","sequence_number":4,"item_id":"m","output_index":0,"content_index":0,"delta":"Hi","logprobs":[]}"#;
const ARGUMENTS: &str = r#"{"type":"response.function_call_arguments.delta","item_id":"f","output_index":0,"delta":"{\"a\":"}"#;
const DONE: &str = r#"{"type":"response.output_text.done","item_id":"m","output_index":0,"content_index":0,"text":"Hi"}"#;

fn match_key(data: &str) -> String {
    let name = data.split('"').nth(3).expect("the type comes first");
    format!("event: {name}\ndata: {data}\n\n")
}

fn stream(
    name: &'static str,
    data: &[&str],
    usage: Option<TokenUsage>,
    ends: Ends,
    least: u64,
) -> Shape {
    let text = data.iter().map(|data| match_key(data)).collect();
    Shape {
        name,
        operation: ModelOperation::Responses,
        kind: ResponseFormat::Events,
        text,
        usage,
        ends,
        least,
    }
}

fn last(word: &str, usage: &str) -> String {
    format!(
        r#"{{"type":"response.{word}","sequence_number":9,"response":{{"id":"r","object":"response","status":"{word}","output":[{{"type":"message","content":[{{"type":"output_text","text":"Hi"}}]}}],"usage":{usage}}}}}"#
    )
}

pub(super) fn shapes() -> Vec<Shape> {
    let said = r#"{"input_tokens":40,"input_tokens_details":{"cached_tokens":32},"output_tokens":12,"output_tokens_details":{"reasoning_tokens":8},"total_tokens":52}"#;
    let costs = Some(TokenUsage {
        cache_read: 32,
        reasoning: 8,
        ..usage(8, 4)
    });
    let ended = |word: &str| last(word, said);
    let whole = format!(
        r#"{{"id":"r","object":"response","status":"completed","output":[{{"id":"m","type":"message","role":"assistant","content":[{{"type":"output_text","text":"Hi","annotations":[]}}]}}],"usage":{said}}}"#
    );
    let searched = format!(
        r#"{{"type":"response.completed","response":{{"output":[{{"type":"web_search_call","id":"w","status":"completed"}},{{"type":"web_search_call","id":"v"}},{{"type":"message","content":[{{"type":"output_text","text":"Hi"}}]}}],"usage":{said}}}}}"#
    );
    let backwards = r#"{"response":{"usage":{"total_tokens":7,"output_tokens":3,"input_tokens":4}},"type":"response.completed"}"#;
    let mut shapes = vec![
        stream(
            "responses completed",
            &[CREATED, DELTA, DONE, &ended("completed")],
            costs,
            Ends::Well,
            12,
        ),
        stream(
            "responses incomplete",
            &[CREATED, DELTA, &ended("incomplete")],
            costs,
            Ends::Well,
            12,
        ),
        stream(
            "responses failed",
            &[CREATED, DELTA, &ended("failed")],
            costs,
            Ends::Well,
            12,
        ),
        stream(
            "responses cancelled",
            &[CREATED, DELTA, &ended("cancelled")],
            costs,
            Ends::Well,
            12,
        ),
        stream(
            "responses failed without usage",
            &[CREATED, DELTA, &last("failed", "null")],
            None,
            Ends::Unsaid,
            1,
        ),
        stream(
            "responses cut",
            &[CREATED, DELTA, DELTA, ARGUMENTS, DONE],
            None,
            Ends::Cut,
            3,
        ),
        stream(
            "responses with searches",
            &[CREATED, DELTA, &searched],
            costs.map(|costs| TokenUsage {
                tool_requests: 2,
                ..costs
            }),
            Ends::Well,
            12,
        ),
    ];
    let text = format!("data: {DELTA}\n\ndata: {backwards}\n\n");
    shapes.push(Shape {
        text,
        ..stream(
            "the type at the end, no names of events",
            &[],
            Some(usage(4, 3)),
            Ends::Well,
            3,
        )
    });
    let kind = ResponseFormat::Whole;
    shapes.push(Shape {
        text: whole,
        kind,
        ..stream("a response as one document", &[], costs, Ends::Well, 12)
    });
    shapes
}
