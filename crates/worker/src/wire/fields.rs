//! The fields of a JSON object by strangers: parsed within bounds, then taken out one by one.

use super::{
    code::Refusal,
    lenient, plain,
    request::{MOST_FILES, invalid},
};
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::{Map, Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// The most room that the values of a message may take, without their texts: `{"a":0}` has seven bytes and takes hundreds.
pub(crate) const MOST_ROOM: usize = 32 << 20;
/// At most so much each: a value with its key, in lists that may have grown to twice what they hold; a table of a few keys.
const ROOM_OF_VALUE: usize = 192;
const ROOM_OF_OBJECT: usize = 640;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What of an object was not taken yet.
#[derive(Default)]
pub(super) struct Fields {
    map: Map<String, Value>,
    /// What stands before the names in messages.
    within: &'static str,
}

/// The fields of a message, and its text, which may have been mended. Nesting is bounded by the parser, to 127 levels.
pub(super) fn parse(payload: &[u8], largest: usize) -> Result<(Fields, Cow<'_, [u8]>), Refusal> {
    if payload.len() > largest {
        return Err(invalid(format!("the message has {} bytes; it may have {largest}", payload.len())));
    }
    if room(payload) > MOST_ROOM {
        return Err(invalid(format!("the message has more values than fit into {MOST_ROOM} bytes")));
    }
    let mut text = Cow::Borrowed(payload);
    let mut read = plain::read(payload);
    if let (Err(_), Cow::Owned(mended)) = (&read, lenient::mended(payload)) {
        read = plain::read(&mended);
        text = Cow::Owned(mended);
    }
    match read {
        Ok(Value::Object(map)) => Ok((Fields { map, within: "" }, text)),
        Ok(_) => Err(invalid("the message is not a JSON object")),
        Err(error) => Err(invalid(format!("the message is not JSON: {error}"))),
    }
}

/// What stands in the text of an object, by name, as it is written; of two with one name the last, as everywhere.
pub(super) fn written(text: &[u8]) -> BTreeMap<String, &RawValue> {
    serde_json::from_slice(text).unwrap_or_default()
}

/// What the values of a text take at most: each but the first follows an opening bracket or a comma, outside of strings.
pub(crate) fn room(text: &[u8]) -> usize {
    let (mut room, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b'{' if !is_text => room = room.saturating_add(ROOM_OF_OBJECT),
            b',' | b'[' if !is_text => room = room.saturating_add(ROOM_OF_VALUE),
            _ => {}
        }
    }
    room
}

impl Fields {
    /// Whether it says anything: nulls do not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// A text that is left where it is.
    pub(super) fn peek(&self, name: &str) -> Option<&str> {
        self.map.get(name)?.as_str()
    }

    /// The same, one level below.
    pub(super) fn peek_within(&self, outer: &str, name: &str) -> Option<&str> {
        self.map.get(outer)?.get(name)?.as_str()
    }

