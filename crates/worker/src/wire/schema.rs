//! Converts JSON Schemas of parameters into the subset that agents accept. Their model of a schema
//! forbids unknown keys, and one unknown key hides the tool from the language model.
//!
//! What the subset cannot express is omitted or described in words, so that the result allows what
//! the tool allows, and perhaps more:
//!
//! | tool | agent |
//! |---|---|
//! | `$ref` | its target; of a recursive one only the type |
//! | `oneOf` | `anyOf` |
//! | `allOf` | merged, the first definition wins |
//! | several types | `anyOf` of them; `null` among them is `nullable` |
//! | `const`, `enum` | `enum` if all are strings, otherwise text in the description |
//! | `exclusiveMinimum`, `exclusiveMaximum` | for integers the next one, otherwise the same bound: one value wider |
//! | `examples` | the first is the `example` |
//! | tuples (`prefixItems`, lists as `items`) | each item may be any of them |
//! | other unknown keys | omitted |

use serde_json::{Map, Number, Value, json};

/// Limits of subschemas, nesting, and bytes of texts and values. What exceeds them becomes `{}`.
const MAX_SCHEMAS: usize = 4096;
const MAX_DEPTH: usize = 32;
const MAX_BYTES: usize = 256 << 10;
/// Schemas that are merged into one.
const MAX_PARTS: usize = 64;
/// Entries of a list: choices, names.
const MAX_ENTRIES: usize = 1024;
/// Types of a schema.
const MAX_TYPES: usize = 16;
/// Bytes of a text, a value, a reference.
const MAX_TEXT_BYTES: usize = 16 << 10;
const MAX_VALUE_BYTES: usize = 4 << 10;
const MAX_REFERENCE_BYTES: usize = 512;

/// Keywords of each type.
const TYPE_KEYWORDS: [(&str, &[&str]); 6] = [
    (
        "string",
        &["minLength", "maxLength", "pattern", "format", "enum"],
    ),
    ("integer", &["minimum", "maximum"]),
    ("number", &["minimum", "maximum"]),
    ("boolean", &[]),
    ("array", &["items", "minItems", "maxItems"]),
    (
        "object",
        &[
            "properties",
            "required",
            "propertyOrdering",
            "additionalProperties",
            "minProperties",
            "maxProperties",
        ],
    ),
];

type Schema = Map<String, Value>;

/// Converts the schema of a tool's parameters; the result is always that of an object.
pub fn for_asker(full: &Value) -> Value {
    let mut converter = Converter {
        root: full,
        schemas: MAX_SCHEMAS,
        bytes: MAX_BYTES,
        followed: Vec::new(),
    };
    let mut schema = converter.convert(full, MAX_DEPTH);
    if schema.get("type").is_some_and(|kind| kind != "object") {
        schema = Schema::new();
    }
    schema.insert("type".to_owned(), json!("object"));
    schema.remove("nullable");
    Value::Object(schema)
}

struct Converter<'a> {
    root: &'a Value,
    /// Subschemas left.
    schemas: usize,
    bytes: usize,
    /// References being followed, outermost first.
    followed: Vec<&'a str>,
}

/// A schema and those that it refers to or merges. The first definition wins.
#[derive(Default)]
struct SchemaParts<'a>(Vec<&'a Schema>);

impl<'a> SchemaParts<'a> {
    /// The first value of these keys: some have two spellings.
    fn get(&self, names: &[&str]) -> Option<&'a Value> {
        let mut values = self
            .0
            .iter()
            .flat_map(|part| names.iter().filter_map(|name| part.get(*name)));
        values.find(|value| !value.is_null())
    }

    /// Strings in all lists of this key.
    fn texts(&self, names: &[&str]) -> impl Iterator<Item = &'a str> {
        let lists = self
            .0
            .iter()
            .flat_map(move |part| names.iter().filter_map(|name| part.get(*name)));
        let lists: Vec<&Vec<Value>> = lists.filter_map(Value::as_array).collect();
        lists
            .into_iter()
            .flatten()
            .take(MAX_ENTRIES)
            .filter_map(Value::as_str)
    }
}

