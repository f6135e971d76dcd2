//! What the losses of a step need beside its passes' own log-probabilities. Every rank makes the
//! same passes and sums in the same order.
//!
//! ```text
//!  reference model ──▶ KL off the rewards (of the sampler's log-probabilities) ──▶ advantages normalised over tokens
//!  learner before the first update, or the sampler ──▶ proximal ──▶ behaviour weights
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::grpo::{BehaviorLevel, GrpoSpec, KlTerm, NormalizationSpec, ProximalLogprobs};
use tch::{Kind, Tensor};

use super::{Prepared, StepError, Trainer};
use crate::algorithm::behavior;
use crate::algorithm::grpo::LossSums;
use crate::algorithm::kl;
use crate::algorithm::normalization::{Grouped, Totals, normalized, squares, totals};
use crate::micro_batch::MicroBatch;
use crate::pulse;

impl Trainer {
    /// Fills in reference, proximal and behaviour of every micro-batch and finishes the advantages.
    /// Returns how far the learner is from the sampler, if a pass before the first update tells.
    pub(super) fn prepare(
        &mut self,
        prepared: &mut Prepared<'_>,
        minibatches: u32,
    ) -> Result<Option<LossSums>, StepError> {
        let Some(grpo) = &prepared.grpo else { return Ok(None) };
        let micro_batches = &mut prepared.micro_batches;
        self.reference(micro_batches)?;
        if grpo.kl_term == KlTerm::Reward {
            for micro_batch in micro_batches.iter_mut() {
                penalize(grpo, micro_batch);
            }
        }
        if let Some(spec) = &grpo.advantage_normalization {
            self.normalize(spec, prepared.table.groups, micro_batches)?;
        }
        let before = self.proximal(grpo, minibatches, micro_batches)?;
        if let Some(bounds) = &grpo.behavior_weight {
            for micro_batch in micro_batches {
                let weights = |proximal_N| {
                    behavior::weights(
                        bounds,
                        proximal_N,
                        &micro_batch.sampler_logprobs_N,
                        micro_batch.packed.sequence_N(),
                    )
                };
                micro_batch.behavior = micro_batch.proximal_logprobs_N.as_ref().map(weights);
            }
        }
        Ok(before)
    }

    /// The reference model's log-probabilities, if there is one.
    fn reference(&mut self, micro_batches: &mut [MicroBatch]) -> Result<(), StepError> {
        let temperature = self.temperature();
        let Some(reference) = &mut self.reference else { return Ok(()) };
        for micro_batch in micro_batches {
            pulse::advance();
            micro_batch.reference_logprobs_N =
                Some(self.model.logprobs(reference, &micro_batch.packed, temperature)?.logprobs_N);
        }
        Ok(())
    }

    /// Log-probabilities that ratios are taken against: a pass of its own where later passes cannot
    /// tell them.
    fn proximal(
        &mut self,
        grpo: &GrpoSpec,
        minibatches: u32,
        micro_batches: &mut [MicroBatch],
    ) -> Result<Option<LossSums>, StepError> {
        let sequences = grpo
            .behavior_weight
            .as_ref()
            .is_some_and(|bounds| bounds.level == BehaviorLevel::Sequence);
        let (temperature, mut before) = (self.temperature(), LossSums::default());
        for micro_batch in micro_batches {
            pulse::advance();
            let sampler_N = &micro_batch.sampler_logprobs_N;
            let logprobs_N = match grpo.proximal_logprobs {
                ProximalLogprobs::Sampler => sampler_N.shallow_clone(),
                ProximalLogprobs::Recompute if minibatches <= 1 && !sequences => return Ok(None),
                ProximalLogprobs::Recompute => {
                    self.model
                        .logprobs(&mut self.parameters, &micro_batch.packed, temperature)?
                        .logprobs_N
                }
            };
            before = before.plus(LossSums::mismatch(&logprobs_N, sampler_N));
            micro_batch.proximal_logprobs_N = Some(logprobs_N);
        }
        Ok((grpo.proximal_logprobs == ProximalLogprobs::Recompute).then_some(before))
    }

    /// Normalises the advantages over the trainable tokens of all ranks.
    fn normalize(
        &self,
        spec: &NormalizationSpec,
        groups: usize,
        micro_batches: &mut [MicroBatch],
    ) -> Result<(), StepError> {
        let values: Vec<Vec<Grouped>> = micro_batches.iter().map(grouped).collect();
        let all: Vec<Grouped> = values.concat();
        let mut parts = totals(&all, groups);
        self.ranks.sum_slice(&mut parts)?;
        let totals = Totals::new(parts);
        let mut about = squares(spec, &all, &totals);
        self.ranks.sum_slice(&mut about)?;
        for (micro_batch, values) in micro_batches.iter_mut().zip(&values) {
            micro_batch.advantages_N = fp32(&normalized(spec, values, &totals, &about));
        }
        Ok(())
    }
}

/// Takes the divergence from the reference model off the advantages.
fn penalize(grpo: &GrpoSpec, micro_batch: &mut MicroBatch) {
    let Some(reference_N) = &micro_batch.reference_logprobs_N else { return };
    let (estimates_N, _) =
        kl::estimate(grpo.kl_estimator, &micro_batch.sampler_logprobs_N, reference_N);
    let penalties = kl::penalties(
        grpo.kl_coefficient,
        &doubles(&estimates_N),
        &indices(micro_batch.packed.sequence_N()),
    );
    micro_batch.advantages_N = &micro_batch.advantages_N - fp32(&penalties);
}

/// The advantage and the group of every trained token.
fn grouped(micro_batch: &MicroBatch) -> Vec<Grouped> {
    let group = |sequence: i64| micro_batch.groups[sequence as usize];
    doubles(&micro_batch.advantages_N)
        .into_iter()
        .zip(indices(micro_batch.packed.sequence_N()).into_iter().map(group))
        .collect()
}

fn fp32(values: &[f64]) -> Tensor {
    Tensor::from_slice(values).to_kind(Kind::Float)
}

fn doubles(tensor_N: &Tensor) -> Vec<f64> {
    let mut values = vec![0.0; tensor_N.numel()];
    tensor_N.to_kind(Kind::Double).copy_data(&mut values, tensor_N.numel());
    values
}

fn indices(tensor_N: &Tensor) -> Vec<i64> {
    let mut values = vec![0; tensor_N.numel()];
    tensor_N.copy_data(&mut values, tensor_N.numel());
    values
}
