//! Capabilities of `evaluation`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::capabilities::{Capabilities, DataKind};
use crate::rollout::RolloutSpec;

/// Settings of `evaluation`: none. What is evaluated is in `dataset.evaluation`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {}

impl Capabilities for EvaluationSpec {
    fn name(&self) -> &'static str {
        "evaluation"
    }

    fn data(&self) -> DataKind {
        DataKind::None
    }

    fn batch_size(&self, _rollout: &RolloutSpec) -> u32 {
        0
    }

    fn needs_reward(&self) -> bool {
        true
    }
}
