//! Invalid jobs, which the API server rejects with the reason.

use rljob_tests::Namespace;
use serde_json::{Value, json};

use super::{cluster, job_with};

mod algorithms;
mod evaluation;
mod storage;

/// A merge patch of the job, and a part of the message.
type Case = (Value, &'static str);

/// Cases of names, roles, rollouts and schedules.
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn cases() -> Vec<Case> {
    vec![
        (
            json!({"metadata": {"name": "9lives"}}),
            "metadata.name must be a DNS label of at most 40 characters that starts with a letter",
        ),
        (
            json!({"metadata": {"name": "a".repeat(41)}}),
            "metadata.name must be a DNS label of at most 40 characters that starts with a letter",
        ),
        (
            json!({"spec": {"rewards": [{"name": "a", "math": {}, "exactMatch": {}}]}}),
            "set exactly one of math, exactMatch, regex, repetition, code, python, model, http and \
                command",
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
            json!({"spec": {"scheduling": {"topology": {"trainer": {}}}}}),
            "set exactly one of required and preferred",
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
            json!({"spec": {"checkpoint": {"exportEverySteps": 0}}}),
            "spec.checkpoint.exportEverySteps",
        ),
        (
            json!({"spec": {"training": {"epochs": 1}}}),
            "set exactly one of training.steps and training.epochs",
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
            json!({
                "spec": {"failurePolicy": {"backoff": {"initialSeconds": 10, "maxSeconds": 5}}},
            }),
            "initialSeconds must not exceed maxSeconds",
        ),
        (json!({"spec": {"training": {"steps": 0}}}), "spec.training.steps"),
        (
            json!({"spec": {"rollout": {"temprature": 0.7}}}),
            "unknown field \"spec.rollout.temprature\"",
        ),
    ]
}

#[test]
fn invalid_jobs_are_rejected_with_the_reason() {
    let namespace = Namespace::create(cluster(), "rejected").unwrap();
    let all = [cases(), algorithms::cases(), evaluation::cases(), storage::cases()];
    for (patch, reason) in all.into_iter().flatten() {
        let answer =
            namespace.kubectl.run_with_input(&["create", "--filename=-"], &job_with(&patch));
        let message = format!("{:#}", answer.expect_err(&format!("accepted: {patch}")));
        assert!(
            message.contains(reason),
            "{patch} was rejected, but not with {reason:?}:\n{message}"
        );
    }
}
