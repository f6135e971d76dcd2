//! Variables of a container by which a process of rljob logs JSON lines that name the job, its role
//! and the pod. Programs of other origin ignore them.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use rljob_logging::{FIELDS_VARIABLE, FORMAT_VARIABLE};
use serde_json::json;

use super::Role;
use crate::validate::ValidatedJob;

/// The variables, and that of the pod's name, to which they refer.
pub(super) fn environment(job: &ValidatedJob, role: Role) -> Vec<EnvVar> {
    let fields = json!({
        "namespace": job.namespace, "job": job.name, "role": role.as_str(), "pod": "$(POD_NAME)",
    });
    let value = |name: &str, value: String| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        ..EnvVar::default()
    };
    let pod_name = EnvVar {
        name: "POD_NAME".to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: "metadata.name".to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    vec![
        pod_name,
        value(FORMAT_VARIABLE, "json".to_owned()),
        value(FIELDS_VARIABLE, fields.to_string()),
    ]
}
