//! Rollback of a suspended run to one of its checkpoints.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Checkpoint to which a suspended run goes back when it resumes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RollbackTarget {
    /// Step of a complete checkpoint of the run (`status.checkpoints`).
    #[schemars(range(min = 0, max = 10_000_000))]
    pub step: u32,
    /// Time of the request. A run does each pair of step and time once, so that a later time rolls
    /// it back to the same step again. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Time>,
}
