//! The committed `rljob.yaml` and its copy in the chart are what the types say, fit `kubectl
//! apply`, and document themselves. `UPDATE=1 cargo test -p rljob-crds` updates them.

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use rljob_crds::crd;
use serde_json::{Value, json};

/// Bytes that all annotations of an object may have together, with their names. Client-side apply
/// keeps the whole object in one.
const ANNOTATIONS_LIMIT: usize = 262_144;
/// Bytes that stay free for annotations of other tools, and for fields of the next releases.
const ANNOTATIONS_MARGIN: usize = 8 * 1024;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// JSON as kubectl writes it into the annotation: without fractions of whole numbers, with escapes
/// of characters that HTML reserves, and with a line feed.
fn as_kubectl_writes(object: &Value) -> String {
    let mut object = object.clone();
    object["metadata"]["annotations"] = json!({});
    drop_zero_fractions(&mut object);
    let mut text = object.to_string();
    for letter in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        text = text.replace(letter, &format!("\\u{:04x}", u32::from(letter)));
    }
    text + "\n"
}

fn drop_zero_fractions(value: &mut Value) {
    match value {
        Value::Number(number) => {
            // Larger numbers have an exponent in Go, which is shorter.
            let whole = number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 1e15);
            if let Some(whole) = whole {
                *value = json!(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(drop_zero_fractions),
        Value::Object(fields) => fields.values_mut().for_each(drop_zero_fractions),
        _ => {}
    }
}

fn root() -> JSONSchemaProps {
    crd()
        .spec
        .versions
        .into_iter()
        .next()
        .and_then(|version| version.schema?.open_api_v3_schema)
        .unwrap_or_default()
}

#[test]
fn the_committed_yaml_is_what_the_types_say() {
    let yaml = serde_yaml::to_string(&crd()).unwrap();
    for file in ["rljob.yaml", "../charts/rljob/files/rljobs.rljob.dev.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &yaml).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&path).unwrap_or_default(),
            yaml,
            "{file}: run `UPDATE=1 cargo test -p rljob-crds` and review the difference"
        );
    }
}

#[test]
fn the_crd_fits_client_side_apply() {
    let annotation = as_kubectl_writes(&serde_json::to_value(crd()).unwrap());
    let size = LAST_APPLIED.len() + annotation.len();
    let free = ANNOTATIONS_LIMIT.saturating_sub(size);
    assert!(
        free >= ANNOTATIONS_MARGIN,
        "the annotation {LAST_APPLIED} leaves {free} of {ANNOTATIONS_LIMIT} bytes: shorten the \
         descriptions that stand most often in rljob.yaml"
    );
}

#[test]
fn json_is_measured_as_kubectl_writes_it() {
    let object = json!({"metadata": {"name": "a"}, "rule": "1 <= a && b > 2", "minimum": 1.0,
        "maximum": 0.5});
    let written = concat!(
        r#"{"maximum":0.5,"metadata":{"annotations":{},"name":"a"},"minimum":1,"#,
        r#""rule":"1 \u003c= a \u0026\u0026 b \u003e 2"}"#,
        "\n"
    );
    assert_eq!(as_kubectl_writes(&object), written);
}

#[test]
fn an_unvisited_object_has_an_observed_generation_of_minus_one() {
    let status = root().properties.unwrap().remove("status").unwrap();
    assert_eq!(status.default.unwrap().0, json!({ "observedGeneration": -1 }));
}

#[test]
fn no_field_of_the_spec_reaches_into_another_namespace() {
    let spec = serde_json::to_string(&root().properties.unwrap()["spec"].properties).unwrap();
    assert_eq!(
        spec.match_indices("amespace\":").collect::<Vec<_>>(),
        [],
        "a job references only objects in its namespace"
    );
}

/// The API server lets a part that is not changed break a new rule; the spec is changed whenever a
/// part of it is.
#[test]
fn no_rule_across_the_specs_fields_keeps_an_object_that_breaks_it_from_being_changed_elsewhere() {
    let rules =
        root().properties.unwrap().remove("spec").unwrap().x_kubernetes_validations.unwrap();
    assert!(rules.len() >= 8, "{rules:#?}");
    for rule in rules {
        let holds = rule
            .rule
            .split(") || oldSelf.hasValue() && !(")
            .next()
            .unwrap()
            .trim_start_matches('(')
            .to_owned();
        let expected = format!(
            "({holds}) || oldSelf.hasValue() && !({})",
            holds.replace("self.", "oldSelf.value().")
        );
        assert_eq!((rule.rule, rule.optional_old_self), (expected, Some(true)));
    }
}

/// The spec of a pod template has the fields of the core API, as its description says.
#[test]
fn every_field_has_a_description() {
    let mut missing = Vec::new();
    assert!(root().properties.is_some());
    walk("", &root(), &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

/// `kubectl explain` prints the description of a field, and of an enum only its values.
#[test]
fn every_value_of_an_enum_is_described() {
    let crd = serde_json::to_value(crd()).unwrap();
    let mut missing = Vec::new();
    walk_enums("", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

fn walk_enums(path: &str, schema: &Value, missing: &mut Vec<String>) {
    let text = schema["description"].as_str().unwrap_or_default();
    for values in [&schema["enum"], &schema["items"]["enum"]] {
        // A constant has one value.
        let values = values.as_array().filter(|values| values.len() > 1).into_iter().flatten();
        let values = values.filter_map(|value| value.as_str());
        let unexplained = values.filter(|value| !text.contains(&format!("\n- `{value}`: ")));
        missing.extend(unexplained.map(|value| format!("{path}: {value}")));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk_enums(&format!("{path}.{name}"), property, missing);
    }
    if schema["items"]["properties"].is_object() {
        walk_enums(&format!("{path}[]"), &schema["items"], missing);
    }
}

fn walk(path: &str, schema: &JSONSchemaProps, missing: &mut Vec<String>) {
    for (name, property) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        if property.description.as_deref().unwrap_or_default().is_empty() {
            missing.push(path.clone());
        }
        if !path.ends_with(".template.spec") {
            walk(&path, property, missing);
        }
    }
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => walk(&format!("{path}[]"), items, missing),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => {
            for items in items {
                walk(&format!("{path}[]"), items, missing);
            }
        }
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        walk(&format!("{path}.*"), values, missing);
    }
}
