//! Rules of curricula.

use serde_json::json;

use super::problems_with;

#[test]
fn a_curriculum_skips_something_by_rewards_of_samples() {
    let with = |algorithm: serde_json::Value, rule: serde_json::Value| {
        problems_with(&json!({
            "algorithm": algorithm,
            "dataset": {"train": {"curriculum": rule, "completion": algorithm["sft"].as_object()
                .map(|_| "{{answer}}")}},
        }))
    };
    let grpo = json!({"grpo": {}});
    assert_eq!(with(grpo.clone(), json!({"min": 0.1, "max": 0.1})), Vec::<String>::new());
    let field = "spec.dataset.train.curriculum";
    let found = with(grpo.clone(), json!({"min": 0.6, "max": 0.5}));
    assert_eq!(found, [format!("{field}: min must be at most max")]);
    let found = with(grpo, json!({"groups": 2}));
    assert_eq!(found, [format!("{field}: skips nothing: set min above 0 or max below 1")]);
    let found = with(json!({"grpo": null, "sft": {}}), json!({"min": 0.1}));
    let unused = "is not used by algorithm.sft, which samples nothing; remove it";
    assert!(found.contains(&format!("{field}: {unused}")), "{found:?}");
}

#[test]
fn the_curriculum_of_a_part_needs_rewards() {
    let parts = json!([
        {"name": "one", "path": "/a", "curriculum": {"min": 0.1}}, {"name": "two", "path": "/b"},
    ]);
    let distillation = json!({"teacher": {"path": "/t"}});
    let found = problems_with(&json!({
        "algorithm": {"grpo": null, "distillation": distillation},
        "rewards": [],
        "dataset": {"train": {"path": null, "mixture": parts}, "evaluation": null},
    }));
    let expected = "spec.dataset.train.mixture[0].curriculum: needs rewards, which tell what is \
        correct";
    assert_eq!(found, [expected]);
}

#[test]
fn a_pass_rate_of_one_sample_needs_one_bound() {
    let with = |rule: serde_json::Value| {
        let ppo = json!({"groupSize": 1});
        problems_with(&json!({
            "algorithm": {"grpo": null, "ppo": ppo}, "dataset": {"train": {"curriculum": rule}},
        }))
    };
    let expected = "spec.dataset.train.curriculum: skips every row that it measures, because the \
        pass rate of one sample is 0 or 1: set groups, or algorithm.ppo.groupSize, to at least 2";
    assert_eq!(with(json!({"min": 0.1, "max": 0.9})), [expected]);
    for rule in [json!({"min": 0.1}), json!({"max": 0.9}), json!({"min": 0.1, "groups": 2})] {
        assert_eq!(with(rule.clone()), Vec::<String>::new(), "{rule}");
    }
    let two = json!({"min": 0.1, "max": 0.9, "groups": 2});
    assert_eq!(with(two), Vec::<String>::new());
}
