//! Pairs of a chosen and a rejected sample in a micro-batch: where their tokens are, the
//! Bradley-Terry loss −log σ(x), and statistics of the rewards that a loss compares.

use std::collections::BTreeMap;
use std::ops::Range;

use rljob_protocol::metrics::{CHOSEN_REWARD, PAIR_ACCURACY, PAIR_MARGIN, REJECTED_REWARD};

use super::statistics::{Statistic, Statistics};
use super::streams::{TokenStreams, doubles};

/// Statistics of pairs.
pub const STATISTICS: [Statistic; 4] = [
    Statistic::GroupMean(PAIR_ACCURACY),
    Statistic::GroupMean(PAIR_MARGIN),
    Statistic::GroupMean(CHOSEN_REWARD),
    Statistic::GroupMean(REJECTED_REWARD),
];

/// Tokens of a pair's chosen and rejected sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    pub chosen: Range<usize>,
    pub rejected: Range<usize>,
}

/// The pairs of a micro-batch, whose advantages are 1 for tokens of a chosen sample and −1 for
/// those of a rejected one; in order of prompt group.
pub fn pairs(streams: &TokenStreams) -> Vec<Pair> {
    let (sequences, signs) = (streams.sequences(), doubles(&streams.advantages_N));
    let mut pairs: BTreeMap<usize, Pair> = BTreeMap::new();
    let mut start = 0;
    for tokens in sequences.chunk_by(|one, next| one == next) {
        let range = start..start + tokens.len();
        start = range.end;
        let pair = pairs.entry(streams.groups[tokens[0] as usize]).or_default();
        let side = if signs[range.start] > 0.0 { &mut pair.chosen } else { &mut pair.rejected };
        *side = range;
    }
    pairs.into_values().collect()
}

/// Returns −log σ(x) and σ(x).
pub fn log_loss(x: f64) -> (f64, f64) {
    let loss = (-x.abs()).exp().ln_1p() - x.min(0.0);
    (loss, 1.0 / (1.0 + (-x).exp()))
}

/// Sums of [`STATISTICS`] over pairs with these rewards of the chosen and the rejected sample.
pub fn statistics(rewards: &[[f64; 2]]) -> Statistics {
    let mut sums = [0.0; 4];
    for [chosen, rejected] in rewards {
        let is_right = f64::from(u8::from(chosen > rejected));
        let of_pair = [is_right, chosen - rejected, *chosen, *rejected];
        sums.iter_mut().zip(of_pair).for_each(|(sum, value)| *sum += value);
    }
    Statistics::new(STATISTICS.into_iter().zip(sums))
}

#[cfg(test)]
mod tests {
    use super::log_loss;

    #[test]
    fn the_loss_is_exact_where_the_exponential_overflows_or_vanishes() {
        assert_eq!(log_loss(0.0), (std::f64::consts::LN_2, 0.5));
        assert_eq!(log_loss(-1000.0), (1000.0, 0.0));
        assert_eq!(log_loss(1000.0), (0.0, 1.0));
        // log1p(exp(-2)) of Python's math.
        let (loss, sigma) = log_loss(2.0);
        assert!((loss - 0.126_928_011_042_972_5).abs() < 1e-15, "{loss}");
        assert!((sigma - 0.880_797_077_977_882_3).abs() < 1e-15, "{sigma}");
    }
}
