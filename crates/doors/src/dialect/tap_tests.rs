//! Metering is exact for a corpus of response shapes, wherever they are cut.

#[path = "corpus/mod.rs"]
mod corpus;

use super::*;
use corpus::{Ends, Shape};
use proptest::prelude::*;

#[derive(Debug, PartialEq, Eq)]
struct Learnt {
    usage: Option<TokenUsage>,
    ends: Ends,
    least: u64,
    bytes: u64,
    passed: Vec<u8>,
}

fn learn<'p>(shape: &Shape, strip: bool, pieces: impl IntoIterator<Item = &'p [u8]>) -> Learnt {
    let mut tap = Tap::new(shape.operation, shape.kind, strip);
    let mut passed = Vec::new();
    for piece in pieces {
        passed.extend_from_slice(&tap.feed(Bytes::copy_from_slice(piece)));
    }
    passed.extend_from_slice(&tap.rest());
    let ends = match (tap.is_final(), tap.is_complete()) {
        (true, true) => Ends::Well,
        (true, false) => Ends::Said,
        (false, true) => Ends::Unsaid,
        (false, false) => Ends::Cut,
    };
    Learnt {
        usage: tap.usage(),
        ends,
        least: tap.least_output(),
        bytes: tap.output_bytes(),
        passed,
    }
}

/// With each line ending that the format allows.
fn spellings(shape: Shape) -> Vec<Shape> {
    let ends = if shape.kind == ResponseFormat::Events {
        &["\n", "\r\n", "\r"][..]
    } else {
        &["\n", "\r\n"]
    };
    let spell = |end: &&str| Shape {
        text: shape.text.replace("\r\n", "\n").replace('\n', end),
        ..shape.clone()
    };
    ends.iter().map(spell).collect()
}

#[test]
fn the_corpus_is_large_enough_to_mean_something() {
    assert!(corpus::shapes().len() >= 80, "{}", corpus::shapes().len());
}

#[test]
fn usage_is_exact_for_every_shape() {
    for shape in corpus::shapes().into_iter().flat_map(spellings) {
        let learnt = learn(&shape, false, [shape.text.as_bytes()]);
        assert_eq!(
            (learnt.usage, learnt.ends, learnt.least),
            (shape.usage, shape.ends, shape.least),
            "{}",
            shape.name
        );
        assert_eq!(learnt.passed, shape.text.as_bytes(), "{}", shape.name);
    }
}

