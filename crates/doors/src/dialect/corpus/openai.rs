//! The Chat and Embeddings APIs of OpenAI and compatible providers.

use super::{Ends, Shape, events, usage};
use crate::dialect::{ModelOperation, ResponseFormat};
use crate::usage::TokenUsage;

const ROLE: &str = r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#;
const HEL: &str = r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}],"usage":null}"#;
const LO: &str = r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}],"usage":null}"#;
const STOP: &str = r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#;
const USAGE: &str = r#"{"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;

fn stream(
    name: &'static str,
    data: &[&str],
    usage: Option<TokenUsage>,
    ends: Ends,
    least: u64,
) -> Shape {
    let text = events(data);
    Shape {
        name,
        operation: ModelOperation::Chat,
        kind: ResponseFormat::Events,
        text,
        usage,
        ends,
        least,
    }
}

fn raw(name: &'static str, text: &str, usage: Option<TokenUsage>, ends: Ends, least: u64) -> Shape {
    Shape {
        text: text.to_owned(),
        ..stream(name, &[], usage, ends, least)
    }
}

fn whole(
    name: &'static str,
    text: &str,
    usage: Option<TokenUsage>,
    ends: Ends,
    least: u64,
) -> Shape {
    Shape {
        kind: ResponseFormat::Whole,
        ..raw(name, text, usage, ends, least)
    }
}

