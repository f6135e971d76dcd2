//! Normalization of values by running moments of returns, as in AReaL before version 1
//! (`ExponentialRunningMeanStd`) and MAPPO (Yu et al., arXiv 2103.01955).
//!
//! ```text
//!  with the mean m and the mean of squares s of a step's returns over the tokens of all ranks:
//!    M ← decay · M + (1 − decay) · m        all begin with 0
//!    S ← decay · S + (1 − decay) · s        mean = M ÷ w
//!    w ← decay · w + (1 − decay)            std = √max(S ÷ w − mean², 0.01)
//!  value = mean + std · output of the critic, with the moments before the step; 0 and 1 before
//!    the first one
//!  target of the critic = (return − mean) ÷ std, with those after it
//! ```
//! The division by w removes the bias of the start. AReaL clips targets to ± 5; these are not
//! clipped, so that rare rewards do not bias the critic.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::ppo::ValueNormalization;
use rljob_protocol::checkpoint::RunningMoments;
use tch::{Kind, Tensor};

/// Smallest variance, in the square of the unit of rewards.
const MIN_VARIANCE: f64 = 0.01;

/// Mean, and mean of squares, of the returns of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMoments {
    pub mean: f64,
    pub square: f64,
}

/// Running moments of returns, the same on every rank.
#[derive(Clone, Debug)]
pub struct ValueNormalizer {
    decay: f64,
    pub moments: RunningMoments,
}

impl ValueNormalizer {
    /// Before the first step.
    pub fn new(spec: &ValueNormalization) -> Self {
        Self { decay: spec.decay, moments: RunningMoments::default() }
    }

    /// Adds the returns of a step, unless one of them was not finite.
    pub fn add(&mut self, step: StepMoments) {
        if !step.mean.is_finite() || !step.square.is_finite() {
            return;
        }
        let added = |before: f64, new: f64| self.decay * before + (1.0 - self.decay) * new;
        let RunningMoments { mean, square, weight } = self.moments;
        self.moments = RunningMoments {
            mean: added(mean, step.mean),
            square: added(square, step.square),
            weight: added(weight, 1.0),
        };
    }

    /// Mean and standard deviation; 0 and 1 before the first step.
    pub fn mean_and_std(&self) -> (f64, f64) {
        let RunningMoments { mean, square, weight } = self.moments;
        if weight <= 0.0 {
            return (0.0, 1.0);
        }
        let mean = mean / weight;
        (mean, (square / weight - mean * mean).max(MIN_VARIANCE).sqrt())
    }

    /// Values in the unit of rewards, fp32.
    pub fn values(&self, predictions_N: &Tensor) -> Tensor {
        let (mean, std) = self.mean_and_std();
        (predictions_N.to_kind(Kind::Double) * std + mean).to_kind(Kind::Float)
    }

    /// What the critic learns to predict for these returns, fp32.
    pub fn targets(&self, returns_N: &Tensor) -> Tensor {
        let (mean, std) = self.mean_and_std();
        ((returns_N.to_kind(Kind::Double) - mean) / std).to_kind(Kind::Float)
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::ppo::ValueNormalization;
    use rljob_protocol::checkpoint::RunningMoments;
    use tch::{Kind, Tensor};

    use super::{StepMoments, ValueNormalizer};

    fn close(found: &[f64], expected: &[f64]) {
        let near = found
            .iter()
            .zip(expected)
            .all(|(one, other)| (one - other).abs() < 1e-6 * other.abs().max(1.0));
        assert!(found.len() == expected.len() && near, "{found:?} is not {expected:?}");
    }

    fn doubles(tensor: &Tensor) -> Vec<f64> {
        Vec::try_from(tensor.to_kind(Kind::Double)).unwrap()
    }

    /// As a step adds them.
    fn add(normalizer: &mut ValueNormalizer, returns: &[f64]) {
        let mean =
            |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / returns.len() as f64;
        let square = mean(&mut returns.iter().map(|value| value * value));
        normalizer.add(StepMoments { mean: mean(&mut returns.iter().copied()), square });
    }

    #[test]
    fn moments_are_those_of_areals_exponential_running_mean_and_std() {
        // `update`, `mean_std`, `normalize` and `denormalize` of AReaL in float64 with beta 0.9.
        let mut normalizer = ValueNormalizer::new(&ValueNormalization { decay: 0.9 });
        add(&mut normalizer, &[1.0, 2.0, 4.0]);
        let (mean, std) = normalizer.mean_and_std();
        close(&[mean, std], &[7.0 / 3.0, (14.0_f64 / 9.0).sqrt()]);
        add(&mut normalizer, &[-1.0, 0.5]);
        // M = 0.9 · 0.7 / 3 − 0.025, S = 0.9 · 0.7 + 0.0625, w = 0.19
        let mean = 0.185 / 0.19;
        let std = (0.6925_f64 / 0.19 - mean * mean).sqrt();
        let (found_mean, found_std) = normalizer.mean_and_std();
        close(&[found_mean, found_std], &[mean, std]);
        close(&[mean, std], &[0.973_684_21, 1.642_155_87]);
        let returns = Tensor::from_slice(&[1.0_f32, 9.5]);
        let targets = normalizer.targets(&returns);
        // The second one is above AReaL's bound of 5.
        close(&doubles(&targets), &[0.016_025_15, 5.192_147_68]);
        close(&doubles(&normalizer.values(&targets)), &[1.0, 9.5]);
    }

    #[test]
    fn values_are_predictions_before_the_first_step() {
        let normalizer = ValueNormalizer::new(&ValueNormalization { decay: 0.99995 });
        let predictions = Tensor::from_slice(&[0.0_f32, -3.25]);
        assert_eq!(doubles(&normalizer.values(&predictions)), [0.0, -3.25]);
        assert_eq!(normalizer.moments, RunningMoments::default());
    }

    #[test]
    fn equal_returns_and_returns_that_are_not_finite_leave_a_usable_deviation() {
        let mut normalizer = ValueNormalizer::new(&ValueNormalization { decay: 0.5 });
        add(&mut normalizer, &[3.0, 3.0]);
        close(&[normalizer.mean_and_std().0, normalizer.mean_and_std().1], &[3.0, 0.1]);
        let before = normalizer.moments;
        add(&mut normalizer, &[f64::NAN]);
        add(&mut normalizer, &[f64::INFINITY]);
        assert_eq!(normalizer.moments, before);
    }
}
