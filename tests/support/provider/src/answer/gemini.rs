//! Gemini's own: cumulative usage on every chunk, as events or as one array that grows.

use super::Shape;
use crate::{
    account::Tokens,
    ask::{Flow, Plan},
    settings::Fault,
};
use serde_json::{Value, json};

pub(crate) struct Generate;

/// The prompt's number is with the cache, the candidates' without thoughts.
fn usage(tokens: Tokens) -> Value {
    let prompt = tokens.prompt();
    let mut usage = json!({
        "promptTokenCount": prompt,
        "candidatesTokenCount": tokens.output,
        "totalTokenCount": prompt + tokens.generated(),
    });
    if tokens.cache_read > 0 {
        usage["cachedContentTokenCount"] = tokens.cache_read.into();
    }
    if tokens.reasoning > 0 {
        usage["thoughtsTokenCount"] = tokens.reasoning.into();
    }
    usage
}

fn chunk(plan: &Plan, text: &str, finish: Option<&str>, served: Option<Tokens>) -> Value {
    let mut candidate =
        json!({ "content": { "parts": [{ "text": text }], "role": "model" }, "index": 0 });
    if let Some(finish) = finish {
        candidate["finishReason"] = finish.into();
    }
    let mut chunk = json!({
        "candidates": [candidate],
        "modelVersion": plan.model,
        "responseId": format!("mock-{}", plan.number),
    });
    if let Some(served) = served.filter(|_| !plan.script.has(&Fault::NoUsage)) {
        chunk["usageMetadata"] = usage(served);
    }
    chunk
}

fn finish(plan: &Plan) -> &'static str {
    if plan.capped { "MAX_TOKENS" } else { "STOP" }
}

fn frame(plan: &Plan, chunk: &Value) -> String {
    match plan.flow {
        Flow::Array => format!("{chunk}\n,\r\n"),
        Flow::Unary | Flow::Events | Flow::Lines => format!("data: {chunk}\r\n\r\n"),
    }
}

/// The last one of an array has its bracket in place of a comma.
fn closed(plan: &Plan, chunk: &Value) -> String {
    match plan.flow {
        Flow::Array => format!("{chunk}\n]"),
        Flow::Unary | Flow::Events | Flow::Lines => frame(plan, chunk),
    }
}

impl Shape for Generate {
    fn unary(&self, plan: &Plan) -> Value {
        chunk(plan, &plan.whole(), Some(finish(plan)), Some(plan.tokens))
    }

    fn opening(&self, plan: &Plan) -> Vec<String> {
        if plan.flow == Flow::Array {
            vec!["[".to_owned()]
        } else {
            Vec::new()
        }
    }

    fn token(&self, plan: &Plan, index: u64) -> String {
        let served =
            Some(plan.sent(index + 1)).filter(|_| !plan.script.has(&Fault::UsageOnlyAtEnd));
        frame(plan, &chunk(plan, &plan.word(index), None, served))
    }

    fn closing(&self, plan: &Plan, served: Tokens) -> Vec<String> {
        let end = chunk(plan, "", Some(finish(plan)), Some(served));
        if plan.script.has(&Fault::UsageOnlyAtEnd) {
            let end = chunk(plan, "", Some(finish(plan)), None);
            return vec![
                frame(plan, &end),
                closed(plan, &json!({ "usageMetadata": usage(served) })),
            ];
        }
        if plan.script.has(&Fault::UsageTwice) {
            return vec![
                frame(plan, &end),
                closed(plan, &json!({ "usageMetadata": usage(served) })),
            ];
        }
        if plan.script.has(&Fault::NoDone) {
            return vec![closed(plan, &chunk(plan, "", None, Some(served)))];
        }
        vec![closed(plan, &end)]
    }

    fn failure(&self, plan: &Plan, _: Tokens) -> Vec<String> {
        let error = json!({ "code": 500, "message": "the model failed", "status": "INTERNAL" });
        vec![closed(plan, &json!({ "error": error }))]
    }
}
