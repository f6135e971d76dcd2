//! The weight that corrects for sampling with other log-probabilities than the learner's, and its
//! bounds.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Bounds of the behaviour weight exp(proximal − sampler's log-probability).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!has(self.lower) || self.lower <= self.upper")
        .message("lower must not exceed upper")
)]
#[x_kube(
    validation = Rule::new("self.action == 'Mask' || self.metric == 'Ratio'")
        .message("action Clamp bounds the weight itself: metric must be Ratio")
)]
pub struct BehaviorWeight {
    /// Whether the bounds are held against each token or against whole completions. Default Token.
    #[serde(default)]
    pub level: BehaviorLevel,
    /// What happens beyond the bounds. Default Mask.
    #[serde(default)]
    pub action: BehaviorAction,
    /// What is held against the bounds. Default Ratio.
    #[serde(default)]
    pub metric: BehaviorMetric,
    /// How a completion's tokens make one metric, for level Sequence; of Ratio the logarithms are
    /// aggregated. Default Mean.
    #[serde(default)]
    pub aggregation: BehaviorAggregation,
    /// Upper bound. Default 5.
    #[serde(default = "upper")]
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub upper: f64,
    /// Lower bound. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000.0, max = 1_000_000.0))]
    pub lower: Option<f64>,
}

fn upper() -> f64 {
    5.0
}

impl Default for BehaviorWeight {
    fn default() -> Self {
        Self {
            level: BehaviorLevel::default(),
            action: BehaviorAction::default(),
            metric: BehaviorMetric::default(),
            aggregation: BehaviorAggregation::default(),
            upper: upper(),
            lower: None,
        }
    }
}

/// What the bounds are held against.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorLevel {
    /// Each token.
    #[default]
    Token,
    /// Whole completions; of Ratio, all their tokens get the geometric mean as weight.
    Sequence,
}

/// What happens beyond the bounds.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorAction {
    /// No loss; the denominator stays.
    #[default]
    Mask,
    /// The weight is moved to the bound.
    Clamp,
}

/// What is held against the bounds, with d = proximal − sampler's log-probability.
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
}

/// How a completion's tokens make one metric.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BehaviorAggregation {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// The largest.
    Max,
}
