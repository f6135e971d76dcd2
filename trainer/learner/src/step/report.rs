//! Sums of a step's passes as its metrics.

use rljob_crds::grpo::GrpoSpec;
use rljob_protocol::status::StepMetrics;

use super::{StepError, Trainer};
use crate::algorithm::grpo::LossSums;

/// Sums over the micro-batches of a minibatch or step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub loss: LossSums,
    pub entropy: f64,
}

impl Sums {
    pub fn plus(self, other: Self) -> Self {
        Self { loss: self.loss.plus(other.loss), entropy: self.entropy + other.entropy }
    }
}

impl Trainer {
    /// Per-token metrics of the step over all ranks. `before` is the mismatch with the sampler
    /// before the first of several updates.
    pub(super) fn report(
        &self,
        metrics: &mut StepMetrics,
        grpo: Option<&GrpoSpec>,
        sums: Sums,
        before: Option<LossSums>,
    ) -> Result<(), StepError> {
        let (loss, mismatch) = (sums.loss, before.unwrap_or(sums.loss));
        let sums = [
            sums.entropy,
            loss.clipped_upper,
            loss.clipped_lower,
            loss.clipped_dual,
            mismatch.kl,
            mismatch.mismatch,
        ];
        let [entropy, upper, lower, dual, kl, difference] = self.means(metrics, sums)?;
        let [reference_kl, weight, bounded] =
            self.means(metrics, [loss.reference_kl, loss.behavior_weight, loss.behavior_bounded])?;
        let largest = finite(self.ranks.max(mismatch.mismatch_max)?);
        metrics.entropy = entropy;
        let Some(grpo) = grpo else { return Ok(()) };
        metrics.clip_fraction = Some(upper + lower);
        metrics.clip_fraction_upper = Some(upper);
        metrics.clip_fraction_lower = Some(lower);
        metrics.clip_fraction_dual = grpo.c_clip.map(|_| dual);
        metrics.kl = Some(kl);
        metrics.mismatch_mean = Some(difference);
        metrics.mismatch_max = Some(largest);
        metrics.reference_kl = self.reference.as_ref().map(|_| reference_kl);
        metrics.behavior_weight = grpo.behavior_weight.as_ref().map(|_| weight);
        metrics.behavior_bounded = grpo.behavior_weight.as_ref().map(|_| bounded);
        Ok(())
    }

    /// Sums over the trainable tokens of all ranks, per token.
    fn means<const N: usize>(
        &self,
        metrics: &StepMetrics,
        sums: [f64; N],
    ) -> Result<[f64; N], StepError> {
        Ok(self
            .ranks
            .sum(sums)?
            .map(|total| finite(total / metrics.trainable_tokens.max(1) as f64)))
    }
}

/// JSON has no infinity.
fn finite(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-f64::MAX, f64::MAX) }
}
