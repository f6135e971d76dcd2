//! Checkpoints and intermediate exports.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Interval, number and export of checkpoints.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Steps between checkpoints. The last step always writes one. Default 20.
    #[serde(default = "checkpoint_every_steps")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every_steps: u32,
    /// Complete checkpoints to keep; older ones are deleted. Default 3.
    #[serde(default = "keep_last")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: u32,
    /// Steps between intermediate exports of the model to `exports/step-N` in the run directory. An
    /// export is complete when it contains `complete.json`; the newest `keepLast` are kept. The
    /// final export is `export`. Default no intermediate exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub export_every_steps: Option<u32>,
}

fn checkpoint_every_steps() -> u32 {
    20
}

fn keep_last() -> u32 {
    3
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            every_steps: checkpoint_every_steps(),
            keep_last: keep_last(),
            export_every_steps: None,
        }
    }
}
