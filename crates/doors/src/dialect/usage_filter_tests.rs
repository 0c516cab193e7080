//! The filtered stream equals the stream without the door.

use super::*;

fn filter(text: &str) -> String {
    let mut filter = UsageFilter::default();
    let mut left = filter
        .feed(Bytes::copy_from_slice(text.as_bytes()))
        .to_vec();
    left.extend_from_slice(&filter.rest());
    String::from_utf8(left).expect("it was text")
}

#[test]
fn the_usage_event_goes_with_its_blank_line_and_nothing_else_does() {
    let before = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    let usage = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n";
    let after = "data: [DONE]\n\n";
    assert_eq!(
        filter(&[before, usage, after].concat()),
        [before, after].concat()
    );
    let returns = |text: &str| text.replace('\n', "\r\n");
    assert_eq!(
        filter(&returns(&[before, usage, after].concat())),
        returns(&[before, after].concat())
    );
    let only = |text: &str| text.replace('\n', "\r");
    assert_eq!(
        filter(&only(&[before, usage, after].concat())),
        only(&[before, after].concat())
    );
    assert_eq!(filter(&[before, usage].concat()), before);
}

#[test]
fn a_usage_that_is_null_goes_alone_wherever_it_stands() {
    let cases = [
        (r#"{"choices":[{}],"usage":null}"#, r#"{"choices":[{}]}"#),
        (r#"{"usage":null,"choices":[{}]}"#, r#"{"choices":[{}]}"#),
        (
            r#"{"a":1, "usage": null, "choices": [{}]}"#,
            r#"{"a":1, "choices": [{}]}"#,
        ),
        (
            r#"{"choices":[{}], "usage" : null }"#,
            r#"{"choices":[{}] }"#,
        ),
        (r#"{"usage":null}"#, "{}"),
        (
            r#"{"choices":[{"usage":null}] , "usage":null}"#,
            r#"{"choices":[{"usage":null}]}"#,
        ),
        (
            r#"{"choices":[{"text":"\"usage"}],"usage":null,"a":{"b":[1]}}"#,
            r#"{"choices":[{"text":"\"usage"}],"a":{"b":[1]}}"#,
        ),
        (
            r#"{"choices":[],"usage":null,"obfuscation":"xy"}"#,
            r#"{"choices":[],"obfuscation":"xy"}"#,
        ),
    ];
    for (with, without) in cases {
        assert_eq!(
            filter(&format!("data: {with}\n\n")),
            format!("data: {without}\n\n")
        );
        assert_eq!(
            filter(&format!("data:{with}\r\n\r\n")),
            format!("data:{without}\r\n\r\n")
        );
    }
}

#[test]
fn what_is_not_there_because_of_us_stays() {
    let cases = [
        r#"{"choices":[{"delta":{"content":"\"usage\":null"}}]}"#,
        r#"{"choices":[{"delta":{},"usage":null}]}"#,
        r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":1}} and more"#,
        r#"{"choices":[],"usage":{"prompt_tokens":1}"#,
        r#"{"usage":{"prompt_tokens":1}}"#,
        r#"{"choices":[[]],"prompt_filter_results":[]}"#,
        r#"["usage"]"#,
        r#"{"choices":[{"\"usage":null}]}"#,
        r#"{"say \"usage":null}"#,
        r#"{"usage":nul}"#,
        r#"{"a":{"usage":null},"b":1}"#,
    ];
    for data in cases {
        let text = format!(": comment\ndata: {data}\n\n");
        assert_eq!(filter(&text), text);
    }
}

#[test]
fn an_event_of_which_something_was_passed_on_keeps_its_end() {
    let text = "event: x\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: y\n\n";
    assert_eq!(filter(text), "event: x\n\ndata: y\n\n");
}

#[test]
fn whole_lines_are_never_held_back_and_beginnings_only_to_a_bound() {
    let mut filter = UsageFilter::default();
    assert_eq!(filter.feed(Bytes::from("data: x\n")), "data: x\n");
    assert_eq!(filter.feed(Bytes::from("\ndata: y")), "\n");
    assert_eq!(filter.feed(Bytes::from("\nda")), "data: y\n");
    assert_eq!(filter.feed(Bytes::from("ta: ")), "");
    let long = "z".repeat(MAX_LINE_BYTES);
    assert_eq!(
        filter.feed(Bytes::from(long.clone())).len(),
        "data: ".len() + long.len()
    );
    assert_eq!(
        filter.feed(Bytes::from("\"usage\":null}\n\n")),
        "\"usage\":null}\n\n"
    );
    assert_eq!(
        filter.feed(Bytes::from("data: {\"choices\":[],\"usage\":{}}\n\nx\n")),
        "x\n"
    );
}

#[test]
fn a_long_line_behind_a_carriage_return_keeps_its_own_end() {
    let text = format!(
        "data: {}\r\r{}\n\ndata: {{\"usage\":null}}\r\n",
        "x",
        "y".repeat(MAX_LINE_BYTES + 1)
    );
    let mut filter = UsageFilter::default();
    let mut left = Vec::new();
    for piece in text.as_bytes().chunks(1000) {
        left.extend_from_slice(&filter.feed(Bytes::copy_from_slice(piece)));
    }
    assert_eq!(left, text.replace("\"usage\":null", "").as_bytes());
}
