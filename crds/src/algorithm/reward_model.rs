//! Settings and capabilities of `rewardModel`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::capabilities::{Capabilities, DataKind};
use crate::rollout::RolloutSpec;

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

impl Capabilities for RewardModelSpec {
    fn name(&self) -> &'static str {
        "rewardModel"
    }

    fn data(&self) -> DataKind {
        DataKind::Pairs
    }

    fn batch_size(&self, _rollout: &RolloutSpec) -> u32 {
        self.batch_size
    }

    fn trains_scores(&self) -> bool {
        true
    }
}
