//! Odds Ratio Preference Optimization (Hong et al., arXiv 2403.07691, equations 4, 6 and 7).
//!
//! ```text
//!  l(y)     mean over the tokens of completion y of their log-probabilities; p(y) = exp l(y)
//!  odds(y)  p(y) ÷ (1 − p(y))
//!  x        log odds(chosen) − log odds(rejected)
//!  loss     −l(chosen) − λ log σ(x)
//!           derivative by l(chosen)     −1 − λ (1 − σ(x)) ÷ (1 − p(chosen))
//!           derivative by l(rejected)   λ (1 − σ(x)) ÷ (1 − p(rejected))
//! ```
//! The loss is the mean over the pairs of a minibatch. The first term is that of completions, as in
//! the paper; TRL's includes the prompt. Rewards in statistics are λ l, as in TRL.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::orpo::OrpoSpec;
use rljob_crds::algorithm::{Capabilities, RolloutSpec};
use rljob_protocol::batch::SampleRow;
use rljob_protocol::metrics::{LOG_ODDS_RATIO, NEGATIVE_LOG_LIKELIHOOD};

use super::advantages::StepAdvantages;
use super::interface::{Objective, Signal, TokenLoss};
use super::pairs::{self, Pair, log_loss, pairs};
use super::statistics::{Statistic, Statistics};
use super::streams::{TokenStreams, doubles, fp32};
use crate::model::TokenLogprobs;

/// Statistics besides those of all pairs.
const STATISTICS: [Statistic; 2] =
    [Statistic::GroupMean(NEGATIVE_LOG_LIKELIHOOD), Statistic::GroupMean(LOG_ODDS_RATIO)];

/// Largest mean log-probability of which odds are computed, −2⁻²⁴: those of probability 1 are
/// infinite.
const MAX_LOGPROB: f64 = -5.960_464_477_539_063e-8;

/// The objective with its settings.
#[derive(Clone, Debug)]
pub struct Orpo {
    spec: OrpoSpec,
}

/// Loss of a pair with its derivatives.
struct PairLoss {
    loss: f64,
    log_odds_ratio: f64,
    /// By the mean log-probability of the chosen completion.
    by_chosen: f64,
    /// By the mean log-probability of the rejected completion.
    by_rejected: f64,
}

/// Logarithm of the odds of a completion with this mean log-probability, and its derivative.
fn log_odds(logprob: f64) -> (f64, f64) {
    let logprob = logprob.min(MAX_LOGPROB);
    let complement = -logprob.exp_m1();
    (logprob - complement.ln(), 1.0 / complement)
}

impl Orpo {
    /// The objective of valid settings.
    pub fn new(spec: &OrpoSpec) -> Self {
        Self { spec: spec.clone() }
    }

    /// Loss of completions with these mean log-probabilities.
    fn of_pair(&self, chosen: f64, rejected: f64) -> PairLoss {
        let [(of_chosen, by_chosen), (of_rejected, by_rejected)] = [chosen, rejected].map(log_odds);
        let log_odds_ratio = of_chosen - of_rejected;
        let (loss, _) = log_loss(log_odds_ratio);
        // 1 − σ(x), without rounding where σ(x) is almost 1.
        let (_, complement) = log_loss(-log_odds_ratio);
        let slope = self.spec.lambda * complement;
        PairLoss {
            loss: self.spec.lambda * loss - chosen,
            log_odds_ratio,
            by_chosen: -1.0 - slope * by_chosen,
            by_rejected: slope * by_rejected,
        }
    }
}

