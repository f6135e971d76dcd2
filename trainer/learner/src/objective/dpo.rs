//! Direct Preference Optimization (Rafailov et al., arXiv 2305.18290) with label smoothing (cDPO,
//! ericmitchell.ai/cdpo.pdf), and IPO (Azar et al., arXiv 2310.12036).
//!
//! ```text
//!  r(y)     Σ over tokens of completion y of (logp − the reference's); of IPO, their mean, as
//!           in TRL
//!  Δ        r(chosen) − r(rejected)
//!  Sigmoid  −(1 − ε) log σ(βΔ) − ε log σ(−βΔ)
//!           derivative by Δ: β (σ(βΔ) − 1 + ε)
//!  Ipo      (Δ − 1 ÷ 2β)²                          derivative by Δ: 2 (Δ − 1 ÷ 2β)
//! ```
//! The loss is the mean over the pairs of a minibatch. Rewards in statistics are β r.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::dpo::{DpoLoss, DpoSpec};
use rljob_crds::algorithm::{Capabilities, RolloutSpec};
use rljob_protocol::batch::SampleRow;

use super::advantages::StepAdvantages;
use super::interface::{Objective, Signal, TokenLoss};
use super::pairs::{self, Pair, log_loss, pairs};
use super::statistics::Statistic;
use super::streams::{TokenStreams, doubles, fp32};
use crate::model::TokenLogprobs;

/// The objective with its settings.
#[derive(Clone, Debug)]
pub struct Dpo {
    spec: DpoSpec,
}

impl Dpo {
    /// The objective of valid settings.
    pub fn new(spec: &DpoSpec) -> Self {
        Self { spec: spec.clone() }
    }

    /// Loss of a pair with difference Δ, and its derivative by Δ.
    fn of_difference(&self, difference: f64) -> (f64, f64) {
        let DpoSpec { beta, label_smoothing, .. } = self.spec;
        match self.spec.loss {
            DpoLoss::Sigmoid => {
                let (loss, sigma) = log_loss(beta * difference);
                let (swapped, _) = log_loss(-beta * difference);
                let loss = (1.0 - label_smoothing) * loss + label_smoothing * swapped;
                (loss, beta * (sigma - 1.0 + label_smoothing))
            }
            DpoLoss::Ipo => {
                let error = difference - 0.5 / beta;
                (error * error, 2.0 * error)
            }
        }
    }

    /// Divisor of the sum over the tokens of a completion.
    fn divisor(&self, tokens: usize) -> f64 {
        match self.spec.loss {
            DpoLoss::Sigmoid => 1.0,
            DpoLoss::Ipo => tokens.max(1) as f64,
        }
    }
}

impl Objective for Dpo {
    fn signals(&self, updates: u32) -> Vec<Signal> {
        self.spec.signals(&RolloutSpec::default(), updates)
    }