fn with_usage(name: &'static str, said: &str, usage: TokenUsage) -> Shape {
    let last = format!(r#"{{"choices":[],"usage":{said}}}"#);
    let least = usage.output_tokens().max(1);
    stream(
        name,
        &[HEL, STOP, &last, "[DONE]"],
        Some(usage),
        Ends::Well,
        least,
    )
}

pub(super) fn shapes() -> Vec<Shape> {
    [
        ordinary(),
        kinds_of_tokens(),
        where_usage_is(),
        framing(),
        content(),
        documents(),
    ]
    .concat()
}

fn ordinary() -> Vec<Shape> {
    let said = Some(usage(9, 2));
    vec![
        stream(
            "chat",
            &[ROLE, HEL, LO, STOP, USAGE, "[DONE]"],
            said,
            Ends::Well,
            2,
        ),
        stream(
            "chat without [DONE]",
            &[ROLE, HEL, LO, STOP, USAGE],
            said,
            Ends::Said,
            2,
        ),
        stream(
            "chat without usage",
            &[ROLE, HEL, LO, STOP, "[DONE]"],
            None,
            Ends::Unsaid,
            2,
        ),
        stream("chat cut in mid-stream", &[ROLE, HEL], None, Ends::Cut, 1),
        stream(
            "chat with usage twice",
            &[HEL, STOP, USAGE, USAGE, "[DONE]"],
            said,
            Ends::Well,
            2,
        ),
        stream("nothing but the end", &["[DONE]"], None, Ends::Unsaid, 0),
        raw("nothing", "", None, Ends::Cut, 0),
        stream(
            "an error in the stream",
            &[HEL, r#"{"error":{"message":"usage"}}"#],
            None,
            Ends::Cut,
            1,
        ),
    ]
}

fn kinds_of_tokens() -> Vec<Shape> {
    vec![
        with_usage(
            "cached tokens are within the prompt",
            r#"{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"prompt_tokens_details":{"cached_tokens":64,"audio_tokens":0}}"#,
            TokenUsage {
                cache_read: 64,
                ..usage(36, 5)
            },
        ),
        with_usage(
            "reasoning is within the completion",
            r#"{"prompt_tokens":10,"completion_tokens":50,"total_tokens":60,"completion_tokens_details":{"reasoning_tokens":40,"accepted_prediction_tokens":3,"rejected_prediction_tokens":2}}"#,
            TokenUsage {
                reasoning: 40,
                ..usage(10, 10)
            },
        ),
        with_usage(
            "reasoning beside the completion, as the total tells",
            r#"{"prompt_tokens":10,"completion_tokens":50,"total_tokens":100,"completion_tokens_details":{"reasoning_tokens":40}}"#,
            TokenUsage {
                reasoning: 40,
                ..usage(10, 50)
            },
        ),
        with_usage(
            "more reasoning than completion cannot be within it",
            r#"{"prompt_tokens":10,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":40}}"#,
            TokenUsage {
                reasoning: 40,
                ..usage(10, 5)
            },
        ),
        with_usage(
            "sound on both sides",
            r#"{"prompt_tokens":30,"completion_tokens":20,"total_tokens":50,"prompt_tokens_details":{"audio_tokens":20,"cached_tokens":4},"completion_tokens_details":{"audio_tokens":15,"reasoning_tokens":0}}"#,
            TokenUsage {
                audio_in: 20,
                cache_read: 4,
                audio_out: 15,
                ..usage(6, 5)
            },
        ),
        with_usage(
            "sound that was cached is not counted twice",
            r#"{"prompt_tokens":30,"completion_tokens":1,"prompt_tokens_details":{"audio_tokens":20,"cached_tokens":30}}"#,
            TokenUsage {
                audio_in: 20,
                cache_read: 10,
                ..usage(0, 1)
            },
        ),
        with_usage(
            "DeepSeek's name for cached tokens",
            r#"{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":36}"#,
            TokenUsage {
                cache_read: 64,
                ..usage(36, 5)
            },
        ),
        with_usage(
            "writes to a cache",
            r#"{"prompt_tokens":100,"completion_tokens":5,"total_tokens":105,"prompt_tokens_details":{"cached_tokens":10,"cache_write_tokens":50}}"#,
            TokenUsage {
                cache_read: 10,
                cache_write_5m: 50,
                ..usage(40, 5)
            },
        ),
        with_usage(
            "searches that the provider ran",
            r#"{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"num_search_queries":3}"#,
            TokenUsage {
                tool_requests: 3,
                ..usage(7, 5)
            },
        ),
        with_usage(
            "members in another order",
            r#"{"total_tokens":12,"completion_tokens":5,"prompt_tokens":7}"#,
            usage(7, 5),
        ),
        with_usage(
            "counts with a fraction",
            r#"{"prompt_tokens":7.0,"completion_tokens":5.0}"#,
            usage(7, 5),
        ),
        with_usage(
            "counts beyond the range",
            r#"{"prompt_tokens":99999999999999999999999,"completion_tokens":5}"#,
            usage(u64::MAX, 5),
        ),
        with_usage(
            "counts below zero",
            r#"{"prompt_tokens":-7,"completion_tokens":5}"#,
            usage(0, 5),
        ),
    ]
}

fn where_usage_is() -> Vec<Shape> {
    let with_choice = r#"{"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#;
    let growing = |count: u64| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"x"}},"finish_reason":null}}],"usage":{{"prompt_tokens":9,"completion_tokens":{count},"total_tokens":{}}}}}"#,
            count + 9
        )
    };
    let moonshot = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}]}"#;
    let groq = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"r","usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}}"#;
    let first =
        r#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11},"choices":[]}"#;
    let fooled = r#"{"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1000}"},"finish_reason":null}],"metadata":{"usage":{"prompt_tokens":1000}}}"#;
    let azure = r#"{"choices":[],"prompt_filter_results":[{"prompt_index":0,"content_filter_results":{}}]}"#;
    vec![
        stream(
            "usage beside a choice",
            &[HEL, LO, with_choice, "[DONE]"],
            Some(usage(9, 3)),
            Ends::Well,
            3,
        ),
        stream(
            "usage beside a choice, no [DONE]",
            &[HEL, LO, with_choice],
            Some(usage(9, 3)),
            Ends::Said,
            3,
        ),
        stream(
            "usage on every chunk",
            &[&growing(1), &growing(2), &growing(7), "[DONE]"],
            Some(usage(9, 7)),
            Ends::Well,
            7,
        ),
        stream(
            "usage on every chunk, cut",
            &[&growing(1), &growing(2)],
            Some(usage(9, 2)),
            Ends::Cut,
            2,
        ),
        stream(
            "usage that falls keeps its most",
            &[&growing(7), &growing(2), "[DONE]"],
            Some(usage(9, 7)),
            Ends::Well,
            7,
        ),
        stream(
            "usage within a choice",
            &[HEL, LO, moonshot, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            2,
        ),
        stream(
            "usage in Groq's member",
            &[HEL, LO, groq, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            2,
        ),
        stream(
            "usage before the choices",
            &[HEL, LO, STOP, first, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            2,
        ),
        stream(
            "a text that looks like usage",
            &[fooled, USAGE, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            2,
        ),
        stream(
            "filters before the first choice",
            &[azure, HEL, STOP, USAGE, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            2,
        ),
        stream(
            "an empty usage",
            &[HEL, STOP, r#"{"choices":[],"usage":{}}"#, "[DONE]"],
            None,
            Ends::Unsaid,
            1,
        ),
    ]
}

fn framing() -> Vec<Shape> {
    let (well, said) = (Ends::Well, Some(usage(9, 2)));
    let halves = USAGE.split_once("\"usage\"").expect("it is there");
    let lines = format!(
        "data: {}\ndata:\"usage\"{}\n\ndata: [DONE]\n\n",
        halves.0, halves.1
    );
    let pretty = "data: {\ndata:   \"choices\" : [ ] ,\ndata:   \"usage\" : {\ndata:     \"prompt_tokens\" : 9 ,\ndata:     \"completion_tokens\" : 2\ndata:   }\ndata: }\n\ndata: [DONE]\n\n";
    vec![
        raw(
            "no space behind the colon",
            &format!("data:{HEL}\n\ndata:{USAGE}\n\ndata:[DONE]\n\n"),
            said,
            well,
            2,
        ),
        raw(
            "usage behind the end, in its line",
            &format!("data: {HEL}\n\ndata: [DONE]{USAGE}\n\n"),
            said,
            well,
            2,
        ),
        raw(
            "no line feed at the end",
            &format!("data: {HEL}\n\ndata: {USAGE}\n\ndata: [DONE]"),
            said,
            well,
            2,
        ),
        raw(
            "comments and other fields",
            &format!(
                ": ping\n\nevent: x\nid: 1\ndata: {HEL}\nretry: 5\n\n:\ndata: {USAGE}\n\ndata: [DONE]\n\n"
            ),
            said,
            well,
            2,
        ),
        raw("data in several lines", &lines, said, well, 2),
        raw("data in many lines", pretty, said, well, 2),
        raw(
            "no blank line at the end",
            &format!("data: {HEL}\n\ndata: {USAGE}\n\ndata: [DONE]"),
            said,
            well,
            2,
        ),
        raw(
            "no blank lines at all",
            &format!("data: {HEL}\ndata: {USAGE}\n"),
            said,
            Ends::Said,
            2,
        ),
        raw(
            "many blank lines",
            &format!("\n\n\ndata: {HEL}\n\n\n\ndata: {USAGE}\n\n\n\ndata: [DONE]\n\n\n"),
            said,
            well,
            2,
        ),
        raw(
            "a byte order mark",
            &format!("\u{feff}data: {USAGE}\n\ndata: [DONE]\n\n"),
            said,
            well,
            2,
        ),
        raw(
            "an event that is no JSON",
            &format!("data: {{\"choices\":[\"\n\ndata: {USAGE}\n\ndata: [DONE]\n\n"),
            said,
            well,
            2,
        ),
        raw(
            "a field that only begins like data",
            &format!("database: {USAGE}\ndat: {USAGE}\ndata\n\ndata: {HEL}\n\n"),
            None,
            Ends::Cut,
            1,
        ),
        raw(
            "spaces in the JSON",
            &format!(
                "data: {}\n\ndata: [DONE]\n\n",
                USAGE.replace(':', " : ").replace(',', " , ")
            ),
            said,
            well,
            2,
        ),
    ]
}

fn content() -> Vec<Shape> {
    let delta = |delta: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
    };
    let tool = delta(
        r#"{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}"#,
    );
    let arguments = delta(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}"#);
    let thought = delta(r#"{"reasoning_content":"hm","content":null}"#);
    let parts = delta(r#"{"content":[{"type":"text","text":"x"}]}"#);
    let only_types = delta(
        r#"{"content":[{"type":"text","text":""}],"tool_calls":[{"index":0,"id":"a","type":"function"}]}"#,
    );
    let letters = delta(r#"{"content":"caf\u00e9 ☕ \\ \" end"}"#);
    let long = delta(&format!(r#"{{"content":"{}"}}"#, "x".repeat(100)));
    vec![
        stream(
            "tools, thoughts and parts",
            &[&tool, &arguments, &thought, &parts],
            None,
            Ends::Cut,
            4,
        ),
        stream(
            "roles and types are no text",
            &[ROLE, &only_types],
            None,
            Ends::Cut,
            0,
        ),
        stream(
            "escapes and letters beyond ASCII",
            &[&letters, USAGE, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            2,
        ),
        stream(
            "more pieces than tokens said",
            &[HEL, LO, &long, USAGE, "[DONE]"],
            Some(usage(9, 2)),
            Ends::Well,
            3,
        ),
    ]
}

fn documents() -> Vec<Shape> {
    let chat = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":3}}}"#;
    let embeddings = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3,3]}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    let said = Some(TokenUsage {
        cache_read: 3,
        ..usage(16, 10)
    });
    vec![
        whole("a chat as one document", chat, said, Ends::Well, 10),
        whole(
            "one document, cut behind its usage",
            &chat[..chat.len() - 1],
            said,
            Ends::Cut,
            10,
        ),
        whole(
            "one document without usage",
            r#"{"choices":[{"message":{"content":"Hi"}}]}"#,
            None,
            Ends::Unsaid,
            1,
        ),
        whole(
            "an error as one document",
            r#"{"error":{"message":"no","type":"x"}}"#,
            None,
            Ends::Unsaid,
            0,
        ),
        Shape {
            operation: ModelOperation::Embeddings,
            ..whole("embeddings", embeddings, Some(usage(8, 0)), Ends::Well, 0)
        },
    ]
}