impl<'a> Converter<'a> {
    fn convert(&mut self, full: &'a Value, depth: usize) -> Schema {
        let mut schema = Schema::new();
        let is_within = depth > 0 && self.schemas > 0;
        // Also for invalid ones: a list of millions takes as long.
        self.schemas = self.schemas.saturating_sub(1);
        let Some(said) = full.as_object().filter(|_| is_within) else {
            return schema;
        };
        let outside = self.followed.len();
        let mut parts = SchemaParts::default();
        let inside_itself = self.gather(said, &mut parts);
        self.schemas = self.schemas.saturating_sub(parts.0.len() - 1);
        self.texts(&parts, &mut schema);
        bounds(&parts, &mut schema);
        self.values(&parts, &mut schema);
        self.object(&parts, &mut schema, depth);
        self.array(&parts, &mut schema, depth);
        self.choices(&parts, &mut schema);
        self.alternatives(&parts, &mut schema, depth);
        types(&parts, inside_itself, &mut schema);
        self.followed.truncate(outside);
        schema
    }

    /// Collects a schema and its references. Returns the type of a recursive reference that was not
    /// followed.
    fn gather(&mut self, said: &'a Schema, parts: &mut SchemaParts<'a>) -> Option<&'a Value> {
        if parts.0.len() == MAX_PARTS {
            return None;
        }
        parts.0.push(said);
        let reference = said
            .get("$ref")
            .and_then(Value::as_str)
            .filter(|text| text.len() <= MAX_REFERENCE_BYTES);
        let target = reference
            .and_then(|text| self.root.pointer(text.strip_prefix('#')?))
            .and_then(Value::as_object);
        let mut inside_itself = None;
        match (reference, target) {
            (Some(reference), Some(target)) if self.followed.contains(&reference) => {
                inside_itself = target.get("type");
            }
            (Some(reference), Some(target)) => {
                self.followed.push(reference);
                inside_itself = self.gather(target, parts);
            }
            (_, _) => {}
        }
        for part in said
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .take(MAX_PARTS)
        {
            if let Some(part) = part.as_object() {
                inside_itself = self.gather(part, parts).or(inside_itself);
            }
        }
        inside_itself
    }

    fn texts(&mut self, parts: &SchemaParts<'a>, schema: &mut Schema) {
        for name in ["title", "description", "format", "pattern"] {
            let text = parts.get(&[name]).and_then(Value::as_str);
            if let Some(text) =
                text.filter(|text| text.len() <= MAX_TEXT_BYTES && self.take_bytes(text.len()))
            {
                schema.insert(name.to_owned(), json!(text));
            }
        }
    }

    fn values(&mut self, parts: &SchemaParts<'a>, schema: &mut Schema) {
        let examples = parts
            .get(&["examples"])
            .and_then(Value::as_array)
            .and_then(|all| all.first());
        for (name, value) in [
            ("default", parts.get(&["default"])),
            ("example", parts.get(&["example"]).or(examples)),
        ] {
            let Some(value) = value.filter(|value| !value.is_null()) else {
                continue;
            };
            if let Some(left) = weighed(value, MAX_VALUE_BYTES)
                && self.take_bytes(MAX_VALUE_BYTES - left)
            {
                schema.insert(name.to_owned(), value.clone());
            }
        }
    }

    fn object(&mut self, parts: &SchemaParts<'a>, schema: &mut Schema, depth: usize) {
        let mut properties = Schema::new();
        for (name, property) in parts
            .0
            .iter()
            .filter_map(|part| part.get("properties")?.as_object())
            .flatten()
        {
            if properties.contains_key(name) {
                continue;
            }
            if !self.take_bytes(name.len() + 8) {
                break;
            }
            properties.insert(
                name.clone(),
                Value::Object(self.convert(property, depth - 1)),
            );
        }
        for (name, spellings) in [
            ("required", ["required", "required"]),
            (
                "propertyOrdering",
                ["propertyOrdering", "property_ordering"],
            ),
        ] {
            let mut names: Vec<&str> = Vec::new();
            for name in parts
                .texts(&spellings)
                .filter(|name| properties.contains_key(*name))
            {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            if !names.is_empty() && self.take_bytes(names.iter().map(|name| name.len() + 4).sum()) {
                schema.insert(name.to_owned(), json!(names));
            }
        }
        if parts.get(&["properties"]).is_some_and(Value::is_object) {
            schema.insert("properties".to_owned(), Value::Object(properties));
        }
        match parts.get(&["additionalProperties", "additional_properties"]) {
            Some(Value::Bool(allowed)) => {
                schema.insert("additionalProperties".to_owned(), json!(allowed));
            }
            Some(other @ Value::Object(_)) => {
                let other = self.convert(other, depth - 1);
                schema.insert("additionalProperties".to_owned(), Value::Object(other));
            }
            Some(_) | None => {}
        }
    }

    fn array(&mut self, parts: &SchemaParts<'a>, schema: &mut Schema, depth: usize) {
        let tuple = parts.get(&["prefixItems"]).and_then(Value::as_array);
        let items = match (parts.get(&["items"]), tuple) {
            (Some(Value::Array(tuple)), _) | (_, Some(tuple)) => {
                let mut items = Schema::new();
                self.any_of(tuple, &mut items, depth - 1);
                items
            }
            (Some(items @ Value::Object(_)), None) => self.convert(items, depth - 1),
            (Some(_) | None, None) => return,
        };
        schema.insert("items".to_owned(), Value::Object(items));
    }

    /// Converts `enum` and `const`.
    fn choices(&mut self, parts: &SchemaParts<'a>, schema: &mut Schema) {
        let all: Vec<&Value> = match (
            parts.get(&["enum"]),
            parts.0.iter().find_map(|part| part.get("const")),
        ) {
            (Some(Value::Array(all)), _) if all.len() <= MAX_ENTRIES => all.iter().collect(),
            (_, Some(only)) => vec![only],
            (_, None) => return,
        };
        let (nulls, all): (Vec<&Value>, Vec<&Value>) =
            all.into_iter().partition(|value| value.is_null());
        if !nulls.is_empty() {
            schema.insert("nullable".to_owned(), json!(true));
        }
        let Some(left) = all
            .iter()
            .try_fold(MAX_TEXT_BYTES, |left, value| weighed(value, left))
        else {
            return;
        };
        if all.is_empty() || !self.take_bytes(MAX_TEXT_BYTES - left) {
            return;
        }
        if all.iter().all(|value| value.is_string()) {
            schema.insert("enum".to_owned(), json!(all));
            return;
        }
        let written: Vec<String> = all.iter().map(|value| value.to_string()).collect();
        let before = schema
            .get("description")
            .and_then(Value::as_str)
            .map(|text| format!("{text} "));
        let description = format!(
            "{}One of: {}",
            before.unwrap_or_default(),
            written.join(", ")
        );
        schema.insert("description".to_owned(), json!(description));
    }

    fn alternatives(&mut self, parts: &SchemaParts<'a>, schema: &mut Schema, depth: usize) {
        let all = ["anyOf", "any_of", "oneOf"]
            .iter()
            .find_map(|name| parts.get(&[name])?.as_array());
        if let Some(all) = all {
            self.any_of(all, schema, depth);
        }
    }

    /// Adds alternatives. `null` makes the schema nullable instead; a single alternative is merged.
    fn any_of(&mut self, all: &'a [Value], schema: &mut Schema, depth: usize) {
        let mut kept: Vec<Schema> = Vec::new();
        for alternative in all {
            if self.schemas == 0 {
                // An unseen alternative might allow anything.
                return;
            }
            let alternative = self.convert(alternative, depth.saturating_sub(1));
            if is_null(&alternative) {
                _ = schema.insert("nullable".to_owned(), json!(true))
            } else {
                kept.push(alternative)
            }
        }
        match <[Schema; 1]>::try_from(kept) {
            Ok([only]) => only
                .into_iter()
                .for_each(|(name, value)| _ = schema.entry(name).or_insert(value)),
            Err(kept) if kept.is_empty() => {}
            Err(kept) => _ = schema.insert("anyOf".to_owned(), json!(kept)),
        }
    }

    /// Takes bytes of the limit, if there are enough.
    fn take_bytes(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }
}

