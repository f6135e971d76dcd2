//! The CustomResourceDefinition: what kube derives from the types, and the little that it cannot
//! derive.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::json;

use crate::RLJob;

/// The CRD as it is installed.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = RLJob::crd();
    for version in &mut crd.spec.versions {
        if let Some(root) =
            version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            default_status(root);
            known_formats(root);
            let spec = root.properties.as_mut().and_then(|properties| properties.get_mut("spec"));
            spec.into_iter().for_each(ratchet);
        }
    }
    crd
}

/// An object that no operator has visited shows `observedGeneration: -1`: tools that compare it
/// with the generation (kubectl wait, kstatus) then call it "in progress", not "current".
fn default_status(root: &mut JSONSchemaProps) {
    if let Some(status) =
        root.properties.as_mut().and_then(|properties| properties.get_mut("status"))
    {
        status.default = Some(JSON(json!({ "observedGeneration": -1 })));
    }
}

/// A rule across the spec's fields that an object broke when it was written, under an older CRD,
/// does not keep it from being changed elsewhere: suspended, for example. Of rules for a part that
/// stays as it is the API server takes care itself (KEP-4008); a spec that is changed anywhere does
/// not.
fn ratchet(schema: &mut JSONSchemaProps) {
    for rule in schema
        .x_kubernetes_validations
        .iter_mut()
        .flatten()
        .filter(|rule| !rule.rule.contains("oldSelf"))
    {
        let before = rule.rule.replace("self.", "oldSelf.value().");
        rule.rule = format!("({}) || oldSelf.hasValue() && !({before})", rule.rule);
        rule.optional_old_self = Some(true);
    }
}

/// The API server knows no unsigned formats and warns of them; ranges keep the numbers positive.
fn known_formats(schema: &mut JSONSchemaProps) {
    if schema.format.as_deref().is_some_and(|format| format.starts_with("uint")) {
        schema.format = Some("int64".to_owned());
    }
    schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
        .for_each(known_formats);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => known_formats(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(known_formats),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        known_formats(values);
    }
}
