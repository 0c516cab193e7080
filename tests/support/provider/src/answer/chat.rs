//! OpenAI's chat completions.

use super::{Shape, event, quoted};
use crate::{account::Tokens, ask::Plan, settings::Fault};
use serde_json::{Value, json};

pub(crate) struct Chat;

fn usage(tokens: Tokens) -> Value {
    let (prompt, completion) = (tokens.prompt(), tokens.generated());
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": tokens.cache_read, "audio_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": tokens.reasoning, "audio_tokens": 0 },
    })
}

fn finish(plan: &Plan) -> &'static str {
    if plan.capped { "length" } else { "stop" }
}

/// A chunk with these choices and whatever comes behind them.
fn chunk(plan: &Plan, choices: &str, rest: &str) -> String {
    let (number, model) = (plan.number, &plan.model_json);
    event(
        None,
        &format!(
            r#"{{"id":"chatcmpl-{number}","object":"chat.completion.chunk","created":1700000000,"model":{model},"choices":{choices}{rest}}}"#
        ),
    )
}

/// As a caller who asked for usage sees it on every chunk but the last.
fn null(plan: &Plan) -> &'static str {
    if plan.include_usage {
        r#","usage":null"#
    } else {
        ""
    }
}

fn with_usage(tokens: Tokens) -> String {
    format!(r#","usage":{}"#, usage(tokens))
}

fn usage_chunks(plan: &Plan, served: Tokens) -> Vec<String> {
    let last = chunk(plan, "[]", &with_usage(served));
    match plan.script.fault {
        _ if !plan.include_usage => Vec::new(),
        Some(Fault::NoUsage | Fault::UsageWithChoices | Fault::UsageEveryFrame) => Vec::new(),
        Some(Fault::UsageTwice) => vec![last.clone(), last],
        Some(Fault::UsageNullFirst) => vec![chunk(plan, "[]", r#","usage":null"#), last],
        _ => vec![last],
    }
}

impl Shape for Chat {
    fn unary(&self, plan: &Plan) -> Value {
        let message = json!({ "role": "assistant", "content": plan.whole(), "refusal": null });
        let mut answer = json!({
            "id": format!("chatcmpl-{}", plan.number),
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": plan.model,
            "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": finish(plan) }],
        });
        if !plan.script.has(&Fault::NoUsage) {
            answer["usage"] = usage(plan.tokens);
        }
        answer
    }

    fn opening(&self, plan: &Plan) -> Vec<String> {
        let choices = r#"[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"finish_reason":null}]"#;
        vec![chunk(plan, choices, null(plan))]
    }

    fn token(&self, plan: &Plan, index: u64) -> String {
        let word = quoted(&plan.word(index));
        let choices =
            format!(r#"[{{"index":0,"delta":{{"content":{word}}},"finish_reason":null}}]"#);
        if plan.include_usage && plan.script.has(&Fault::UsageEveryFrame) {
            return chunk(plan, &choices, &with_usage(plan.sent(index + 1)));
        }
        chunk(plan, &choices, null(plan))
    }

    fn closing(&self, plan: &Plan, served: Tokens) -> Vec<String> {
        let choices = format!(
            r#"[{{"index":0,"delta":{{}},"finish_reason":"{}"}}]"#,
            finish(plan)
        );
        let on_choices = [Fault::UsageWithChoices, Fault::UsageEveryFrame]
            .iter()
            .any(|one| plan.script.has(one));
        let rest = if plan.include_usage && on_choices {
            with_usage(served)
        } else {
            null(plan).to_owned()
        };
        let mut frames = vec![chunk(plan, &choices, &rest)];
        frames.extend(usage_chunks(plan, served));
        if !plan.script.has(&Fault::NoDone) {
            frames.push(event(None, "[DONE]"));
        }
        frames
    }

    fn failure(&self, _: &Plan, _: Tokens) -> Vec<String> {
        vec![event(
            None,
            r#"{"error":{"message":"the model failed","type":"server_error","param":null,"code":null}}"#,
        )]
    }
}
