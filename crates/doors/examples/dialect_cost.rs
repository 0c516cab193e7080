//! Cost of parsing: nanoseconds for a stream of 64 frames and for a body of 2 KB, the best of many
//! rounds.
//! `cargo run --release -p airlock-doors --example dialect_cost`

use bytes::Bytes;
use doors::dialect::{BodyEdits, ModelOperation, ResponseFormat, Tap, parse_body, rewrite};
use std::{hint::black_box, time::Instant};

fn main() {
    for (name, tail) in [("chat", ""), ("chat with a null usage", ",\"usage\":null")] {
        let frames: Vec<Bytes> = (0..64).map(|_| chat(tail)).collect();
        measure(&format!("64 frames of {name}"), || stream(&frames, false));
        measure(&format!("64 frames of {name}, stripped"), || {
            stream(&frames, true)
        });
    }
    let body = Bytes::from(body());
    let edits = BodyEdits {
        cap: Some(100),
        cap_name: "max_completion_tokens",
        ask_usage: true,
        ..BodyEdits::default()
    };
    measure(&format!("a body of {} bytes", body.len()), || {
        black_box(parse_body(ModelOperation::Chat, &body).is_ok());
    });
    measure("the same with two changes", || {
        black_box(
            parse_body(ModelOperation::Chat, &body)
                .map(|parsed| rewrite(ModelOperation::Chat, &body, &parsed, &edits))
                .is_ok(),
        );
    });
}

fn measure(name: &str, mut run: impl FnMut()) {
    let mut round = || {
        let start = Instant::now();
        (0..500).for_each(|_| run());
        start.elapsed().as_nanos() / 500
    };
    let best = (0..50).map(|_| round()).min().unwrap_or_default();
    println!("{name}: {best} ns");
}

fn stream(frames: &[Bytes], strip: bool) {
    let mut tap = Tap::new(ModelOperation::Chat, ResponseFormat::Events, strip);
    frames
        .iter()
        .for_each(|frame| drop(black_box(tap.feed(frame.clone()))));
}

fn chat(tail: &str) -> Bytes {
    Bytes::from(format!(
        "data: {{\"id\":\"chatcmpl-9lMgfRSWPHcw51s6wxKT1YEO2CKpd\",\"object\":\"chat.completion.chunk\",\"created\":1694268190,\
         \"model\":\"gpt-4o-mini\",\"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\
         \" hello\"}},\"logprobs\":null,\"finish_reason\":null}}]{tail}}}\n\n"
    ))
}

fn body() -> String {
    let message = r#"{"role":"user","content":"the quick brown fox jumps over the lazy dog, again and again"},"#;
    let last = r#"{"role":"user","content":"and again"}"#;
    format!(
        r#"{{"model":"gpt-5","messages":[{}{last}],"stream":true,"temperature":0.2}}"#,
        message.repeat(21)
    )
}
