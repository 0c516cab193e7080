//! Fields of an untrusted JSON object. They are located within limits and parsed one by one when
//! they are taken; unused fields are never parsed, and errors name the field.

use super::{
    code::CallRefusal,
    lenient,
    request::{MAX_FILES, invalid},
    untrusted_json,
};
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::{Map, Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// Maximum memory of a message's values without their texts: `{"a":0}` has seven bytes and takes
/// hundreds.
pub(crate) const MAX_MEMORY_BYTES: usize = 32 << 20;
/// Maximum nesting of a message.
const MAX_DEPTH: usize = 127;
/// Upper bounds of memory: a value with its key, in a list with spare capacity; a map with a few
/// keys.
const VALUE_BYTES: usize = 192;
const OBJECT_BYTES: usize = 640;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Fields that were not taken yet, as raw JSON.
#[derive(Default)]
pub(super) struct Fields<'a> {
    map: BTreeMap<String, &'a RawValue>,
    /// Prefix of field names in messages.
    within: &'static str,
}

/// The text of a message within its limits, repaired if Python wrote it.
pub(super) fn text(payload: &[u8], largest: usize) -> Result<Cow<'_, [u8]>, CallRefusal> {
    if payload.len() > largest {
        return Err(invalid(format!(
            "the message has {} bytes; it may have {largest}",
            payload.len()
        )));
    }
    if memory_estimate(payload) > MAX_MEMORY_BYTES {
        return Err(invalid(format!(
            "the message has more values than fit into {MAX_MEMORY_BYTES} bytes"
        )));
    }
    if depth(payload) > MAX_DEPTH {
        return Err(invalid(format!(
            "the message is nested more than {MAX_DEPTH} levels deep"
        )));
    }
    Ok(lenient::repair(payload))
}

/// Bytes outside of strings.
fn outside(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut is_text = false;
    let mut is_escaped = false;
    text.iter().copied().filter(move |byte| {
        let was_text = is_text;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            _ => {}
        }
        !was_text
    })
}

/// Upper bound of the memory of all values: each value except the first follows an opening bracket
/// or a comma outside of strings.
pub(crate) fn memory_estimate(text: &[u8]) -> usize {
    let of = |byte| match byte {
        b'{' => OBJECT_BYTES,
        b',' | b'[' => VALUE_BYTES,
        _ => 0,
    };
    outside(text).map(of).fold(0, usize::saturating_add)
}

fn depth(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    for byte in outside(text) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

impl<'a> Fields<'a> {
    /// The fields of a message.
    pub(super) fn of_message(text: &'a [u8]) -> Result<Fields<'a>, CallRefusal> {
        let map = serde_json::from_slice(text).map_err(|error| {
            if error.is_data() {
                invalid("the message is not a JSON object")
            } else {
                invalid(format!("the message is not JSON: {error}"))
            }
        })?;
        Ok(Fields { map, within: "" })
    }

    /// The fields of a nested object; of duplicate keys the last counts. None if it is no object.
    fn of_object(text: &'a RawValue, within: &'static str) -> Option<Fields<'a>> {
        serde_json::from_str(text.get())
            .ok()
            .map(|map| Fields { map, within })
    }

    /// Whether a field is present and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|text| is_present(text))
    }

    /// A text field, without taking it.
    pub(super) fn peek(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.map.get(name)?.get()).ok()
    }

    /// A text field of a nested object.
    pub(super) fn peek_within(&self, outer: &str, name: &str) -> Option<String> {
        Fields::of_object(self.map.get(outer)?, "")?.peek(name)
    }

    /// A refusal that says what a field must be.
    pub(super) fn must(&self, name: &str, what: &str) -> CallRefusal {
        invalid(format!("`{}{name}` must be {what}", self.within))
    }

    /// Takes a field as raw JSON.
    fn raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.map.remove(name).filter(|text| is_present(text))
    }

    fn take(&mut self, name: &str) -> Result<Option<Value>, CallRefusal> {
        let read = self
            .raw(name)
            .map(|text| untrusted_json::read(text.get().as_bytes()))
            .transpose();
        read.map_err(|error| invalid(format!("`{}{name}` cannot be read: {error}", self.within)))
    }

    /// Takes a required text, which may be empty.
    pub(super) fn text(&mut self, name: &str, longest: usize) -> Result<String, CallRefusal> {
        self.optional_text(name, longest)?
            .ok_or_else(|| self.must(name, "a text"))
    }

    /// Takes an optional text.
    pub(super) fn optional_text(
        &mut self,
        name: &str,
        longest: usize,
    ) -> Result<Option<String>, CallRefusal> {
        match self.take(name)? {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= longest => Ok(Some(text)),
            Some(_) => Err(self.must(name, &format!("a text of at most {longest} bytes"))),
        }
    }

    /// Takes bytes in base64, with or without padding. They are smaller than their text, which is
    /// bounded.
    pub(super) fn base64(&mut self, name: &str) -> Result<Vec<u8>, CallRefusal> {
        match self.take(name)? {
            Some(Value::String(text)) => BASE64.decode(text).ok(),
            Some(_) | None => None,
        }
        .ok_or_else(|| self.must(name, "base64"))
    }

    /// Takes an object; empty if absent.
    pub(super) fn object(&mut self, name: &str) -> Result<Map<String, Value>, CallRefusal> {
        match self.take(name)? {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(self.must(name, "an object")),
        }
    }

    /// Takes an object as raw JSON, so that large numbers keep their digits.
    pub(super) fn written_object(
        &mut self,
        name: &str,
    ) -> Result<Option<Box<RawValue>>, CallRefusal> {
        match self.raw(name) {
            Some(text) if !text.get().starts_with('{') => Err(self.must(name, "an object")),
            text => Ok(text.map(RawValue::to_owned)),
        }
    }

    /// Takes a required object as fields.
    pub(super) fn inner(
        &mut self,
        name: &str,
        within: &'static str,
    ) -> Result<Fields<'a>, CallRefusal> {
        let object = self
            .raw(name)
            .and_then(|text| Fields::of_object(text, within));
        object.ok_or_else(|| self.must(name, "an object"))
    }

    /// Takes an integer, also as `300.0` or `"300"`, as the mesh's models accept it. Saturates.
    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>, CallRefusal> {
        let Some(value) = self.take(name)? else {
            return Ok(None);
        };
        integer(&value)
            .map(Some)
            .ok_or_else(|| self.must(name, "an integer"))
    }

    /// Takes a map of files, bounded in number, each parsed by `read`.
    pub(super) fn files<T>(
        &mut self,
        name: &str,
        within: &'static str,
        read: fn(&mut Fields<'_>) -> Result<T, CallRefusal>,
    ) -> Result<BTreeMap<String, T>, CallRefusal> {
        let Some(text) = self.raw(name) else {
            return Ok(BTreeMap::new());
        };
        let files = Fields::of_object(text, "")
            .ok_or_else(|| self.must(name, "an object"))?
            .map;
        if files.len() > MAX_FILES {
            return Err(self.must(name, &format!("an object of at most {MAX_FILES} files")));
        }
        let file = |(key, text)| match Fields::of_object(text, within) {
            Some(mut file) => Ok((key, read(&mut file)?)),
            None => Err(self.must(name, "an object of objects")),
        };
        files.into_iter().map(file).collect()
    }
}

