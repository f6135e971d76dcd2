//! Meanings of the values of enums, in the descriptions of their fields: the doc comments of the
//! variants. kube joins the values to one list without them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::RLJob;

/// Adds the meanings to the schema of an RLJob.
pub(crate) fn describe(root: &mut JSONSchemaProps) {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let derived = settings.into_generator().into_root_schema_for::<RLJob>();
    add(derived.as_value(), root);
}

/// `derived` is the schema as schemars derives it from the type of `schema`.
fn add(derived: &Value, schema: &mut JSONSchemaProps) {
    if schema.enum_.is_some() {
        append(&meanings(derived), schema);
    }
    let properties = parts(derived, "properties");
    for (name, property) in schema.properties.iter_mut().flatten() {
        for part in properties.iter().filter_map(|part| part.get(name)) {
            add(part, property);
        }
    }
    let items = parts(derived, "items");
    match &mut schema.items {
        // kubectl explain prints the description of the list.
        Some(JSONSchemaPropsOrArray::Schema(own)) if own.enum_.is_some() => {
            let lines: Vec<String> = items.into_iter().flat_map(meanings).collect();
            append(&lines, schema);
        }
        Some(JSONSchemaPropsOrArray::Schema(own)) => {
            for part in items {
                add(part, own);
            }
        }
        Some(JSONSchemaPropsOrArray::Schemas(_)) | None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        for part in parts(derived, "additionalProperties") {
            add(part, values);
        }
    }
}

/// Values of a key in a schema and its alternatives.
fn parts<'v>(derived: &'v Value, key: &str) -> Vec<&'v Value> {
    alternatives(derived).into_iter().filter_map(|part| part.get(key)).collect()
}

/// A schema and those of which it is a combination: an optional field is its type or null.
fn alternatives(derived: &Value) -> Vec<&Value> {
    let combined = ["anyOf", "allOf"].into_iter().filter_map(|key| derived[key].as_array());
    let mut all = vec![derived];
    all.extend(combined.flatten().flat_map(alternatives));
    all
}

/// A line for each value with a meaning.
fn meanings(derived: &Value) -> Vec<String> {
    let variants = parts(derived, "oneOf").into_iter().filter_map(Value::as_array).flatten();
    let line = |variant: &Value| {
        let (value, text) = (variant["const"].as_str()?, variant["description"].as_str()?);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(format!("- `{value}`: {text}"))
    };
    variants.filter_map(line).collect()
}

fn append(lines: &[String], schema: &mut JSONSchemaProps) {
    if lines.is_empty() {
        return;
    }
    let before = schema.description.take().unwrap_or_default();
    schema.description = Some(format!("{before}\n\n{}", lines.join("\n")).trim_start().to_owned());
}
