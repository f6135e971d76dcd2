//! Surrogate losses: how the loss of a token depends on its importance ratio.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Loss of a token with advantage A, importance ratio ρ and log-probability logp.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum Surrogate {
    /// max(−A ρ, −A clip(ρ)): no gradient beyond the bounds (PPO, arXiv 1707.06347).
    #[default]
    Clip,
    /// −clip(ρ) A logp with a constant clip(ρ): tokens beyond the bounds keep a bounded gradient
    /// (CISPO, arXiv 2506.13585).
    CISPO,
    /// −A (4 ÷ τ) sigmoid(τ (ρ − 1)): a smooth gate instead of bounds (SAPO, arXiv 2511.20347).
    SAPO,
    /// −A logp, without a ratio. Advantages are multiplied by the samples of the step ÷ those of
    /// groups with an advantage (GPG, arXiv 2504.02546).
    GPG,
}

/// Tokens over which the importance ratio is taken.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum RatioLevel {
    /// Each token.
    #[default]
    Token,
    /// Whole completions: the geometric mean of the ratios of their tokens, and the mean of their
    /// advantages (GSPO, arXiv 2507.18071).
    Sequence,
    /// As Sequence, but tokens keep their own advantages and gradients (GSPO-token).
    SequenceToken,
}

/// Temperatures τ of surrogate SAPO.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SapoSpec {
    /// τ of tokens with a positive advantage. Default 1.
    #[serde(default = "tau_positive")]
    #[schemars(range(min = 0.001, max = 1000.0))]
    pub tau_positive: f64,
    /// τ of other tokens: a larger one weakens their gradient sooner. Default 1.05.
    #[serde(default = "tau_negative")]
    #[schemars(range(min = 0.001, max = 1000.0))]
    pub tau_negative: f64,
}

fn tau_positive() -> f64 {
    1.0
}

fn tau_negative() -> f64 {
    1.05
}

impl Default for SapoSpec {
    fn default() -> Self {
        Self { tau_positive: tau_positive(), tau_negative: tau_negative() }
    }
}
