//! Settings of Generalized Advantage Estimation: its time steps, and λ as a function of their
//! number in a sample.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::union::{Union, exactly_one};

/// Time steps of a sample: δ, γ and λ are of each.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum GaeTimestep {
    /// Each trained token.
    #[default]
    Token,
    /// Each turn of a workflow: its reward is the sum of those of its tokens, its value that of its
    /// first token; all its tokens get its advantage and return. With klTerm Reward, the divergence
    /// of a token is a part of the advantage of that token only.
    Turn,
}

/// λ of a sample of L time steps. Exactly one of `length` and `relativePosition`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct AdaptiveLambda {
    /// λ = max(0, 1 − 1 ÷ (alpha · L)), which grows with the length (VAPO, arXiv 2504.05118).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<LengthLambda>,
    /// λ = retention^(1 ÷ (L − 1)): the first step gets this share of the last one's reward,
    /// whatever the length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_position: Option<PositionLambda>,
}

impl Union for AdaptiveLambda {
    const MEMBERS: &'static [&'static str] = &["length", "relativePosition"];
}

/// λ that grows with the length.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LengthLambda {
    /// The weights λˡ of later errors add up to about alpha · L. Default 0.05.
    #[serde(default = "alpha")]
    #[schemars(range(min = 0.000_001, max = 1_000_000.0))]
    pub alpha: f64,
}

/// λ with the same decay over a whole sample.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PositionLambda {
    /// λ to the power of L − 1.
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub retention: f64,
}

fn alpha() -> f64 {
    0.05
}
