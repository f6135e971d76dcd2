//! On-policy distillation (Agarwal et al., arXiv 2306.13649, with samples of the policy only and
//! the reverse KL divergence): policy gradient with one reward per token.
//!
//! ```text
//!  A = teacher's log-probability − policy's, of the sampled token, within ± 10
//!  loss of a token: that of `grpo` with the surrogate Clip and this A
//! ```
//! With ratios of 1, its gradient estimates that of KL(policy ‖ teacher) of the token given those
//! before it; the effect of a token on later ones is not credited to it. The teacher has the place
//! of the reference model.

use rljob_crds::algorithm::RolloutSpec;
use rljob_crds::algorithm::distillation::DistillationSpec;
use rljob_protocol::batch::SampleRow;
use tch::Kind;

use super::advantages::StepAdvantages;
use super::grpo::{Grpo, kl_rewards};
use super::interface::{Objective, PrepareError, Signal, SumOverRanks, TokenLoss};
use super::statistics::{Statistic, Statistics};
use super::streams::TokenStreams;
use crate::model::TokenLogprobs;

/// The objective with its settings.
#[derive(Clone, Debug)]
pub struct Distillation {
    policy: Grpo,
}

impl Distillation {
    /// The objective of valid settings.
    pub fn new(spec: &DistillationSpec, rollout: &RolloutSpec) -> Self {
        Self { policy: Grpo::new(&spec.grpo(), rollout) }
    }
}

impl Objective for Distillation {
    fn signals(&self, updates: u32) -> Vec<Signal> {
        self.policy.signals(updates)
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        self.policy.advantages(samples)
    }

    fn prepare(
        &mut self,
        _advantages: &StepAdvantages,
        streams: &mut [&mut TokenStreams],
        sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, PrepareError> {
        for streams in streams.iter_mut() {
            if let Some(rewards) = kl_rewards(&self.policy.spec, streams) {
                streams.advantages_N = rewards.to_kind(Kind::Float);
            }
        }
        Ok(self.policy.prepare_ratios(streams, sum)?)
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        self.policy.loss(policy, streams)
    }

    fn statistics(&self) -> Vec<Statistic> {
        self.policy.statistics()
    }

    fn derived(&self, reduced: &dyn Fn(&str) -> f64) -> Vec<(&'static str, f64)> {
        self.policy.derived(reduced)
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::RolloutSpec;
    use rljob_protocol::metrics::REFERENCE_KL;
    use serde_json::json;
    use tch::{Kind, Tensor};

    use super::Distillation;
    use crate::model::TokenLogprobs;
    use crate::objective::{Objective, Statistic, StepAdvantages, TokenStreams};

    /// Two tokens over three choices: the policy's logits, and the teacher's log-probabilities.
    const LOGITS: [f32; 6] = [0.5, -1.0, 0.25, 2.0, 0.0, -0.5];
    const TEACHER: [f32; 3] = [0.2, 0.5, 0.3];

    /// The derivative by the log-probability of the sampled tokens, and the reported divergence.
    fn derivative(tokens: [i64; 2]) -> (Tensor, f64) {
        let spec = json!({"teacher": {"path": "/t"}});
        let spec = serde_json::from_value(spec).unwrap();
        let mut objective = Distillation::new(&spec, &RolloutSpec::default());
        let tokens = Tensor::from_slice(&tokens).unsqueeze(1);
        let of = |logprobs: &Tensor| logprobs.gather(1, &tokens, false).squeeze_dim(1);
        let policy = of(&Tensor::from_slice(&LOGITS).view([2, 3]).log_softmax(-1, Kind::Float));
        let teacher = of(&Tensor::from_slice(&TEACHER).log().expand([2, 3], false));
        let mut streams = TokenStreams {
            sequence_N: Tensor::from_slice(&[0_i64, 0]),
            groups: vec![0],
            truncated: vec![false],
            sampler_logprobs_N: policy.shallow_clone(),
            advantages_N: Tensor::from_slice(&[7.0_f32, 7.0]),
            weights_N: Tensor::from_slice(&[1.0_f32, 1.0]),
            turn_rewards_N: None,
            turn_starts_M: None,
            reference_logprobs_N: Some(teacher),
            teacher: None,
            proximal_logprobs_N: None,
            values_N: None,
            end_values_Q: None,
            returns_N: None,
            behavior: None,
        };
        let advantages = StepAdvantages { samples: Vec::new(), groups: 1 };
        objective.prepare(&advantages, &mut [&mut streams], &|_| Ok(())).unwrap();
        let policy = TokenLogprobs::new(policy.shallow_clone(), policy.zeros_like());
        let loss = objective.loss(&policy, &streams);
        (loss.gradient_N, loss.statistics.get(Statistic::Mean(REFERENCE_KL)))
    }

    #[test]
    fn the_expected_gradient_is_that_of_the_reverse_kl_divergence_by_autograd() {
        let logits = Tensor::from_slice(&LOGITS).view([2, 3]).set_requires_grad(true);
        let logprobs = logits.log_softmax(-1, Kind::Float);
        let kl =
            (logprobs.exp() * (&logprobs - Tensor::from_slice(&TEACHER).log())).sum(Kind::Float);
        let expected = Tensor::run_backward(&[&kl], &[&logits], true, false).remove(0);
        // The mean over all samples of the policy of the gradient through the sampled tokens.
        let (mut gradient, mut divergence) = (logits.zeros_like(), 0.0);
        let probabilities = logprobs.exp().detach();
        for first in 0..3 {
            for second in 0..3 {
                let tokens = Tensor::from_slice(&[first, second]).unsqueeze(1);
                let of = |values: &Tensor| values.gather(1, &tokens, false).squeeze_dim(1);
                let (slope, sampled_kl) = derivative([first, second]);
                let share = of(&probabilities).prod(Kind::Float).double_value(&[]);
                let through = (of(&logprobs) * slope).sum(Kind::Float);
                gradient +=
                    Tensor::run_backward(&[through], &[&logits], true, false).remove(0) * share;
                divergence += share * sampled_kl;
            }
        }
        assert!(gradient.allclose(&expected, 1e-5, 1e-6, false), "{gradient}, {expected}");
        assert!((divergence - kl.double_value(&[])).abs() < 1e-5, "{divergence}, {kl}");
    }
}
