//! The RLJob API and the operator on a real API server. This module: defaults, validation, `kubectl
//! explain` and printer columns.

use std::sync::OnceLock;
use std::time::Duration;

use rljob_tests::files::workspace;
use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Kubectl, Namespace};
use serde_json::{Value, json};

mod admission;
mod alerts;
mod api_server;
mod children;
mod command_line;
mod coordinator;
mod devices;
mod faults;
mod fields;
mod fixture;
mod gitops;
mod idle;
mod keys;
mod leader;
mod lifecycle;
mod limits;
mod obstacles;
mod operator;
mod pods;
mod queue;
mod rbac;
mod readme;
mod releases;
mod scale;
mod simulated_pods;
mod upgrade;

/// The control plane shared by this module's tests. It ends with the test process.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::start(0).unwrap();
        operator::install(&cluster.kubectl()).unwrap();
        install_crd(&cluster.kubectl()).unwrap();
        cluster
    })
}

fn install_crd(kubectl: &Kubectl) -> anyhow::Result<String> {
    let path = workspace().join("crds/rljob.yaml").display().to_string();
    let answer = kubectl.run(&["apply", "--filename", &path])?;
    wait_for_crd(kubectl)?;
    Ok(answer)
}

fn wait_for_crd(kubectl: &Kubectl) -> anyhow::Result<()> {
    let established = "--for=condition=Established";
    kubectl.run(&["wait", established, "crd/rljobs.rljob.dev", "--timeout=60s"]).map(drop)
}

/// A minimal valid job.
fn job() -> Value {
    json!({
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "sample"},
        "spec": {
            "model": {"path": "/models/tiny"},
            "storage": {"hostPath": {"path": "/srv/runs"}},
            "dataset": {
                "train": {
                    "path": "/data/train.jsonl", "prompt": "{{question}}", "answer": "answer",
                },
            },
            "rewards": [{"name": "correct", "exactMatch": {}}],
            "algorithm": {"grpo": {}},
            "training": {"steps": 3},
        },
    })
}

/// JSON merge patch (RFC 7386): merges objects, null removes, any other value replaces.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(target), Value::Object(patch)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(json!({})), value);
        }
    }
}

fn job_with(patch: &Value) -> String {
    let mut job = job();
    merge(&mut job, patch);
    job.to_string()
}

#[test]
fn a_minimal_job_gets_the_documented_defaults() {
    let namespace = Namespace::create(cluster(), "defaults").unwrap();
    namespace.kubectl.apply(&job().to_string()).unwrap();
    let mut seen = namespace.kubectl.get(&["rljob/sample"]).unwrap();
    assert_eq!(
        seen["status"],
        json!({"observedGeneration": -1, "attempt": 0, "restarts": 0, "epoch": 0})
    );
    let spec = json!({
        "suspend": false,
        "managedBy": "rljob.dev/operator",
        "model": {"path": "/models/tiny", "weights": "Pretrained"},
        "storage": {"hostPath": {"path": "/srv/runs"}},
        "dataset": {
            "train": {
                "path": "/data/train.jsonl", "prompt": "{{question}}", "answer": "answer",
                "format": "Chat",
            },
            "maxUnusableShare": 0.05,
        },
        "rewards": [{"name": "correct", "weight": 1.0, "exactMatch": {}}],
        "algorithm": {"grpo": {
            "groupSize": 8, "surrogate": "Clip", "ratioLevel": "Token", "clipLow": 0.2,
            "clipHigh": 0.2, "lossAggregation": "Token", "proximalLogprobs": "Recompute",
            "rewardShaping": {"bias": 0.0, "scale": 1.0, "clip": 20.0},
            "rewardNormalization": {
                "mean": "Group", "scale": "Std", "scaleLevel": "Group", "leaveOneOut": false,
                "unbiased": true, "epsilon": 1e-5,
            },
            "klCoefficient": 0.0, "klEstimator": "K1", "klTerm": "Reward",
        }},
        "rollout": {
            "batchSize": 32, "maxNewTokens": 1024, "temperature": 1.0, "truncated": "Score",
            "maxStaleness": 0, "staleSamples": "Keep",
        },
        "optimizer": {
            "learningRate": 1e-6, "warmupSteps": 0, "schedule": "Constant",
            "minimumLearningRate": 0.0, "weightDecay": 0.01,
            "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "gradientClipping": 1.0,
            "offload": false,
        },
        "training": {
            "steps": 3, "minibatches": 1, "maxTokensPerMicroBatch": 16384,
            "seed": 1, "deterministic": false,
        },
        "inference": {"replicas": 1, "resources": {}},
        "trainer": {"replicas": 1, "resources": {}},
        "coordinator": {"resources": {}},
        "weightSync": {"everySteps": 1},
        "checkpoint": {"everySteps": 20, "keepLast": 3},
        "failurePolicy": {
            "maxRestarts": 3, "hangTimeoutSeconds": 1800, "forceDeleteLostPods": true,
            "backoff": {"initialSeconds": 1, "maxSeconds": 300},
        },
        "scheduling": {},
        "drainTimeoutSeconds": 300,
    });
    assert_eq!(as_floats(seen["spec"].take()), as_floats(spec));
}

