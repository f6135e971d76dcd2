//! Low-rank adapters of the models that are trained.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Low-rank adapters (LoRA: Hu et al., arXiv 2106.09685). The weights of the model are frozen, and
/// a linear layer computes with W + `alpha` ÷ `rank` · B · A, of which A (`rank` rows) and B
/// (`rank` columns) are trained.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoraSpec {
    /// Rows of A and columns of B. Default 16.
    #[serde(default = "rank")]
    #[schemars(range(min = 1, max = 1024))]
    pub rank: u32,
    /// Scale of the adapters: their product is multiplied by `alpha` ÷ `rank`. Default 32.
    #[serde(default = "alpha")]
    #[schemars(range(min = 0.001, max = 1_000_000.0))]
    pub alpha: f64,
    /// Probability with which an element of an adapter's input is 0 in the passes of an update; the
    /// others are multiplied by 1 ÷ (1 − `dropout`). Engines, evaluations and passes without
    /// gradients have no dropout. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0.0, max = 0.9))]
    pub dropout: f64,
    /// Linear layers that have adapters, in every transformer layer. Default all of them.
    #[serde(default = "targets")]
    #[schemars(length(min = 1, max = 7), extend("x-kubernetes-list-type" = "set"))]
    pub targets: Vec<LoraTarget>,
}

/// Linear layer of a transformer layer.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraTarget {
    /// Queries of the attention.
    QProj,
    /// Keys of the attention.
    KProj,
    /// Values of the attention.
    VProj,
    /// Output of the attention.
    OProj,
    /// Gate of the feed-forward part.
    GateProj,
    /// Input of the feed-forward part.
    UpProj,
    /// Output of the feed-forward part.
    DownProj,
}

impl LoraTarget {
    /// All linear layers of attention and feed-forward part.
    pub const ALL: [Self; 7] = [
        Self::QProj,
        Self::KProj,
        Self::VProj,
        Self::OProj,
        Self::GateProj,
        Self::UpProj,
        Self::DownProj,
    ];

    /// Name of the module in transformers and PEFT.
    pub fn module(self) -> &'static str {
        match self {
            Self::QProj => "q_proj",
            Self::KProj => "k_proj",
            Self::VProj => "v_proj",
            Self::OProj => "o_proj",
            Self::GateProj => "gate_proj",
            Self::UpProj => "up_proj",
            Self::DownProj => "down_proj",
        }
    }
}

fn rank() -> u32 {
    16
}

fn alpha() -> f64 {
    32.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn targets() -> Vec<LoraTarget> {
    LoraTarget::ALL.to_vec()
}

impl Default for LoraSpec {
    fn default() -> Self {
        Self { rank: rank(), alpha: alpha(), dropout: 0.0, targets: targets() }
    }
}
