//! The RLJob that the operator's benchmarks make many of.

use rljob_crds::RLJob;
use serde_json::json;

/// A Secret, a ConfigMap, a NetworkPolicy, a PodDisruptionBudget, and a Service and a StatefulSet
/// of each role.
pub const CHILDREN: usize = 10;

/// One of that name.
pub fn job(name: &str) -> RLJob {
    serde_json::from_value(json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name},
        "spec": {
            "model": {"path": "/models/tiny"}, "storage": {"hostPath": {"path": "/srv/runs"}},
            "dataset": {"train": {"path": "/data/train.jsonl", "prompt": "{{question}}", "answer": "answer"}},
            "rewards": [{"name": "correct", "exactMatch": {}}], "algorithm": {"grpo": {}}, "training": {"steps": 3},
        },
    }))
    .unwrap()
}
