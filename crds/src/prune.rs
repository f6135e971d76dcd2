//! Pruning of unknown fields from a spec that another release wrote, by the schema of the CRD, as
//! the API server does it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

/// Removes the fields of an RLJob's spec that this release does not define. Returns their paths,
/// such as `spec.training.newField`.
pub fn prune_spec(spec: &mut Value) -> Vec<String> {
    let mut pruned = Vec::new();
    let versions = crate::crd().spec.versions;
    let schema = versions
        .into_iter()
        .find_map(|version| version.schema?.open_api_v3_schema?.properties?.remove("spec"));
    if let Some(schema) = schema {
        prune(spec, &schema, "spec", &mut pruned);
    }
    pruned
}

fn prune(value: &mut Value, schema: &JSONSchemaProps, path: &str, pruned: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let preserves = schema.x_kubernetes_preserve_unknown_fields == Some(true);
            let properties = schema.properties.as_ref();
            fields.retain(|name, field| {
                let path = format!("{path}.{name}");
                if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
                    prune(field, schema, &path, pruned);
                    return true;
                }
                match &schema.additional_properties {
                    Some(JSONSchemaPropsOrBool::Schema(schema)) => {
                        prune(field, schema, &path, pruned);
                        true
                    }
                    Some(JSONSchemaPropsOrBool::Bool(true)) => true,
                    _ if preserves => true,
                    _ => {
                        pruned.push(path);
                        false
                    }
                }
            });
        }
        Value::Array(items) => {
            if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    prune(item, schema, &format!("{path}[{index}]"), pruned);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::prune_spec;

    #[test]
    fn unknown_fields_are_removed_and_named() {
        let known = json!({
            "model": {"path": "/models/tiny"},
            "volumes": [{"name": "data", "nfs": {"server": "a", "path": "/b"}}],
            "rewards": [{"name": "correct", "math": {}}],
            "inference": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        });
        let mut spec = known.clone();
        spec["later"] = json!({"a": 1});
        spec["model"]["later"] = json!(1);
        spec["rewards"][0]["later"] = json!(1);
        let expected = ["spec.later", "spec.model.later", "spec.rewards[0].later"];
        let mut pruned = prune_spec(&mut spec);
        pruned.sort();
        assert_eq!(pruned, expected);
        assert_eq!(spec, known);
    }
}
