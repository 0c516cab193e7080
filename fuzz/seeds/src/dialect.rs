//! Bodies and streams of the LLM door. The first byte says which operation it is, as the targets number them.

/// Method, path and query.
pub fn heads() -> Vec<Vec<u8>> {
    let heads = [
        "POST\n/v1/chat/completions\n",
        "POST\n/v1/messages\nbeta=true&key=k",
        "GET\n/v1/models\nlimit=5&after_id=a",
        "POST\n/v1beta/models/gemini-2.5-pro:streamGenerateContent\nalt=sse&key=k",
        "GET\n/v1beta/models\npageSize=5&pageToken=t",
        "POST\n/api/chat\n",
        "GET\n/v1/models/..%2ffiles\n",
    ];
    heads.iter().map(|head| head.as_bytes().to_vec()).collect()
}

/// As `targets/ask.rs` reads them.
pub fn asks() -> Vec<Vec<u8>> {
    let bodies = [
        (
            0,
            r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false},"max_tokens":9,"max_completion_tokens":null,"n":2,"user":"me"}"#,
        ),
        (
            0,
            r#"{"mod\u0065l":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}],"service_tier":"flex"}"#,
        ),
        (
            1,
            r#"{"model":"m","input":[{"type":"item_reference","id":"i"}],"tools":[{"type":"web_search"}],"max_output_tokens":5,"background":false}"#,
        ),
        (2, r#"{"model":"m","input":["a","b"],"user":"x"}"#),
        (
            3,
            r#"{"model":"m","max_tokens":10,"metadata":{"user_id":"u"},"tools":[{"name":"f"},{"type":"bash_20250124"}],"context_management":{"edits":[]}}"#,
        ),
        (
            4,
            r#"{"contents":[{"parts":[{"text":"a"},{"fileData":{"fileUri":"gs://x"}}]}],"generationConfig":{"maxOutputTokens":5,"candidateCount":2},"tools":[{"googleSearch":{}}]}"#,
        ),
        (
            5,
            r#"{"requests":[{"model":"models/e","content":{}},{"model":"e"}]}"#,
        ),
        (
            6,
            r#"{"model":"m","options":{"num_predict":-1},"messages":[{"images":["AA"]}]}"#,
        ),
        (6, r#"{"Model":"m","ſtream":1}"#),
    ];
    bodies
        .iter()
        .map(|(operation, body)| [&[*operation], body.as_bytes()].concat())
        .collect()
}

/// As `targets/tap.rs` reads them: operation, kind of answer, where it is cut.
pub fn taps() -> Vec<Vec<u8>> {
    let streams = [
        (
            0,
            1,
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\ndata: [DONE]\n\n",
        ),
        (
            0,
            3,
            ": c\r\nevent: x\rdata:{\"usage\":null,\"choices\":[]}\r\n\r\ndata: {\"choices\":[],\ndata: \"usage\":{}}\n\n",
        ),
        (
            0,
            0,
            r#"{"choices":[{"message":{"content":"\"usage\""}}],"usage":{"prompt_tokens":1.5,"completion_tokens":2e3}}"#,
        ),
        (
            1,
            1,
            "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"web_search_call\"}],\"usage\":{\"input_tokens\":1,\"output_tokens_details\":{\"reasoning_tokens\":4}}}}\n\n",
        ),
        (
            3,
            1,
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"cache_creation\":{\"ephemeral_1h_input_tokens\":7}}}}\n\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        (
            4,
            2,
            "[{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]},\"finishReason\":\"STOP\"}],\n\"usageMetadata\":{\"promptTokenCount\":3,\"promptTokensDetails\":[{\"modality\":\"AUDIO\",\"tokenCount\":2}]}}\n,\n{}]",
        ),
        (
            6,
            2,
            "{\"message\":{\"content\":\"a\"},\"done\":false}\n{\"done\":true,\"prompt_eval_count\":3,\"eval_count\":4}\n",
        ),
    ];
    streams
        .iter()
        .map(|(operation, kind, text)| [&[*operation, *kind, 5], text.as_bytes()].concat())
        .collect()
}
