//! Unknown fields of pod templates and volumes, which the CRD preserves: most are typing errors.
//!
//! Only job files are checked. The operator keeps such fields, because the API server may be newer
//! than the types here.

use k8s_openapi::api::core::v1::{PodSpec, Volume};
use rljob_crds::RLJobSpec;
use rljob_crds::storage::VOLUME_SOURCES;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Problem;
use super::pod_templates::pod_templates;

/// Message of a problem.
const UNKNOWN: &str = "unknown field; `kubectl explain pod.spec` lists the known ones";

/// Fields of core v1 in Kubernetes 1.34 to 1.37, which the types of 1.33 lack. Their content is not
/// checked.
const NEWER_FIELDS: [&str; 8] = [
    "defaultUser",
    "evictionResponders",
    "fileKeyRef",
    "hostnameOverride",
    "podCertificate",
    "restartPolicyRules",
    "schedulingGroup",
    "workloadRef",
];

/// Fields of all templates and volumes of a job that core v1 does not have. Wrong types and unknown
/// sources of volumes are left to `rules`.
pub(super) fn unknown_fields(spec: &RLJobSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, template) in pod_templates(spec) {
        check::<PodSpec>(&format!("{path}.spec"), template.spec.clone(), &mut problems);
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let source = volume.source.clone().into_iter();
        let known = source.filter(|(name, _)| VOLUME_SOURCES.contains(&name.as_str())).collect();
        check::<Volume>(&format!("spec.volumes[{index}]"), known, &mut problems);
    }
    problems
}

/// Compares an object with what remains of it in its type.
fn check<T: DeserializeOwned + Serialize>(
    path: &str,
    object: Map<String, Value>,
    problems: &mut Vec<Problem>,
) {
    let given = Value::Object(object);
    if let Ok(typed) = T::deserialize(&given)
        && let Ok(kept) = serde_json::to_value(typed)
    {
        compare(path, &given, &kept, problems);
    }
}

fn compare(path: &str, given: &Value, kept: &Value, problems: &mut Vec<Problem>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (name, value) in given {
                let path = format!("{path}.{name}");
                match kept.get(name) {
                    Some(kept) => compare(&path, value, kept, problems),
                    // Types omit fields with null.
                    None if value.is_null() || NEWER_FIELDS.contains(&name.as_str()) => {}
                    None => problems.push(Problem::new(path, UNKNOWN)),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) => {
            for (index, (given, kept)) in given.iter().zip(kept).enumerate() {
                compare(&format!("{path}[{index}]"), given, kept, problems);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::UNKNOWN;
    use crate::validate::parse_jobs;
    use crate::validate::test_support::{MINIMAL, merge, minimal};
    use crate::validate::{Policy, validate};

    fn job(spec: &Value) -> Value {
        let mut job = serde_json::to_value(minimal()).unwrap();
        merge(&mut job["spec"], spec);
        job
    }

    /// Problems of a job file with this spec, without their lines.
    fn problems(spec: &Value) -> Vec<String> {
        let found = parse_jobs(&job(spec).to_string()).err().map(|error| error.problems);
        let found = found.into_iter().flatten();
        found.map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
    }

    fn with_typing_errors() -> Value {
        json!({
            "volumes": [{
                "name": "models", "mountPath": "/models", "persistentVolumeClaim": {"claim": "x"},
            }],
            "inference": {"template": {"spec": {"volumes": [
                {"name": "a", "emptyDir": {"sizeLimits": "1Gi"}},
            ]}}},
            "coordinator": {"template": {"spec": {"tolerations": [{"operater": "Exists"}]}}},
            "trainer": {"template": {"spec": {
                "nodeSelectr": {"a": "b"},
                "containers": [{"name": "trainer", "envs": [], "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "kee": "k"}}},
                ]}],
            }}},
        })
    }

    #[test]
    fn fields_that_core_v1_lacks_are_named_with_their_paths() {
        let unknown = |path: &str| format!("spec.{path}: {UNKNOWN}");
        let trainer = "trainer.template.spec.containers[0]";
        let expected = [
            unknown("inference.template.spec.volumes[0].emptyDir.sizeLimits"),
            unknown(&format!("{trainer}.env[0].valueFrom.secretKeyRef.kee")),
            unknown(&format!("{trainer}.envs")),
            unknown("trainer.template.spec.nodeSelectr"),
            unknown("coordinator.template.spec.tolerations[0].operater"),
            unknown("volumes[0].persistentVolumeClaim.claim"),
        ];
        assert_eq!(problems(&with_typing_errors()), expected);
        let group = json!({
            "algorithm": {"grpo": {"klCoefficient": 0.1}},
            "trainer": {"groups": [{
                "name": "frozen", "roles": ["Reference"], "template": {"spec": {"volume": []}},
            }]},
            "rewards": [{"name": "judge", "command": {"command": ["/judge"]}}],
            "verifiers": {
                "maxReplicas": 1, "image": "judge:1", "template": {"spec": {"hostNetworks": true}},
            },
        });
        let expected = [
            unknown("verifiers.template.spec.hostNetworks"),
            unknown("trainer.groups[0].template.spec.volume"),
        ];
        assert_eq!(problems(&group), expected);
    }

    #[test]
    fn fields_of_newer_releases_of_kubernetes_and_nulls_are_accepted() {
        let spec = json!({"trainer": {"template": {"spec": {
            "hostnameOverride": "a", "schedulingGroup": {"podGroupName": "a"},
            "affinity": {"nodeAffinity": null},
            "containers": [{"name": "trainer", "restartPolicyRules": [{"action": "Restart"}]}],
            "terminationGracePeriodSeconds": 60, "hostAliases": [],
        }}}});
        assert_eq!(problems(&spec), Vec::<String>::new());
    }

    #[test]
    fn a_job_of_a_cluster_keeps_fields_that_a_file_may_not_have() {
        let stored = serde_json::from_value(job(&with_typing_errors())).unwrap();
        assert_eq!(validate(&stored, Policy::LOCAL).map(|_| ()), Ok(()));
    }

    #[test]
    fn an_unknown_field_of_a_template_has_its_line() {
        let text = MINIMAL.replace(
            "trainer: {processesPerReplica: 2}",
            "trainer:\n    template:\n      spec:\n        nodeSelectr: {a: b}",
        );
        let error = parse_jobs(&text).unwrap_err().to_string();
        let expected = format!("line 17: spec.trainer.template.spec.nodeSelectr: {UNKNOWN}");
        assert_eq!(error, expected);
    }
}
