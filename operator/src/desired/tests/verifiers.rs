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

/// Names of the containers of a role, with the arguments of each.
fn containers(resources: &Resources, role: &str) -> Vec<(String, Vec<String>)> {
    let is_of_role = |set: &&Value| set["metadata"]["labels"]["rljob.dev/role"] == role;
    let pod = pod_of(resources.stateful_sets.iter().find(is_of_role).unwrap());
    let containers = pod.containers.into_iter();
    containers.map(|container| (container.name, container.command.unwrap_or_default())).collect()
}

#[test]
fn no_program_runs_in_the_pod_of_a_coordinator_with_verifier_pods() {
    let agent = serde_json::json!({"rollout": {"workflow": {"agent": {"command": ["agent"]}}}});
    for (spec, has_network) in [(serde_json::json!({}), false), (agent, true)] {
        let resources = resources(&spec);
        let [(name, command)] = &containers(&resources, "coordinator")[..] else {
            panic!("the coordinator's pod has one container")
        };
        let flags: Vec<&str> = command
            .iter()
            .map(String::as_str)
            .filter(|flag| *flag == "--verifiers" || flag.starts_with("--reward-runner"))
            .collect();
        assert_eq!((name.as_str(), flags), ("coordinator", vec!["--verifiers"]));
        let networks = containers(&resources, "verifier")
            .into_iter()
            .map(|(name, command)| (name, command.contains(&"--network".to_owned())));
        let expected = [("rewards".to_owned(), has_network), ("bridge".to_owned(), false)];
        assert_eq!(networks.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn agents_in_verifier_pods_open_no_path_in_the_network() {
    let policies = |spec: &Value| serde_json::to_value(resources(spec).network_policies).unwrap();
    let agent = serde_json::json!({"rollout": {"workflow": {"agent": {"command": ["agent"]}}}});
    assert_eq!(policies(&agent), policies(&serde_json::json!({})));
}
