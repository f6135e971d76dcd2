//! Schema check: a value against the schema of the CRD, as the API server does it. It finds all
//! unknown fields and wrong types, enumerations, ranges and patterns.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value};

use super::{Problem, relatives};

static ROOT: LazyLock<JSONSchemaProps> = LazyLock::new(|| {
    let schema = rljob_crds::crd()
        .spec
        .versions
        .into_iter()
        .next()
        .and_then(|version| version.schema)
        .and_then(|schema| schema.open_api_v3_schema);
    schema.unwrap_or_default()
});

/// Fields of `metadata`.
const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Reports every violation of the schema and repairs it, so that the rest can be checked: removes
/// unknown fields, and replaces missing and wrong values.
pub(super) fn check_and_repair(value: &mut Map<String, Value>) -> Vec<Problem> {
    let mut problems = unknown_metadata(value);
    // The schema of a CRD does not describe these three fields.
    let own = ["apiVersion", "kind", "metadata"].map(|field| (field, value.remove(field)));
    check_object("", &ROOT, value, &mut problems);
    for (field, own) in own {
        if let Some(own) = own {
            value.insert(field.to_owned(), own);
        }
    }
    problems
}

/// Fields of `metadata` that objects do not have.
fn unknown_metadata(object: &Map<String, Value>) -> Vec<Problem> {
    let fields = object.get("metadata").and_then(Value::as_object).into_iter().flatten();
    let unknown = fields.filter(|(name, _)| !METADATA.contains(&name.as_str()));
    let problem = |(name, _): (&String, &Value)| {
        Problem::new(format!("metadata.{name}"), unknown_field(METADATA))
    };
    unknown.map(problem).collect()
}

fn unknown_field<'a>(known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    if known.is_empty() {
        return "unknown field; no fields are expected here".to_owned();
    }
    format!("unknown field; expected one of {}", known.join(", "))
}

/// A value in one line.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => scalar.to_string(),
    }
}

/// Replacement of a missing or wrong value: the default, else a minimal valid value. Numbers are
/// the allowed maximum, because limits across fields are upper limits.
fn replacement(schema: &JSONSchemaProps) -> Value {
    if let Some(default) = &schema.default {
        return default.0.clone();
    }
    match schema.type_.as_deref() {
        Some("object") => {
            let properties = schema.properties.iter().flatten().filter(|(name, _)| {
                schema.required.iter().flatten().any(|required| required == *name)
            });
            Value::Object(
                properties.map(|(name, property)| (name.clone(), replacement(property))).collect(),
            )
        }
        Some("array") => Value::Array(Vec::new()),
        Some("boolean") => Value::Bool(false),
        Some("integer") => Value::from(schema.maximum.unwrap_or(1.0) as i64),
        Some("number") => Value::from(schema.maximum.unwrap_or(1.0)),
        _ => schema
            .enum_
            .iter()
            .flatten()
            .next()
            .map_or_else(|| Value::from(""), |choice| choice.0.clone()),
    }
}

fn check(path: &str, schema: &JSONSchemaProps, value: &mut Value, problems: &mut Vec<Problem>) {
    // The API server replaces null by the default of the field.
    if let (Value::Null, Some(default)) = (&*value, &schema.default) {
        value.clone_from(&default.0);
        return;
    }
    if !has_type(schema, value) {
        let expected = schema.type_.as_deref().unwrap_or("integer or string");
        let message = too_large(schema, value)
            .unwrap_or_else(|| format!("expected {expected}, found {}", describe(value)));
        problems.push(Problem::new(path, message));
        *value = replacement(schema);
        return;
    }
    let before = problems.len();
    match value {
        Value::Object(object) => return check_object(path, schema, object, problems),
        Value::Array(items) => return check_items(path, schema, items, problems),
        Value::Number(number) => {
            check_range(path, schema, number.as_f64().unwrap_or(f64::NAN), problems);
        }
        Value::String(text) => check_text(path, schema, text, problems),
        Value::Null | Value::Bool(_) => {}
    }
    if problems.len() > before {
        *value = replacement(schema);
    }
}

/// A whole number beyond 64 bits, which YAML reads as a floating-point number.
fn too_large(schema: &JSONSchemaProps, value: &Value) -> Option<String> {
    let number = value.as_f64().filter(|number| number.abs() >= (1_u64 << 63) as f64)?;
    let limit = schema.maximum.filter(|_| schema.type_.as_deref() == Some("integer"))?;
    Some(format!("{number} is too large: at most {limit}"))
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

fn check_object(
    path: &str,
    schema: &JSONSchemaProps,
    object: &mut Map<String, Value>,
    problems: &mut Vec<Problem>,
) {
    let empty = std::collections::BTreeMap::new();
    let properties = schema.properties.as_ref().unwrap_or(&empty);
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    object.retain(|name, value| {
        match (properties.get(name), &schema.additional_properties) {
            (Some(property), _) => check(&below(name), property, value, problems),
            (None, Some(JSONSchemaPropsOrBool::Schema(values))) => {
                check(&below(name), values, value, problems);
            }
            (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
            (None, _) if schema.x_kubernetes_preserve_unknown_fields == Some(true) => {}
            (None, _) => {
                let mut message = unknown_field(properties.keys().map(String::as_str));
                message.extend(relatives::hint(path, name));
                problems.push(Problem::new(below(name), message));
                return false;
            }
        }
        true
    });
    for name in schema.required.iter().flatten() {
        if !object.contains_key(name) {
            problems.push(Problem::new(below(name), "is missing"));
            object.insert(name.clone(), properties.get(name).map_or(Value::Null, replacement));
        }
    }
}

fn check_items(
    path: &str,
    schema: &JSONSchemaProps,
    items: &mut [Value],
    problems: &mut Vec<Problem>,
) {
    if let Some(limit) = schema.min_items.filter(|limit| (items.len() as i64) < *limit) {
        problems.push(Problem::new(
            path,
            format!("must have at least {limit} items, found {}", items.len()),
        ));
    }
    if let Some(limit) = schema.max_items.filter(|limit| items.len() as i64 > *limit) {
        problems.push(Problem::new(
            path,
            format!("must have at most {limit} items, found {}", items.len()),
        ));
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
        problems.push(Problem::new(
            path,
            format!("must have at least {limit} characters, found {length}"),
        ));
    }
    if let Some(limit) = schema.max_length.filter(|limit| length > *limit) {
        problems.push(Problem::new(
            path,
            format!("must have at most {limit} characters, found {length}"),
        ));
    }
    if let Some(choices) =
        schema.enum_.as_ref().filter(|choices| !choices.iter().any(|choice| choice.0 == text))
    {
        let choices: Vec<&str> = choices.iter().filter_map(|choice| choice.0.as_str()).collect();
        problems.push(Problem::new(
            path,
            format!("must be one of {}, found \"{text}\"", choices.join(", ")),
        ));
    }
    if let Some(pattern) = schema
        .pattern
        .as_deref()
        .filter(|pattern| regex::Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text)))
    {
        problems.push(Problem::new(path, format!("must match {pattern}, found \"{text}\"")));
    }
}
