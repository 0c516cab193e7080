//! OpenAI's responses: named, numbered events, usage in the last.

use super::{Shape, event, quoted};
use crate::{account::Tokens, ask::Plan, settings::Fault};
use serde_json::{Value, json};

pub(crate) struct Responses;

fn usage(tokens: Tokens) -> Value {
    let (input, output) = (tokens.prompt(), tokens.generated());
    json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": tokens.cache_read },
        "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": tokens.reasoning },
        "total_tokens": input + output,
    })
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

fn item(plan: &Plan, status: &str, content: &[Value]) -> Value {
    let id = format!("msg_{}", plan.number);
    json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
}

/// The response object in this state.
fn response(plan: &Plan, status: &str, output: &[Value], served: Option<Tokens>) -> Value {
    let mut answer = json!({
        "id": format!("resp_{}", plan.number),
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "metadata": {},
        "model": plan.model,
        "output": output,
        "parallel_tool_calls": true,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": null,
    });
    if status == "incomplete" {
        answer["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    }
    if status == "failed" {
        answer["error"] = json!({ "code": "server_error", "message": "the model failed" });
    }
    if let Some(served) = served.filter(|_| !plan.script.has(&Fault::NoUsage)) {
        answer["usage"] = usage(served);
    }
    answer
}

fn named(name: &str, number: u64, mut data: Value) -> String {
    data["type"] = name.into();
    data["sequence_number"] = number.into();
    event(Some(name), &data.to_string())
}

fn status(plan: &Plan) -> &'static str {
    if plan.capped {
        "incomplete"
    } else {
        "completed"
    }
}

fn said(plan: &Plan, output: u64) -> String {
    (0..output).map(|index| plan.word(index)).collect()
}

/// Events before the first delta.
const OPENING: u64 = 4;

impl Shape for Responses {
    fn unary(&self, plan: &Plan) -> Value {
        let status = status(plan);
        response(
            plan,
            status,
            &[item(plan, status, &[part(&plan.whole())])],
            Some(plan.tokens),
        )
    }

    fn opening(&self, plan: &Plan) -> Vec<String> {
        let begun = response(plan, "in_progress", &[], None);
        let id = format!("msg_{}", plan.number);
        let added =
            json!({ "item_id": id, "output_index": 0, "content_index": 0, "part": part("") });
        let first = json!({ "output_index": 0, "item": item(plan, "in_progress", &[]) });
        vec![
            named("response.created", 0, json!({ "response": begun })),
            named("response.in_progress", 1, json!({ "response": begun })),
            named("response.output_item.added", 2, first),
            named("response.content_part.added", 3, added),
        ]
    }

    fn token(&self, plan: &Plan, index: u64) -> String {
        let (number, id, word) = (OPENING + index, plan.number, quoted(&plan.word(index)));
        event(
            Some("response.output_text.delta"),
            &format!(
                r#"{{"type":"response.output_text.delta","sequence_number":{number},"item_id":"msg_{id}","output_index":0,"content_index":0,"delta":{word},"logprobs":[]}}"#
            ),
        )
    }

    fn closing(&self, plan: &Plan, served: Tokens) -> Vec<String> {
        let (status, text) = (status(plan), said(plan, served.output));
        let item = item(plan, status, &[part(&text)]);
        let number = OPENING + served.output;
        let place = json!({ "item_id": format!("msg_{}", plan.number), "output_index": 0, "content_index": 0 });
        let (mut text_done, mut part_done) = (place.clone(), place);
        text_done["text"] = text.as_str().into();
        part_done["part"] = part(&text);
        let mut frames = vec![
            named("response.output_text.done", number, text_done),
            named("response.content_part.done", number + 1, part_done),
            named(
                "response.output_item.done",
                number + 2,
                json!({ "output_index": 0, "item": item }),
            ),
        ];
        if !plan.script.has(&Fault::NoDone) {
            let last = response(plan, status, &[item], Some(served));
            frames.push(named(
                &format!("response.{status}"),
                number + 3,
                json!({ "response": last }),
            ));
        }
        frames
    }

    fn failure(&self, plan: &Plan, served: Tokens) -> Vec<String> {
        let last = response(plan, "failed", &[], Some(served));
        vec![named(
            "response.failed",
            OPENING + served.output,
            json!({ "response": last }),
        )]
    }
}
