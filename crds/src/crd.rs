//! The CustomResourceDefinition: what kube derives from the types, and the little that it cannot derive.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSON, JSONSchemaProps};
use kube::CustomResourceExt;
use serde_json::json;

use crate::RLJob;

/// The CRD as it is installed.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = RLJob::crd();
    for version in &mut crd.spec.versions {
        if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            default_status(root);
        }
    }
    crd
}

/// An object that no operator has visited shows `observedGeneration: -1`: tools that compare it with the generation (kubectl wait, kstatus) then call it "in progress", not "current".
fn default_status(root: &mut JSONSchemaProps) {
    if let Some(status) = root.properties.as_mut().and_then(|properties| properties.get_mut("status")) {
        status.default = Some(JSON(json!({ "observedGeneration": -1 })));
    }
}
