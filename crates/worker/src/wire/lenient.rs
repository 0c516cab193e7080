//! What Python writes though it is no JSON: `NaN`, `Infinity` and `-Infinity` for numbers, and halves of surrogate pairs in
//! texts. The first become null, the others U+FFFD; nothing else is mended. What is JSON is left as it is, to the byte.

use std::borrow::Cow;

const NO_NUMBERS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
const ESCAPE: usize = r"\uD800".len();

/// The same text, in JSON as far as that is all that was wrong. Takes as long as the text is, and grows it by a third at most.
pub(crate) fn mended(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut at, mut copied, mut is_text) = (0, 0, false);
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        let (length, instead): (usize, Option<&[u8]>) = match byte {
            b'"' => {
                is_text = !is_text;
                (1, None)
            }
            b'\\' if is_text => escape(rest),
            b'N' | b'I' | b'-' if !is_text => {
                let found = NO_NUMBERS.into_iter().find(|word| rest.starts_with(word));
                found.map_or((1, None), |word| (word.len(), Some(b"null")))
            }
            _ => (1, None),
        };
        if let Some(instead) = instead {
            out.extend_from_slice(&text[copied..at]);
            out.extend_from_slice(instead);
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

/// How long an escape at the beginning is, and what must stand there instead, if so.
fn escape(text: &[u8]) -> (usize, Option<&'static [u8]>) {
    match (unit(text), text.get(ESCAPE..).and_then(unit)) {
        (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => (2 * ESCAPE, None),
        (Some(0xd800..0xe000), _) => (ESCAPE, Some(br"\ufffd")),
        // Whatever it is, the byte behind it is not for us to read.
        (_, _) => (2, None),
    }
}

/// The sixteen bits that an escape at the beginning stands for.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.get(..ESCAPE)?.strip_prefix(br"\u")?;
    let value = |sum: u16, digit: &u8| Some(sum << 4 | u16::try_from(char::from(*digit).to_digit(16)?).ok()?);
    digits.iter().try_fold(0, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Value {
        serde_json::from_slice(&mended(text.as_bytes())).unwrap()
    }

    #[test]
    fn what_python_writes_is_read() {
        assert_eq!(
            read(r#"{"a": NaN, "b": [Infinity, -Infinity,-1]}"#),
            json!({"a": null, "b": [null, null, -1]})
        );
        assert_eq!(read(r#""\ud83d\ude00 \ud83d \ude00\ud83d""#), json!("😀 \u{fffd} \u{fffd}\u{fffd}"));
        assert_eq!(read(r#""\ud83d\ud83d\ude00""#), json!("\u{fffd}😀"), "a half before a pair");
        assert_eq!(
            read(r#""\udc00A\\ud800""#),
            json!("\u{fffd}A\\ud800"),
            "an escaped backslash begins nothing"
        );
    }

    #[test]
    fn texts_that_only_say_so_stay() {
        let text = r#"{"NaN": "-Infinity \" NaN \\", "a": ["Infinity", "\\\"NaN"]}"#;
        assert!(matches!(mended(text.as_bytes()), Cow::Borrowed(_)));
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
            assert!(serde_json::from_slice::<Value>(&mended(bad.as_bytes())).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn json_stays_as_it_is(text in r#"(\[|\]|,|"|\\|\\u|d83d|de00|NaN|-|Infinity|0|null| ){0,12}"#) {
            let after = mended(text.as_bytes());
            if serde_json::from_str::<Value>(&text).is_ok() {
                prop_assert_eq!(&*after, text.as_bytes());
            }
            prop_assert_eq!(&*mended(&after), &*after, "once is enough");
        }

        #[test]
        fn what_is_written_as_json_stays(texts in prop::collection::vec(".{0,9}", 0..9)) {
            let text = json!([{"NaN": texts}, -1.5, "\u{1f600}\\"]).to_string();
            prop_assert!(matches!(mended(text.as_bytes()), Cow::Borrowed(_)));
        }

        #[test]
        fn no_bytes_are_too_odd_and_it_stays_small(bytes in any::<Vec<u8>>()) {
            prop_assert!(mended(&bytes).len() <= bytes.len() / 3 * 4 + 3);
        }
    }
}
