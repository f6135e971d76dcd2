//! Behavior weight of the decoupled loss (Fu et al., arXiv 2505.24298): exp(proximal − sampler's
//! log-probability), masked or clamped beyond its bounds.
//!
//! With d = proximal − sampler (0 where it is not finite), a token is within bounds if lower ≤
//! metric ≤ upper. At level Sequence, the metric is that of the whole completion. For Ratio, it is
//! exp of the aggregated d, and the weight of every token is exp of the mean d.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::grpo::{
    BehaviorAction, BehaviorAggregation, BehaviorLevel, BehaviorMetric, BehaviorWeight,
};
use tch::{Kind, Tensor};

/// Weights of N tokens; constants of the loss.
#[derive(Debug)]
pub struct Weights {
    /// `[N]` factor of the loss, 0 where masked.
    pub weight_N: Tensor,
    /// `[N]` whether the token was masked or its weight clamped.
    pub bounded_N: Tensor,
}

/// The weights of tokens whose sequences are given by `sequence_N` (whole sequences, for level
/// Sequence).
pub fn weights(
    spec: &BehaviorWeight,
    proximal_N: &Tensor,
    sampler_N: &Tensor,
    sequence_N: &Tensor,
) -> Weights {
    let difference_N = (proximal_N - sampler_N).nan_to_num(0.0, 0.0, 0.0);
    let metric_N = match spec.metric {
        BehaviorMetric::Ratio | BehaviorMetric::K1 => difference_N.shallow_clone(),
        BehaviorMetric::K2 => difference_N.square() / 2.0,
        BehaviorMetric::K3 => difference_N.neg().exp() - 1.0 + &difference_N,
        BehaviorMetric::BinaryKL => binary_kl(proximal_N, sampler_N),
    };
    let by_sequence = spec.level == BehaviorLevel::Sequence;
    let metric_N =
        if by_sequence { aggregated(spec.aggregation, &metric_N, sequence_N) } else { metric_N };
    let ratio = spec.metric == BehaviorMetric::Ratio;
    let metric_N = if ratio { metric_N.exp() } else { metric_N };
    let mean = by_sequence && ratio;
    let weight_N = if mean {
        aggregated(BehaviorAggregation::Mean, &difference_N, sequence_N)
    } else {
        difference_N
    }
    .exp();
    let beyond_N =
        metric_N.gt(spec.upper()).logical_or(&metric_N.lt(spec.lower.unwrap_or(f64::NEG_INFINITY)));
    match spec.action {
        BehaviorAction::Mask => Weights {
            weight_N: weight_N.where_self(&beyond_N.logical_not(), &weight_N.zeros_like()),
            bounded_N: beyond_N,
        },
        BehaviorAction::Clamp => {
            let clamped_N = weight_N
                .clamp(spec.lower.unwrap_or(0.0), spec.upper())
                .where_self(&beyond_N, &weight_N);
            Weights { bounded_N: clamped_N.ne_tensor(&weight_N), weight_N: clamped_N }
        }
    }
}

/// The larger of KL(p ‖ q) and KL(q ‖ p) of the Bernoulli distributions with the probabilities of
/// the token.
fn binary_kl(one_N: &Tensor, other_N: &Tensor) -> Tensor {
    // fp64, because 1 − p of a likely token is rounded in fp32.
    let probability =
        |logprobs_N: &Tensor| logprobs_N.to_kind(Kind::Double).exp().clamp(1e-8, 1.0 - 1e-8);
    let (one_N, other_N) = (probability(one_N), probability(other_N));
    let drawn_N = (&one_N / &other_N).log();
    let not_drawn_N = (one_N.ones_like() - &one_N).log() - (other_N.ones_like() - &other_N).log();
    let expected = |p_N: &Tensor| p_N * &drawn_N + (p_N.ones_like() - p_N) * &not_drawn_N;
    expected(&one_N).maximum(&expected(&other_N).neg()).to_kind(Kind::Float)
}

/// The aggregate of each token's sequence, at the token.
pub(super) fn aggregated(
    aggregation: BehaviorAggregation,
    values_N: &Tensor,
    sequence_N: &Tensor,
) -> Tensor {
    if values_N.numel() == 0 {
        return values_N.shallow_clone();
    }
    let sequences = sequence_N.max().int64_value(&[]) + 1;
    let zeros = Tensor::zeros([sequences], (values_N.kind(), values_N.device()));
    let of_sequence = match aggregation {
        BehaviorAggregation::Sum => zeros.index_add(0, sequence_N, values_N),
        BehaviorAggregation::Mean => {
            zeros.index_add(0, sequence_N, values_N)
                / zeros.index_add(0, sequence_N, &values_N.ones_like()).clamp_min(1.0)
        }
        BehaviorAggregation::Max => largest(values_N, sequence_N, sequences),
    };
    of_sequence.to_kind(Kind::Float).index_select(0, sequence_N)
}

/// Maximum of each sequence.
fn largest(values_N: &Tensor, sequence_N: &Tensor, sequences: i64) -> Tensor {
    let of = |sequence| values_N.masked_fill(&sequence_N.ne(sequence), f64::NEG_INFINITY).max();
    Tensor::stack(&(0..sequences).map(of).collect::<Vec<_>>(), 0)
}

#[cfg(test)]
mod tests {
    use super::{Weights, weights};
    use rljob_crds::algorithm::grpo::{
        BehaviorAction, BehaviorAggregation, BehaviorLevel, BehaviorMetric, BehaviorWeight,
    };
    use tch::Tensor;

