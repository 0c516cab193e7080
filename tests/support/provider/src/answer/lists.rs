//! Answers of routes where no model speaks: lists, counts, embeddings, and what must never be reached.

use crate::{ask::Plan, route::Operation};
use serde_json::{Value, json};

/// The one model that every list names.
const MODEL: &str = "mock";
const VECTOR: [f64; 4] = [0.1, 0.2, 0.3, 0.4];

pub(crate) fn list(plan: &Plan) -> Value {
    let input = plan.tokens.prompt();
    match plan.operation {
        Operation::OpenAiEmbeddings => json!({
            "object": "list",
            "data": [{ "object": "embedding", "index": 0, "embedding": VECTOR }],
            "model": plan.model,
            "usage": { "prompt_tokens": input, "total_tokens": input },
        }),
        Operation::OpenAiModels => json!({
            "object": "list",
            "data": [{ "id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "mock" }],
        }),
        Operation::AnthropicModels => json!({
            "data": [{ "type": "model", "id": MODEL, "display_name": MODEL, "created_at": "2026-01-01T00:00:00Z" }],
            "has_more": false, "first_id": MODEL, "last_id": MODEL,
        }),
        Operation::AnthropicCountTokens => json!({ "input_tokens": input }),
        Operation::GeminiModels => json!({
            "models": [{ "name": "models/mock", "supportedGenerationMethods": ["generateContent"] }],
        }),
        Operation::GeminiCountTokens => json!({ "totalTokens": input }),
        Operation::GeminiEmbed => json!({ "embedding": { "values": VECTOR } }),
        Operation::GeminiBatchEmbed => json!({ "embeddings": [{ "values": VECTOR }] }),
        _ => ollama(plan),
    }
}

fn ollama(plan: &Plan) -> Value {
    let details = json!({ "format": "gguf", "family": "mock", "parameter_size": "1B", "quantization_level": "Q4" });
    let model = json!({ "name": "mock:latest", "model": "mock:latest", "size": 1, "digest": "0", "details": details });
    match plan.operation {
        Operation::OllamaEmbed => json!({
            "model": plan.model, "embeddings": [VECTOR], "prompt_eval_count": plan.tokens.prompt(),
        }),
        Operation::OllamaEmbeddings => json!({ "embedding": VECTOR }),
        Operation::OllamaTags | Operation::OllamaPs => json!({ "models": [model] }),
        Operation::OllamaShow => {
            json!({ "details": details, "model_info": {}, "capabilities": ["completion"] })
        }
        Operation::OllamaVersion => json!({ "version": "0.12.0" }),
        _ => json!({ "status": "success" }),
    }
}
