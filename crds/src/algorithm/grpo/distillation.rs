//! Distillation beside rewards: the divergence from a teacher in the loss of `grpo`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::algorithm::teacher::JointTeacher;

/// Adds coefficient · KL(policy ‖ teacher) to the loss of rewards (KDRL, arXiv 2506.02208). The
/// divergence of a token is estimated by its log-probabilities.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JointDistillation {
    /// Model whose distribution the policy learns.
    pub teacher: JointTeacher,
    /// Factor of the divergence in nats. Default 0.005, as in AReaL.
    #[serde(default = "coefficient")]
    #[schemars(range(min = 0.000_001, max = 1000.0))]
    pub coefficient: f64,
}

fn coefficient() -> f64 {
    0.005
}