/// The API server serializes 1.0 as 1.
fn as_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.into_iter().map(as_floats).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, as_floats(value))).collect()
        }
        other => other,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn invalid_jobs_are_rejected_with_the_reason() {
    let namespace = Namespace::create(cluster(), "rejected").unwrap();
    let evaluation = |mut fields: Value| {
        merge(&mut fields, &json!({"path": "/data/test.jsonl", "prompt": "{{question}}"}));
        json!({"spec": {"dataset": {"evaluation": fields}}})
    };
    // Without rewards and engines.
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
            "set exactly one of math, exactMatch, regex, code, python, http and command",
        ),
        (
            json!({"spec": {"inference": {"replicas": 0}}}),
            "algorithm.grpo needs inference.replicas of at least 1",
        ),
        (
            json!({"spec": {"algorithm": {"sft": {}}}}),
            "set exactly one of grpo, ppo, sft, dpo, rewardModel and evaluation",
        ),
        (json!({"spec": {"rollout": {"workflow": {}}}}), "set exactly one of multiTurn"),
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
        (json!({"spec": {"restoreFrom": {"path": "/runs/a/b"}}}), "spec.restoreFrom.path"),
        (json!({"spec": {"restoreFrom": {}}}), "set exactly one of rljob, path and s3"),
        (
            json!({"spec": {"tracking": {"mlflow": {"uri": "mlflow:5000"}}}}),
            "spec.tracking.mlflow.uri",
        ),
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
            evaluation(json!({"completion": "{{answer}}", "answer": "answer"})),
            "dataset.evaluation.completion is not used by algorithm.grpo; remove it",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null, "evaluation": {}}}}),
            "dataset.train is missing, or is not used by algorithm.evaluation; remove it then",
        ),
        (
            json!({"spec": {"training": {"steps": null}}}),
            "training.steps is missing, or is not used by algorithm.evaluation; remove it then",
        ),
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
            only(json!({"restoreFrom": {"rljob": {"name": "other"}}})),
            "restoreFrom is not used by algorithm.evaluation; remove it",
        ),
        (
            only(json!({"model": {"weights": "Random"}})),
            "algorithm.evaluation needs model.weights Pretrained",
        ),
        (
            json!({"spec": {"algorithm": {"grpo": null}}}),
            "set exactly one of grpo, ppo, sft, dpo, rewardModel and evaluation",
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
            "set exactly one of path and huggingFace",
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
            json!({"spec": {"algorithm": {"grpo": null, "ppo": {"rewardNormalization": {}}}}}),
            "groupSize 1 needs rewardNormalization",
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

#[test]
fn managed_by_is_immutable() {
    let namespace = Namespace::create(cluster(), "immutable").unwrap();
    namespace.kubectl.apply(&job().to_string()).unwrap();
    let error = namespace
        .kubectl
        .apply(&job_with(&json!({"spec": {"managedBy": "example.com/other"}})))
        .unwrap_err();
    assert!(format!("{error:#}").contains("spec.managedBy is immutable"), "{error:#}");
}

#[test]
fn reapplying_the_crd_changes_nothing() {
    let answer = install_crd(&cluster().kubectl()).unwrap();
    assert_eq!(
        answer,
        "customresourcedefinition.apiextensions.k8s.io/rljobs.rljob.dev unchanged\n"
    );
}

#[test]
fn kubectl_explain_describes_the_fields() {
    let kubectl = cluster().kubectl();
    let published = || kubectl.run(&["explain", "rljob"]).map(|text| !text.is_empty());
    wait_until("the API server to publish the schema", Duration::from_secs(60), published).unwrap();
    let cases = [
        ("rljob", "post-training of a language model"),
        (
            "rljob.spec",
            "suspend <boolean> Stop the run after its current step, write a checkpoint and delete \
                every pod",
        ),
        ("rljob.spec.training.steps", "Steps to run; each consumes one batch."),
        ("rljob.spec.algorithm.grpo.groupSize", "Samples per prompt"),
        ("rljob.status.conditions", "`Succeeded` summarizes the run"),
    ];
    for (path, text) in cases {
        let seen = kubectl.run(&["explain", path]).unwrap();
        let message: Vec<&str> = seen.split_whitespace().collect();
        assert!(
            message.join(" ").contains(text),
            "kubectl explain {path} does not say {text:?}:\n{seen}"
        );
    }
}

#[test]
fn printer_columns_show_progress() {
    let namespace = Namespace::create(cluster(), "columns").unwrap();
    namespace.kubectl.apply(&job().to_string()).unwrap();
    let status = json!({"status": {
        "progress": {"step": 2, "totalSteps": 3, "reward": 0.5},
        "restarts": 1,
        "attempt": 4,
        "inference": {"desired": 2, "ready": 2},
        "conditions": [{
            "type": "Succeeded", "status": "Unknown", "reason": "Running",
            "message": "training", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }});
    namespace
        .kubectl
        .run(&[
            "patch",
            "rljob/sample",
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status.to_string(),
        ])
        .unwrap();
    let table = namespace.kubectl.run(&["get", "rljobs"]).unwrap();
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "STATUS", "STEP", "STEPS", "REWARD", "RESTARTS", "AGE"]);
    assert_eq!(rows[1][..6], ["sample", "Running", "2", "3", "0.5", "1"]);
    let table = namespace.kubectl.run(&["get", "rljobs", "--output=wide"]).unwrap();
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][7..], ["ATTEMPT", "ENGINES", "MESSAGE"]);
    assert_eq!(rows[1][7..], ["4", "2", "training"]);
}
