//! JSON values that come from a program.

use std::collections::BTreeMap;

/// A JSON value from a program, checked: no object has a key twice, or a key that `serde_json`
/// reserves.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number from 0 on.
    Whole(u64),
    /// A whole number below 0.
    Negative(i64),
    /// Any other number.
    Fraction(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object.
    Object(BTreeMap<String, Json>),
}

/// Whether a key is one that `serde_json` uses for raw values and numbers. A reader that parses
/// such an object again would replace it by the value that it quotes, which nobody has checked.
pub fn is_reserved_json_key(name: &str) -> bool {
    name.starts_with("$serde_json::private::")
}

mod wire {
    use super::{Json, is_reserved_json_key};
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error, MapAccess, SeqAccess, Visitor},
    };
    use std::{collections::BTreeMap, fmt};

    impl Serialize for Json {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self {
                Json::Null => serializer.serialize_unit(),
                Json::Bool(value) => value.serialize(serializer),
                Json::Whole(value) => value.serialize(serializer),
                Json::Negative(value) => value.serialize(serializer),
                Json::Fraction(value) => value.serialize(serializer),
                Json::Text(value) => value.serialize(serializer),
                Json::List(values) => values.serialize(serializer),
                Json::Object(fields) => fields.serialize(serializer),
            }
        }
    }

    impl<'de> Deserialize<'de> for Json {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
            deserializer.deserialize_any(JsonVisitor)
        }
    }

    struct JsonVisitor;

    impl<'de> Visitor<'de> for JsonVisitor {
        type Value = Json;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON value")
        }

        fn visit_unit<E>(self) -> Result<Json, E> {
            Ok(Json::Null)
        }

        fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
            Ok(Json::Bool(value))
        }

        fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
            Ok(Json::Whole(value))
        }

        fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
            Ok(u64::try_from(value).map_or(Json::Negative(value), Json::Whole))
        }

        fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
            Ok(Json::Fraction(value))
        }

        fn visit_str<E>(self, value: &str) -> Result<Json, E> {
            Ok(Json::Text(value.to_owned()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
            let mut values = Vec::new();
            while let Some(value) = list.next_element()? {
                values.push(value);
            }
            Ok(Json::List(values))
        }

        /// Refuses a repeated key: parsers differ in which of the values they take.
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
            let mut fields = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, Json>()? {
                if is_reserved_json_key(&name) {
                    return Err(A::Error::custom("a name is the parser's own"));
                }
                if fields.insert(name, value).is_some() {
                    return Err(A::Error::custom("a name stands twice"));
                }
            }
            Ok(Json::Object(fields))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_out_as_it_went_in() {
        let text =
            r#"{"a":[null,true,0,18446744073709551615,-9223372036854775808,0.5],"b":{"c":"ä\n"}}"#;
        let value: Json = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        for twice in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"x":{"a":1,"a":2}}]"#,
        ] {
            assert!(serde_json::from_str::<Json>(twice).is_err(), "{twice}");
        }
        for of_the_parser in [
            r#"{"$serde_json::private::RawValue":"[1]"}"#,
            r#"[{"\u0024serde_json::private::Number":"1"}]"#,
        ] {
            assert!(
                serde_json::from_str::<Json>(of_the_parser).is_err(),
                "{of_the_parser}"
            );
        }
        assert!(serde_json::from_str::<Json>(r#"{"$serde_json":"[1]"}"#).is_ok());
    }
}