/// Whether the schema allows null only.
fn is_null(schema: &Schema) -> bool {
    let is_more = |name: &&str| schema.contains_key(*name);
    schema.contains_key("nullable") && !["type", "anyOf", "enum"].iter().any(is_more)
}

/// Bytes left of the limit after a value; none if it does not fit.
fn weighed(value: &Value, room: usize) -> Option<usize> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => room.checked_sub(24),
        Value::String(text) => room.checked_sub(text.len() + 8),
        Value::Array(items) => items
            .iter()
            .try_fold(room.checked_sub(8)?, |room, item| weighed(item, room)),
        Value::Object(map) => map
            .iter()
            .try_fold(room.checked_sub(8)?, |room, (name, value)| {
                weighed(value, room.checked_sub(name.len() + 8)?)
            }),
    }
}

/// Bounds of numbers, lengths and counts.
fn bounds(parts: &SchemaParts<'_>, schema: &mut Schema) {
    for (name, other) in [
        ("minLength", "min_length"),
        ("maxLength", "max_length"),
        ("minItems", "min_items"),
        ("maxItems", "max_items"),
        ("minProperties", "min_properties"),
        ("maxProperties", "max_properties"),
    ] {
        if let Some(count) = parts.get(&[name, other]).and_then(count) {
            schema.insert(name.to_owned(), json!(count));
        }
    }
    let is_integer = named_types(parts.get(&["type"])).eq(["integer"]);
    for (name, exclusive, step) in [
        ("minimum", "exclusiveMinimum", 1),
        ("maximum", "exclusiveMaximum", -1),
    ] {
        let given = parts.get(&[name]);
        let without = parts.get(&[exclusive]);
        let next = |bound: &Number| match bound.as_i64().filter(|_| is_integer) {
            Some(bound) => Number::from(bound.saturating_add(step)),
            None => bound.clone(),
        };
        let bound = match (given, without) {
            (Some(Value::Number(bound)), Some(Value::Bool(true))) => next(bound),
            (Some(Value::Number(bound)), _) => bound.clone(),
            (_, Some(Value::Number(bound))) => next(bound),
            (_, _) => continue,
        };
        schema.insert(name.to_owned(), Value::Number(bound));
    }
}

