//! The Ollama API.

use super::{Ends, Shape, usage};
use crate::dialect::{ModelOperation, ResponseFormat};
use crate::usage::TokenUsage;

const CHAT: &str = r#"{"model":"m","created_at":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":"Hi"},"done":false}"#;
const LAST: &str = r#"{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":9,"prompt_eval_count":26,"eval_count":8}"#;

fn stream(
    name: &'static str,
    lines: &[&str],
    usage: Option<TokenUsage>,
    ends: Ends,
    least: u64,
) -> Shape {
    let text = lines.iter().map(|line| format!("{line}\n")).collect();
    Shape {
        name,
        operation: ModelOperation::OllamaChat,
        kind: ResponseFormat::Lines,
        text,
        usage,
        ends,
        least,
    }
}

pub(super) fn shapes() -> Vec<Shape> {
    let said = Some(usage(26, 8));
    let cached =
        r#"{"done":true,"prompt_eval_count":26,"prompt_eval_cached_count":20,"eval_count":8}"#;
    let no_prompt = r#"{"done":true,"eval_count":8}"#;
    let thinking = r#"{"message":{"role":"assistant","content":"","thinking":"hm"},"done":false}"#;
    let call = r#"{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},"done":false}"#;
    let generate = r#"{"model":"m","response":"Hi","done":false}"#;
    let generated = r#"{"model":"m","response":"","done":true,"context":[1,2,3],"prompt_eval_count":26,"eval_count":8}"#;
    let embedded =
        r#"{"model":"m","embeddings":[[0.1,0.2]],"total_duration":1,"prompt_eval_count":8}"#;
    let mut shapes = vec![
        stream("ollama chat", &[CHAT, CHAT, LAST], said, Ends::Well, 8),
        stream(
            "ollama chat with a cache",
            &[CHAT, cached],
            Some(TokenUsage {
                cache_read: 20,
                ..usage(6, 8)
            }),
            Ends::Well,
            8,
        ),
        stream(
            "ollama chat without counts",
            &[CHAT, r#"{"done":true}"#],
            None,
            Ends::Unsaid,
            1,
        ),
        stream(
            "ollama chat without the prompt's count",
            &[CHAT, no_prompt],
            Some(usage(0, 8)),
            Ends::Unsaid,
            8,
        ),
        stream(
            "ollama chat cut",
            &[CHAT, CHAT, thinking, call],
            None,
            Ends::Cut,
            4,
        ),
        stream(
            "an error line",
            &[CHAT, r#"{"error":"out of memory"}"#],
            None,
            Ends::Cut,
            1,
        ),
        stream(
            "a line that is no JSON",
            &[CHAT, "{\"message\":{\"content\":\"", LAST],
            said,
            Ends::Well,
            8,
        ),
    ];
    let generating = stream(
        "ollama generate",
        &[generate, generate, generated],
        said,
        Ends::Well,
        8,
    );
    shapes.push(Shape {
        operation: ModelOperation::OllamaGenerate,
        ..generating
    });
    let whole = |shape: Shape, text: &str| Shape {
        kind: ResponseFormat::Whole,
        text: text.to_owned(),
        ..shape
    };
    shapes.push(whole(
        stream("ollama as one document", &[], said, Ends::Well, 8),
        LAST,
    ));
    let embed = stream("ollama embeddings", &[], Some(usage(8, 0)), Ends::Well, 0);
    shapes.push(whole(
        Shape {
            operation: ModelOperation::OllamaEmbed,
            ..embed
        },
        embedded,
    ));
    let tags = stream(
        "a list of models costs nothing",
        &[],
        Some(TokenUsage::default()),
        Ends::Well,
        0,
    );
    shapes.push(whole(
        Shape {
            operation: ModelOperation::OllamaTags,
            ..tags
        },
        r#"{"models":[]}"#,
    ));
    shapes
}
