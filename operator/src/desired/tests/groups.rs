//! Children of a job with a group of the trainer.

use super::*;
use crate::validate::test_support::with_spec;

fn resources(spec: &Value) -> Resources {
    let mut job = serde_json::json!({
        "algorithm": {"grpo": {"klCoefficient": 0.1}},
        "trainer": {
            "image": "trainer:1",
            "groups": [{
                "name": "frozen", "roles": ["Reference"], "replicas": 3, "processesPerReplica": 2,
                "template": {"spec": {"terminationGracePeriodSeconds": 65}},
            }],
        },
    });
    job.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let wanted = WantedRoles::Everything;
    build(&with_spec(&job), wanted, &settings(), &Tokens::placeholders(), &Pinned::default())
}

#[test]
fn a_group_has_a_set_and_a_service_like_those_of_the_trainer() {
    let mut resources = resources(&serde_json::json!({}));
    let [trainer, mut set] = resources.stateful_sets.split_off(2).try_into().unwrap();
    let [pod, of_trainer] = [&set, &trainer].map(pod_of);
    let secrets = |pod: &k8s_openapi::api::core::v1::PodSpec| pod.volumes.clone();
    assert_eq!(secrets(&pod), secrets(&of_trainer), "the same certificate and volumes");
    set["metadata"]["annotations"] = Value::Null;
    insta::assert_yaml_snapshot!("children_of_a_group", (set, resources.services.pop().unwrap()));
}

#[test]
fn policies_admit_to_a_group_what_they_admit_to_the_trainer() {
    let bucket = serde_json::json!({"s3": {"bucket": "runs"}, "persistentVolumeClaim": null});
    let resources = resources(&serde_json::json!({
        "storage": bucket, "weightSync": {"method": "Distributed"},
    }));
    let egress = |role: &str| {
        let name = format!("sums.{role}");
        let policies = resources.network_policies.iter();
        let mut own = policies.filter(|policy| policy.metadata.name.as_ref() == Some(&name));
        own.next().unwrap().spec.clone().unwrap().egress
    };
    assert_eq!(egress("trainer-group"), egress("trainer"));
}
