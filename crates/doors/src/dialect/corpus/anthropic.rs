//! The Messages API of Anthropic.

use super::{Ends, Shape, usage};
use crate::dialect::{ModelOperation, ResponseFormat};
use crate::usage::TokenUsage;

const TEXT: &str =
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}"#;
const BLOCK: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const PING: &str = r#"{"type":"ping"}"#;
const STOP: &str = r#"{"type":"message_stop"}"#;

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
        operation: ModelOperation::Messages,
        kind: ResponseFormat::Events,
        text,
        usage,
        ends,
        least,
    }
}

fn match_key(data: &str) -> String {
    let name = data.split('"').nth(3).expect("the type comes first");
    format!("event: {name}\ndata: {data}\n\n")
}

fn start(usage: &str) -> String {
    format!(
        r#"{{"type":"message_start","message":{{"id":"m","type":"message","role":"assistant","content":[],"model":"claude","stop_reason":null,"usage":{usage}}}}}"#
    )
}

fn delta(usage: &str) -> String {
    format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn","stop_sequence":null}},"usage":{usage}}}"#
    )
}

pub(super) fn shapes() -> Vec<Shape> {
    [ordinary(), caches(), content(), documents()].concat()
}

fn ordinary() -> Vec<Shape> {
    let begin = start(r#"{"input_tokens":25,"output_tokens":1}"#);
    let end = delta(r#"{"output_tokens":15}"#);
    let said = Some(usage(25, 15));
    let repeated = delta(
        r#"{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":15}"#,
    );
    let zero = start(r#"{"input_tokens":0,"output_tokens":0}"#);
    let first = delta(r#"{"output_tokens":8}"#);
    vec![
        stream(
            "messages",
            &[&begin, BLOCK, PING, TEXT, TEXT, &end, STOP],
            said,
            Ends::Well,
            15,
        ),
        stream(
            "input repeated at the end",
            &[&begin, BLOCK, TEXT, &repeated, STOP],
            said,
            Ends::Well,
            15,
        ),
        stream(
            "input only at the end",
            &[&zero, TEXT, &repeated, STOP],
            said,
            Ends::Well,
            15,
        ),
        stream(
            "usage only at the end",
            &[TEXT, &repeated, STOP],
            said,
            Ends::Well,
            15,
        ),
        stream(
            "deltas are cumulative",
            &[&begin, TEXT, &first, TEXT, &end, STOP],
            said,
            Ends::Well,
            15,
        ),
        stream(
            "text goes on behind a delta, then cut",
            &[&begin, &first, TEXT, TEXT],
            Some(usage(25, 8)),
            Ends::Cut,
            8,
        ),
        stream(
            "messages without their stop",
            &[&begin, TEXT, &end],
            said,
            Ends::Said,
            15,
        ),
        stream(
            "messages cut",
            &[&begin, BLOCK, TEXT, TEXT, TEXT],
            Some(usage(25, 1)),
            Ends::Cut,
            3,
        ),
        stream(
            "an error in mid-stream",
            &[
                &begin,
                TEXT,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#,
            ],
            Some(usage(25, 1)),
            Ends::Cut,
            1,
        ),
    ]
}

fn caches() -> Vec<Shape> {
    let end = delta(r#"{"output_tokens":15}"#);
    let split = start(
        r#"{"input_tokens":25,"cache_read_input_tokens":100,"cache_creation_input_tokens":70,"cache_creation":{"ephemeral_5m_input_tokens":50,"ephemeral_1h_input_tokens":20},"output_tokens":1,"service_tier":"standard"}"#,
    );
    let unsplit = start(
        r#"{"input_tokens":25,"cache_read_input_tokens":100,"cache_creation_input_tokens":70,"output_tokens":1}"#,
    );
    let long = start(
        r#"{"input_tokens":25,"cache_creation_input_tokens":20,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":20},"output_tokens":1}"#,
    );
    let grown = delta(
        r#"{"input_tokens":300,"cache_creation_input_tokens":90,"cache_read_input_tokens":150,"output_tokens":15,"server_tool_use":{"web_search_requests":2,"web_fetch_requests":1}}"#,
    );
    let thought = delta(r#"{"output_tokens":15,"output_tokens_details":{"thinking_tokens":10}}"#);
    let cached = TokenUsage {
        cache_read: 100,
        ..usage(25, 15)
    };
    vec![
        stream(
            "writes by their time",
            &[&split, TEXT, &end, STOP],
            Some(TokenUsage {
                cache_write_5m: 50,
                cache_write_1h: 20,
                ..cached
            }),
            Ends::Well,
            15,
        ),
        stream(
            "writes of unknown time are short",
            &[&unsplit, TEXT, &end, STOP],
            Some(TokenUsage {
                cache_write_5m: 70,
                ..cached
            }),
            Ends::Well,
            15,
        ),
        stream(
            "server tools: totals grow beyond the split",
            &[&split, TEXT, &grown, STOP],
            Some(TokenUsage {
                cache_read: 150,
                cache_write_5m: 70,
                cache_write_1h: 20,
                tool_requests: 2,
                ..usage(300, 15)
            }),
            Ends::Well,
            15,
        ),
        stream(
            "server tools: a split of long writes alone",
            &[&long, TEXT, &grown, STOP],
            Some(TokenUsage {
                cache_read: 150,
                cache_write_1h: 90,
                tool_requests: 2,
                ..usage(300, 15)
            }),
            Ends::Well,
            15,
        ),
        stream(
            "thinking is within the output",
            &[&split, TEXT, &thought, STOP],
            Some(TokenUsage {
                cache_write_5m: 50,
                cache_write_1h: 20,
                reasoning: 10,
                output: 5,
                ..cached
            }),
            Ends::Well,
            15,
        ),
    ]
}

fn content() -> Vec<Shape> {
    let thinking = r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#;
    let signature = r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"abc"}}"#;
    let tool = r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#;
    let input = r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}"#;
    let empty = r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}"#;
    let found = r#"{"type":"content_block_start","index":2,"content_block":{"type":"web_search_tool_result","tool_use_id":"s","content":[{"type":"web_search_result","url":"u","title":"t","encrypted_content":"zzz"}]}}"#;
    vec![
        stream(
            "thoughts and tools are output",
            &[thinking, signature, tool, empty, input, TEXT],
            None,
            Ends::Cut,
            3,
        ),
        stream(
            "what a search found is not output",
            &[found, STOP],
            None,
            Ends::Unsaid,
            0,
        ),
    ]
}

fn documents() -> Vec<Shape> {
    let text = r#"{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"Hi"},{"type":"tool_use","id":"t","name":"f","input":{"usage":{"input_tokens":999}}}],"model":"c","stop_reason":"tool_use","usage":{"input_tokens":12,"cache_read_input_tokens":5,"cache_creation_input_tokens":0,"output_tokens":6}}"#;
    let message = stream(
        "a message as one document",
        &[],
        Some(TokenUsage {
            cache_read: 5,
            ..usage(12, 6)
        }),
        Ends::Well,
        6,
    );
    let count = stream(
        "counting tokens costs nothing",
        &[],
        Some(TokenUsage::default()),
        Ends::Well,
        0,
    );
    vec![
        Shape {
            text: text.to_owned(),
            kind: ResponseFormat::Whole,
            ..message
        },
        Shape {
            text: r#"{"input_tokens":14}"#.to_owned(),
            kind: ResponseFormat::Whole,
            operation: ModelOperation::CountTokens,
            ..count
        },
    ]
}
