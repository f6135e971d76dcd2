//! Pod template of a role: the operator's template, with the template of the job merged into it.
//!
//! Objects merge recursively. Lists merge by key as in a strategic merge patch: containers by name,
//! environment variables and volumes by name, mounts by path. Tolerations, spread constraints and
//! terms of affinities are appended. Other values of the job replace those of the operator. Fields
//! that the operator must own never reach this merge: [`validate`](crate::validate) rejects them.

use k8s_openapi::api::core::v1::{EnvVar, PodTemplateSpec};
use rljob_crds::names::CONTAINER_COORDINATOR;
use rljob_crds::template::PodTemplate;
use serde_json::{Map, Value};

use super::Role;
use crate::validate::ValidatedJob;

/// Prefix of the volumes of the operator.
const VOLUME_PREFIX: &str = "rljob-";

/// The template of a role as JSON.
pub(super) fn merge(ours: PodTemplateSpec, job: &ValidatedJob, role: Role) -> Value {
    // Serialization of plain data with text keys cannot fail.
    let mut ours = serde_json::to_value(ours).unwrap_or_default();
    let Some(template) = of_role(job, role) else { return ours };
    if let Some(pod) = ours.get_mut("spec") {
        release_user(pod, &template.spec);
    }
    let theirs = serde_json::to_value(template).unwrap_or_default();
    merge_values(&mut ours, &theirs);
    if let Some(pod) = ours.get_mut("spec") {
        remove_unmounted(pod);
    }
    ours
}

/// The template of a role in the spec.
pub(super) fn of_role(job: &ValidatedJob, role: Role) -> Option<&PodTemplate> {
    let spec = &job.spec;
    match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            role.engines(spec)?.template.as_ref()
        }
        Role::Coordinator => spec.coordinator.template.as_ref(),
        Role::Trainer => spec.trainer.template.as_ref(),
        Role::Group => spec.frozen_group()?.template.as_ref(),
        Role::Verifier => spec.verifiers.as_ref()?.template.as_ref(),
    }
}

/// What the job sets of a container.
pub(super) fn container_of_job<'a>(
    job: &'a ValidatedJob,
    role: Role,
    name: &str,
) -> Option<&'a Value> {
    let containers = of_role(job, role)?.spec.get("containers")?.as_array()?;
    containers.iter().find(|container| container["name"] == name)
}

/// Environment variables that the job sets for the coordinator.
pub(super) fn coordinator_environment(job: &ValidatedJob) -> Vec<EnvVar> {
    let container = container_of_job(job, Role::Coordinator, CONTAINER_COORDINATOR);
    // Fields of another type are rejected by the API server.
    container
        .and_then(|container| serde_json::from_value(container["env"].clone()).ok())
        .unwrap_or_default()
}

/// Removes the default user and groups if the job sets a security context, which may leave them to
/// the namespace, as on OpenShift.
fn release_user(ours: &mut Value, theirs: &Map<String, Value>) {
    let context = ours.get_mut("securityContext").and_then(Value::as_object_mut);
    if let (Some(context), true) = (context, theirs.contains_key("securityContext")) {
        for field in ["runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"] {
            context.remove(field);
        }
    }
}

fn merge_values(ours: &mut Value, theirs: &Value) {
    let (Some(ours), Some(theirs)) = (ours.as_object_mut(), theirs.as_object()) else {
        return ours.clone_from(theirs);
    };
    for (field, theirs) in theirs {
        match (ours.get_mut(field), theirs) {
            (_, Value::Null) => drop(ours.remove(field)),
            (None, _) => drop(ours.insert(field.clone(), theirs.clone())),
            (Some(Value::Array(ours)), Value::Array(theirs)) => merge_lists(field, ours, theirs),
            (Some(ours), _) => merge_values(ours, theirs),
        }
    }
}

fn merge_lists(field: &str, ours: &mut Vec<Value>, theirs: &[Value]) {
    let key = match field {
        "containers" | "initContainers" | "env" | "volumes" | "resourceClaims" => "name",
        "volumeMounts" => "mountPath",
        "tolerations" => {
            let is_replaced = |ours: &Value| {
                theirs.iter().any(|theirs| {
                    ["key", "effect"].iter().all(|field| theirs.get(field) == ours.get(field))
                })
            };
            ours.retain(|ours| !is_replaced(ours));
            return ours.extend_from_slice(theirs);
        }
        // The last two are terms of affinities.
        "topologySpreadConstraints"
        | "imagePullSecrets"
        | "envFrom"
        | "requiredDuringSchedulingIgnoredDuringExecution"
        | "preferredDuringSchedulingIgnoredDuringExecution" => {
            return ours.extend_from_slice(theirs);
        }
        _ => return theirs.clone_into(ours),
    };
    for item in theirs {
        match ours.iter_mut().find(|ours| ours[key] == item[key]) {
            Some(ours) if field == "containers" => merge_values(ours, item),
            Some(ours) => ours.clone_from(item),
            None => ours.push(item.clone()),
        }
    }
}

