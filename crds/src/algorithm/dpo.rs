//! Settings and capabilities of `dpo`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::capabilities::{Capabilities, DataKind, FrozenModel, Signal};
use crate::rollout::RolloutSpec;

/// Settings of `dpo`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self.loss == 'Sigmoid' || self.labelSmoothing == 0.0")
        .message("labelSmoothing needs loss Sigmoid")
)]
pub struct DpoSpec {
    /// Pairs per step. Default 64.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
    /// Strength β of the penalty on the divergence from the reference model, which is the model
    /// before training. Default 0.1.
    #[serde(default = "beta")]
    #[schemars(range(min = 0.0001, max = 1000.0))]
    pub beta: f64,
    /// Loss of a pair. Default Sigmoid.
    #[serde(default)]
    pub loss: DpoLoss,
    /// Probability that the labels of a pair are swapped (conservative DPO). Default 0.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub label_smoothing: f64,
}

/// Loss of a pair, where Δ is how much more likely the policy made the chosen completion than the
/// rejected one, relative to the reference model.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum DpoLoss {
    /// −log σ(β Δ), with Δ of sums over the tokens of a completion (Rafailov et al., arXiv
    /// 2305.18290).
    #[default]
    Sigmoid,
    /// (Δ − 1 ÷ 2β)², with Δ of means over the tokens of a completion, as in TRL (Azar et al.,
    /// arXiv 2310.12036).
    Ipo,
}

fn batch_size() -> u32 {
    64
}

fn beta() -> f64 {
    0.1
}

impl Capabilities for DpoSpec {
    fn name(&self) -> &'static str {
        "dpo"
    }

    fn data(&self) -> DataKind {
        DataKind::Pairs
    }

    fn batch_size(&self, _rollout: &RolloutSpec) -> u32 {
        self.batch_size
    }

    fn signals(&self, _rollout: &RolloutSpec, _updates: u32) -> Vec<Signal> {
        vec![Signal::Reference, Signal::Policy]
    }

    fn frozen_model(&self) -> Option<FrozenModel> {
        Some(FrozenModel::Reference)
    }
}

impl Default for DpoSpec {
    fn default() -> Self {
        Self {
            batch_size: batch_size(),
            beta: beta(),
            loss: DpoLoss::default(),
            label_smoothing: 0.0,
        }
    }
}
