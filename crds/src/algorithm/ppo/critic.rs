//! Settings of the critic of `ppo`: the value head, and the normalization of values.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Value head on the policy. It begins with zeros, and has the settings of `spec.optimizer` except
/// the learning rate. Its gradient and that of the policy's weights are clipped separately.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueHead {
    /// Coefficient c₁ of the loss of values in policy loss + c₁ · loss of values (Schulman et
    /// al., arXiv 1707.06347, equation 9). Default 0.1.
    #[serde(default = "loss_weight")]
    #[schemars(range(min = 0.000_001, max = 1000.0))]
    pub loss_weight: f64,
    /// Learning rate of the head after warm-up. Default that of `spec.optimizer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub learning_rate: Option<f64>,
}

/// Normalization of values, as in AReaL before version 1 (`ExponentialRunningMeanStd`) and MAPPO
/// (Yu et al., arXiv 2103.01955). The critic predicts (return − mean) ÷ standard deviation,
/// which is converted back for the estimation of advantages. Mean and variance are moving averages
/// over steps, without the bias of their start, and include the step that learns; the variance is
/// at least 0.01. Checkpoints contain them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueNormalization {
    /// Factor of the weight of each earlier step: near 1, all steps have the same weight. Default
    /// 0.99995.
    #[serde(default = "decay")]
    #[schemars(range(min = 0.0, max = 0.999_999_9))]
    pub decay: f64,
}

fn loss_weight() -> f64 {
    0.1
}

fn decay() -> f64 {
    0.99995
}
