//! Evaluations on separate engines.

use super::*;

const DATA: &str =
    r#"{"path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer"}"#;

fn problems_of(change: &Value) -> Vec<String> {
    let data: Value = serde_json::from_str(DATA).unwrap();
    let mut spec = json!({"dataset": {"evaluation": data}, "evaluation": {"engines": {}}});
    merge(&mut spec, change);
    problems_with(&spec)
}

#[test]
fn evaluation_engines_need_prompts_a_volume_and_training() {
    assert_eq!(problems_of(&json!({})), Vec::<String>::new());
    for (change, expected) in [
        (
            json!({"dataset": {"evaluation": null}}),
            "spec.evaluation: needs dataset.evaluation with answer, whose prompts the engines \
             complete",
        ),
        (
            json!({
                "storage": {"persistentVolumeClaim": null, "s3": {"bucket": "runs"}},
                "weightSync": {"method": "Distributed"},
            }),
            "spec.evaluation.engines: cannot read weights from storage.s3: store the run on a \
             volume, or remove evaluation",
        ),
        (
            json!({
                "algorithm": {"grpo": null, "evaluation": {}},
                "dataset": {"train": {"path": null, "prompt": "", "answer": null}},
                "training": {"steps": 0},
            }),
            "spec.evaluation: is not used by algorithm.evaluation, which has no training beside \
             it: inference engines evaluate; remove it",
        ),
        (
            json!({"evaluation": {"engines": {"replicas": 0}}}),
            "spec.evaluation.engines.replicas: must be at least 1",
        ),
        (
            json!({"evaluation": {"engines": {"minReplicas": 1}}}),
            "spec.evaluation.engines.minReplicas: has no effect: a queue admits all of them; \
             remove it",
        ),
        (
            json!({"evaluation": {"engines": {"sglang": {"extraArgs": ["--port=1"]}}}}),
            "spec.evaluation.engines.sglang.extraArgs[0]: the run sets --port; remove it",
        ),
        (
            json!({"evaluation": {"engines": {
                "embedded": {}, "resources": {"limits": {"nvidia.com/gpu": 1}},
            }}}),
            "spec.evaluation.engines.resources.limits: the embedded engine runs on CPUs: remove \
             the GPUs or use sglang",
        ),
        (
            json!({"inference": {"sglang": {}}}),
            "spec.evaluation.engines: must set sglang, or embedded for a small model on CPUs: \
             inference runs SGLang, and nothing is inherited",
        ),
    ] {
        assert_eq!(problems_of(&change), [expected], "{change}");
    }
}

#[test]
fn engines_of_evaluations_beside_sglang_are_chosen_explicitly() {
    let gpu = json!({"limits": {"nvidia.com/gpu": 1}});
    for own in [json!({"sglang": {}}), json!({"embedded": {}}), json!({"resources": gpu})] {
        let change = json!({"inference": {"sglang": {}}, "evaluation": {"engines": own}});
        assert_eq!(problems_of(&change), Vec::<String>::new(), "{own}");
    }
}

#[test]
fn supervised_training_needs_no_other_engines_for_its_accuracy() {
    let sft = json!({
        "algorithm": {"grpo": null, "sft": {}},
        "dataset": {"train": {"completion": "{{ answer }}"}},
        "inference": {"replicas": 0},
    });
    assert_eq!(problems_of(&sft), Vec::<String>::new());
}
