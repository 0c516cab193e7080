//! YAML with the lines of its keys, within bounds: one plain document, without anchors, aliases or merges, which a small file
//! could make a large one with.

use super::problem::{Problem, reason};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Number, Value};
use std::fmt;

/// More than any manifest has.
const MOST_NODES: usize = 50_000;
const DEEPEST: usize = 40;
/// The largest manifest, in bytes.
pub(crate) const LARGEST: usize = 1 << 20;

/// What a document says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree {
    Map(Vec<Pair>),
    List(Vec<Tree>),
    Plain(Value),
}

/// A key, where it stands, and what it says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    pub(crate) line: u64,
    pub(crate) key: String,
    pub(crate) value: Tree,
}

/// Reads a document.
pub(crate) fn read(bytes: &[u8]) -> Result<Tree, Problem> {
    if bytes.len() > LARGEST {
        let message = format!(
            "the manifest has {} bytes; it may have {LARGEST}",
            bytes.len()
        );
        return Err(Problem::new(
            message,
            "leave out what tools say of themselves",
        ));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Problem::new("the manifest is no text in UTF-8", "write it as UTF-8"))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MOST_NODES,
            max_nodes: MOST_NODES,
            max_depth: DEEPEST,
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
        Problem::new(
            message,
            "write one plain YAML document, without anchors, aliases or merges",
        )
    })
}

impl Tree {
    /// The same without lines.
    pub(crate) fn value(&self) -> Value {
        match self {
            Tree::Map(pairs) => Value::Object(
                pairs
                    .iter()
                    .map(|pair| (pair.key.clone(), pair.value.value()))
                    .collect(),
            ),
            Tree::List(list) => Value::Array(list.iter().map(Tree::value).collect()),
            Tree::Plain(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Tree;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a map, a list, a text, a number, true, false or nothing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<serde_saphyr::Spanned<String>>()? {
            let value = map.next_value()?;
            pairs.push(Pair {
                line: key.referenced.line(),
                key: key.value,
                value,
            });
        }
        Ok(Tree::Map(pairs))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_none<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_unit<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Tree::Plain(Value::Number(number)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }
}
