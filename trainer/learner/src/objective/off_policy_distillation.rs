//! Off-policy distillation from the teacher's K most likely tokens at each token of given
//! completions: the forward KL divergence over these tokens and one for all others. The policy that
//! minimizes it has the teacher's probabilities of the K tokens; those of the K tokens alone,
//! renormalized, are biased (Anshumann et al., arXiv 2503.16870).
//!
//! ```text
//!  p, q   probabilities of teacher and policy at logits ÷ T; p_r, q_r of all others together
//!  KL   = Σ p log(p ÷ q) + p_r log(p_r ÷ q_r)        loss = Σ weight · T² · KL
//!  derivative of KL by logit ÷ T:  q − p of the K tokens,  q · (1 − p_r ÷ q_r) of others
//! ```
//! T² keeps the size of gradients (Hinton et al., arXiv 1503.02531). The derivatives of the others
//! are those of a loss (p_r ÷ q_r − 1) · log-probability of the target; its own derivative and
//! those of the K tokens are replaced: no `[tokens, vocabulary]` tensor besides the logits.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::distillation::OffPolicySpec;
use rljob_protocol::batch::SampleRow;
use rljob_protocol::metrics::{TEACHER_KL, TEACHER_MASS};
use tch::{Kind, Tensor};

use super::advantages::StepAdvantages;
use super::deferred::Deferred;
use super::interface::{Objective, Signal, TokenLoss};
use super::statistics::{Statistic, Statistics};
use super::streams::TokenStreams;
use crate::model::{SelectedGradient, TokenLogprobs, TopTokens};

/// Least probability of the rest: sums of probabilities in fp32 are not more exact.
const MIN_REST: f64 = 1e-7;

/// The objective with its settings.
#[derive(Clone, Debug)]
pub struct OffPolicyDistillation {
    spec: OffPolicySpec,
}

impl OffPolicyDistillation {
    /// The objective of valid settings.
    pub fn new(spec: &OffPolicySpec) -> Self {
        Self { spec: spec.clone() }
    }
}

