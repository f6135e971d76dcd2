//! Invalid algorithms, their data and adapters.

use serde_json::{Value, json};

use super::Case;

#[expect(clippy::too_many_lines, reason = "a table of cases")]
pub(super) fn cases() -> Vec<Case> {
    // Without rewards and engines.
    let distillation =
        |settings: Value| json!({"spec": {"algorithm": {"grpo": null, "distillation": settings}}});
    let curriculum = |rule: Value| json!({"spec": {"dataset": {"train": {"curriculum": rule}}}});
    let dpo = |settings: Value, train: Value| {
        json!({"spec": {
            "algorithm": {"grpo": null, "dpo": settings},
            "dataset": {"train": train},
            "rewards": null,
            "inference": {"replicas": 0},
        }})
    };
    vec![
        (json!({"spec": {"rewards": null}}), "algorithm.grpo needs rewards"),
        (
            json!({"spec": {"inference": {"replicas": 0}}}),
            "algorithm.grpo needs inference.replicas of at least 1",
        ),
        (
            json!({"spec": {"algorithm": {"sft": {}}}}),
            "set exactly one of grpo, ppo, sft, dpo, orpo, rewardModel, distillation and \
                evaluation",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "evaluation": {}}}}),
            "dataset.train is missing, or is not used by algorithm.evaluation; remove it then",
        ),
        (
            json!({"spec": {"training": {"steps": null}}}),
            "set exactly one of training.steps and training.epochs, and neither with \
                algorithm.evaluation",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null}}}),
            "set exactly one of grpo, ppo, sft, dpo, orpo, rewardModel, distillation and \
                evaluation",
        ),
        (
            json!({"spec": {"lora": {}, "model": {"weights": "Random"}}}),
            "lora needs model.weights Pretrained",
        ),
        (json!({"spec": {"lora": {"rank": 0}}}), "spec.lora.rank"),
        (json!({"spec": {"lora": {"dropout": 1}}}), "spec.lora.dropout"),
        (json!({"spec": {"lora": {"targets": ["QProj", "QProj"]}}}), "spec.lora.targets[1]"),
        (json!({"spec": {"lora": {"targets": ["LmHead"]}}}), "spec.lora.targets[0]"),
        (
            json!({"spec": {"algorithm": {"grpo": {"groupSize": 0}}}}),
            "spec.algorithm.grpo.groupSize",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": {"groupSize": 1}}}}),
            "groupSize 1 needs rewardNormalization",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": {
                "secondMomentLimit": 0.1, "proximalLogprobs": "Sampler",
            }}}}),
            "secondMomentLimit needs proximalLogprobs Recompute",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {"criticWarmupSteps": 3}}}}),
            "algorithm.ppo.criticWarmupSteps must be below training.steps",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {"adaptiveKl": {"target": 1}}}}}),
            "adaptiveKl needs a klCoefficient above 0, with which it begins",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {"adaptiveLambda": {}}}}}),
            "set exactly one of length and relativePosition",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {
                "gaeLambda": 0.5, "adaptiveLambda": {"length": {}},
            }}}}),
            "gaeLambda is not used with adaptiveLambda",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {
                "valueHead": {}, "criticOptimizer": {},
            }}}}),
            "criticOptimizer is not used with valueHead",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {"rewardNormalization": {}}}}}),
            "groupSize 1 needs rewardNormalization",
        ),
        (
            json!({"spec": {
                "algorithm": {"grpo": null, "distillation": {"teacher": {"path": "/t"}}},
                "rollout": {"dynamicSampling": {}},
            }}),
            "rollout.dynamicSampling compares rewards, which algorithm.distillation does not learn",
        ),
        (
            distillation(json!({"teacher": {"path": "/t", "server": {"url": "http://t"}}})),
            "set exactly one of path and server",
        ),
        (
            distillation(json!({"teacher": {"server": {"url": "t:30000"}}})),
            "spec.algorithm.distillation.teacher.server.url",
        ),
        (
            json!({"spec": {
                "algorithm": {
                    "grpo": null, "distillation": {"teacher": {"server": {"url": "http://t"}}},
                },
                "rollout": {"temperature": 0.5},
            }}),
            "algorithm.distillation.teacher.server and engines need rollout.temperature 1",
        ),
        (
            json!({"spec": {
                "algorithm": {
                    "grpo": null, "distillation": {"teacher": {"path": "/t", "engines": {}}},
                },
                "rollout": {"temperature": 0.5},
            }}),
            "algorithm.distillation.teacher.server and engines need rollout.temperature 1",
        ),
        (
            distillation(json!({"teacher": {"server": {"url": "http://t"}, "engines": {}}})),
            "engines serve the model in path: set path",
        ),
        (
            distillation(json!({"teacher": {"path": "/t", "engines": {"replicas": 0}}})),
            "engines.replicas must be at least 1",
        ),
        (
            distillation(json!({"teacher": {"path": "/t", "calls": {"retries": 1}}})),
            "calls are those of engines: set engines, or remove calls",
        ),
        (
            distillation(json!({"teacher": {"path": "/t", "engines": {}}, "offPolicy": {}})),
            "offPolicy needs teacher.path without teacher.engines",
        ),
        (
            json!({"spec": {
                "algorithm": {
                    "grpo": null, "distillation": {"teacher": {"path": "/t", "engines": {}}},
                },
                "trainer": {"groups": [{"name": "frozen", "roles": ["Teacher"]}]},
            }}),
            "a teacher is on algorithm.distillation.teacher.engines or in trainer.groups",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": {
                "distillation": {"teacher": {"path": "/t"}}, "klCoefficient": 0.1,
            }}}}),
            "klCoefficient is not used with distillation",
        ),
        (
            json!({"spec": {
                "algorithm": {"grpo": {"distillation": {"teacher": {"server": {
                    "url": "http://t",
                }}}}},
                "rollout": {"temperature": 0.5},
            }}),
            "algorithm.grpo.distillation.teacher.server needs rollout.temperature 1",
        ),
        (
            distillation(json!({"teacher": {"server": {"url": "http://t"}}, "offPolicy": {}})),
            "offPolicy needs teacher.path",
        ),
        (
            distillation(json!({"teacher": {"path": "/t"}, "offPolicy": {}, "groupSize": 2})),
            "groupSize and lossAggregation are not used with offPolicy; remove them",
        ),
        (
            json!({"spec": {
                "algorithm": {
                    "grpo": null, "distillation": {"teacher": {"path": "/t"}, "offPolicy": {}},
                },
                "dataset": {"train": {"completion": "{{a}}", "curriculum": {"min": 0.1}}},
            }}),
            "dataset.train.curriculum needs an algorithm that samples",
        ),
        (curriculum(json!({"min": 0.6, "max": 0.5})), "min must be at most max"),
        (curriculum(json!({"groups": 2})), "skips nothing: set min above 0 or max below 1"),
        (
            json!({"spec": {
                "algorithm": {"grpo": null, "sft": {}},
                "dataset": {"train": {"completion": "{{a}}", "curriculum": {"min": 0.1}}},
            }}),
            "dataset.train.curriculum needs an algorithm that samples: grpo, ppo or distillation",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {}}, "rewards": null}}),
            "algorithm.ppo needs rewards",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "dpo": {}}}}),
            "dataset.train.chosen and rejected belong to algorithm.dpo, orpo and rewardModel, \
                which need them",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "orpo": {}}}}),
            "dataset.train.chosen and rejected belong to algorithm.dpo, orpo and rewardModel, \
                which need them",
        ),
        (
            json!({"spec": {"dataset": {"train": {"chosen": "a", "rejected": "b"}}}}),
            "dataset.train.chosen and rejected belong to algorithm.dpo, orpo and rewardModel, \
                which need them",
        ),
        (dpo(json!({}), json!({"chosen": "a"})), "set chosen and rejected together"),
        (
            dpo(json!({}), json!({"chosen": "a", "rejected": "b", "completion": "c"})),
            "completion is not used by algorithm.dpo, orpo and rewardModel; set chosen and \
                rejected",
        ),
        (
            dpo(
                json!({"loss": "Ipo", "labelSmoothing": 0.1}),
                json!({"chosen": "a", "rejected": "b"}),
            ),
            "labelSmoothing needs loss Sigmoid",
        ),
        (
            json!({"spec": {
                "algorithm": {"grpo": null, "rewardModel": {}},
                "dataset": {"train": {"chosen": "a", "rejected": "b"}},
            }}),
            "algorithm.rewardModel needs inference.replicas 0: engines serve language models only",
        ),
    ]
}
