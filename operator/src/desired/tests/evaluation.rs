//! Children of a job with engines that only evaluate.

use super::*;
use crate::validate::test_support::with_spec;

#[test]
fn engines_that_only_evaluate_have_separate_objects_and_the_keys_of_engines() {
    let job = with_spec(&serde_json::json!({
        "dataset": {"evaluation": {
            "path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer",
        }},
        "evaluation": {"engines": {
            "replicas": 2,
            "sglang": {"extraArgs": ["--mem-fraction-static=0.9"]},
            "resources": {"limits": {"nvidia.com/gpu": 2}},
        }},
    }));
    let of = |wanted: WantedRoles| {
        build(&job, wanted, &settings(), &Tokens::placeholders(), &Pinned::default())
    };
    let mut resources = of(WantedRoles::Everything);
    let is_own = |name: &Option<String>| name.as_deref() == Some("sums-evaluation");
    let own = |set: &&mut Value| set["metadata"]["name"] == "sums-evaluation";
    let set = resources.stateful_sets.iter_mut().find(own).unwrap();
    set["metadata"]["annotations"] = Value::Null;
    let service = resources.services.iter().find(|own| is_own(&own.metadata.name));
    let budgets = &resources.disruption_budgets;
    let budget = budgets.iter().find(|own| is_own(&own.metadata.name));
    insta::assert_yaml_snapshot!("children_of_evaluation", (&*set, service, budget));
    assert_eq!(budgets.len(), 2);
    assert!(resources.secret.data.unwrap().contains_key("sglang.yaml"), "for these engines");
    let waiting = of(WantedRoles::WithoutGpus).stateful_sets;
    let replicas = waiting.iter().map(|set| set["spec"]["replicas"].as_i64().unwrap());
    assert_eq!(replicas.collect::<Vec<_>>(), [2, 0, 1, 1], "only those without GPUs");
}
