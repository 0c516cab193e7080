//! YAML with line numbers of keys, within limits: one document without anchors, aliases or merges,
//! which can expand a small file into a large one.

use super::problem::{ToolProblem, reason};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Number, Value};
use std::fmt;

/// Limits that no manifest reaches.
const MAX_NODES: usize = 50_000;
const MAX_DEPTH: usize = 40;
/// Maximum size of a manifest, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// A node of a document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum YamlNode {
    Map(Vec<YamlPair>),
    List(Vec<YamlNode>),
    Plain(Value),
}

/// A key with its line and value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct YamlPair {
    pub(crate) line: u64,
    pub(crate) key: String,
    pub(crate) value: YamlNode,
}

/// Parses a document.
pub(crate) fn read(bytes: &[u8]) -> Result<YamlNode, ToolProblem> {
    if bytes.len() > MAX_BYTES {
        let message = format!(
            "the manifest has {} bytes; it may have {MAX_BYTES}",
            bytes.len()
        );
        return Err(ToolProblem::new(
            message,
            "leave out what tools say of themselves",
        ));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| ToolProblem::new("the manifest is no text in UTF-8", "write it as UTF-8"))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_depth: MAX_DEPTH,
            max_aliases: 0,
            max_anchors: 0,
            max_merge_keys: 0,
            max_documents: 1,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let message = format!(
            "the manifest cannot be read: {}",
            reason(&error.to_string())
        );
        ToolProblem::new(
            message,
            "write one plain YAML document, without anchors, aliases or merges",
        )
    })
}

impl YamlNode {
    /// The node as JSON, without lines.
    pub(crate) fn value(&self) -> Value {
        match self {
            YamlNode::Map(pairs) => Value::Object(
                pairs
                    .iter()
                    .map(|pair| (pair.key.clone(), pair.value.value()))
                    .collect(),
            ),
            YamlNode::List(list) => Value::Array(list.iter().map(YamlNode::value).collect()),
            YamlNode::Plain(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlNode, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a map, a list, a text, a number, true, false or nothing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlNode, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<serde_saphyr::Spanned<String>>()? {
            let value = map.next_value()?;
            pairs.push(YamlPair {
                line: key.referenced.line(),
                key: key.value,
                value,
            });
        }
        Ok(YamlNode::Map(pairs))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(YamlNode::List(items))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlNode, D::Error> {
        YamlNode::deserialize(deserializer)
    }

    fn visit_none<E: Error>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(Value::Null))
    }

    fn visit_unit<E: Error>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<YamlNode, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(YamlNode::Plain(Value::Number(number)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(value.into()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<YamlNode, E> {
        Ok(YamlNode::Plain(value.into()))
    }
}
