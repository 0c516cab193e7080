//! The Gemini API.

use super::{Ends, Shape, events, usage};
use crate::dialect::{ModelOperation, ResponseFormat};
use crate::usage::TokenUsage;

const FIRST: &str = r#"{"candidates":[{"content":{"parts":[{"text":"Hel"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":10,"totalTokenCount":10},"modelVersion":"g"}"#;
const LAST: &str = r#"{"candidates":[{"content":{"parts":[{"text":"lo"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":4,"totalTokenCount":14}}"#;

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
        operation: ModelOperation::Generate,
        kind: ResponseFormat::Events,
        text,
        usage,
        ends,
        least,
    }
}

fn with_usage(name: &'static str, said: &str, usage: TokenUsage) -> Shape {
    let last = format!(
        r#"{{"candidates":[{{"content":{{"parts":[{{"text":"x"}}]}},"finishReason":"STOP"}}],"usageMetadata":{said}}}"#
    );
    stream(
        name,
        &[FIRST, &last],
        Some(usage),
        Ends::Well,
        usage.output_tokens(),
    )
}

pub(super) fn shapes() -> Vec<Shape> {
    [streams(), kinds_of_tokens(), documents()].concat()
}

fn streams() -> Vec<Shape> {
    let finish = r#"{"candidates":[{"content":{"parts":[{"text":""}]},"finishReason":"STOP"}]}"#;
    let only = r#"{"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":4,"totalTokenCount":14}}"#;
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":10,"totalTokenCount":10}}"#;
    let call = r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a":"b"}},"thoughtSignature":"zz"}]}}]}"#;
    let grounded = r#"{"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP","groundingMetadata":{"webSearchQueries":["a","b"],"groundingChunks":[{"web":{"uri":"u"}}]}}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":4,"totalTokenCount":14}}"#;
    let said = Some(usage(10, 4));
    vec![
        stream("gemini", &[FIRST, LAST], said, Ends::Well, 4),
        stream(
            "usage alone at the end",
            &[FIRST, finish, only],
            said,
            Ends::Well,
            4,
        ),
        stream(
            "gemini cut",
            &[FIRST, FIRST],
            Some(usage(10, 0)),
            Ends::Cut,
            2,
        ),
        stream(
            "a prompt that was blocked",
            &[blocked],
            Some(usage(10, 0)),
            Ends::Well,
            0,
        ),
        stream("a call of a function", &[call], None, Ends::Cut, 1),
        stream(
            "searches for grounding",
            &[FIRST, grounded],
            said.map(|said| TokenUsage {
                tool_requests: 2,
                ..said
            }),
            Ends::Well,
            4,
        ),
    ]
}

fn kinds_of_tokens() -> Vec<Shape> {
    vec![
        with_usage(
            "cached is within the prompt, thoughts are beside the candidates",
            r#"{"promptTokenCount":100,"cachedContentTokenCount":80,"candidatesTokenCount":4,"thoughtsTokenCount":30,"totalTokenCount":134}"#,
            TokenUsage {
                cache_read: 80,
                reasoning: 30,
                ..usage(20, 4)
            },
        ),
        with_usage(
            "what tools put into the prompt is input",
            r#"{"promptTokenCount":100,"toolUsePromptTokenCount":50,"candidatesTokenCount":4,"totalTokenCount":154}"#,
            usage(150, 4),
        ),
        with_usage(
            "thoughts without a total",
            r#"{"promptTokenCount":100,"candidatesTokenCount":40,"thoughtsTokenCount":30}"#,
            TokenUsage {
                reasoning: 30,
                ..usage(100, 40)
            },
        ),
        with_usage(
            "only the total knows of the output",
            r#"{"promptTokenCount":100,"totalTokenCount":107}"#,
            usage(100, 7),
        ),
        with_usage(
            "sound by its modality",
            r#"{"promptTokenCount":100,"candidatesTokenCount":20,"totalTokenCount":120,"promptTokensDetails":[{"modality":"TEXT","tokenCount":40},{"modality":"AUDIO","tokenCount":60}],"candidatesTokensDetails":[{"tokenCount":15,"modality":"AUDIO"}]}"#,
            TokenUsage {
                audio_in: 60,
                audio_out: 15,
                ..usage(40, 5)
            },
        ),
    ]
}

fn documents() -> Vec<Shape> {
    let said = Some(usage(10, 4));
    let array = format!("[{FIRST}\n,\r\n{LAST}\n]");
    let pretty = format!(
        "[{{\n  \"candidates\": [],\n  \"usageMetadata\": {{\n    \"promptTokenCount\": 10\n  }}\n}}\n,\n{LAST}\n]\n"
    );
    let embedding = r#"{"embedding":{"values":[0.1,0.2]},"usageMetadata":{"promptTokenCount":3}}"#;
    let shape = |name, kind, text: &str, usage, ends, least| Shape {
        kind,
        text: text.to_owned(),
        ..stream(name, &[], usage, ends, least)
    };
    let lines = ResponseFormat::Lines;
    vec![
        shape("an array of documents", lines, &array, said, Ends::Well, 4),
        shape(
            "an array of documents, as one",
            ResponseFormat::Whole,
            &array,
            said,
            Ends::Well,
            4,
        ),
        shape(
            "an array in many lines",
            lines,
            &pretty,
            said,
            Ends::Well,
            4,
        ),
        shape(
            "an array that is cut",
            lines,
            &array[..array.len() - 2],
            said,
            Ends::Said,
            4,
        ),
        shape(
            "an array cut behind its first",
            lines,
            &format!("[{FIRST},"),
            Some(usage(10, 0)),
            Ends::Cut,
            1,
        ),
        shape(
            "one document of gemini",
            ResponseFormat::Whole,
            LAST,
            said,
            Ends::Well,
            4,
        ),
        Shape {
            operation: ModelOperation::GeminiEmbed,
            ..shape(
                "an embedding of gemini",
                ResponseFormat::Whole,
                embedding,
                Some(usage(3, 0)),
                Ends::Well,
                0,
            )
        },
        Shape {
            operation: ModelOperation::GeminiEmbed,
            ..shape(
                "an embedding without usage",
                ResponseFormat::Whole,
                r#"{"embedding":{"values":[1]}}"#,
                None,
                Ends::Unsaid,
                0,
            )
        },
    ]
}
