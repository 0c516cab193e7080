//! The scanner accepts what serde_json accepts.

use super::*;
use proptest::prelude::*;
use serde::de::IgnoredAny;

fn takes(text: &str) -> bool {
    let mut scanner = JsonScanner::new(text);
    scanner.skip().and_then(|_| scanner.finish()).is_ok()
}

fn serde_takes(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[test]
fn the_grammar_is_kept_to_the_letter() {
    let good = [
        "0",
        "-0",
        "12.5e-3",
        "1E+2",
        "true",
        "false",
        "null",
        "\"\"",
        "\"\\u00e9\\n\\/\"",
        "[]",
        "{}",
        " [ 1 , 2 ] ",
        "{\"a\":{\"b\":[{}]},\"c\":null}",
        "\"\\ud800\"",
        "\"\u{7f}\"",
        "1e999",
        "123456789012345678901234567890",
    ];
    let bad = [
        "",
        " ",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "0x1",
        "NaN",
        "Infinity",
        "tru",
        "nulll",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\n\"",
        "\"\u{0}\"",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{,}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "{\"a\":}",
        "[1}",
        "{\"a\":1]",
        "1 2",
        "{} {}",
        "\u{feff}{}",
        "'a'",
        "[1]]",
        "{}}",
        "// x",
        "{\"a\":1 \"b\":2}",
        "\u{a0}1",
    ];
    for text in good {
        assert!(takes(text) && serde_takes(text), "{text}");
    }
    for text in bad {
        assert!(!takes(text) && !serde_takes(text), "{text}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(takes(&nested(MAX_DEPTH)));
    assert!(!takes(&nested(MAX_DEPTH + 1)));
    assert!(!takes(&"[".repeat(100_000)));
}

#[test]
fn strings_are_decoded_whole_or_not_at_all() {
    let decode = |text: &str| {
        let mut scanner = JsonScanner::new(text);
        let literal = scanner.string().expect("it is a string");
        scanner.decode(&literal).map(Cow::into_owned)
    };
    assert_eq!(decode(r#""mod\u0065l""#).as_deref(), Ok("model"));
    assert_eq!(decode(r#""\ud83d\ude00""#).as_deref(), Ok("😀"));
    assert!(decode(r#""\ud83d""#).is_err());
    assert!(decode(r#""\ude00\ud83d""#).is_err());
}

/// Almost valid JSON.
fn near_json() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        proptest::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\"a\"",
            "\"\\u0061\"",
            "\\",
            "0",
            "-",
            "1.5",
            "e",
            "E+1",
            ".",
            "true",
            "null",
            "false",
            " ",
            "\n",
            "{\"a\":1}",
            "[1,2]",
            "\"a\":",
            "\u{e9}",
            "\t",
            "\"\\ud800\"",
            "\u{1}",
            "00",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,3}",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// A document with whitespace at any position.
fn document() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,5})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        any::<String>().prop_map(|text| serde_json::Value::from(text).to_string()),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let key = any::<String>().prop_map(|text| serde_json::Value::from(text).to_string());
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6)
                .prop_map(|list| format!("[{}]", list.join(" ,\n"))),
            proptest::collection::vec((key, inner), 0..6).prop_map(|list| {
                let members: Vec<String> = list
                    .iter()
                    .map(|(key, value)| format!("{key} :\t{value}"))
                    .collect();
                format!("{{ {} }}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_nearly_json_is_taken_as_serde_takes_it(text in near_json()) {
        prop_assert_eq!(takes(&text), serde_takes(&text));
    }

    #[test]
    fn documents_are_taken_and_broken_ones_are_not(
        text in document(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        prop_assert!(takes(&text));
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            prop_assert_eq!(takes(&text), serde_takes(&text));
        }
    }
}
