//! How rewards and advantages are normalised.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// (value − mean) ÷ (standard deviation + epsilon).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NormalizationSpec {
    /// Whose mean is taken off. Default Group.
    #[serde(default)]
    pub mean: NormalizationMean,
    /// What the difference is divided by; `None` leaves it (Dr. GRPO, RLOO). Default Std.
    #[serde(default)]
    pub scale: NormalizationScale,
    /// Whose standard deviation. Default Group.
    #[serde(default)]
    pub scale_level: NormalizationLevel,
    /// The mean is of the other values only (RLOO, arXiv 2402.14740). Default false.
    #[serde(default)]
    pub leave_one_out: bool,
    /// The variance is divided by the number of values − 1. Default true.
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

/// Whose mean is taken off.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum NormalizationMean {
    /// The samples of the same prompt.
    #[default]
    Group,
    /// All samples of the step.
    Batch,
    /// No mean is subtracted.
    None,
}

/// What the difference from the mean is divided by.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum NormalizationScale {
    /// The standard deviation + epsilon.
    #[default]
    Std,
    /// 1.
    None,
}

/// Whose standard deviation.
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