#[test]
fn where_a_stream_is_cut_changes_nothing() {
    for shape in corpus::shapes().into_iter().flat_map(spellings) {
        let is_stripped =
            shape.operation == ModelOperation::Chat && shape.kind == ResponseFormat::Events;
        for strip in [false, true].into_iter().take(1 + usize::from(is_stripped)) {
            let text = shape.text.as_bytes();
            let whole = learn(&shape, strip, [text]);
            assert_eq!(whole, learn(&shape, strip, text.chunks(1)), "{shape:?}");
            for cut in 1..text.len() {
                let (left, right) = text.split_at(cut);
                assert_eq!(
                    whole,
                    learn(&shape, strip, [left, right]),
                    "cut at {cut}: {shape:?}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn any_pieces_of_any_bytes_are_as_good_as_the_whole(
        shape in proptest::sample::select(corpus::shapes()),
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        strip in any::<bool>(),
    ) {
        let mut text = shape.text.clone().into_bytes();
        text.push(b'\n');
        for (at, byte) in noise {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(learn(&shape, strip, [&text[..]]), learn(&shape, strip, pieces));
    }
}

#[test]
fn usage_is_found_behind_a_line_of_many_megabytes() {
    let text = "x".repeat(1 << 20);
    let begin = r#"data: {"choices":[{"delta":{"content":""#;
    let end = "\"}}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n";
    for strip in [false, true] {
        let mut tap = Tap::new(ModelOperation::Chat, ResponseFormat::Events, strip);
        let mut passed = tap.feed(Bytes::from(begin)).len();
        let mut held = 0;
        for _ in 0..20 {
            passed += tap.feed(Bytes::from(text.clone())).len();
            held = held.max(begin.len() + 20 * text.len() - passed);
        }
        passed += tap.feed(Bytes::from(end)).len();
        assert_eq!(
            tap.usage(),
            Some(TokenUsage {
                input: 3,
                output: 4,
                ..TokenUsage::default()
            })
        );
        assert!(tap.is_final() && tap.is_complete());
        assert_eq!(tap.output_bytes(), 20 << 20);
        assert_eq!(passed, begin.len() + (20 << 20) + end.len());
    }
}

#[test]
fn usage_is_found_in_a_document_of_two_hundred_megabytes_without_keeping_it() {
    let piece = Bytes::from("0.123456,".repeat(100_000));
    let mut tap = Tap::new(ModelOperation::Embeddings, ResponseFormat::Whole, false);
    tap.feed(Bytes::from(r#"{"data":[{"embedding":["#));
    for _ in 0..230 {
        let passed = tap.feed(piece.clone());
        assert_eq!(
            (passed.as_ptr(), passed.len()),
            (piece.as_ptr(), piece.len())
        );
    }
    tap.feed(Bytes::from(
        r#"0]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#,
    ));
    assert_eq!(tap.usage().map(|usage| usage.tokens()), Some(5));
    assert!(tap.is_final());
    // The struct owns no heap memory.
    assert!(size_of::<Tap>() < 1024, "{}", size_of::<Tap>());
}

#[test]
fn only_an_object_of_the_dialect_is_an_answer() {
    for operation in [
        ModelOperation::Chat,
        ModelOperation::Responses,
        ModelOperation::Messages,
        ModelOperation::Generate,
        ModelOperation::Embeddings,
    ] {
        for text in ["POISONED!", "null", "[]", "\"text\"", "12 ", "", "{\"a\":1"] {
            let mut tap = Tap::new(operation, ResponseFormat::Whole, false);
            tap.feed(Bytes::from(text));
            tap.rest();
            assert!(
                !tap.is_complete() && !tap.is_final(),
                "{operation:?} {text}"
            );
        }
        let mut tap = Tap::new(operation, ResponseFormat::Whole, false);
        tap.feed(Bytes::from("{\"a\":1}"));
        tap.rest();
        assert!(tap.is_complete(), "{operation:?}: the control");
    }
    let mut tap = Tap::new(ModelOperation::Models, ResponseFormat::Whole, false);
    tap.feed(Bytes::from("[]"));
    tap.rest();
    assert!(tap.is_complete(), "what costs nothing may be anything");
}

#[test]
fn bytes_pass_uncopied() {
    let piece = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
    for strip in [false, true] {
        let passed =
            Tap::new(ModelOperation::Chat, ResponseFormat::Events, strip).feed(piece.clone());
        assert_eq!(
            (passed.as_ptr(), passed.len()),
            (piece.as_ptr(), piece.len())
        );
    }
}

fn api_error() -> ApiError {
    ApiError {
        status: 402,
        code: "budget_exceeded",
        message: "spent".to_owned(),
        retry: false,
        retry_after: None,
    }
}

#[test]
fn an_interruption_of_lines_begins_on_its_own_and_leaves_no_empty_one() {
    let mut tap = Tap::new(ModelOperation::OllamaChat, ResponseFormat::Lines, false);
    let error = "{\"code\":\"budget_exceeded\",\"error\":\"spent\"}\n";
    tap.feed(Bytes::from("{\"done\":false}\n"));
    assert_eq!(tap.stream_error(&api_error()), error);
    tap.feed(Bytes::from("{\"do"));
    assert_eq!(tap.stream_error(&api_error()), format!("\n{error}"));
}

#[test]
fn nothing_is_put_into_one_document() {
    assert_eq!(
        Tap::new(ModelOperation::Chat, ResponseFormat::Whole, false).stream_error(&api_error()),
        ""
    );
    let chat =
        Tap::new(ModelOperation::Chat, ResponseFormat::Events, false).stream_error(&api_error());
    assert!(chat.starts_with(b"\n\ndata: {\"error\":"), "{chat:?}");
}
