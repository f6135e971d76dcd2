//! A value against the CRD's own schema: unknown fields, types, enumerations, ranges and patterns. What the API server would say, without one, and all of it.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};
use serde_json::{Map, Value};

use super::Problem;

static ROOT: LazyLock<JSONSchemaProps> = LazyLock::new(|| {
    let schema = rljob_crds::crd().spec.versions.into_iter().next().and_then(|version| version.schema).and_then(|schema| schema.open_api_v3_schema);
    schema.unwrap_or_default()
});

/// Reports every departure from the schema, and removes unknown fields, so that what is left can be read and checked further.
pub(super) fn remove_problems(value: &mut Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    let Value::Object(object) = value else {
        return vec![Problem::new("", format!("expected object, found {value}"))];
    };
    // The API server itself knows these three; the CRD's schema does not describe them.
    let own = ["apiVersion", "kind", "metadata"].map(|field| (field, object.remove(field)));
    check_object("", &ROOT, object, &mut problems);
    for (field, value) in own {
        if let Some(value) = value {
            object.insert(field.to_owned(), value);
        }
    }
    problems
}

fn check(path: &str, schema: &JSONSchemaProps, value: &mut Value, problems: &mut Vec<Problem>) {
    if value.is_null() && schema.nullable == Some(true) {
        return;
    }
    if !has_type(schema, value) {
        let expected = schema.type_.as_deref().unwrap_or("integer or string");
        problems.push(Problem::new(path, format!("expected {expected}, found {value}")));
        return;
    }
    match value {
        Value::Object(object) => check_object(path, schema, object, problems),
        Value::Array(items) => check_items(path, schema, items, problems),
        Value::Number(number) => check_range(path, schema, number.as_f64().unwrap_or(f64::NAN), problems),
        Value::String(text) => check_text(path, schema, text, problems),
        Value::Null | Value::Bool(_) => {}
    }
}

fn has_type(schema: &JSONSchemaProps, value: &Value) -> bool {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema.type_.as_deref() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => true,
    }
}

fn check_object(path: &str, schema: &JSONSchemaProps, object: &mut Map<String, Value>, problems: &mut Vec<Problem>) {
    let empty = std::collections::BTreeMap::new();
    let properties = schema.properties.as_ref().unwrap_or(&empty);
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    object.retain(|name, value| {
        match (properties.get(name), &schema.additional_properties) {
            (Some(property), _) => check(&below(name), property, value, problems),
            (None, Some(JSONSchemaPropsOrBool::Schema(values))) => check(&below(name), values, value, problems),
            (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
            (None, _) if schema.x_kubernetes_preserve_unknown_fields == Some(true) => {}
            (None, _) => {
                let known: Vec<&str> = properties.keys().map(String::as_str).collect();
                let hint = if known.is_empty() { "no fields are expected here".to_owned() } else { format!("expected one of {}", known.join(", ")) };
                problems.push(Problem::new(below(name), format!("unknown field; {hint}")));
                return false;
            }
        }
        true
    });
    for name in schema.required.iter().flatten() {
        if !object.contains_key(name) {
            problems.push(Problem::new(below(name), "is missing"));
        }
    }
}

fn check_items(path: &str, schema: &JSONSchemaProps, items: &mut [Value], problems: &mut Vec<Problem>) {
    if let Some(limit) = schema.max_items.filter(|limit| items.len() as i64 > *limit) {
        problems.push(Problem::new(path, format!("must have at most {limit} items, found {}", items.len())));
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        for (index, value) in items.iter_mut().enumerate() {
            check(&format!("{path}[{index}]"), item, value, problems);
        }
    }
}

fn check_range(path: &str, schema: &JSONSchemaProps, number: f64, problems: &mut Vec<Problem>) {
    if let Some(limit) = schema.minimum.filter(|limit| number < *limit) {
        problems.push(Problem::new(path, format!("must be at least {limit}, found {number}")));
    }
    if let Some(limit) = schema.maximum.filter(|limit| number > *limit) {
        problems.push(Problem::new(path, format!("must be at most {limit}, found {number}")));
    }
}

fn check_text(path: &str, schema: &JSONSchemaProps, text: &str, problems: &mut Vec<Problem>) {
    let length = text.chars().count() as i64;
    if let Some(limit) = schema.min_length.filter(|limit| length < *limit) {
        problems.push(Problem::new(path, format!("must have at least {limit} characters, found {length}")));
    }
    if let Some(limit) = schema.max_length.filter(|limit| length > *limit) {
        problems.push(Problem::new(path, format!("must have at most {limit} characters, found {length}")));
    }
    if let Some(choices) = schema.enum_.as_ref().filter(|choices| !choices.iter().any(|choice| choice.0 == text)) {
        let choices: Vec<&str> = choices.iter().filter_map(|choice| choice.0.as_str()).collect();
        problems.push(Problem::new(path, format!("must be one of {}, found \"{text}\"", choices.join(", "))));
    }
    if let Some(pattern) = schema.pattern.as_deref().filter(|pattern| regex::Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))) {
        problems.push(Problem::new(path, format!("must match {pattern}, found \"{text}\"")));
    }
}
