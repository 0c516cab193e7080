//! Ollama's own: lines of JSON, counts in the last.

use super::{Shape, quoted};
use crate::{account::Tokens, ask::Plan, settings::Fault};
use serde_json::{Value, json};

/// Chat and generate differ in where the text stands.
pub(crate) struct Ollama {
    pub(crate) chat: bool,
}

const CREATED: &str = "2026-01-01T00:00:00.000000Z";

impl Ollama {
    fn last(&self, plan: &Plan, text: &str, served: Tokens) -> Value {
        let mut answer = json!({ "model": plan.model, "created_at": CREATED, "done": true });
        if self.chat {
            answer["message"] = json!({ "role": "assistant", "content": text });
        } else {
            answer["response"] = text.into();
        }
        answer["done_reason"] = if plan.capped { "length" } else { "stop" }.into();
        for name in [
            "total_duration",
            "load_duration",
            "prompt_eval_duration",
            "eval_duration",
        ] {
            answer[name] = 1_000_000.into();
        }
        if !plan.script.has(&Fault::NoUsage) {
            answer["prompt_eval_count"] = served.prompt().into();
            answer["eval_count"] = served.generated().into();
            if served.cache_read > 0 {
                answer["prompt_eval_cached_count"] = served.cache_read.into();
            }
        }
        answer
    }
}

impl Shape for Ollama {
    fn unary(&self, plan: &Plan) -> Value {
        self.last(plan, &plan.whole(), plan.tokens)
    }

    fn opening(&self, _: &Plan) -> Vec<String> {
        Vec::new()
    }

    fn token(&self, plan: &Plan, index: u64) -> String {
        let (model, word) = (&plan.model_json, quoted(&plan.word(index)));
        let text = if self.chat {
            format!(r#""message":{{"role":"assistant","content":{word}}}"#)
        } else {
            format!(r#""response":{word}"#)
        };
        format!("{{\"model\":{model},\"created_at\":\"{CREATED}\",{text},\"done\":false}}\n")
    }

    fn closing(&self, plan: &Plan, served: Tokens) -> Vec<String> {
        let last = format!("{}\n", self.last(plan, "", served));
        match plan.script.fault {
            Some(Fault::NoDone) => Vec::new(),
            Some(Fault::UsageTwice) => vec![last.clone(), last],
            _ => vec![last],
        }
    }

    fn failure(&self, _: &Plan, _: Tokens) -> Vec<String> {
        vec!["{\"error\":\"the model failed\"}\n".to_owned()]
    }
}
