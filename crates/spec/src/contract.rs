//! How the host reads what a program prints: as it is, or as one JSON object of a known shape.
//!
//! The shapes are checked in `engine/src/contract.rs`.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// What standard output must be for the run to succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contract {
    /// Whatever the program likes.
    #[default]
    Raw,
    /// One task result: `task_id`, `status`, `result`, `error`, `tool_calls`, `tokens_used`.
    Task,
    /// One envelope: `payloads` and `meta`.
    Envelope,
}

impl Contract {
    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Contract::Raw => "raw",
            Contract::Task => "task",
            Contract::Envelope => "envelope",
        }
    }
}

impl FromStr for Contract {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Contract::Raw, Contract::Task, Contract::Envelope];
        let found = all.into_iter().find(|contract| contract.name() == text);
        found.ok_or_else(|| {
            format!(
                "no contract is called `{}`; there are raw, task, envelope",
                text.escape_debug()
            )
        })
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A JSON value that a program printed and somebody has checked. A name stands once in an object, and is none of the parser's
/// own.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are those of JSON")]
pub enum Json {
    Null,
    Bool(bool),
    /// A whole number that is not negative.
    Whole(u64),
    Negative(i64),
    Fraction(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// Whether a name is one by which the parser hands texts and numbers over as they are written. Wherever such an object is read
/// again, by us or by a client of ours, it becomes what it quotes, which nobody has checked, or cannot be read at all.
pub fn is_of_the_parser(name: &str) -> bool {
    name.starts_with("$serde_json::private::")
}

mod wire {
    use super::{Json, is_of_the_parser};
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
            deserializer.deserialize_any(Any)
        }
    }

    struct Any;

    impl<'de> Visitor<'de> for Any {
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

        /// Of two fields with one name each reader may believe another: refused.
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
            let mut fields = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, Json>()? {
                if is_of_the_parser(&name) {
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
    fn a_contract_is_found_by_its_name_only() {
        for contract in [Contract::Raw, Contract::Task, Contract::Envelope] {
            assert_eq!(contract.name().parse(), Ok(contract));
        }
        for other in ["", "Task", "task ", "json"] {
            assert!(other.parse::<Contract>().is_err(), "{other}");
        }
    }

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
