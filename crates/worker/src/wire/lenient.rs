//! Repairs the invalid JSON that Python writes: `NaN`, `Infinity` and `-Infinity` become null, lone
//! surrogates in strings become U+FFFD. Valid JSON is left unchanged, to the byte.
//!
//! Numbers beyond 64 bits, which few parsers preserve, can be turned into strings.

use serde::de::IgnoredAny;
use std::borrow::Cow;

const NON_JSON_NUMBERS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
const ESCAPE: usize = r"\uD800".len();

/// Repairs the text. Linear in time; the text grows by a third at most.
pub(crate) fn repair(text: &[u8]) -> Cow<'_, [u8]> {
    rewrite(text, |rest, is_text| match rest {
        [b'\\', ..] if is_text => escape(rest),
        [b'N' | b'I' | b'-', ..] if !is_text => {
            let found = NON_JSON_NUMBERS
                .into_iter()
                .find(|word| rest.starts_with(word));
            found.map_or((1, None), |word| (word.len(), Some(b"null".to_vec())))
        }
        _ => (1, None),
    })
}

/// Turns numbers that would lose precision or fail into strings, as the runner does for Python
/// tools.
pub(crate) fn quote_large_numbers(text: &[u8]) -> Cow<'_, [u8]> {
    rewrite(text, |rest, is_text| match rest {
        [b'\\', ..] if is_text => (2, None),
        [b'-' | b'0'..=b'9', ..] if !is_text => {
            let is_of_it =
                |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
            let number = &rest[..rest.iter().take_while(is_of_it).count()];
            (
                number.len(),
                is_beyond(number).then(|| [b"\"", number, b"\""].concat()),
            )
        }
        _ => (1, None),
    })
}