/// Removes scratch volumes of the operator that mounts of the job replaced.
fn remove_unmounted(pod: &mut Value) {
    let containers = ["containers", "initContainers"].map(|list| pod[list].as_array());
    let mounts = containers.into_iter().flatten().flatten();
    let mounted: Vec<Value> = mounts
        .flat_map(|container| container["volumeMounts"].as_array().into_iter().flatten())
        .map(|mount| mount["name"].clone())
        .collect();
    if let Some(volumes) = pod["volumes"].as_array_mut() {
        volumes.retain(|volume| {
            let is_ours =
                volume["name"].as_str().is_some_and(|name| name.starts_with(VOLUME_PREFIX));
            !is_ours || mounted.contains(&volume["name"])
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut ours: Value, theirs: &Value) -> Value {
        release_user(&mut ours, theirs.as_object().unwrap());
        merge_values(&mut ours, theirs);
        remove_unmounted(&mut ours);
        ours
    }

    fn pod() -> Value {
        json!({
            "containers": [{
                "name": "engine",
                "command": ["serve"],
                "env": [{"name": "HOME", "value": "/tmp"}],
                "volumeMounts": [{"name": "rljob-shm", "mountPath": "/dev/shm"}],
            }],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532},
            "tolerations": [{"key": "not-ready", "effect": "NoExecute", "tolerationSeconds": 5}],
            "volumes": [{"name": "rljob-shm", "emptyDir": {"medium": "Memory"}}],
        })
    }

    #[test]
    fn containers_merge_by_name_and_others_are_sidecars() {
        let theirs = json!({
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "HOME", "value": "/h"}, {"name": "A", "value": "b"}],
                },
                {"name": "proxy", "image": "proxy:1"},
            ],
            "newerField": {"a": 1},
        });
        let pod = merged(pod(), &theirs);
        let engine = &pod["containers"][0];
        assert_eq!(engine["command"], json!(["serve"]));
        let env = json!([{"name": "HOME", "value": "/h"}, {"name": "A", "value": "b"}]);
        assert_eq!(engine["env"], env);
        assert_eq!(pod["containers"][1], json!({"name": "proxy", "image": "proxy:1"}));
        assert_eq!(pod["newerField"], json!({"a": 1}));
    }

    #[test]
    fn a_mount_of_the_job_replaces_shared_memory() {
        let mounts = json!([{"name": "dshm", "mountPath": "/dev/shm"}]);
        let dshm = json!({"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}});
        let pod = merged(
            pod(),
            &json!({"containers": [{"name": "engine", "volumeMounts": mounts}], "volumes": [dshm]}),
        );
        assert_eq!(pod["containers"][0]["volumeMounts"], mounts);
        assert_eq!(pod["volumes"], json!([dshm]));
    }

    #[test]
    fn a_security_context_leaves_the_user_to_the_namespace() {
        let context = |theirs: Value| merged(pod(), &theirs)["securityContext"].take();
        let theirs = json!({"securityContext": {}});
        assert_eq!(context(theirs), json!({"runAsNonRoot": true}));
        let theirs = json!({"securityContext": {"runAsUser": 1000}});
        assert_eq!(context(theirs), json!({"runAsNonRoot": true, "runAsUser": 1000}));
        assert_eq!(context(json!({}))["runAsUser"], 65532);
    }

    #[test]
    fn tolerations_are_appended_and_replace_those_of_the_same_taint() {
        let tolerations =
            |theirs: Value| merged(pod(), &json!({"tolerations": theirs}))["tolerations"].take();
        let spot = json!({"key": "spot", "operator": "Exists"});
        assert_eq!(tolerations(json!([spot])), json!([pod()["tolerations"][0], spot]));
        let patient = json!({"key": "not-ready", "effect": "NoExecute", "tolerationSeconds": 600});
        assert_eq!(tolerations(json!([patient])), json!([patient]));
    }
}