    /// What a field must be.
    pub(super) fn must(&self, name: &str, what: &str) -> Refusal {
        invalid(format!("`{}{name}` must be {what}", self.within))
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// A text that must be there; it may be empty.
    pub(super) fn text(&mut self, name: &str, longest: usize) -> Result<String, Refusal> {
        self.optional_text(name, longest)?.ok_or_else(|| self.must(name, "a text"))
    }

    /// A text that may be there.
    pub(super) fn optional_text(&mut self, name: &str, longest: usize) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= longest => Ok(Some(text)),
            Some(_) => Err(self.must(name, &format!("a text of at most {longest} bytes"))),
        }
    }

    /// Bytes, from base64, with or without padding. They have less room than their text, which was within its bounds.
    pub(super) fn base64(&mut self, name: &str) -> Result<Vec<u8>, Refusal> {
        match self.take(name) {
            Some(Value::String(text)) => BASE64.decode(text).ok(),
            Some(_) | None => None,
        }
        .ok_or_else(|| self.must(name, "base64"))
    }

    /// An object; empty if nothing is said.
    pub(super) fn object(&mut self, name: &str) -> Result<Map<String, Value>, Refusal> {
        match self.take(name) {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(self.must(name, "an object")),
        }
    }

    /// The fields of an object that must be there.
    pub(super) fn inner(&mut self, name: &str, within: &'static str) -> Result<Fields, Refusal> {
        match self.take(name) {
            Some(Value::Object(map)) => Ok(Fields { map, within }),
            Some(_) | None => Err(self.must(name, "an object")),
        }
    }

    /// An integer, also as `300.0` or `"300"`, as their own models take it. Beyond what fits it is the nearest that does.
    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        integer(&value).map(Some).ok_or_else(|| self.must(name, "an integer"))
    }

    /// A map of files, few enough, each read by `read`.
    pub(super) fn files<T>(
        &mut self,
        name: &str,
        within: &'static str,
        read: fn(&mut Fields) -> Result<T, Refusal>,
    ) -> Result<BTreeMap<String, T>, Refusal> {
        let map = self.object(name)?;
        if map.len() > MOST_FILES {
            return Err(self.must(name, &format!("an object of at most {MOST_FILES} files")));
        }
        let file = |(key, value)| match value {
            Value::Object(map) => Ok((key, read(&mut Fields { map, within })?)),
            _ => Err(self.must(name, "an object of objects")),
        };
        map.into_iter().map(file).collect()
    }
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) if number.is_f64() => {
            // A cast of a float goes to the nearest integer that there is.
            number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i64)
        }
        Value::Number(number) => Some(number.as_i64().unwrap_or(i64::MAX)),
        Value::String(text) => {
            let number: i128 = text.trim().parse().ok()?;
            i64::try_from(number.clamp(i64::MIN.into(), i64::MAX.into())).ok()
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn values(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(values).sum(),
            Value::Object(map) => map.values().map(values).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        }
    }

    #[test]
    fn integers_are_taken_as_their_models_take_them() {
        for (value, wanted) in [
            (json!(300), Some(300)),
            (json!(-5), Some(-5)),
            (json!(300.0), Some(300)),
            (json!("300"), Some(300)),
            (json!(u64::MAX), Some(i64::MAX)),
            (json!(1e300), Some(i64::MAX)),
            (json!("-99999999999999999999"), Some(i64::MIN)),
            (json!(1.5), None),
            (json!("1.5"), None),
            (json!(""), None),
            (json!(true), None),
            (json!([1]), None),
        ] {
            assert_eq!(integer(&value), wanted, "{value}");
        }
    }

    #[test]
    fn too_many_values_are_refused_before_they_are_parsed() {
        let numbers = |count: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(count - 1)).into_bytes();
        assert!(parse(&numbers(174_759), usize::MAX).is_ok());
        let refused = parse(&numbers(174_760), usize::MAX).err().unwrap();
        assert_eq!(refused.message, "the message has more values than fit into 33554432 bytes");
        let objects = |count: usize| format!("{{\"a\":[{}0]}}", "{\"b\":0},".repeat(count)).into_bytes();
        assert!(parse(&objects(40_000), usize::MAX).is_ok());
        assert!(parse(&objects(41_000), usize::MAX).is_err());
        // Commas of texts are none.
        let text = format!("{{\"a\":\"{}\"}}", ",\\\",[{".repeat(300_000));
        assert!(parse(text.as_bytes(), usize::MAX).is_ok());
    }

    #[test]
    fn what_is_nested_too_deeply_is_refused() {
        let of = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(of(126).as_bytes(), usize::MAX).is_ok());
        assert!(parse(of(127).as_bytes(), usize::MAX).is_err());
        assert!(parse(of(200_000).as_bytes(), usize::MAX).is_err());
    }

    #[test]
    fn what_is_too_large_is_refused_with_its_size() {
        assert!(parse(b"{}", 2).is_ok());
        assert_eq!(parse(b"{ }", 2).err().unwrap().message, "the message has 3 bytes; it may have 2");
    }

    proptest! {
        #[test]
        fn no_value_is_overlooked(text in "(\\[|\\]|\\{|\\}|,|:|0|\"a\":|\"\\\\\\\\\"|\"\\\\\"\"| ){0,9}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert!((values(&value) - 1) * ROOM_OF_VALUE <= room(text.as_bytes()), "{}", text);
            }
        }

        #[test]
        fn no_value_of_a_document_is_overlooked(texts in prop::collection::vec(".{0,9}", 0..9)) {
            let value = json!([{"a": texts}, texts, {}, [[], 1.5, null, texts]]);
            prop_assert!((values(&value) - 1) * ROOM_OF_VALUE <= room(value.to_string().as_bytes()));
        }

        #[test]
        fn nothing_makes_it_panic(bytes in any::<Vec<u8>>()) {
            _ = parse(&bytes, 1 << 20);
        }
    }
}
