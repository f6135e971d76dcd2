//! Normalization of advantages of `ppo`, over the batch by default.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::algorithm::grpo::{
    NormalizationLevel, NormalizationMean, NormalizationScale, NormalizationSpec,
};

/// (advantage − mean) ÷ (standard deviation + epsilon).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdvantageNormalization {
    /// Values whose mean is subtracted. Default Batch.
    #[serde(default = "mean")]
    pub mean: NormalizationMean,
    /// Divisor of the difference; `None` does not divide. Default Std.
    #[serde(default)]
    pub scale: NormalizationScale,
    /// Values of the standard deviation. Default Batch.
    #[serde(default = "level")]
    pub scale_level: NormalizationLevel,
    /// Exclude the value itself from the mean. Default false.
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

fn mean() -> NormalizationMean {
    NormalizationMean::Batch
}

fn level() -> NormalizationLevel {
    NormalizationLevel::Batch
}

fn yes() -> bool {
    true
}

fn epsilon() -> f64 {
    NormalizationSpec::default().epsilon
}

impl Default for AdvantageNormalization {
    fn default() -> Self {
        Self {
            mean: mean(),
            scale: NormalizationScale::default(),
            scale_level: level(),
            leave_one_out: false,
            unbiased: yes(),
            epsilon: epsilon(),
        }
    }
}

impl From<AdvantageNormalization> for NormalizationSpec {
    fn from(own: AdvantageNormalization) -> Self {
        let AdvantageNormalization { mean, scale, scale_level, leave_one_out, unbiased, epsilon } =
            own;
        Self { mean, scale, scale_level, leave_one_out, unbiased, epsilon }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::algorithm::ppo::PpoSpec;

    #[test]
    fn fields_that_are_left_out_have_the_defaults_of_ppo() {
        let of = |spec| {
            let spec: PpoSpec = serde_json::from_value(spec).unwrap();
            spec.grpo().advantage_normalization.unwrap()
        };
        let batch = NormalizationSpec {
            mean: NormalizationMean::Batch,
            scale_level: NormalizationLevel::Batch,
            ..NormalizationSpec::default()
        };
        assert_eq!(of(json!({})), batch);
        let epsilon = 1e-8;
        let partial = json!({"advantageNormalization": {"epsilon": epsilon}});
        assert_eq!(of(partial), NormalizationSpec { epsilon, ..batch });
    }
}
