//! Expectations are from the protocol's description, not from what the code says. [`is_taken`] is what the asker's model takes.

use super::*;
use proptest::prelude::*;

const TYPES: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];

/// Why the asker's model would refuse it.
fn is_taken(schema: &Value) -> Result<(), String> {
    let Some(map) = schema.as_object() else {
        return Err(format!("{schema} is no object"));
    };
    map.iter().try_for_each(|(name, value)| {
        let is_list_of_texts = || {
            value
                .as_array()
                .is_some_and(|all| all.iter().all(Value::is_string))
        };
        let good = match &**name {
            "type" => value
                .as_str()
                .is_some_and(|kind| TYPES.contains(&&*kind.to_lowercase())),
            "title" | "description" | "format" | "pattern" => value.is_string(),
            "enum" | "required" | "propertyOrdering" => is_list_of_texts(),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => value.is_i64() || value.is_u64(),
            "minimum" | "maximum" => value.is_number(),
            "nullable" => value.is_boolean(),
            "default" | "example" => true,
            // Anything would be taken, but what is a schema must be one.
            "additionalProperties" => value.is_boolean() || is_taken(value).is_ok(),
            "items" => return is_taken(value),
            "properties" => {
                let all = value.as_object().ok_or("properties are no object")?;
                return all.values().try_for_each(is_taken);
            }
            "anyOf" => {
                let all = value.as_array().ok_or("anyOf is no list")?;
                return all.iter().try_for_each(is_taken);
            }
            _ => false,
        };
        good.then_some(()).ok_or_else(|| format!("{name}: {value}"))
    })
}

fn of(property: Value) -> Value {
    for_asker(&json!({"type": "object", "properties": {"p": property}}))["properties"]["p"].clone()
}

#[test]
fn what_is_taken_stays_as_it_is() {
    let schema = json!({"type":"object","title":"T","description":"D","required":["a"],"propertyOrdering":["a","b","c"],
        "additionalProperties":false,
        "properties":{
            "a":{"type":"string","enum":["x","y"],"minLength":1,"maxLength":9,"pattern":"^x","format":"email",
                 "default":"x","example":"y","nullable":true},
            "b":{"type":"array","items":{"type":"integer","minimum":1,"maximum":2.5},"minItems":1,"maxItems":3},
            "c":{"anyOf":[{"type":"number"},{"type":"boolean"}]}}});
    assert_eq!(for_asker(&schema), schema);
    assert_eq!(is_taken(&schema), Ok(()));
}