    fn compared_samples(&self) -> Option<usize> {
        Some(2)
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::of_pairs(samples)
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        let logprobs = doubles(&policy.logprobs_N);
        let reference = streams.reference_logprobs_N.as_ref().map_or_else(Vec::new, doubles);
        let weights = doubles(&streams.weights_N);
        let mut gradient = vec![0.0; logprobs.len()];
        let (mut loss, mut rewards) = (0.0, Vec::new());
        for Pair { chosen, rejected } in pairs(streams) {
            let [of_chosen, of_rejected] = [&chosen, &rejected].map(|tokens| {
                let sum = |values: &[f64]| values[tokens.clone()].iter().sum::<f64>();
                (sum(&logprobs) - sum(&reference)) / self.divisor(tokens.len())
            });
            let (of_pair, derivative) = self.of_difference(of_chosen - of_rejected);
            loss += weights[chosen.start] * of_pair;
            for (tokens, sign) in [(chosen, 1.0), (rejected, -1.0)] {
                let of_token = sign * derivative / self.divisor(tokens.len());
                for token in tokens {
                    gradient[token] = weights[token] * of_token;
                }
            }
            rewards.push([self.spec.beta * of_chosen, self.spec.beta * of_rejected]);
        }
        let gradient_N = fp32(&gradient, policy.logprobs_N.device());
        TokenLoss {
            gradient_N,
            selected: None,
            loss: loss.into(),
            statistics: pairs::statistics(&rewards),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        pairs::STATISTICS.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::dpo::{DpoLoss, DpoSpec};
    use rljob_protocol::metrics::{CHOSEN_REWARD, PAIR_ACCURACY, PAIR_MARGIN, REJECTED_REWARD};
    use tch::{Kind, Tensor};

    use super::Dpo;
    use crate::model::TokenLogprobs;
    use crate::objective::{Objective, Statistic, TokenStreams};

    /// Tokens of two pairs of sequences, with their log-probabilities under policy and reference.
    const TOKENS: [(i64, f32, f32); 8] = [
        (0, -1.0, -1.25),
        (0, -2.0, -1.5),
        (1, -0.5, -0.75),
        (1, -3.0, -2.0),
        (1, -1.0, -1.0),
        (2, -0.25, -0.5),
        (3, -2.0, -1.5),
        (3, -0.75, -0.5),
    ];

    fn tensor(value: impl Fn(&(i64, f32, f32)) -> f32) -> Tensor {
        Tensor::from_slice(&TOKENS.iter().map(value).collect::<Vec<f32>>())
    }

    fn policy() -> TokenLogprobs {
        let logprobs_N = tensor(|token| token.1);
        TokenLogprobs::new(logprobs_N.shallow_clone(), logprobs_N.zeros_like())
    }

    /// Streams of the pairs, a minibatch of two.
    fn streams() -> TokenStreams {
        let zeros_N = tensor(|_| 0.0);
        TokenStreams {
            sequence_N: Tensor::from_slice(&TOKENS.map(|token| token.0)),
            groups: vec![0, 0, 1, 1],
            truncated: vec![false; 4],
            advantages_N: tensor(|token| if token.0 % 2 == 0 { 1.0 } else { -1.0 }),
            weights_N: tensor(|_| 0.5),
            turn_rewards_N: None,
            turn_starts_M: None,
            reference_logprobs_N: Some(tensor(|token| token.2)),
            sampler_logprobs_N: zeros_N,
            teacher: None,
            proximal_logprobs_N: None,
            values_N: None,
            end_values_Q: None,
            returns_N: None,
            behavior: None,
        }
    }

    fn dpo(loss: DpoLoss, label_smoothing: f64) -> Dpo {
        Dpo::new(&DpoSpec { loss, label_smoothing, beta: 2.0, batch_size: 2 })
    }

    /// Loss and derivatives by autograd, with the operations of TRL's `DPOTrainer.dpo_loss`.
    fn by_autograd(loss: DpoLoss, smoothing: f64) -> (f64, Tensor) {
        let logprobs_N = policy().logprobs_N.to_kind(Kind::Double).set_requires_grad(true);
        let ratio_N = &logprobs_N - tensor(|token| token.2);
        let sums = |values_N: &Tensor| {
            let zeros = Tensor::zeros([4], (Kind::Double, tch::Device::Cpu));
            zeros.index_add(0, &streams().sequence_N, values_N)
        };
        let (sums_4, lengths_4) = (sums(&ratio_N), sums(&ratio_N.ones_like()));
        let ratios_4 = if loss == DpoLoss::Ipo { sums_4 / lengths_4 } else { sums_4 };
        let ratios_22 = ratios_4.view([2, 2]);
        let difference_2 = ratios_22.select(1, 0) - ratios_22.select(1, 1);
        let loss_2 = match loss {
            DpoLoss::Sigmoid => {
                let x = difference_2 * 2.0;
                -x.log_sigmoid() * (1.0 - smoothing) - x.neg().log_sigmoid() * smoothing
            }
            DpoLoss::Ipo => (difference_2 - 0.25).square(),
        };
        let mean = loss_2.mean(Kind::Double);
        let gradient = Tensor::run_backward(&[&mean], &[&logprobs_N], false, false).remove(0);
        (mean.double_value(&[]), gradient)
    }

    #[test]
    fn losses_have_the_values_of_the_formulas_and_derivatives_of_autograd() {
        // Δ = 0.5 and 1 of sums; of means 0.125 and 0.625. Logarithms by Python's math.
        for (loss, smoothing, expected) in [
            (DpoLoss::Sigmoid, 0.0, 0.220_094_849_280_597_7),
            (DpoLoss::Sigmoid, 0.1, 0.370_094_849_280_597_7),
            (DpoLoss::Ipo, 0.0, 0.078_125),
        ] {
            let found = dpo(loss, smoothing).loss(&policy(), &streams());
            assert!(
                (found.loss.value() - expected).abs() < 1e-15,
                "{loss:?}: {}",
                found.loss.value()
            );
            let (value, gradient_N) = by_autograd(loss, smoothing);
            assert!((found.loss.value() - value).abs() < 1e-15, "{loss:?}: {value}");
            let gradient_N = gradient_N.to_kind(Kind::Float);
            assert!(found.gradient_N.allclose(&gradient_N, 1e-6, 1e-7, false), "{loss:?}");
        }
    }

    #[test]
    fn statistics_are_sums_over_pairs_of_rewards_relative_to_the_reference() {
        let found = dpo(DpoLoss::Sigmoid, 0.0).loss(&policy(), &streams()).statistics;
        let of = |name| found.get(Statistic::GroupMean(name));
        let names = [PAIR_ACCURACY, PAIR_MARGIN, CHOSEN_REWARD, REJECTED_REWARD];
        // β · −0.25, −0.75 and β · 0.25, −0.75.
        assert_eq!(names.map(of).to_vec(), [2.0, 3.0, 0.0, -3.0]);
    }

    #[test]
    fn an_empty_micro_batch_has_no_loss() {
        let none = TokenLogprobs {
            logprobs_N: policy().logprobs_N.narrow(0, 0, 0),
            entropy_N: policy().entropy_N.narrow(0, 0, 0),
            selected_NK: None,
        };
        let streams = TokenStreams { groups: Vec::new(), ..streams().narrow(&(0..0)) };
        let found = dpo(DpoLoss::Sigmoid, 0.0).loss(&none, &streams);
        assert_eq!((found.loss.value(), found.gradient_N.size()), (0.0, vec![0]));
    }
}
