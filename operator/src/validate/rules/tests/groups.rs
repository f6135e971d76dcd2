//! Rules of `spec.trainer.groups`.

use serde_json::{Value, json};

use super::problems_with;
use crate::desired::Role;

/// Problems of groups in a job with this algorithm, without their common path.
fn problems(algorithm: &Value, groups: &Value) -> Vec<String> {
    let patch = json!({"algorithm": algorithm, "trainer": {"groups": groups}});
    let path = "spec.trainer.groups";
    let text = |problem: String| problem.strip_prefix(path).unwrap_or(&problem).to_owned();
    problems_with(&patch).into_iter().map(text).collect()
}

fn with_kl(groups: &Value) -> Vec<String> {
    problems(&json!({"grpo": {"klCoefficient": 0.1}}), groups)
}

#[test]
fn a_group_holds_a_frozen_model_that_the_algorithm_has() {
    let group = |role: &str| json!([{"name": "a", "roles": [role]}]);
    assert_eq!(with_kl(&group("Reference")), [""; 0]);
    let trained = |role: &str| {
        format!(
            "[0].roles[0]: {role} is trained, and spec.trainer itself trains its models: a group \
                has frozen ones, Reference or Teacher"
        )
    };
    assert_eq!(with_kl(&group("Policy")), [trained("Policy")]);
    assert_eq!(with_kl(&group("Critic")), [trained("Critic")]);
    assert_eq!(
        with_kl(&group("Teacher")),
        ["[0].roles[0]: algorithm.grpo has no Teacher model: its learners hold Reference; set \
                that role"]
    );
    assert_eq!(
        problems(&json!({"grpo": {}}), &group("Reference")),
        ["[0].roles[0]: algorithm.grpo has no Reference model: set algorithm.grpo.klCoefficient \
            above 0, or remove the group"]
    );
    let server =
        json!({"grpo": null, "distillation": {"teacher": {"server": {"url": "http://t"}}}});
    assert_eq!(
        problems(&server, &group("Teacher")),
        ["[0].roles[0]: algorithm.distillation has no Teacher model: its teacher is a server, \
            which needs no group; remove it"]
    );
    assert_eq!(
        with_kl(
            &json!([{"name": "a", "roles": ["Reference"]}, {"name": "b", "roles": ["Reference"]}])
        ),
        ["[1].roles[0]: Reference is in trainer.groups twice: one group holds a model"]
    );
    assert_eq!(
        with_kl(&json!([{"name": "a", "roles": []}])),
        ["[0].roles: is empty: set Reference or Teacher"]
    );
}

#[test]
fn names_of_groups_are_parts_of_names_of_pods() {
    let named = |name: &str| with_kl(&json!([{"name": name, "roles": ["Reference"]}]));
    assert_eq!(named(&"a".repeat(39)), [""; 0]);
    for name in ["0", "A", "a_b", "a-", ""] {
        let message =
            format!("[0].name: must be a DNS label that starts with a letter, found \"{name}\"");
        assert_eq!(named(name), [message]);
    }
    let roles: Vec<&str> = Role::ALL.map(Role::as_str).into();
    let single_words = roles.into_iter().filter(|role| !role.contains('-'));
    for name in single_words {
        let message = format!("[0].name: \"{name}\" is a role of pods: use another name");
        assert_eq!(named(name), [message]);
    }
    let long = "a".repeat(40);
    assert_eq!(
        named(&long),
        [format!(
            "[0].name: sums-trainer-{long}, the name of its StatefulSet, has 53 characters, and at \
                most 52 fit the names of its pods: use a shorter name of the group or of the job"
        )]
    );
    let two = json!([{"name": "a", "roles": ["Reference"]}, {"name": "a", "roles": ["Teacher"]}]);
    assert_eq!(with_kl(&two)[0], "[1].name: another group has the name \"a\"");
    let five: Vec<Value> =
        ["a", "b", "c", "d", "e"].map(|name| json!({"name": name, "roles": []})).into();
    assert_eq!(with_kl(&json!(five))[0], ": at most 4 groups, found 5");
}

#[test]
fn a_group_has_the_rules_of_learners() {
    let limits = json!({"limits": {"nvidia.com/gpu": 2}});
    let group = json!([{
        "name": "a", "roles": ["Reference"], "processesPerReplica": 1, "resources": limits,
        "template": {"spec": {"hostname": "h"}},
    }]);
    assert_eq!(
        with_kl(&group),
        [
            "[0].processesPerReplica: must equal the 2 GPUs in resources.limits, since each \
                learner has one; remove it or set it to 2",
            "[0].template.spec.hostname: the operator sets this field; remove it",
        ]
    );
}

#[test]
fn the_loss_of_evaluation_pairs_needs_the_reference_in_the_learners() {
    let data = |kind: &str| {
        json!({
            "path": format!("/models/{kind}.jsonl"), "prompt": "{{q}}", "chosen": "{{c}}",
            "rejected": "{{r}}", "answer": null,
        })
    };
    let patch = |evaluation: Value| {
        json!({
            "algorithm": {"grpo": null, "dpo": {}}, "rewards": [], "inference": {"replicas": 0},
            "dataset": {"train": data("train"), "evaluation": evaluation},
            "trainer": {"groups": [{"name": "a", "roles": ["Reference"]}]},
        })
    };
    assert_eq!(problems_with(&patch(Value::Null)), [""; 0]);
    let message = "spec.trainer.groups: the learners need the reference model for the loss of \
                   dataset.evaluation: remove the group or dataset.evaluation";
    assert_eq!(problems_with(&patch(data("test"))), [message]);
}

#[test]
fn the_image_of_a_group_is_that_of_the_trainer() {
    let template = json!({"spec": {"containers": [{"name": "trainer", "image": "a:1"}]}});
    let problems = problems_with(&json!({
        "algorithm": {"grpo": {"klCoefficient": 0.1}},
        "trainer": {"groups": [{"name": "frozen", "roles": ["Reference"], "template": template}]},
    }));
    let expected = "spec.trainer.groups[0].template.spec.containers[0].image: the operator sets \
                    this field; remove it and use spec.trainer.image";
    assert_eq!(problems, [expected]);
}