#[test]
fn what_is_refused_is_left_out_or_said_otherwise() {
    for (full, wanted) in [
        (
            json!({"$schema":"x","$id":"y","$comment":"z","type":"string"}),
            json!({"type":"string"}),
        ),
        (
            json!({"type":"array","uniqueItems":true,"items":{"type":"string"}}),
            json!({"type":"array","items":{"type":"string"}}),
        ),
        (
            json!({"type":"integer","multipleOf":3}),
            json!({"type":"integer"}),
        ),
        (
            json!({"oneOf":[{"type":"string"},{"type":"integer"}]}),
            json!({"anyOf":[{"type":"string"},{"type":"integer"}]}),
        ),
        (json!({"const":"x"}), json!({"type":"string","enum":["x"]})),
        (
            json!({"type":"integer","const":5}),
            json!({"type":"integer","description":"One of: 5"}),
        ),
        (
            json!({"type":"string","examples":["a","b"]}),
            json!({"type":"string","example":"a"}),
        ),
        (
            json!({"type":"integer","exclusiveMinimum":0}),
            json!({"type":"integer","minimum":1}),
        ),
        (
            json!({"type":"integer","exclusiveMaximum":9}),
            json!({"type":"integer","maximum":8}),
        ),
        (
            json!({"type":"number","exclusiveMinimum":0.5}),
            json!({"type":"number","minimum":0.5}),
        ),
        (
            json!({"type":"integer","minimum":0,"exclusiveMinimum":true}),
            json!({"type":"integer","minimum":1}),
        ),
        (
            json!({"type":"integer","minimum":0,"exclusiveMinimum":false}),
            json!({"type":"integer","minimum":0}),
        ),
        (
            json!({"type":["string","null"]}),
            json!({"type":"string","nullable":true}),
        ),
        (
            json!({"type":["integer","string"],"minLength":2,"title":"T"}),
            json!({"anyOf":[{"type":"string","minLength":2},{"type":"integer"}],"title":"T"}),
        ),
        (
            json!({"type":"integer","enum":[1,2],"description":"Size."}),
            json!({"type":"integer","description":"Size. One of: 1, 2"}),
        ),
        (
            json!({"enum":["a",null]}),
            json!({"type":"string","enum":["a"],"nullable":true}),
        ),
        (json!({"type":"STRING"}), json!({"type":"string"})),
        (
            json!({"type":"OBJECT","properties":{"x":{"type":"INTEGER"}}}),
            json!({"type":"object","properties":{"x":{"type":"integer"}}}),
        ),
        (json!({"type":"file"}), json!({})),
        (
            json!({"type":"array","items":{"type":"string"},"prefixItems":[{"type":"string"},{"type":"integer"}]}),
            json!({"type":"array","items":{"anyOf":[{"type":"string"},{"type":"integer"}]}}),
        ),
        (
            json!({"type":"string","min_length":3,"title":7}),
            json!({"type":"string","minLength":3}),
        ),
        (
            json!({"anyOf":[{"type":"string","maxLength":3},{"type":"null"}],"default":null}),
            json!({"type":"string","maxLength":3,"nullable":true}),
        ),
        (
            json!({"any_of":[{"type":"STRING"},{"type":"NUMBER"}]}),
            json!({"anyOf":[{"type":"string"},{"type":"number"}]}),
        ),
        (
            json!({"allOf":[{"properties":{"a":{"type":"string"}},"required":["a"]},{"properties":{"b":true},"required":["b","c"]}]}),
            json!({"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["a","b"]}),
        ),
        (
            json!({"type":"object","additionalProperties":{"type":"integer","const":1}}),
            json!({"type":"object","additionalProperties":{"type":"integer","description":"One of: 1"}}),
        ),
        // Of two choices at once only one can be said.
        (
            json!({"type":["string","integer"],"oneOf":[{"minLength":1},{"minimum":1}]}),
            json!({"anyOf":[{"minLength":1},{"minimum":1}]}),
        ),
        (json!(true), json!({})),
        (json!([]), json!({})),
    ] {
        assert_eq!(of(full.clone()), wanted, "{full}");
        assert_eq!(is_taken(&wanted), Ok(()));
    }
}

#[test]
fn properties_may_have_any_name() {
    let schema = json!({"type":"object","properties":{"$ref":{"type":"string"},"const":{"type":"string"}},"required":["const"]});
    assert_eq!(for_asker(&schema), schema);
}

#[test]
fn references_are_followed() {
    let full = json!({
        "type":"object",
        "$defs":{"Size":{"type":"integer","title":"Size","minimum":1},"a/b":{"type":"string"}},
        "definitions":{"Old":{"$ref":"#/$defs/Size"}},
        "properties":{
            "size":{"$ref":"#/$defs/Size","description":"How large."},
            "old":{"$ref":"#/definitions/Old"},
            "slash":{"$ref":"#/$defs/a~1b"},
            "maybe":{"anyOf":[{"$ref":"#/$defs/Size"},{"type":"null"}]},
            "lost":{"$ref":"#/$defs/Missing","description":"Gone."},
            "far":{"$ref":"https://example.com/schema"}}});
    assert_eq!(
        for_asker(&full),
        json!({"type":"object","properties":{
        "size":{"type":"integer","title":"Size","minimum":1,"description":"How large."},
        "old":{"type":"integer","title":"Size","minimum":1},
        "slash":{"type":"string"},
        "maybe":{"type":"integer","title":"Size","minimum":1,"nullable":true},
        "lost":{"description":"Gone."},
        "far":{}}})
    );
}

#[test]
fn what_is_inside_of_itself_ends() {
    let tree = json!({"type":"object","properties":{"value":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/Tree"}}}});
    let full = json!({"$ref":"#/$defs/Tree","$defs":{"Tree":tree}});
    assert_eq!(
        for_asker(&full),
        json!({"type":"object","properties":{
        "value":{"type":"string"},
        "children":{"type":"array","items":{"type":"object"}}}})
    );
    let circle =
        json!({"$ref":"#/$defs/A","$defs":{"A":{"$ref":"#/$defs/B"},"B":{"$ref":"#/$defs/A"}}});
    assert_eq!(for_asker(&circle), json!({"type":"object"}));
    assert_eq!(
        is_taken(&for_asker(
            &json!({"$ref":"#","properties":{"again":{"$ref":"#"}}})
        )),
        Ok(())
    );
}

#[test]
fn it_is_always_the_schema_of_an_object() {
    for full in [
        json!(null),
        json!({}),
        json!({"type":"string"}),
        json!({"type":["null","object"]}),
        json!([1]),
    ] {
        assert_eq!(for_asker(&full), json!({"type":"object"}), "{full}");
    }
}

/// Sixteen properties refer to the next of which sixteen refer to the next: 16 to the power of 12 in all.
#[test]
fn a_bomb_of_references_stays_small() {
    let mut defs = Schema::new();
    for level in 0..12 {
        let next = json!({"$ref": format!("#/$defs/L{}", level + 1)});
        let all: Schema = (0..16).map(|n| (format!("p{n}"), next.clone())).collect();
        defs.insert(
            format!("L{level}"),
            json!({"type":"object","properties":all,"description":"x".repeat(100)}),
        );
    }
    let schema = for_asker(&json!({"$ref":"#/$defs/L0","$defs":defs}));
    assert_eq!(is_taken(&schema), Ok(()));
    assert!(schema.to_string().len() < 1 << 20);
}

#[test]
fn long_lists_are_bounded() {
    let many: Vec<Value> = (0..200_000).map(|n| json!(n % 2 == 0)).collect();
    let names: Vec<String> = (0..200_000).map(|n| n.to_string()).collect();
    let properties: Schema = (0..100_000)
        .map(|n| (n.to_string(), json!({"type":"string"})))
        .collect();
    let full = json!({"anyOf":many,"oneOf":many,"allOf":many,"enum":names,"required":names,"type":many,"properties":properties,
        "items":many,"default":names,"examples":[names],"description":"x".repeat(1 << 20)});
    let schema = for_asker(&full);
    assert_eq!(is_taken(&schema), Ok(()));
    assert!(
        schema.to_string().len() < 1 << 20,
        "{}",
        schema.to_string().len()
    );
}

#[test]
fn what_is_nested_too_deeply_is_cut() {
    let deep = (0..100).fold(
        json!({"type":"string"}),
        |inner, _| json!({"type":"array","items":[inner]}),
    );
    assert_eq!(is_taken(&of(deep)), Ok(()));
    let deep = (0..100).fold(
        json!({"type":"string"}),
        |inner, _| json!({"oneOf":[inner,{"type":"integer"}]}),
    );
    assert_eq!(is_taken(&of(deep)), Ok(()));
}

/// Texts and numbers as they may stand anywhere, where they belong and where not.
fn leaves() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "string",
        "INTEGER",
        "number",
        "array",
        "object",
        "null",
        "file",
        "#",
        "#/$defs",
        "#/$defs/p",
        "#/$defs/q",
        "#/properties/p",
        "p",
        "q",
        "",
    ]);
    prop_oneof![
        4 => text.prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn object(fields: Vec<(&'static str, Value)>) -> Value {
    Value::Object(
        fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

/// Mostly what tools could say, and sometimes anything under any name.
fn schemas() -> impl Strategy<Value = Value> {
    let plain = vec![
        "$ref",
        "type",
        "description",
        "title",
        "const",
        "default",
        "example",
        "format",
        "pattern",
        "minLength",
        "max_length",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "maxItems",
        "minProperties",
        "nullable",
        "$schema",
        "uniqueItems",
        "multipleOf",
    ];
    let lists = vec![
        "type",
        "enum",
        "required",
        "examples",
        "propertyOrdering",
        "property_ordering",
        "anyOf",
        "any_of",
        "oneOf",
        "allOf",
        "prefixItems",
        "items",
    ];
    let inner = vec![
        "items",
        "additionalProperties",
        "additional_properties",
        "not",
        "default",
        "const",
        "$defs",
    ];
    let select = prop::sample::select::<&'static str>;
    let field = (select(plain.clone()), leaves());
    prop::collection::vec(field, 0..4)
        .prop_map(object)
        .prop_recursive(5, 64, 6, move |below| {
            let either = prop_oneof![below.clone(), leaves()];
            let several = prop::collection::vec(either.clone(), 0..4).prop_map(Value::from);
            let named =
                prop::collection::vec((select(vec!["p", "q", "$ref"]), either.clone()), 0..4)
                    .prop_map(object);
            let field = prop_oneof![
                3 => (select(plain.clone()), leaves()),
                3 => (select(lists.clone()), several.clone()),
                2 => (select(inner.clone()), below),
                3 => (select(vec!["properties", "$defs"]), named),
                1 => (select([&plain[..], &lists, &inner].concat()), prop_oneof![either, several]),
            ];
            prop::collection::vec(field, 0..6).prop_map(object)
        })
}

/// Of parameters: with something to refer to, and of an object.
fn parameters() -> impl Strategy<Value = Value> {
    (schemas(), schemas(), schemas()).prop_map(|(outer, p, q)| {
        json!({"type": "object", "allOf": [outer], "properties": {"p": p, "r": q}, "$defs": {"p": p, "q": q}})
    })
}

proptest! {
    #[test]
    fn whatever_a_tool_says_is_taken_once_converted(full in prop_oneof![1 => schemas(), 3 => parameters()]) {
        let schema = for_asker(&full);
        prop_assert_eq!(is_taken(&schema), Ok(()));
        prop_assert_eq!(&schema["type"], "object");
        prop_assert!(schema.to_string().len() < 1 << 20);
    }

    #[test]
    fn what_was_converted_stays_taken(full in parameters()) {
        prop_assert_eq!(is_taken(&for_asker(&for_asker(&full))), Ok(()));
    }
}
