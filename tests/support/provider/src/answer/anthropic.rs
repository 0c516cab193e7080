//! Anthropic's messages: usage at the start, then cumulative at the end.

use super::{Shape, event, quoted};
use crate::{account::Tokens, ask::Plan, settings::Fault};
use serde_json::{Value, json};

pub(crate) struct Messages;

/// Here the prompt's number is without what the cache gave or took.
fn usage(tokens: Tokens, output: u64) -> Value {
    json!({
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write_5m + tokens.cache_write_1h,
        "cache_read_input_tokens": tokens.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.cache_write_5m,
            "ephemeral_1h_input_tokens": tokens.cache_write_1h,
        },
        "output_tokens": output,
        "service_tier": "standard",
    })
}

fn message(plan: &Plan, content: &[Value], stop: Option<&str>, usage: Value) -> Value {
    let mut message = json!({
        "id": format!("msg_{}", plan.number),
        "type": "message",
        "role": "assistant",
        "model": plan.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": null,
    });
    if !plan.script.has(&Fault::NoUsage) {
        message["usage"] = usage;
    }
    message
}

fn stop(plan: &Plan) -> &'static str {
    if plan.capped {
        "max_tokens"
    } else {
        "end_turn"
    }
}

fn delta(plan: &Plan, served: Tokens, output: u64) -> String {
    let mut data = json!({
        "type": "message_delta", "delta": { "stop_reason": stop(plan), "stop_sequence": null },
    });
    match plan.script.fault {
        Some(Fault::NoUsage) => {}
        Some(Fault::UsageOnlyAtEnd) => data["usage"] = usage(served, output),
        _ => data["usage"] = json!({ "output_tokens": output }),
    }
    event(Some("message_delta"), &data.to_string())
}

impl Shape for Messages {
    fn unary(&self, plan: &Plan) -> Value {
        let text = json!({ "type": "text", "text": plan.whole() });
        message(
            plan,
            &[text],
            Some(stop(plan)),
            usage(plan.tokens, plan.tokens.generated()),
        )
    }

    fn opening(&self, plan: &Plan) -> Vec<String> {
        let known = if plan.script.has(&Fault::UsageOnlyAtEnd) {
            Tokens::default()
        } else {
            plan.tokens
        };
        let first =
            u64::from(plan.tokens.generated() > 0 && !plan.script.has(&Fault::UsageOnlyAtEnd));
        let message = message(plan, &[], None, usage(known, first));
        vec![
            event(
                Some("message_start"),
                &json!({ "type": "message_start", "message": message }).to_string(),
            ),
            event(
                Some("content_block_start"),
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            ),
            event(Some("ping"), r#"{"type": "ping"}"#),
        ]
    }

    fn token(&self, plan: &Plan, index: u64) -> String {
        let word = quoted(&plan.word(index));
        event(
            Some("content_block_delta"),
            &format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{word}}}}}"#
            ),
        )
    }

    fn closing(&self, plan: &Plan, served: Tokens) -> Vec<String> {
        let all = served.generated();
        let mut frames = vec![event(
            Some("content_block_stop"),
            r#"{"type":"content_block_stop","index":0}"#,
        )];
        if plan.script.has(&Fault::UsageTwice) {
            frames.push(delta(plan, served, all / 2));
        }
        frames.push(delta(plan, served, all));
        if !plan.script.has(&Fault::NoDone) {
            frames.push(event(Some("message_stop"), r#"{"type":"message_stop"}"#));
        }
        frames
    }

    fn failure(&self, _: &Plan, _: Tokens) -> Vec<String> {
        vec![event(
            Some("error"),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        )]
    }
}
