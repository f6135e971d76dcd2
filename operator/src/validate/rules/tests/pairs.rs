//! Rules of algorithms that learn from pairs.

use serde_json::{Value, json};

use super::problems_with;

/// The problems of a job without rewards and engines, with these fields of algorithm and datasets.
fn problems(algorithm: &Value, train: &Value, evaluation: Option<&Value>) -> Vec<String> {
    let mut dataset = json!({ "train": train });
    if let Some(evaluation) = evaluation {
        dataset["evaluation"] = evaluation.clone();
    }
    problems_with(&json!({
        "algorithm": algorithm, "dataset": dataset, "rewards": [], "inference": {"replicas": 0},
    }))
}

fn dpo(settings: &Value) -> Value {
    json!({"grpo": null, "dpo": settings})
}

#[test]
fn pairs_have_both_sides_and_belong_to_algorithms_that_learn_from_them() {
    let (pair, path) = (json!({"chosen": "{{a}}", "rejected": "{{b}}"}), "spec.dataset");
    let held_out = json!({"path": "/e", "prompt": "p", "chosen": "{{a}}", "rejected": "{{b}}"});
    assert_eq!(problems(&dpo(&json!({})), &pair, Some(&held_out)), Vec::<String>::new());
    let neither =
        format!("{path}.train.chosen: is missing; algorithm.dpo learns from chosen and rejected");
    assert_eq!(problems(&dpo(&json!({})), &json!({}), None), [neither]);
    let half = format!("{path}.train.chosen: is missing; set chosen and rejected together");
    assert_eq!(problems(&dpo(&json!({})), &json!({"rejected": "{{b}}"}), None), [half]);
    let demonstration = json!({"chosen": "{{a}}", "rejected": "{{b}}", "completion": "{{c}}"});
    let unused = format!("{path}.train.completion: is not used by algorithm.dpo; remove it");
    assert_eq!(problems(&dpo(&json!({})), &demonstration, None), [unused]);
    let half = json!({"path": "/e", "prompt": "p", "chosen": "{{a}}"});
    let missing =
        format!("{path}.evaluation.rejected: is missing; set chosen and rejected together");
    assert_eq!(problems(&dpo(&json!({})), &pair, Some(&half)), [missing]);
    let sft = json!({"grpo": null, "sft": {}});
    let unused = ["train", "evaluation"]
        .map(|data| format!("{path}.{data}.chosen: is not used by algorithm.sft; remove it"));
    assert_eq!(problems(&sft, &demonstration, Some(&held_out)), unused);
}

#[test]
fn tokens_of_prompt_and_completion_are_limited_where_rows_have_completions() {
    let limited = |data: Value| {
        let mut data = data;
        data["maxTokens"] = json!(100);
        data
    };
    let pair = limited(json!({"chosen": "{{a}}", "rejected": "{{b}}"}));
    let held_out =
        limited(json!({"path": "/e", "prompt": "p", "chosen": "{{a}}", "rejected": "{{b}}"}));
    assert_eq!(problems(&dpo(&json!({})), &pair, Some(&held_out)), Vec::<String>::new());
    let sampled = limited(json!({"path": "/e", "prompt": "p", "answer": "a"}));
    let unused = ["train", "evaluation"].map(|data| {
        format!(
            "spec.dataset.{data}.maxTokens: has no effect, as rows have no completions: set \
             maxPromptTokens"
        )
    });
    let spec = json!({"dataset": {"train": limited(json!({})), "evaluation": sampled}});
    assert_eq!(problems_with(&spec), unused);
}

#[test]
fn reward_models_are_neither_sampled_from_nor_evaluated_by_answers() {
    let held_out = json!({
        "path": "/e", "prompt": "p", "answer": "a", "chosen": "{{a}}", "rejected": "{{b}}",
    });
    let spec = json!({
        "algorithm": {"grpo": null, "rewardModel": {}},
        "dataset": {
            "train": {"chosen": "{{a}}", "rejected": "{{b}}"}, "evaluation": held_out,
        },
    });
    assert_eq!(
        problems_with(&spec),
        [
            "spec.dataset.evaluation.answer: is not used by algorithm.rewardModel; remove it",
            "spec.inference.replicas: must be 0: algorithm.rewardModel trains a reward model, and \
                engines serve language models only",
        ]
    );
}

#[test]
fn templates_of_pairs_are_checked() {
    let pair = json!({"chosen": "{{a", "rejected": "{{ b | shout }}"});
    let found = problems(&dpo(&json!({})), &pair, None);
    let [chosen, rejected] = &found[..] else { panic!("{found:?}") };
    assert!(chosen.starts_with("spec.dataset.train.chosen: is not a valid template"), "{chosen}");
    assert!(rejected.contains("filter shout is unknown"), "{rejected}");
}

#[test]
fn label_smoothing_needs_the_sigmoid_loss_and_a_batch_divides_into_minibatches() {
    let pair = json!({"chosen": "{{a}}", "rejected": "{{b}}"});
    let ipo = dpo(&json!({"loss": "Ipo", "labelSmoothing": 0.1}));
    let smoothing = "spec.algorithm.dpo.labelSmoothing: needs loss Sigmoid";
    assert_eq!(problems(&ipo, &pair, None), [smoothing]);
    let spec = json!({
        "algorithm": dpo(&json!({"batchSize": 7})), "dataset": {"train": pair}, "rewards": [],
        "inference": {"replicas": 0}, "training": {"minibatches": 2},
    });
    let split = "spec.algorithm.dpo.batchSize: 7 pairs cannot be split into training.minibatches = \
        2 equal parts";
    assert_eq!(problems_with(&spec), [split]);
}