/// Rewrites a text: at each position outside quotation marks, `look` gives the number of bytes to
/// keep or their replacement. It is told whether the position is within a string.
fn rewrite(text: &[u8], look: impl Fn(&[u8], bool) -> (usize, Option<Vec<u8>>)) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut at = 0;
    let mut copied = 0;
    let mut is_text = false;
    while let Some(byte) = text.get(at) {
        let (length, instead) = match byte {
            b'"' => (1, None),
            _ => look(&text[at..], is_text),
        };
        is_text ^= *byte == b'"';
        if let Some(instead) = instead {
            out.extend_from_slice(&text[copied..at]);
            out.extend_from_slice(&instead);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// Whether this is a number that 64 bits do not hold: an integer exactly, a float approximately.
fn is_beyond(number: &[u8]) -> bool {
    let Ok(number) = str::from_utf8(number) else {
        return false;
    };
    let is_held = if number.contains(['.', 'e', 'E']) {
        number.parse().is_ok_and(f64::is_finite)
    } else {
        number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok()
    };
    !is_held && serde_json::from_str::<IgnoredAny>(number).is_ok()
}

/// Length of the escape at the front, and its replacement if it needs one.
fn escape(text: &[u8]) -> (usize, Option<Vec<u8>>) {
    match (unit(text), text.get(ESCAPE..).and_then(unit)) {
        (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => (2 * ESCAPE, None),
        (Some(0xd800..0xe000), _) => (ESCAPE, Some(br"\ufffd".to_vec())),
        // Any other escape: the byte after the backslash is not interpreted.
        (_, _) => (2, None),
    }
}

/// The code unit of the escape at the front.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.get(..ESCAPE)?.strip_prefix(br"\u")?;
    let value = |sum: u16, digit: &u8| {
        Some(sum << 4 | u16::try_from(char::from(*digit).to_digit(16)?).ok()?)
    };
    digits.iter().try_fold(0, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Value {
        serde_json::from_slice(&repair(text.as_bytes())).unwrap()
    }

    #[test]
    fn what_python_writes_is_read() {
        assert_eq!(
            read(r#"{"a": NaN, "b": [Infinity, -Infinity,-1]}"#),
            json!({"a": null, "b": [null, null, -1]})
        );
        assert_eq!(
            read(r#""\ud83d\ude00 \ud83d \ude00\ud83d""#),
            json!("😀 \u{fffd} \u{fffd}\u{fffd}")
        );
        assert_eq!(
            read(r#""\ud83d\ud83d\ude00""#),
            json!("\u{fffd}😀"),
            "a half before a pair"
        );
        assert_eq!(
            read(r#""\udc00A\\ud800""#),
            json!("\u{fffd}A\\ud800"),
            "an escaped backslash begins nothing"
        );
    }

    #[test]
    fn numbers_beyond_64_bits_are_said_in_words() {
        let huge = "9".repeat(400);
        let text = format!(
            r#"{{"a":[{huge},-{huge},1e400,-1E+400,18446744073709551616,-9223372036854775809,1]}}"#
        );
        let usual: Value = serde_json::from_str("18446744073709551616").unwrap();
        assert_eq!(
            usual,
            json!(18446744073709552000.0),
            "the control: it becomes another one"
        );
        let wanted = json!({"a": [huge, format!("-{huge}"), "1e400", "-1E+400", "18446744073709551616", "-9223372036854775809", 1]});
        assert_eq!(
            serde_json::from_slice::<Value>(&quote_large_numbers(text.as_bytes())).unwrap(),
            wanted
        );
        let within = r#"{"1e400":["\"1e400\\",18446744073709551615,-9223372036854775808,1e308,0.10,1e-400]}"#;
        assert!(matches!(
            quote_large_numbers(within.as_bytes()),
            Cow::Borrowed(_)
        ));
        for bad in [
            "01e400",
            "1e400e",
            "--1e400",
            &format!("0{huge}"),
            "1e400.5",
            "1e400-",
        ] {
            assert!(
                serde_json::from_slice::<Value>(&quote_large_numbers(bad.as_bytes())).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn texts_that_only_say_so_stay() {
        let text = r#"{"NaN": "-Infinity \" NaN \\", "a": ["Infinity", "\\\"NaN"]}"#;
        assert!(matches!(repair(text.as_bytes()), Cow::Borrowed(_)));
    }

    #[test]
    fn nothing_else_becomes_json() {
        for bad in [
            "{",
            "nan",
            "-NaN",
            "1NaN",
            "NaN1",
            "NaNNaN",
            "{NaN: 1}",
            "+Infinity",
            "Infinit",
            "'a'",
            "\"\\ud8\"",
            "\"\\",
        ] {
            assert!(
                serde_json::from_slice::<Value>(&repair(bad.as_bytes())).is_err(),
                "{bad}"
            );
        }
    }

    proptest! {
        #[test]
        fn json_stays_as_it_is(text in r#"(\[|\]|,|"|\\|\\u|d83d|de00|NaN|-|Infinity|0|null| ){0,12}"#) {
            let after = repair(text.as_bytes());
            if serde_json::from_str::<Value>(&text).is_ok() {
                prop_assert_eq!(&*after, text.as_bytes());
            }
            prop_assert_eq!(&*repair(&after), &*after, "once is enough");
        }

        #[test]
        fn what_can_be_read_without_words_means_the_same_with_them(text in r#"(\[|\]|,|"|\\|-|0|12|\.|e|4{20}| ){0,12}"#) {
            let after = quote_large_numbers(text.as_bytes());
            prop_assert_eq!(&*quote_large_numbers(&after), &*after, "once is enough");
            if let (Ok(before), true) = (serde_json::from_str::<Value>(&text), *after == *text.as_bytes()) {
                prop_assert_eq!(serde_json::from_slice::<Value>(&after).ok(), Some(before));
            }
            if serde_json::from_str::<IgnoredAny>(&text).is_ok() {
                prop_assert!(serde_json::from_slice::<IgnoredAny>(&after).is_ok(), "{}", text);
            }
        }

        #[test]
        fn what_is_written_as_json_stays(texts in prop::collection::vec(".{0,9}", 0..9)) {
            let text = json!([{"NaN": texts}, -1.5, "\u{1f600}\\"]).to_string();
            prop_assert!(matches!(repair(text.as_bytes()), Cow::Borrowed(_)));
        }

        #[test]
        fn no_bytes_are_too_odd_and_it_stays_small(bytes in any::<Vec<u8>>()) {
            prop_assert!(repair(&bytes).len() <= bytes.len() / 3 * 4 + 3);
        }
    }
}
