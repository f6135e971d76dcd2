//! Pod template of a role: free-form, so that fields newer than this release are kept.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Partial PodTemplateSpec.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// Partial core v1 PodSpec.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub spec: Map<String, Value>,
}

/// Metadata of pods.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TemplateMetadata {
    /// Labels of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl TemplateMetadata {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "Partial PodTemplateSpec.",
            "properties": {
                "metadata": {
                    "type": "object",
                    "description": "Labels and annotations of the pods.",
                    "properties": {
                        "labels": texts("Labels of the pods. Labels of the operator are rejected."),
                        "annotations": texts("Annotations of the pods."),
                    },
                },
                "spec": pod_spec(),
            },
        })
    }
}

/// Description of a free-form object that stands alone. Fields in a pod template have none: it
/// would stand at several hundred fields of the CRD, whose size is limited, and that of `spec` says
/// whose they are.
const CORE_FIELD: &str = "Core v1.";

/// Items of a list, which bounds the cost of rules that compare templates.
const MAX_ITEMS: u32 = 64;

/// Core v1 PodSpec. Fields that are not named here are kept too. Rules see the replacement of one
/// field by another only if the fields are named.
fn pod_spec() -> Value {
    let mut properties = Map::new();
    for name in ["nodeSelector", "affinity", "securityContext", "dnsConfig"] {
        properties.insert(name.to_owned(), free_form());
    }
    for name in ["tolerations", "topologySpreadConstraints", "imagePullSecrets", "resourceClaims"] {
        properties.insert(name.to_owned(), list(&free_form()));
    }
    for name in ["volumes", "hostAliases"] {
        properties.insert(name.to_owned(), list(&free_form()));
    }
    for name in ["containers", "initContainers"] {
        properties.insert(name.to_owned(), list(&container()));
    }
    for name in [
        "dnsPolicy",
        "nodeName",
        "preemptionPolicy",
        "priorityClassName",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "serviceAccountName",
    ] {
        properties.insert(name.to_owned(), scalar("string"));
    }
    for name in ["automountServiceAccountToken", "hostIPC", "hostNetwork", "hostPID", "hostUsers"] {
        properties.insert(name.to_owned(), scalar("boolean"));
    }
    properties.insert("terminationGracePeriodSeconds".to_owned(), scalar("integer"));
    json!({
        "type": "object",
        "description": "Partial core v1 PodSpec (`kubectl explain pod.spec`), without \
            restartPolicy, and without command, ports, probes, image and resources of the main \
            container.",
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn container() -> Value {
    let mut properties = Map::from_iter([("name".to_owned(), scalar("string"))]);
    for name in ["image", "imagePullPolicy", "workingDir", "restartPolicy"] {
        properties.insert(name.to_owned(), scalar("string"));
    }
    for name in ["env", "envFrom", "ports", "volumeMounts", "volumeDevices"] {
        properties.insert(name.to_owned(), list(&free_form()));
    }
    for name in ["command", "args"] {
        let item = json!({"type": "string"});
        properties.insert(name.to_owned(), list(&item));
    }
    for name in [
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "resources",
        "securityContext",
        "startupProbe",
    ] {
        properties.insert(name.to_owned(), free_form());
    }
    json!({
        "type": "object",
        "required": ["name"],
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

/// Schema of a described free-form object of the core API.
pub(crate) fn object() -> Value {
    json!({
        "type": "object",
        "description": CORE_FIELD,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn free_form() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items, "maxItems": MAX_ITEMS})
}

fn scalar(kind: &str) -> Value {
    json!({"type": kind})
}

fn texts(description: &str) -> Value {
    let values = json!({"type": "string"});
    json!({"type": "object", "additionalProperties": values, "description": description})
}
