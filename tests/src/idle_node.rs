//! Nodes without kubelets: the scheduler binds pods to them, and nothing runs.

use anyhow::Result;
use serde_json::{Value, json};

use crate::Cluster;

/// Adds a ready node with this capacity and these labels. The cluster must have no node lifecycle
/// controller, as those of [`Cluster::start_with_gangs`].
pub fn add(cluster: &Cluster, name: &str, capacity: &Value, labels: &Value) -> Result<()> {
    let api = cluster.api()?;
    let metadata = json!({"name": name, "labels": labels});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
    api.create("/api/v1/nodes", &node)?;
    let path = format!("/api/v1/nodes/{name}");
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({"capacity": capacity, "allocatable": capacity, "conditions": [ready]});
    api.patch(&format!("{path}/status"), &json!({"status": status}))?;
    // The API server adds the taint `not-ready`, which the missing controller would remove.
    api.patch(&path, &json!({"spec": {"taints": null}})).map(drop)
}
