//! RLJob of the operator benchmarks.

use rljob_crds::RLJob;
use serde_json::json;

/// Children per job: Secret, ConfigMap, NetworkPolicy, PodDisruptionBudget, and a Service and a
/// StatefulSet per role.
pub const CHILDREN: usize = 10;

/// The job with this name.
pub fn job(name: &str) -> RLJob {
    serde_json::from_value(json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name},
        "spec": {
            "model": {"path": "/models/tiny"}, "storage": {"hostPath": {"path": "/srv/runs"}},
            "dataset": {
                "train": {
                    "path": "/data/train.jsonl", "prompt": "{{question}}", "answer": "answer",
                },
            },
            "rewards": [{
                "name": "correct", "exactMatch": {},
            }], "algorithm": {"grpo": {}}, "training": {"steps": 3},
        },
    }))
    .unwrap()
}