impl Objective for Orpo {
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
        let weights = doubles(&streams.weights_N);
        let mut gradient = vec![0.0; logprobs.len()];
        let (mut loss, mut rewards, mut sums) = (0.0, Vec::new(), [0.0; 2]);
        for Pair { chosen, rejected } in pairs(streams) {
            let [of_chosen, of_rejected] = [&chosen, &rejected].map(|tokens| {
                logprobs[tokens.clone()].iter().sum::<f64>() / tokens.len().max(1) as f64
            });
            let pair = self.of_pair(of_chosen, of_rejected);
            loss += weights[chosen.start] * pair.loss;
            sums[0] -= of_chosen;
            sums[1] += pair.log_odds_ratio;
            for (tokens, derivative) in [(chosen, pair.by_chosen), (rejected, pair.by_rejected)] {
                let of_token = derivative / tokens.len().max(1) as f64;
                for token in tokens {
                    gradient[token] = weights[token] * of_token;
                }
            }
            rewards.push([of_chosen, of_rejected].map(|logprob| self.spec.lambda * logprob));
        }
        let gradient_N = fp32(&gradient, policy.logprobs_N.device());
        let own = Statistics::new(STATISTICS.into_iter().zip(sums));
        let statistics = pairs::statistics(&rewards).plus(own);
        TokenLoss { gradient_N, selected: None, loss: loss.into(), statistics }
    }

    fn statistics(&self) -> Vec<Statistic> {
        pairs::STATISTICS.into_iter().chain(STATISTICS).collect()
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::orpo::OrpoSpec;
    use rljob_protocol::metrics::{
        CHOSEN_REWARD, LOG_ODDS_RATIO, NEGATIVE_LOG_LIKELIHOOD, PAIR_ACCURACY, PAIR_MARGIN,
        REJECTED_REWARD,
    };
    use tch::{Kind, Tensor};

    use super::Orpo;
    use crate::model::TokenLogprobs;
    use crate::objective::{Objective, Statistic, TokenStreams};

    /// Sequences of two pairs, the chosen one first.
    const SEQUENCES: [i64; 8] = [0, 0, 1, 1, 1, 2, 3, 3];
    /// Their means are −1.5, −1.25, −0.25 and −1.375.
    const LOGPROBS: [f32; 8] = [-1.0, -2.0, -0.5, -3.0, -0.25, -0.25, -2.0, -0.75];

    fn policy(logprobs: &[f32]) -> TokenLogprobs {
        let logprobs_N = Tensor::from_slice(logprobs);
        TokenLogprobs::new(logprobs_N.shallow_clone(), logprobs_N.zeros_like())
    }

    /// Streams of the pairs, a minibatch of two.
    fn streams() -> TokenStreams {
        let signs = SEQUENCES.map(|sequence| if sequence % 2 == 0 { 1.0_f32 } else { -1.0 });
        let advantages_N = Tensor::from_slice(&signs);
        TokenStreams {
            sequence_N: Tensor::from_slice(&SEQUENCES),
            groups: vec![0, 0, 1, 1],
            truncated: vec![false; 4],
            weights_N: advantages_N.full_like(0.5),
            sampler_logprobs_N: advantages_N.zeros_like(),
            advantages_N,
            turn_rewards_N: None,
            turn_starts_M: None,
            reference_logprobs_N: None,
            teacher: None,
            proximal_logprobs_N: None,
            values_N: None,
            end_values_Q: None,
            returns_N: None,
            behavior: None,
        }
    }

    fn orpo() -> Orpo {
        Orpo::new(&OrpoSpec { lambda: 0.5, batch_size: 2 })
    }

    /// Loss and derivatives by autograd, with the operations of TRL's
    /// `ORPOTrainer.odds_ratio_loss`.
    fn by_autograd() -> (f64, Tensor) {
        let logprobs_N = Tensor::from_slice(&LOGPROBS.map(f64::from)).set_requires_grad(true);
        let zeros_4 = Tensor::zeros([4], (Kind::Double, tch::Device::Cpu));
        let sums = |values_N: &Tensor| zeros_4.index_add(0, &streams().sequence_N, values_N);
        let means_22 = (sums(&logprobs_N) / sums(&logprobs_N.ones_like())).view([2, 2]);
        let odds_22 = &means_22 - means_22.exp().neg().log1p();
        let x_2 = odds_22.select(1, 0) - odds_22.select(1, 1);
        let loss = (-means_22.select(1, 0) - x_2.log_sigmoid() * 0.5).mean(Kind::Double);
        let gradient = Tensor::run_backward(&[&loss], &[&logprobs_N], false, false).remove(0);
        (loss.double_value(&[]), gradient)
    }

    #[test]
    fn the_loss_has_the_value_of_the_formula_and_the_derivatives_of_autograd() {
        let found = orpo().loss(&policy(&LOGPROBS), &streams());
        let (value, gradient_N) = by_autograd();
        // By Python's math.
        for expected in [1.116_609_591_863_722, value] {
            assert!((found.loss.value() - expected).abs() < 1e-15, "{}", found.loss.value());
        }
        let gradient_N = gradient_N.to_kind(Kind::Float);
        assert!(found.gradient_N.allclose(&gradient_N, 1e-6, 1e-7, false));
    }

    #[test]
    fn statistics_are_sums_over_pairs() {
        let found = orpo().loss(&policy(&LOGPROBS), &streams()).statistics;
        let of = |name| found.get(Statistic::GroupMean(name));
        // λ · −1.5, −0.25 and λ · −1.25, −1.375.
        let names = [PAIR_ACCURACY, PAIR_MARGIN, CHOSEN_REWARD, REJECTED_REWARD];
        assert_eq!(names.map(of).to_vec(), [1.0, 0.4375, -0.875, -1.3125]);
        assert_eq!(of(NEGATIVE_LOG_LIKELIHOOD).to_bits(), 1.75_f64.to_bits());
        let log_odds_ratio = of(LOG_ODDS_RATIO);
        assert!((log_odds_ratio - 2.007_119_057_568_392_6).abs() < 1e-14, "{log_odds_ratio}");
    }

    #[test]
    fn completions_of_probability_1_have_finite_odds() {
        for (certain, logprob) in [(0, 0.0), (1, 0.0), (2, 0.0), (0, -1e4)] {
            let mut logprobs = LOGPROBS;
            for (value, sequence) in logprobs.iter_mut().zip(SEQUENCES) {
                if certain == 2 || sequence % 2 == certain {
                    *value = logprob;
                }
            }
            let found = orpo().loss(&policy(&logprobs), &streams());
            let largest = found.gradient_N.abs().max().double_value(&[]);
            assert!(found.loss.value().is_finite() && largest < 1e7, "{found:?}");
        }
    }

    #[test]
    fn an_empty_micro_batch_has_no_loss() {
        let streams = TokenStreams { groups: Vec::new(), ..streams().narrow(&(0..0)) };
        let found = orpo().loss(&policy(&[]), &streams);
        assert_eq!((found.loss.value(), found.gradient_N.size()), (0.0, vec![0]));
    }
}
