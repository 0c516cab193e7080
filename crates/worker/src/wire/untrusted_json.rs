//! Untrusted JSON as values. The usual deserialization of a [`Value`] treats an object with
//! serde_json's private raw-value key as nested text and parses that again, which circumvents all
//! limits of depth and memory.

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Parses a value. The parser limits nesting to 127 levels.
pub(crate) fn read(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(text).map(|UntrustedValue(value)| value)
}

struct UntrustedValue(Value);

impl<'de> Deserialize<'de> for UntrustedValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UntrustedValue, D::Error> {
        from.deserialize_any(ValueVisitor).map(UntrustedValue)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UntrustedValue(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, UntrustedValue(value))) = object.next_entry()? {
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The parser's own key. Its letters may be written in other ways, too.
    const KEY: &str = "$serde_json::private::RawValue";

    #[test]
    fn a_text_in_a_text_stays_one() {
        for key in [KEY.to_owned(), KEY.replace('$', "\\u0024")] {
            let hidden = format!("{{\"{key}\":\"[1,[2]]\"}}");
            let usual: Value = serde_json::from_str(&hidden).unwrap();
            assert_eq!(
                usual,
                serde_json::json!([1, [2]]),
                "the control: it is looked into"
            );
            assert_eq!(
                read(hidden.as_bytes()).unwrap(),
                serde_json::json!({ KEY: "[1,[2]]" })
            );
        }
    }

    #[test]
    fn what_is_too_deep_is_refused_wherever_it_is() {
        let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
        assert!(read(deep(127).as_bytes()).is_ok(), "the control");
        assert!(read(deep(128).as_bytes()).is_err());
        let hidden = format!("{{\"{KEY}\":{}}}", serde_json::json!(deep(100)));
        assert_eq!(read(hidden.as_bytes()).unwrap()[KEY], deep(100));
    }

    proptest! {
        #[test]
        fn everything_else_is_as_usual(text in "[\\[\\]{}:,\"a-c0-9.eE \\\\n-]{0,40}") {
            let usual = serde_json::from_str::<Value>(&text).ok();
            prop_assert_eq!(read(text.as_bytes()).ok(), usual);
        }
    }
}
