//! Normalization of rewards and advantages.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// (value − mean) ÷ (standard deviation + epsilon).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NormalizationSpec {
    /// Values whose mean is subtracted. Default Group.
    #[serde(default)]
    pub mean: NormalizationMean,
    /// Divisor of the difference; `None` does not divide (Dr. GRPO, RLOO). Default Std.
    #[serde(default)]
    pub scale: NormalizationScale,
    /// Values of the standard deviation. Default Group.
    #[serde(default)]
    pub scale_level: NormalizationLevel,
    /// Exclude the value itself from the mean (RLOO, arXiv 2402.14740). Default false.
    #[serde(default)]
    pub leave_one_out: bool,
    /// Divide the variance by the number of values − 1. Default true.
    #[serde(default = "yes")]
    pub unbiased: bool,
    /// Added to the standard deviation. Default 1e-5.
    #[serde(default = "epsilon")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub epsilon: f64,
}

fn yes() -> bool {
    true
}

fn epsilon() -> f64 {
    1e-5
}

impl Default for NormalizationSpec {
    fn default() -> Self {
        Self {
            mean: NormalizationMean::default(),
            scale: NormalizationScale::default(),
            scale_level: NormalizationLevel::default(),
            leave_one_out: false,
            unbiased: yes(),
            epsilon: epsilon(),
        }
    }
}

/// Values whose mean is subtracted.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum NormalizationMean {
    /// The samples of the same prompt.
    #[default]
    Group,
    /// All samples of the step.
    Batch,
    /// None.
    None,
}

/// Divisor of the difference from the mean.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum NormalizationScale {
    /// Standard deviation + epsilon.
    #[default]
    Std,
    /// 1.
    None,
}

/// Values of the standard deviation.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum NormalizationLevel {
    /// The samples of the same prompt.
    #[default]
    Group,
    /// All samples of the step.
    Batch,
}
