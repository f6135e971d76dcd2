//! Pod templates: containers that were meant for the main container of their role and have another
//! name, and pods that share namespaces of their node.

use rljob_crds::RLJobSpec;
use rljob_crds::names::{
    CONTAINER_COORDINATOR, CONTAINER_ENGINE, CONTAINER_REWARDS, CONTAINER_TRAINER,
};
use rljob_crds::template::PodTemplate;
use serde_json::Value;

use crate::validate::Problem;
use crate::validate::pod_templates::pod_templates;

/// Namespaces of the node that a pod may share, and what this gives its programs.
const HOST_NAMESPACES: [(&str, &str); 3] = [
    ("hostNetwork", "NetworkPolicies do not restrict the pods, and ports of the node are taken"),
    ("hostPID", "programs see the processes of the node"),
    ("hostIPC", "programs reach the shared memory of the node"),
];

/// Names that stand for the main container of a role: those of all roles, and what they run.
const MEANT: [&str; 14] = [
    CONTAINER_COORDINATOR,
    CONTAINER_ENGINE,
    CONTAINER_REWARDS,
    CONTAINER_TRAINER,
    "evaluation",
    "inference",
    "learner",
    "main",
    "reward",
    "sglang",
    "supervisor",
    "teacher",
    "trainer-group",
    "verifier",
];

/// Names containers of templates without the main container.
pub(super) fn check_templates(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let mut check = |field: &str, main: &str, template: Option<&PodTemplate>, group: &str| {
        let containers = template.and_then(|template| template.spec.get("containers"));
        let all = containers.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if all.iter().any(|container| container["name"] == main) {
            return;
        }
        let is_meant = |name: &&str| MEANT.contains(name) || *name == group;
        for (index, container) in all.iter().enumerate() {
            if let Some(name) = container["name"].as_str().filter(is_meant) {
                let message =
                    format!("`{name}` is a sidecar: the main container is named `{main}`");
                let path = format!("spec.{field}.template.spec.containers[{index}].name");
                warnings.push(Problem::new(path, message));
            }
        }
    };
    for set in spec.engine_sets() {
        check(&set.field, CONTAINER_ENGINE, set.engines.template.as_ref(), "");
    }
    check("trainer", CONTAINER_TRAINER, spec.trainer.template.as_ref(), "");
    for (index, group) in spec.trainer.groups.iter().enumerate() {
        let field = format!("trainer.groups[{index}]");
        check(&field, CONTAINER_TRAINER, group.template.as_ref(), &group.name);
    }
    let verifiers = spec.verifiers.as_ref().and_then(|verifiers| verifiers.template.as_ref());
    check("verifiers", CONTAINER_REWARDS, verifiers, "");
}

/// Names pods that share namespaces of their node.
pub(super) fn check_host_namespaces(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    for (path, template) in pod_templates(spec) {
        let is_shared = |field: &str| template.spec.get(field) == Some(&Value::Bool(true));
        for (field, effect) in HOST_NAMESPACES.into_iter().filter(|(field, _)| is_shared(field)) {
            let message =
                format!("{effect}; Pod Security admission rejects it except at level privileged");
            warnings.push(Problem::new(format!("{path}.spec.{field}"), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{check_host_namespaces, check_templates};
    use crate::validate::test_support::with_spec;

    fn warnings(spec: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        check_templates(&with_spec(spec).spec, &mut warnings);
        warnings.iter().map(ToString::to_string).collect()
    }

    fn template(names: &[&str]) -> Value {
        let is_main = |name: &str| ["engine", "trainer"].contains(&name);
        let container = |name: &&str| {
            if is_main(name) {
                json!({"name": name})
            } else {
                json!({"name": name, "image": "a:1"})
            }
        };
        json!({"spec": {"containers": names.iter().map(container).collect::<Vec<_>>()}})
    }

    #[test]
    fn containers_with_the_name_of_another_main_container_are_named() {
        let evaluation =
            json!({"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer"});
        let spec = |engine: &[&str], trainer: &[&str], group: &[&str]| {
            json!({
                "algorithm": {"grpo": {"klCoefficient": 0.1}},
                "dataset": {"evaluation": evaluation},
                "evaluation": {"engines": {"template": template(engine)}},
                "trainer": {"template": template(trainer), "groups": [{
                    "name": "frozen", "roles": ["Reference"], "template": template(group),
                }]},
            })
        };
        let engines = "spec.evaluation.engines.template.spec.containers[0].name: `inference` is a \
                       sidecar: the main container is named `engine`";
        let group = "spec.trainer.groups[0].template.spec.containers[1].name: `frozen` is a \
                     sidecar: the main container is named `trainer`";
        let found = warnings(&spec(&["inference"], &["learner"], &["logs", "frozen"]));
        let trainer = "spec.trainer.template.spec.containers[0].name: `learner` is a sidecar: the \
                       main container is named `trainer`";
        assert_eq!(found, [engines, trainer, group]);
        let sidecars = spec(&["engine", "inference"], &["logs"], &["trainer", "frozen"]);
        assert_eq!(warnings(&sidecars), Vec::<String>::new());
    }

    #[test]
    fn pods_that_share_namespaces_of_their_node_are_named() {
        let spec = json!({
            "inference": {"template": {"spec": {"hostNetwork": true, "hostPID": false}}},
            "trainer": {"template": {"spec": {"hostIPC": true}}},
        });
        let mut warnings = Vec::new();
        check_host_namespaces(&with_spec(&spec).spec, &mut warnings);
        let found: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let rejected = "Pod Security admission rejects it except at level privileged";
        let expected = [
            format!(
                "spec.inference.template.spec.hostNetwork: NetworkPolicies do not restrict the \
                 pods, and ports of the node are taken; {rejected}"
            ),
            format!(
                "spec.trainer.template.spec.hostIPC: programs reach the shared memory of the \
                 node; {rejected}"
            ),
        ];
        assert_eq!(found, expected);
    }
}
