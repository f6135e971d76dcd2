//! Invalid jobs, which the API server rejects with the reason.

use rljob_tests::Namespace;
use serde_json::{Value, json};

use super::{cluster, job_with, merge};

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn invalid_jobs_are_rejected_with_the_reason() {
    let namespace = Namespace::create(cluster(), "rejected").unwrap();
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
    let volume = |fields: Value| json!({"spec": {"volumes": [fields]}});
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
    let cases = [
        (
            json!({"metadata": {"name": "9lives"}}),
            "metadata.name must be a DNS label of at most 40 characters that starts with a letter",
        ),
        (
            json!({"metadata": {"name": "a".repeat(41)}}),
            "metadata.name must be a DNS label of at most 40 characters that starts with a letter",
        ),
        (json!({"spec": {"rewards": null}}), "algorithm.grpo needs rewards"),
        (
            json!({"spec": {"rewards": [{"name": "a", "math": {}, "exactMatch": {}}]}}),
            "set exactly one of math, exactMatch, regex, code, python, model, http and command",
        ),
        (
            json!({"spec": {"inference": {"replicas": 0}}}),
            "algorithm.grpo needs inference.replicas of at least 1",
        ),
        (
            json!({"spec": {"algorithm": {"sft": {}}}}),
            "set exactly one of grpo, ppo, sft, dpo, rewardModel, distillation and evaluation",
        ),
        (
            json!({"spec": {"rollout": {"workflow": {}}}}),
            "set exactly one of multiTurn, environment, tools and agent",
        ),
        (
            json!({"spec": {"rollout": {"workflow": {"environment": {
                "url": "http://games.lab", "command": {"command": ["maze"]},
            }}}}}),
            "set exactly one of url and command",
        ),
        (
            json!({"spec": {"rollout": {"workflow": {"environment": {
                "command": {"command": ["maze"]}, "tokenSecretRef": {"name": "games"},
            }}}}}),
            "tokenSecretRef belongs to url: programs have no token",
        ),
        (
            json!({"spec": {"rollout": {"workflow": {"tools": {"tools": [
                {"name": "a", "description": "x"},
            ]}}}}}),
            "set exactly one of http, command and mcp",
        ),
        (
            json!({"spec": {"scheduling": {"gang": {"native": {}, "volcano": {}}}}}),
            "set exactly one of native, coscheduling and volcano",
        ),
        (
            json!({"spec": {"rewards": [
                {"name": "a", "math": {}}, {"name": "a", "exactMatch": {}},
            ]}}),
            "spec.rewards[1]: Duplicate value",
        ),
        (
            json!({"spec": {"inference": {
                "embedded": {}, "resources": {"limits": {"nvidia.com/gpu": 1}},
            }}}),
            "the embedded engine runs on CPUs: remove the GPUs from resources.limits",
        ),
        (
            json!({"spec": {"trainer": {"resources": {"limits": {"amd.com/gpu": 1}}}}}),
            "learners support NVIDIA GPUs only: remove other accelerators from \
                trainer.resources.limits",
        ),
        (
            json!({"spec": {"trainer": {
                "processesPerReplica": 2, "resources": {"limits": {"nvidia.com/gpu": "4"}},
            }}}),
            "trainer.processesPerReplica must equal the number of GPUs in trainer.resources.limits",
        ),
        (
            json!({"spec": {"trainer": {"groups": [{"name": "a", "roles": ["Critic"]}]}}}),
            "Policy and Critic are trained by spec.trainer itself: a group has Reference or \
                Teacher",
        ),
        (
            json!({"spec": {"inference": {"sglang": {}, "embedded": {}}}}),
            "set at most one of sglang and embedded",
        ),
        (
            json!({"spec": {"inference": {"template": {"sepc": {}}}}}),
            "unknown field \"spec.inference.template.sepc\"",
        ),
        (
            json!({
                "spec": {
                    "inference": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
                    "weightSync": {"method": "Distributed"},
                },
            }),
            "weightSync.method Distributed needs engines and learners in one process group: both \
                on CPUs, or both on NVIDIA GPUs",
        ),
        (
            json!({
                "spec": {
                    "trainer": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
                    "weightSync": {"method": "Distributed"},
                },
            }),
            "weightSync.method Distributed needs engines and learners in one process group",
        ),
        (
            json!({"spec": {"weightSync": {"everySteps": 2}}}),
            "weightSync.everySteps must be at most rollout.maxStaleness + 1",
        ),
        (
            json!({"spec": {"rollout": {"batchOrder": "Finished"}}}),
            "batchOrder Finished needs maxStaleness of at least 1",
        ),
        (
            json!({
                "spec": {
                    "rollout": {"maxStaleness": 1, "batchOrder": "Finished"},
                    "training": {"deterministic": true},
                },
            }),
            "rollout.batchOrder Finished depends on timing, which training.deterministic excludes",
        ),
        (json!({"spec": {"restoreFrom": {"path": "/runs/a/b"}}}), "spec.restoreFrom.path"),
        (json!({"spec": {"restoreFrom": {}}}), "set exactly one of rljob, path and s3"),
        (
            json!({"spec": {"tracking": {"mlflow": {"uri": "mlflow:5000"}}}}),
            "spec.tracking.mlflow.uri",
        ),
        (
            json!({"spec": {"tracking": {"openTelemetry": {"endpoint": "collector:4317"}}}}),
            "spec.tracking.openTelemetry.endpoint",
        ),
        (json!({"spec": {"tracking": {}}}), "set mlflow, openTelemetry or both"),
        (
            json!({"spec": {"restoreFrom": {"s3": {"uri": "https://runs/step-1.attempt-0"}}}}),
            "spec.restoreFrom.s3.uri",
        ),
        (
            json!({"spec": {"checkpoint": {"exportEverySteps": 0}}}),
            "spec.checkpoint.exportEverySteps",
        ),
        (
            evaluation(json!({})),
            "set answer, which the reward compares with, completion, whose loss sft measures, or \
                chosen and rejected, whose loss dpo and rewardModel measure",
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
            json!({"spec": {"training": {"epochs": 1}}}),
            "set exactly one of training.steps and training.epochs",
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
            json!({"spec": {"algorithm": {"grpo": null}}}),
            "set exactly one of grpo, ppo, sft, dpo, rewardModel, distillation and evaluation",
        ),
        (
            json!({"spec": {"model": {"rljob": {"name": "other"}}}}),
            "set exactly one of path, huggingFace and rljob",
        ),
        (
            json!({"spec": {"model": {"path": null, "huggingFace": {"repo": "a b"}}}}),
            "spec.model.huggingFace.repo",
        ),
        (
            json!({"spec": {"dataset": {"train": {"huggingFace": {"repo": "org/data"}}}}}),
            "set exactly one of path, huggingFace and mixture",
        ),
        (
            json!({"spec": {"dataset": {"train": {
                "path": null, "split": "train", "huggingFace": {"repo": "org/data"},
            }}}}),
            "split and subset select files of path",
        ),
        (
            json!({"spec": {"model": {
                "path": null, "rljob": {"name": "other"}, "weights": "Random",
            }}}),
            "rljob names trained weights: weights must be Pretrained",
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
            json!({"spec": {"storage": {"hostPath": null}}}),
            "set exactly one of persistentVolumeClaim, hostPath and s3",
        ),
        (
            bucket(json!({"storage": {"hostPath": {"path": "/srv/runs"}}})),
            "set exactly one of persistentVolumeClaim, hostPath and s3",
        ),
        (bucket(json!({"storage": {"s3": {"bucket": "Runs"}}})), "spec.storage.s3.bucket"),
        (
            bucket(json!({"storage": {"s3": {"endpoint": "s3.example"}}})),
            "spec.storage.s3.endpoint",
        ),
        (bucket(json!({"storage": {"s3": {"prefix": "/team"}}})), "spec.storage.s3.prefix"),
        (
            bucket(json!({"weightSync": {"method": "Disk"}})),
            "engines cannot read weights from storage.s3: set weightSync.method to Distributed",
        ),
        (
            bucket(json!({"model": {"path": null, "rljob": {"name": "other"}}})),
            "engines cannot read a model from storage.s3",
        ),
        (
            bucket(json!({"rollbackTo": {"step": 2}})),
            "rollbackTo needs a run on a volume: create an RLJob with restoreFrom.rljob",
        ),
        (
            json!({"spec": {"restoreFrom": {"s3": {"uri": "s3://runs/a/step-1.attempt-0"}}}}),
            "restoreFrom.s3 needs storage.s3",
        ),
        (
            volume(json!({"name": "data", "mountPath": "/data"})),
            "set exactly one of configMap, csi, downwardAPI",
        ),
        (
            volume(json!({"name": "data", "mountPath": "data", "configMap": {"name": "x"}})),
            "spec.volumes[0].mountPath",
        ),
        (
            json!({
                "spec": {"failurePolicy": {"backoff": {"initialSeconds": 10, "maxSeconds": 5}}},
            }),
            "initialSeconds must not exceed maxSeconds",
        ),
        (json!({"spec": {"training": {"steps": 0}}}), "spec.training.steps"),
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
            "algorithm.distillation.teacher.server needs rollout.temperature 1",
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
            "dataset.train.chosen and rejected belong to algorithm.dpo and rewardModel, which \
                need them",
        ),
        (
            json!({"spec": {"dataset": {"train": {"chosen": "a", "rejected": "b"}}}}),
            "dataset.train.chosen and rejected belong to algorithm.dpo and rewardModel, which \
                need them",
        ),
        (dpo(json!({}), json!({"chosen": "a"})), "set chosen and rejected together"),
        (
            dpo(json!({}), json!({"chosen": "a", "rejected": "b", "completion": "c"})),
            "completion is not used by algorithm.dpo and rewardModel; set chosen and rejected",
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
        (
            evaluation(json!({"chosen": "a", "rejected": "b"})),
            "dataset.evaluation.chosen and rejected belong to algorithm.dpo and rewardModel",
        ),
        (
            json!({"spec": {"rollout": {"temprature": 0.7}}}),
            "unknown field \"spec.rollout.temprature\"",
        ),
    ];
    for (patch, reason) in cases {
        let answer =
            namespace.kubectl.run_with_input(&["create", "--filename=-"], &job_with(&patch));
        let message = format!("{:#}", answer.expect_err(&format!("accepted: {patch}")));
        assert!(
            message.contains(reason),
            "{patch} was rejected, but not with {reason:?}:\n{message}"
        );
    }
}