fn is_present(text: &RawValue) -> bool {
    text.get() != "null"
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) if number.is_f64() => {
            // A cast from float saturates.
            number
                .as_f64()
                .filter(|float| float.fract() == 0.0)
                .map(|float| float as i64)
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
        let numbers =
            |count: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(count - 1)).into_bytes();
        assert!(text(&numbers(174_759), usize::MAX).is_ok());
        let refused = text(&numbers(174_760), usize::MAX).err().unwrap();
        assert_eq!(
            refused.message,
            "the message has more values than fit into 33554432 bytes"
        );
        let objects =
            |count: usize| format!("{{\"a\":[{}0]}}", "{\"b\":0},".repeat(count)).into_bytes();
        assert!(text(&objects(40_000), usize::MAX).is_ok());
        assert!(text(&objects(41_000), usize::MAX).is_err());
        // Commas of texts are none.
        let long = format!("{{\"a\":\"{}\"}}", ",\\\",[{".repeat(300_000));
        assert!(text(long.as_bytes(), usize::MAX).is_ok());
    }

    #[test]
    fn what_is_nested_too_deeply_is_refused() {
        let of = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(text(of(126).as_bytes(), usize::MAX).is_ok());
        let refused = text(of(127).as_bytes(), usize::MAX).unwrap_err();
        assert_eq!(
            refused.message,
            "the message is nested more than 127 levels deep"
        );
        assert!(text(of(200_000).as_bytes(), usize::MAX).is_err());
        let wide = format!("[{}\"[[\\\"[\"]", "[],{},".repeat(200));
        assert_eq!(
            depth(wide.as_bytes()),
            2,
            "beside each other, and in strings"
        );
    }

    #[test]
    fn what_is_too_large_is_refused_with_its_size() {
        assert!(text(b"{}", 2).is_ok());
        assert_eq!(
            text(b"{ }", 2).err().unwrap().message,
            "the message has 3 bytes; it may have 2"
        );
    }

    proptest! {
        #[test]
        fn no_value_is_overlooked(text in "(\\[|\\]|\\{|\\}|,|:|0|\"a\":|\"\\\\\\\\\"|\"\\\\\"\"| ){0,9}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert!((values(&value) - 1) * VALUE_BYTES <= memory_estimate(text.as_bytes()), "{}", text);
            }
        }

        #[test]
        fn no_value_of_a_document_is_overlooked(texts in prop::collection::vec(".{0,9}", 0..9)) {
            let value = json!([{"a": texts}, texts, {}, [[], 1.5, null, texts]]);
            prop_assert!((values(&value) - 1) * VALUE_BYTES <= memory_estimate(value.to_string().as_bytes()));
        }

        #[test]
        fn what_is_shallow_enough_is_what_the_parser_takes(text in "[\\[\\]{}:,\"a\\\\0]{0,24}", around in 110_usize..130) {
            let text = format!("{}{text}{}", "[".repeat(around), "]".repeat(around));
            if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() {
                prop_assert_eq!(depth(text.as_bytes()) <= MAX_DEPTH, untrusted_json::read(text.as_bytes()).is_ok());
            }
        }

        #[test]
        fn nothing_makes_it_panic(bytes in any::<Vec<u8>>()) {
            _ = text(&bytes, 1 << 20).map(|text| Fields::of_message(&text).is_ok());
        }
    }
}
