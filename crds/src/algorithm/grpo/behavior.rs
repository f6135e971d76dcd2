//! Behavior weight: importance weight between the sampler and the proximal policy, with bounds.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Bounds of the behavior weight exp(proximal − sampler log-probability).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.lower) || self.lower <= (has(self.upper) ? self.upper : 5.0)")
        .message("lower must not exceed upper")
)]
#[x_kube(
    validation = Rule::new("self.metric == 'Ratio' || has(self.upper)")
        .message("upper must be set: only metric Ratio has a default")
)]
#[x_kube(
    validation = Rule::new("self.action == 'Mask' || self.metric == 'Ratio'")
        .message("action Clamp bounds the weight itself: metric must be Ratio")
)]
pub struct BehaviorWeight {
    /// Level at which the bounds apply. Default Token.
    #[serde(default)]
    pub level: BehaviorLevel,
    /// Action outside the bounds. Default Mask.
    #[serde(default)]
    pub action: BehaviorAction,
    /// Metric that is compared with the bounds. Default Ratio.
    #[serde(default)]
    pub metric: BehaviorMetric,
    /// Aggregation of the metric over the tokens of a completion, for level Sequence. For Ratio,
    /// the logarithms are aggregated. Default Mean.
    #[serde(default)]
    pub aggregation: BehaviorAggregation,
    /// Upper bound. Default 5 for metric Ratio, as in AReaL; another metric needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub upper: Option<f64>,
    /// Lower bound. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub lower: Option<f64>,
}

/// Upper bound of ratios.
const UPPER: f64 = 5.0;

impl BehaviorWeight {
    /// The upper bound of a valid spec.
    pub fn upper(&self) -> f64 {
        self.upper.unwrap_or(UPPER)
    }
}

/// Level at which the bounds apply.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorLevel {
    /// Each token.
    #[default]
    Token,
    /// Whole completions. For Ratio, all tokens get the geometric mean as weight.
    Sequence,
}

/// Action outside the bounds.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorAction {
    /// Loss 0; the denominator of the mean does not change.
    #[default]
    Mask,
    /// Weight clamped to the bound.
    Clamp,
}

/// Metric that is compared with the bounds, with d = proximal − sampler log-probability.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorMetric {
    /// eᵈ, the weight.
    #[default]
    Ratio,
    /// d.
    K1,
    /// d² ÷ 2.
    K2,
    /// e⁻ᵈ − 1 + d.
    K3,
    /// KL divergence between drawing and not drawing the token, the larger of both directions
    /// (KPop).
    BinaryKL,
}

/// Aggregation of a metric over the tokens of a completion.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorAggregation {
    /// Mean.
    #[default]
    Mean,
    /// Sum.
    Sum,
    /// Maximum.
    Max,
}
