//! Settings of `rewardModel`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Settings of `rewardModel`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModelSpec {
    /// Pairs per step. Default 64.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
}

fn batch_size() -> u32 {
    64
}
