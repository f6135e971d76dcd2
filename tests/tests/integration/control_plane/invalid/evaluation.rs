//! Invalid evaluations, and rewards of models.

use serde_json::{Value, json};

use super::Case;
use crate::control_plane::merge;

#[expect(clippy::too_many_lines, reason = "a table of cases")]
pub(super) fn cases() -> Vec<Case> {
    let evaluation = |mut fields: Value| {
        merge(&mut fields, &json!({"path": "/data/test.jsonl", "prompt": "{{question}}"}));
        json!({"spec": {"dataset": {"evaluation": fields}}})
    };
    let suites = |fields: Value| {
        let mut suite = json!({"name": "a", "path": "/data/test.jsonl"});
        merge(&mut suite, &fields);
        let data = json!({"prompt": "{{question}}", "answer": "answer", "suites": [suite]});
        json!({"spec": {"dataset": {"evaluation": data}}})
    };
    // An evaluation with changes.
    let only = |fields: Value| {
        let data =
            json!({"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer"});
        let mut spec = json!({
            "algorithm": {"grpo": null, "evaluation": {}}, "training": null,
            "dataset": {"train": null, "evaluation": data},
        });
        merge(&mut spec, &fields);
        json!({"spec": spec})
    };
    let model = |models: &[Value]| {
        let reward = |(index, model): (usize, &Value)| {
            let mut model = model.clone();
            merge(&mut model, &json!({"text": "{{completion}}"}));
            json!({"name": format!("scored{index}"), "model": model})
        };
        let rewards: Vec<Value> = models.iter().enumerate().map(reward).collect();
        json!({"spec": {"rewards": rewards}})
    };
    let bucket = |fields: Value| {
        let mut spec = json!({
            "storage": {"hostPath": null, "s3": {"bucket": "runs"}},
            "weightSync": {"method": "Distributed"},
        });
        merge(&mut spec, &fields);
        json!({"spec": spec})
    };
    vec![
        (
            evaluation(json!({})),
            "set answer, which the reward compares with, completion, whose loss sft measures, or \
                chosen and rejected, whose loss dpo, orpo and rewardModel measure",
        ),
        (
            evaluation(json!({"answer": "answer", "suites": [{"name": "a", "path": "/a"}]})),
            "set exactly one of path, huggingFace and suites",
        ),
        (
            suites(json!({"huggingFace": {"repo": "a/b"}})),
            "set exactly one of path and huggingFace",
        ),
        (suites(json!({"name": "a b"})), "suites[0].name"),
        (suites(json!({"completion": "{{answer}}"})), "unknown field"),
        (
            evaluation(json!({"completion": "{{answer}}", "answer": "answer"})),
            "dataset.evaluation.completion is not used by algorithm.grpo; remove it",
        ),
        (only(json!({"training": {"epochs": 1}})), "and neither with algorithm.evaluation"),
        (only(json!({"rewards": []})), "algorithm.evaluation needs rewards"),
        (
            only(json!({"dataset": {"evaluation": {"answer": null, "completion": "{{answer}}"}}})),
            "algorithm.evaluation needs dataset.evaluation with answer and without completion",
        ),
        (
            only(json!({"inference": {"replicas": 0}})),
            "algorithm.evaluation needs inference.replicas of at least 1",
        ),
        (
            only(json!({"evaluation": {"engines": {}}})),
            "evaluation.engines is not used by algorithm.evaluation, which has no training beside \
             it: inference engines evaluate; remove evaluation",
        ),
        (
            json!({"spec": {"evaluation": {"engines": {}, "maxPending": 2}}}),
            "evaluation.engines needs dataset.evaluation with answer, whose prompts they complete",
        ),
        (
            bucket(json!({"evaluation": {"engines": {}}})),
            "evaluation.engines cannot read weights from storage.s3: store the run on a volume",
        ),
        (
            model(&[json!({"url": "http://s", "engines": {}, "path": "/judge"})]),
            "set exactly one of url and engines",
        ),
        (
            model(&[json!({"engines": {}})]),
            "set path and engines together: path is the folder of the model that the engines serve",
        ),
        (
            model(&[json!({"engines": {"replicas": 0}, "path": "/judge"})]),
            "engines.replicas must be at least 1",
        ),
        (
            model(&[json!({"engines": {}, "path": "/j", "tokenSecretRef": {"name": "a"}})]),
            "tokenSecretRef is of a server at url",
        ),
        (
            model(&[json!({"engines": {}, "path": "/a"}), json!({"engines": {}, "path": "/b"})]),
            "at most one reward may have model.engines: serve the other reward models at a url",
        ),
        (
            json!({"spec": {"evaluation": {"engines": {"replicas": 0}}}}),
            "evaluation.engines.replicas must be at least 1",
        ),
        (
            only(json!({"restoreFrom": {"rljob": {"name": "other"}}})),
            "restoreFrom is not used by algorithm.evaluation; remove it",
        ),
        (
            only(json!({"rollbackTo": {"step": 2}})),
            "rollbackTo is not used by algorithm.evaluation; remove it",
        ),
        (
            only(json!({"model": {"weights": "Random"}})),
            "algorithm.evaluation needs model.weights Pretrained",
        ),
        (
            evaluation(json!({"chosen": "a", "rejected": "b"})),
            "dataset.evaluation.chosen and rejected belong to algorithm.dpo, orpo and rewardModel",
        ),
    ]
}
