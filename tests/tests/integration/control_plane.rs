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
mod checkpoints;
mod children;
mod command_line;
mod coordinator;
mod devices;
mod documents;
mod evaluation;
mod faults;
mod fields;
mod fixture;
mod gangs;
mod gitops;
mod groups;
mod idle;
mod invalid;
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
mod spanning;
mod upgrade;
mod verifiers;

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
    kubectl.wait_for_definition("rljobs.rljob.dev")
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
            "groupSize": 8, "epochs": 1, "surrogate": "Clip", "ratioLevel": "Token",
            "clipLow": 0.2, "clipHigh": 0.2, "lossAggregation": "Token",
            "proximalLogprobs": "Recompute",
            "rewardShaping": {"bias": 0.0, "scale": 1.0, "clip": 20.0},
            "rewardNormalization": {
                "mean": "Group", "scale": "Std", "scaleLevel": "Group", "leaveOneOut": false,
                "unbiased": true, "epsilon": 1e-5,
            },
            "klCoefficient": 0.0, "klEstimator": "K1", "klTerm": "Reward",
            "entropyCoefficient": 0.0,
        }},
        "rollout": {
            "batchSize": 32, "maxNewTokens": 1024, "temperature": 1.0, "truncated": "Score",
            "maxStaleness": 0, "staleSamples": "Keep",
        },
        "optimizer": {
            "learningRate": 1e-6, "warmupSteps": 0, "schedule": "Constant",
            "minimumLearningRate": 0.0, "weightDecay": 0.01,
            "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "gradientClipping": 1.0,
            "offload": false, "offloadWeights": false,
        },
        "training": {
            "steps": 3, "minibatches": 1, "maxTokensPerMicroBatch": 16384,
            "seed": 1, "deterministic": false,
        },
        "inference": {"replicas": 1, "podsPerReplica": 1, "resources": {}},
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

#[test]
fn members_of_unions_get_their_documented_defaults() {
    let namespace = Namespace::create(cluster(), "member-defaults").unwrap();
    let pairs = json!({"chosen": "{{good}}", "rejected": "{{bad}}"});
    for (name, patch, member, expected) in [
        (
            "orpo",
            json!({"algorithm": {"grpo": null, "orpo": {}}, "dataset": {"train": pairs}}),
            "/spec/algorithm/orpo",
            json!({"batchSize": 64, "lambda": 0.1}),
        ),
        (
            "repetition",
            json!({"rewards": [{"name": "loops", "repetition": {}}]}),
            "/spec/rewards/0/repetition",
            json!({"ngramSize": 3, "maxPenalty": -1.0}),
        ),
    ] {
        let job = job_with(&json!({"metadata": {"name": name}, "spec": patch}));
        namespace.kubectl.apply(&job).unwrap();
        let seen = namespace.kubectl.get(&[&format!("rljob/{name}")]).unwrap();
        let found = seen.pointer(member).cloned().unwrap();
        assert_eq!(as_floats(found), as_floats(expected), "{name}");
    }
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
