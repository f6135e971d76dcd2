//! Each rule across fields that no other test breaks, with its words.

use serde_json::{Value, json};

use super::super::test_support::minimal;
use super::problems;

/// The problems of the minimal job with these fields of its spec.
fn problems_with(spec: &Value) -> Vec<String> {
    let mut job = serde_json::to_value(minimal()).unwrap();
    merge(&mut job["spec"], spec);
    problems(&serde_json::from_value(job).unwrap()).iter().map(ToString::to_string).collect()
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => target.clone_from(patch),
    }
}

#[test]
fn the_minimal_job_has_no_problem() {
    assert_eq!(problems_with(&json!({})), Vec::<String>::new());
}

#[test]
fn a_behavior_weight_needs_recomputed_log_probabilities_and_bounds_in_order() {
    let weight = json!({"upper": 2.0, "lower": 3.0, "action": "Clamp", "metric": "K1"});
    let spec = json!({"algorithm": {"grpo": {"proximalLogprobs": "Sampler", "behaviorWeight": weight, "overlongPenalty": {"tokens": 2000, "factor": 1.0}}}});
    assert_eq!(
        problems_with(&spec),
        [
            "spec.algorithm.grpo.overlongPenalty.tokens: must not exceed rollout.maxNewTokens = 1024",
            "spec.algorithm.grpo.behaviorWeight: needs proximalLogprobs Recompute: of the sampler's own log-probabilities every weight is 1",
            "spec.algorithm.grpo.behaviorWeight.lower: must not exceed upper = 2",
            "spec.algorithm.grpo.behaviorWeight.metric: must be Ratio: action Clamp bounds the weight itself",
        ]
    );
}

#[test]
fn the_embedded_engine_takes_neither_gpus_nor_arguments_and_sglang_none_that_the_run_sets() {
    let embedded =
        json!({"inference": {"gpusPerReplica": 1, "extraArgs": ["--context-length=4096"]}});
    assert_eq!(
        problems_with(&embedded),
        [
            "spec.inference.gpusPerReplica: needs engine SGLang: the embedded engine runs on CPUs",
            "spec.inference.extraArgs: needs engine SGLang: the embedded engine takes none",
        ]
    );
    let limits = json!({"nvidia.com/gpu": "1"});
    let arguments = ["--context-length=4096", "--tp_size=2"];
    let sglang = json!({
        "inference": {"engine": "SGLang", "gpusPerReplica": 1, "resources": {"limits": limits}, "extraArgs": arguments},
        "weightSync": {"method": "Distributed"},
    });
    assert_eq!(
        problems_with(&sglang),
        [
            "spec.weightSync.method: must be Disk where engines run on GPUs: learners run on CPUs",
            "spec.inference.resources.limits.nvidia.com/gpu: is set by spec.inference.gpusPerReplica; remove it here",
            "spec.inference.extraArgs[1]: --tp-size is set by the run itself; remove it",
        ]
    );
}

#[test]
fn a_run_in_a_bucket_has_no_folder_for_its_engines() {
    let s3 = json!({"persistentVolumeClaim": null, "s3": {"bucket": "runs"}});
    let in_bucket = |more: Value| {
        let mut spec = json!({"storage": s3, "weightSync": {"method": "Distributed"}, "checkpoint": {"restoreFrom": "s3://other/lab/a/checkpoints/step-2.attempt-0"}});
        merge(&mut spec, &more);
        problems_with(&spec)
    };
    assert_eq!(in_bucket(json!({})), Vec::<String>::new());
    assert_eq!(
        in_bucket(
            json!({"weightSync": {"method": "Disk"}, "model": {"path": null, "exportOf": "warmup"}, "volumes": [
                {"name": "keys", "mountPath": "/rljob/s3", "configMap": {"name": "x"}}
            ]})
        ),
        [
            "spec.volumes[0].mountPath: `/rljob/s3` covers a folder that rljob uses: /rljob/runs, /rljob/config, /rljob/tokens, /rljob/s3, /tmp, /dev/shm",
            "spec.weightSync.method: must be Distributed with storage.s3, which is no folder that engines could read weights from; or keep the run on a volume",
            "spec.model.exportOf: needs a volume: storage.s3 is no folder that engines could read a model from; put the export on a volume and name it by model.path",
        ]
    );
    assert_eq!(
        in_bucket(json!({"storage": {"s3": null, "hostPath": {"path": "/srv"}}})),
        [
            "spec.checkpoint.restoreFrom: is in a bucket and needs storage.s3, which says how it is reached"
        ]
    );
}

#[test]
fn steps_seconds_and_parts_must_fit_each_other() {
    let spec = json!({
        "weightSync": {"everySteps": 3},
        "rollout": {"batchSize": 7, "maxStaleness": 1},
        "training": {"minibatches": 2},
        "optimizer": {"warmupSteps": 11, "epsilon": 0.0},
        "failurePolicy": {"backoff": {"initialSeconds": 60, "maxSeconds": 30}},
        "checkpoint": {"restoreFrom": "/rljob/runs/lab/other/checkpoints/step-11.attempt-0"},
        "inference": {"replicas": 0},
    });
    assert_eq!(
        problems_with(&spec),
        [
            "spec.inference.replicas: must be at least 1: algorithm.grpo samples from engines",
            "spec.rollout.batchSize: 7 groups cannot be split into training.minibatches = 2 equal parts",
            "spec.weightSync.everySteps: must be at most rollout.maxStaleness + 1 = 2: the batch of the next step could not be sampled",
            "spec.failurePolicy.backoff.initialSeconds: must not exceed maxSeconds = 30",
            "spec.optimizer.warmupSteps: must not exceed training.steps = 10",
            "spec.checkpoint.restoreFrom: step-11.attempt-0 has more steps than training.steps = 10",
            "spec.optimizer.epsilon: must be above 0",
        ]
    );
}