    /// AReaL's golden case without its masked token: d = −0.1, 0.4, 2.
    fn golden(spec: &BehaviorWeight, sequences: [i64; 3]) -> (Vec<f32>, Vec<bool>) {
        let (proximal, sampler) = (
            Tensor::from_slice(&[-1.2_f32, -1.5, -2.0]),
            Tensor::from_slice(&[-1.1_f32, -1.9, -4.0]),
        );
        let Weights { weight_N, bounded_N } =
            weights(spec, &proximal, &sampler, &Tensor::from_slice(&sequences));
        (Vec::try_from(weight_N).unwrap(), Vec::try_from(bounded_N).unwrap())
    }

    fn close(actual: &[f32], expected: &[f64]) {
        let near = actual.len() == expected.len()
            && actual.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() <= 1e-5);
        assert!(near, "{actual:?} is not {expected:?}");
    }

    #[test]
    fn tokens_beyond_the_upper_bound_are_masked_as_in_areals_golden_values() {
        let (weight, bounded) = golden(&BehaviorWeight::default(), [0, 0, 1]);
        close(&weight, &[0.904_837_4, 1.491_824_6, 0.0]);
        assert_eq!(bounded, [false, false, true]);
    }

    #[test]
    fn clamped_weights_are_moved_to_the_nearer_bound() {
        let spec = BehaviorWeight {
            action: BehaviorAction::Clamp,
            upper: Some(2.0),
            lower: Some(1.0),
            ..BehaviorWeight::default()
        };
        let (weight, bounded) = golden(&spec, [0, 0, 1]);
        close(&weight, &[1.0, 1.491_824_6, 2.0]);
        assert_eq!(bounded, [true, false, true]);
    }

    #[test]
    fn a_lower_bound_implements_icepop() {
        let spec = BehaviorWeight { lower: Some(0.95), ..BehaviorWeight::default() };
        assert_eq!(golden(&spec, [0, 0, 1]).1, [true, false, true]);
    }

    #[test]
    fn tokens_of_a_sequence_share_its_geometric_mean_and_bounds() {
        let spec = BehaviorWeight {
            level: BehaviorLevel::Sequence,
            upper: Some(2.0),
            ..BehaviorWeight::default()
        };
        let (weight, bounded) = golden(&spec, [0, 0, 1]);
        close(&weight, &[0.15_f64.exp(), 0.15_f64.exp(), 0.0]);
        assert_eq!(bounded, [false, false, true]);
        let sum = BehaviorWeight {
            aggregation: BehaviorAggregation::Sum,
            upper: Some(1.3),
            ..spec.clone()
        };
        assert_eq!(golden(&sum, [0, 0, 1]).1, [true, true, true]);
        let max = BehaviorWeight {
            aggregation: BehaviorAggregation::Max,
            upper: Some(1.45),
            ..spec.clone()
        };
        assert_eq!(golden(&max, [0, 0, 1]).1, [true, true, true]);
        let clamp = BehaviorWeight { action: BehaviorAction::Clamp, ..spec };
        close(&golden(&clamp, [0, 0, 1]).0, &[0.15_f64.exp(), 0.15_f64.exp(), 2.0]);
    }

    #[test]
    fn bounds_apply_to_the_metric_and_weights_remain_ratios() {
        let of = |metric, upper: f64| {
            golden(
                &BehaviorWeight { metric, upper: Some(upper), ..BehaviorWeight::default() },
                [0, 0, 1],
            )
            .1
        };
        assert_eq!(of(BehaviorMetric::K1, 0.3), [false, true, true]);
        assert_eq!(of(BehaviorMetric::K2, 0.07), [false, true, true]);
        assert_eq!(of(BehaviorMetric::K3, 0.08), [false, false, true]);
        let sequence = BehaviorWeight {
            level: BehaviorLevel::Sequence,
            metric: BehaviorMetric::K2,
            upper: Some(1.0),
            ..BehaviorWeight::default()
        };
        close(&golden(&sequence, [0, 0, 1]).0, &[0.904_837_4, 1.491_824_6, 0.0]);
    }

    #[test]
    fn the_binary_kl_bounds_the_change_of_a_probability() {
        let of = |upper: f64| {
            let spec = BehaviorWeight {
                metric: BehaviorMetric::BinaryKL,
                upper: Some(upper),
                ..Default::default()
            };
            golden(&spec, [0, 0, 1]).1
        };
        // With p = e^proximal and q = e^sampler: (0.301, 0.333), (0.223, 0.150), (0.135, 0.018);
        // the larger divergences are 0.002_339, 0.018_968 and 0.160_920.
        assert_eq!(of(0.002_3), [true, true, true]);
        assert_eq!(of(0.002_4), [false, true, true]);
        assert_eq!(of(0.019), [false, false, true]);
        assert_eq!(of(0.161), [false, false, false]);
    }

    #[test]
    fn a_difference_that_is_not_finite_counts_as_0() {
        let spec = BehaviorWeight::default();
        let infinite = Tensor::from_slice(&[f32::NEG_INFINITY]);
        let Weights { weight_N, bounded_N } =
            weights(&spec, &infinite, &infinite, &Tensor::from_slice(&[0_i64]));
        assert_eq!((weight_N.double_value(&[0]), bounded_N.int64_value(&[0])), (1.0, 0));
    }
}
