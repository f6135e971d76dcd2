//! Settings and capabilities of `orpo`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::capabilities::{Capabilities, DataKind, Signal};
use crate::rollout::RolloutSpec;

/// Settings of `orpo`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OrpoSpec {
    /// Pairs per step. Default 64.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
    /// Weight λ of the loss of the odds ratio beside that of the chosen completion; `beta` of TRL.
    /// Default 0.1.
    #[serde(default = "lambda")]
    #[schemars(range(min = 0.0001, max = 1000.0))]
    pub lambda: f64,
}

fn batch_size() -> u32 {
    64
}

fn lambda() -> f64 {
    0.1
}

impl Capabilities for OrpoSpec {
    fn name(&self) -> &'static str {
        "orpo"
    }

    fn data(&self) -> DataKind {
        DataKind::Pairs
    }

    fn batch_size(&self, _rollout: &RolloutSpec) -> u32 {
        self.batch_size
    }

    fn signals(&self, _rollout: &RolloutSpec, _updates: u32) -> Vec<Signal> {
        vec![Signal::Policy]
    }
}

impl Default for OrpoSpec {
    fn default() -> Self {
        Self { batch_size: batch_size(), lambda: lambda() }
    }
}
