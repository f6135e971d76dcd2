//! CustomResourceDefinition: the schema that kube derives from the types, and its corrections.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::json;

use crate::storage::VOLUME_SOURCES;
use crate::template::object;
use crate::{RLJob, enum_values, freeze, rules, union};

/// Resource names in `requests` and `limits`, which bounds the cost of rules about them.
const MAX_RESOURCES: i64 = 32;

/// The CRD that is installed.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = RLJob::crd();
    for version in &mut crd.spec.versions {
        let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(root) = root {
            default_status(root);
            enum_values::describe(root);
            correct(root);
            let spec = root.properties.as_mut().and_then(|properties| properties.get_mut("spec"));
            if let Some(spec) = spec {
                spec.x_kubernetes_validations.get_or_insert_default().extend(rules::rules());
                ratchet(spec);
                add_volume_sources(spec);
                let rules = freeze::rules(spec);
                root.x_kubernetes_validations.get_or_insert_default().extend(rules);
            }
        }
    }
    crd
}

/// Sets `observedGeneration: -1` on objects that no operator has reconciled, so that kubectl wait
/// and kstatus report them as in progress.
fn default_status(root: &mut JSONSchemaProps) {
    if let Some(status) =
        root.properties.as_mut().and_then(|properties| properties.get_mut("status"))
    {
        status.default = Some(JSON(json!({ "observedGeneration": -1 })));
    }
}

/// Lets an object that violated a rule before an update violate it after, so that jobs which an
/// older CRD admitted can be suspended. The API server ratchets rules of unchanged values
/// (KEP-4008); a spec with any change is a changed value.
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

/// Adds the sources of volumes to the schema. Their contents are free-form.
fn add_volume_sources(spec: &mut JSONSchemaProps) {
    let volumes = spec.properties.as_mut().and_then(|properties| properties.get_mut("volumes"));
    let Some(JSONSchemaPropsOrArray::Schema(volume)) = volumes.and_then(|list| list.items.as_mut())
    else {
        return;
    };
    let sources = VOLUME_SOURCES.map(|name| {
        // Plain data of the right shape.
        (name.to_owned(), serde_json::from_value(object()).unwrap_or_default())
    });
    volume.properties.get_or_insert_default().extend(sources);
    volume.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
        rule: union::expression(&VOLUME_SOURCES),
        message: Some(union::message(&VOLUME_SOURCES)),
        ..ValidationRule::default()
    });
}

/// Removes unsigned formats, which the API server does not know, and `double`, the only format of
/// numbers; makes optional fields not nullable; describes quantities and resources in one line;
/// bounds maps of resources; checks minima of integers.
fn correct(schema: &mut JSONSchemaProps) {
    schema.format.take_if(|format| format == "double" || format.starts_with("uint"));
    schema.nullable = None;
    check_minimum(schema);
    if schema.x_kubernetes_int_or_string == Some(true) {
        schema.description = Some("Quantity such as 500m or 4Gi.".to_owned());
    }
    describe_resources(schema);
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(correct);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => correct(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(correct),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        if values.x_kubernetes_int_or_string == Some(true) {
            schema.max_properties = Some(MAX_RESOURCES);
        }
        correct(values);
    }
}

/// Replaces the descriptions of core v1 ResourceRequirements, which every role repeats: kubectl
/// limits the size of the CRD.
fn describe_resources(schema: &mut JSONSchemaProps) {
    let Some(properties) = &mut schema.properties else { return };
    if !["claims", "limits", "requests"].iter().all(|name| properties.contains_key(*name)) {
        return;
    }
    let describe = |properties: &mut BTreeMap<String, JSONSchemaProps>, name: &str, text: &str| {
        if let Some(property) = properties.get_mut(name) {
            property.description = Some(text.to_owned());
        }
    };
    describe(properties, "limits", "Most of each resource that the container may use.");
    describe(properties, "requests", "Resources that the scheduler reserves. Default the limits.");
    describe(properties, "claims", "Entries of `resourceClaims` of the pod.");
    let items = properties.get_mut("claims").and_then(|claims| claims.items.as_mut());
    if let Some(JSONSchemaPropsOrArray::Schema(claim)) = items {
        claim.description = Some("A claim of the pod.".to_owned());
        if let Some(properties) = &mut claim.properties {
            describe(properties, "name", "Name of the claim in the pod.");
            describe(properties, "request", "Request of the claim. Default all of them.");
        }
    }
}

/// Adds a rule beside a minimum that is a fraction: for values without a point, the API server
/// compares with its whole part, and 0 would not be below 0.01.
fn check_minimum(schema: &mut JSONSchemaProps) {
    let minimum = schema.minimum.filter(|minimum| *minimum > 0.0 && minimum.fract() != 0.0);
    let Some(minimum) = minimum.filter(|_| schema.type_.as_deref() == Some("number")) else {
        return;
    };
    schema.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
        rule: format!("self >= {minimum}"),
        message: Some(format!("must be at least {minimum}")),
        ..ValidationRule::default()
    });
}