/// Also as `3.0` or, in one library, `"3"`.
fn count(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|float| float.fract() == 0.0);
            float
                .filter(|float| (0.0..=f64::from(u32::MAX)).contains(float))
                .map(|float| float as u32)
        }
        Value::String(text) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The known types in a `type` keyword, in lower case, without `null`.
fn named_types(said: Option<&Value>) -> impl Iterator<Item = &'static str> {
    let named: Vec<&str> = match said {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several
            .iter()
            .take(MAX_TYPES)
            .filter_map(Value::as_str)
            .collect(),
        Some(_) | None => Vec::new(),
    };
    TYPE_KEYWORDS
        .iter()
        .map(|(known, _)| *known)
        .filter(move |known| named.iter().any(|name| name.eq_ignore_ascii_case(known)))
}

/// Sets the type, last of all: with several types the keywords are distributed.
fn types(parts: &SchemaParts<'_>, inside_itself: Option<&Value>, schema: &mut Schema) {
    let type_value = parts.get(&["type"]).or(inside_itself);
    let is_null = |name: &Value| {
        name.as_str()
            .is_some_and(|name| name.eq_ignore_ascii_case("null"))
    };
    let is_among = |all: &Vec<Value>| all.iter().take(MAX_TYPES).any(is_null);
    let has_null = type_value.is_some_and(|type_value| {
        is_null(type_value) || type_value.as_array().is_some_and(is_among)
    });
    if has_null || parts.get(&["nullable"]) == Some(&Value::Bool(true)) {
        schema.insert("nullable".to_owned(), json!(true));
    }
    let named: Vec<&str> = named_types(type_value).collect();
    match named[..] {
        [] => guess(schema),
        [one] => _ = schema.insert("type".to_owned(), json!(one)),
        [..] if schema.contains_key("anyOf") => {}
        [..] => split(&named, schema),
    }
}

/// Language models need a type even where it is implied.
fn guess(schema: &mut Schema) {
    let plain = [
        ("properties", "object"),
        ("items", "array"),
        ("enum", "string"),
    ];
    if let Some((_, kind)) = plain.iter().find(|(name, _)| schema.contains_key(*name))
        && !schema.contains_key("type")
        && !schema.contains_key("anyOf")
    {
        schema.insert("type".to_owned(), json!(kind));
    }
}

/// Turns several types into alternatives with their own keywords.
fn split(named: &[&str], schema: &mut Schema) {
    let all: Vec<Schema> = TYPE_KEYWORDS
        .iter()
        .filter(|(name, _)| named.contains(name))
        .map(|(name, own)| {
            let own = own
                .iter()
                .filter_map(|key| Some(((*key).to_owned(), schema.get(*key)?.clone())));
            own.chain([("type".to_owned(), json!(name))]).collect()
        })
        .collect();
    for (_, own) in TYPE_KEYWORDS {
        own.iter().for_each(|key| _ = schema.remove(*key));
    }
    schema.insert("anyOf".to_owned(), json!(all));
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
