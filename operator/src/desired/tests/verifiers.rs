//! Children of a job with verifier pods.

use super::*;
use crate::decide::{Wanted, WantedRoles};
use crate::validate::test_support::with_spec;

/// A job with a volume of data and one of secrets, and keys of a bucket.
fn resources(spec: &Value) -> Resources {
    let mut job = serde_json::json!({
        "rewards": [{"name": "tests", "code": {}}],
        "volumes": [
            {"name": "models", "mountPath": "/models", "configMap": {"name": "models"}},
            {"name": "keys", "mountPath": "/keys", "secret": {"secretName": "keys"}},
        ],
        "verifiers": {
            "maxReplicas": 4,
            "image": "judge:1",
            "template": {"spec": {"runtimeClassName": "gvisor"}},
        },
    });
    job.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let wanted = Wanted { roles: WantedRoles::Everything, verifiers: 3 };
    build(&with_spec(&job), wanted, &settings(), &Tokens::placeholders(), &Pinned::default())
}

#[test]
fn verifier_pods_have_a_set_a_service_and_a_policy_and_their_key_is_in_one_container() {
    let mut resources = resources(&serde_json::json!({}));
    let mut set = resources.stateful_sets.pop().unwrap();
    set["metadata"]["annotations"] = Value::Null;
    let service = resources.services.pop().unwrap();
    insta::assert_yaml_snapshot!(
        "children_of_verifiers",
        (set, service, resources.network_policies)
    );
    let certificates = resources.secret.data.unwrap().into_keys();
    let certificates: Vec<String> = certificates.filter(|key| key.starts_with("tls-")).collect();
    let roles = ["coordinator", "inference", "trainer", "verifier"];
    assert_eq!(certificates, roles.map(|role| format!("tls-{role}.pem")));
}

#[test]
fn only_programs_of_agents_stay_in_the_pod_of_a_coordinator_with_verifier_pods() {
    let coordinator = |spec: &Value| {
        let resources = resources(spec);
        let is_coordinators =
            |set: &&Value| set["metadata"]["labels"]["rljob.dev/role"] == "coordinator";
        let pod = pod_of(resources.stateful_sets.iter().find(is_coordinators).unwrap());
        let names: Vec<String> =
            pod.containers.iter().map(|container| container.name.clone()).collect();
        let command = pod.containers[0].command.clone().unwrap();
        let flags = command
            .into_iter()
            .filter(|flag| flag == "--verifiers" || flag.starts_with("--reward-runner"));
        (names, flags.collect::<Vec<_>>())
    };
    let (names, flags) = coordinator(&serde_json::json!({}));
    assert_eq!((names, flags), (vec!["coordinator".to_owned()], vec!["--verifiers".to_owned()]));
    let workflow = serde_json::json!({"workflow": {"agent": {"command": ["agent"]}}});
    let (names, flags) = coordinator(&serde_json::json!({"rollout": workflow}));
    assert_eq!(names, ["coordinator", "rewards"]);
    assert_eq!(flags, ["--verifiers", "--reward-runner=/rljob/rewards/socket"]);
}