impl Objective for OffPolicyDistillation {
    fn signals(&self, _updates: u32) -> Vec<Signal> {
        vec![Signal::TopTokens(self.spec.top_k)]
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::without_rewards(samples)
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        let (Some(teacher), Some(policy_NK)) = (&streams.teacher, &policy.selected_NK) else {
            return TokenLoss::none(&policy.logprobs_N);
        };
        let weights_N = &streams.weights_N * self.spec.temperature.powi(2);
        let tokens = Divergence::new(teacher, policy_NK);
        let gradient_N = &tokens.others_N * &weights_N;
        let selected = SelectedGradient {
            tokens_CK: teacher.tokens_NK.to_kind(Kind::Int64),
            logits_CK: &tokens.logits_NK * weights_N.unsqueeze(1),
            target_C: -(&gradient_N * policy.logprobs_N.exp()),
        };
        TokenLoss {
            loss: Deferred::sum(&(&tokens.kl_N * &weights_N)),
            statistics: Statistics::new([
                (Statistic::Mean(TEACHER_KL), Deferred::sum(&tokens.kl_N)),
                (Statistic::Mean(TEACHER_MASS), Deferred::sum(&tokens.mass_N)),
            ]),
            gradient_N,
            selected: Some(selected),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        [TEACHER_KL, TEACHER_MASS].map(Statistic::Mean).to_vec()
    }
}

/// Divergence of the policy from the teacher at each token.
struct Divergence {
    kl_N: Tensor,
    /// Probability of the K tokens under the teacher.
    mass_N: Tensor,
    /// Derivative by logit ÷ T of the K tokens.
    logits_NK: Tensor,
    /// `g` of the head for other tokens: their derivative is `−g · q`.
    others_N: Tensor,
}

impl Divergence {
    /// Of the log-probabilities of the teacher's tokens under the policy.
    fn new(teacher: &TopTokens, policy_NK: &Tensor) -> Self {
        let over_tokens =
            |values: &Tensor| values.sum_dim_intlist([-1].as_slice(), false, Kind::Float);
        let (p_NK, q_NK) = (teacher.logprobs_NK.exp(), policy_NK.exp());
        let mass_N = over_tokens(&p_NK);
        let rest_N = (mass_N.neg() + 1.0).clamp_min(0.0);
        let ratio_N = &rest_N / (over_tokens(&q_NK).neg() + 1.0).clamp_min(MIN_REST);
        let of_tokens_N = over_tokens(&(&p_NK * (&teacher.logprobs_NK - policy_NK)));
        Self {
            // p log p is 0 where p is.
            kl_N: of_tokens_N + rest_N.xlogy(&ratio_N),
            mass_N,
            logits_NK: q_NK - p_NK,
            others_N: ratio_N - 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::distillation::OffPolicySpec;
    use rljob_kernels::head::{Distribution, TokenGradient};
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::objective::TokenStreams;

    const VOCABULARY: i64 = 11;
    const TOKENS: i64 = 5;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    fn over_vocabulary(values: &Tensor) -> Tensor {
        values.sum_dim_intlist([-1].as_slice(), false, Kind::Float)
    }

    fn streams(teacher: TopTokens, weights_N: Tensor) -> TokenStreams {
        let zeros_N = weights_N.zeros_like();
        TokenStreams {
            sequence_N: zeros_N.to_kind(Kind::Int64),
            groups: vec![0],
            truncated: vec![false],
            sampler_logprobs_N: zeros_N.shallow_clone(),
            advantages_N: zeros_N,
            weights_N,
            turn_rewards_N: None,
            turn_starts_M: None,
            reference_logprobs_N: None,
            teacher: Some(teacher),
            proximal_logprobs_N: None,
            values_N: None,
            end_values_Q: None,
            returns_N: None,
            behavior: None,
        }
    }

    /// Loss, divergence and derivative by the policy's logits of the objective with a head.
    fn through_head(
        teacher: &Tensor,
        policy: &Tensor,
        weights_N: &Tensor,
        spec: &OffPolicySpec,
    ) -> (f64, f64, Tensor) {
        let (count, temperature) = (i64::from(spec.top_k), spec.temperature);
        let targets = Tensor::from_slice(&[0_i64, 3, 10, 7, 2]);
        let (logprobs_NK, tokens_NK) =
            (teacher / temperature).log_softmax(-1, Kind::Float).topk(count, -1, true, true);
        let read = policy.gather(-1, &tokens_NK, false);
        let teacher = TopTokens { tokens_NK: tokens_NK.to_kind(Kind::Int), logprobs_NK };
        let distribution = Distribution::new(&policy.copy(), &targets, temperature).unwrap();
        let tokens = TokenLogprobs {
            logprobs_N: distribution.logprobs_C.shallow_clone(),
            entropy_N: distribution.entropy_C.shallow_clone(),
            selected_NK: Some(distribution.logprobs_of(&read, temperature)),
        };
        let streams = streams(teacher, weights_N.shallow_clone());
        let loss = OffPolicyDistillation::new(spec).loss(&tokens, &streams);
        let gradient =
            TokenGradient { logprobs_C: loss.gradient_N, entropy_C: None, selected: loss.selected };
        let dlogits = distribution.logits_gradient(&targets, &gradient, temperature).unwrap();
        let kl = loss.statistics.get(Statistic::Mean(TEACHER_KL));
        (loss.loss.value(), kl, dlogits)
    }

    #[test]
    fn loss_and_derivative_match_autograd_with_the_rest_as_one_token() {
        let (teacher, weights) = (random(&[TOKENS, VOCABULARY]), random(&[TOKENS]).abs());
        let policy = random(&[TOKENS, VOCABULARY]).set_requires_grad(true);
        for (top_k, temperature) in [(1, 1.0), (4, 1.0), (4, 2.5), (8, 1.5)] {
            let spec = OffPolicySpec { top_k, temperature, batch_size: 1 };
            let p = (&teacher / temperature).softmax(-1, Kind::Float);
            let q = (&policy / temperature).softmax(-1, Kind::Float);
            let (_, tokens) = p.topk(top_k.into(), -1, true, true);
            let with_rest = |all: &Tensor| {
                let top = all.gather(-1, &tokens, false);
                let rest = over_vocabulary(&top).neg() + 1.0;
                Tensor::cat(&[top, rest.unsqueeze(1)], 1)
            };
            let (p_all, q_all) = (with_rest(&p), with_rest(&q));
            let kl = over_vocabulary(&(&p_all * (p_all.log() - q_all.log())));
            let expected = (&kl * &weights).sum(Kind::Float) * temperature.powi(2);
            let slope = Tensor::run_backward(&[&expected], &[&policy], true, false).remove(0);
            let (loss, found_kl, dlogits) =
                through_head(&teacher, &policy.detach(), &weights, &spec);
            let close = |found: f64, expected: &Tensor| {
                let expected = expected.sum(Kind::Double).double_value(&[]);
                assert!((found - expected).abs() < 1e-4 * expected.abs().max(1.0), "{found}");
            };
            close(loss, &expected);
            close(found_kl, &kl);
            assert!(dlogits.allclose(&slope, 1e-3, 1e-5, false), "{top_k}: {dlogits} {slope}");
        }
    }

    #[test]
    fn the_whole_vocabulary_gives_the_divergence_of_all_tokens() {
        let (teacher, weights) = (random(&[TOKENS, VOCABULARY]), random(&[TOKENS]).abs());
        let policy = random(&[TOKENS, VOCABULARY]);
        let spec = OffPolicySpec { top_k: VOCABULARY as u32, temperature: 1.0, batch_size: 1 };
        let (p, q) = (teacher.log_softmax(-1, Kind::Float), policy.log_softmax(-1, Kind::Float));
        let expected = over_vocabulary(&(p.exp() * (&p - &q)));
        let (_, kl, dlogits) = through_head(&teacher, &policy, &weights, &spec);
        assert!((kl - expected.sum(Kind::Double).double_value(&[])).abs() < 1e-4, "{kl}");
        let slope = (q.exp() - p.exp()) * weights.unsqueeze(1);
        assert!(dlogits.allclose(&slope, 1e-3, 1e-5, false), "{dlogits} {slope}");
    }

    #[test]
    fn equal_models_have_no_loss_and_a_certain_policy_has_a_finite_one() {
        let weights = Tensor::ones([TOKENS], (Kind::Float, Device::Cpu));
        let spec = OffPolicySpec { top_k: 3, temperature: 1.0, batch_size: 1 };
        let teacher = random(&[TOKENS, VOCABULARY]);
        let (loss, _, dlogits) = through_head(&teacher, &teacher, &weights, &spec);
        assert!(loss.abs() < 1e-5, "{loss}");
        assert!(dlogits.abs().max().double_value(&[]) < 1e-5, "{dlogits}");
        // The policy's rest has a probability of 0 in fp32.
        let certain = teacher.argmax(-1, true).onehot(VOCABULARY).squeeze_dim(1) * 200.0;
        let (loss, _, dlogits) = through_head(&teacher, &certain, &weights, &spec);
        assert!(loss.is_finite() && loss > 1.0, "{loss}");
        assert_eq!(dlogits.isfinite().all().int64_value(&[]), 1, "{dlogits}");
    }
}
