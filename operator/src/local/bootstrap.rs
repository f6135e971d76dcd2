//! Bootstrap interval of a mean of paired differences. Pure.
//!
//! With dᵢ the difference of two runs on prompt i of n, each resample draws n of the dᵢ with
//! replacement and takes their mean. The interval is between the 2.5 % and 97.5 % quantiles of the
//! resampled means: the percentile interval of Efron and Tibshirani, "An Introduction to the
//! Bootstrap", 1993, section 13.3, for pairs as in Koehn, "Statistical Significance Tests for
//! Machine Translation Evaluation", 2004. Both runs see the same resamples of prompts, so the
//! variance between prompts, which both share, does not widen the interval.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

/// Resamples, if their draws are at most [`MAX_DRAWS`].
const RESAMPLES: u64 = 10_000;
/// Fewest resamples.
const MIN_RESAMPLES: u64 = 1_000;
/// Draws of all resamples beyond which there are fewer: about a second.
const MAX_DRAWS: u64 = 1 << 26;
/// Quantiles of the bounds, as parts of 1: 95 % are between them.
const BOUNDS: [f64; 2] = [0.025, 0.975];

/// A mean difference with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interval {
    /// Mean difference.
    pub mean: f64,
    /// Lower bound of the 95 % interval.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Differences.
    pub prompts: u64,
    /// Resamples.
    pub resamples: u64,
}

/// Interval of the mean of `differences`, by resamples of this seed. None for fewer than two.
pub fn interval(differences: &[f64], seed: u64) -> Option<Interval> {
    let prompts = u32::try_from(differences.len()).ok().filter(|prompts| *prompts > 1)?;
    let resamples = num_resamples(prompts);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        // Multiply-shift maps 32 random bits to 0..prompts with a bias below prompts ÷ 2³².
        let at = u64::from(random.next_u32()).saturating_mul(prompts.into()) >> 32;
        differences.get(at as usize).copied().unwrap_or_default()
    };
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| (0..prompts).map(|_| draw()).sum::<f64>() / f64::from(prompts))
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let [low, high] = BOUNDS.map(|part| quantile(&means, part));
    let mean = differences.iter().sum::<f64>() / f64::from(prompts);
    Some(Interval { mean, low: low?, high: high?, prompts: prompts.into(), resamples })
}

fn num_resamples(prompts: u32) -> u64 {
    let most = MAX_DRAWS.checked_div(prompts.into()).unwrap_or(RESAMPLES);
    most.clamp(MIN_RESAMPLES, RESAMPLES)
}

/// Linear interpolation between the closest ranks, as NumPy's default.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let rank = part * sorted.len().checked_sub(1)? as f64;
    let below = sorted.get(rank.floor() as usize)?;
    let above = sorted.get(rank.ceil() as usize)?;
    Some(below + (above - below) * rank.fract())
}

#[cfg(test)]
mod tests {
    use super::{interval, num_resamples, quantile};

    /// `scipy.stats.bootstrap((d,), numpy.mean, n_resamples=1_000_000, method="percentile")` of
    /// SciPy 1.17.1 for the same differences. Resampled means are multiples of 1 ÷ 480.
    #[test]
    fn the_interval_is_that_of_scipy() {
        let difference = |prompt: u32| match prompt * 7 % 20 {
            0..=2 => -1.0,
            3..=12 => 0.0,
            13..=14 => 0.25,
            _ => 1.0,
        };
        let differences: Vec<f64> = (0..120).map(difference).collect();
        let found = interval(&differences, 0).unwrap();
        assert_eq!((found.mean, found.prompts, found.resamples), (0.125, 120, 10_000));
        assert!((found.low - 0.0125).abs() <= 2.0 / 480.0, "{found:?}");
        assert!((found.high - 0.235_416_666_666_666_66).abs() <= 2.0 / 480.0, "{found:?}");
    }

    #[test]
    fn the_seed_selects_the_resamples() {
        let differences: Vec<f64> = (0..50).map(|prompt| f64::from(prompt).sqrt()).collect();
        assert_eq!(interval(&differences, 0), interval(&differences, 0));
        assert_ne!(interval(&differences, 0), interval(&differences, 1));
    }

    /// The resampled means of n zeros and ones, of which c are ones, have the distribution
    /// Binomial(n, c ÷ n) ÷ n, whose quantiles are from `scipy.stats.binom.ppf`.
    #[test]
    fn the_interval_of_zeros_and_ones_has_binomial_quantiles() {
        for (ones, low, high) in [(200, 180.0, 220.0), (40, 29.0, 52.0)] {
            let differences: Vec<f64> =
                (0..400).map(|prompt| f64::from(u8::from(prompt < ones))).collect();
            let found = interval(&differences, 7).unwrap();
            let near = |bound: f64, expected: f64| (bound * 400.0 - expected).abs() <= 1.0;
            assert!(near(found.low, low) && near(found.high, high), "{found:?}");
        }
    }

    #[test]
    fn many_prompts_have_fewer_resamples_and_one_has_no_interval() {
        assert_eq!(interval(&[0.5], 0), None);
        assert_eq!([120, 20_000, 1_000_000].map(num_resamples), [10_000, 3355, 1000]);
    }

    #[test]
    fn quantiles_are_interpolated() {
        let values = [1.0, 2.0, 4.0, 8.0, 9.0];
        let near =
            |part, expected: f64| (quantile(&values, part).unwrap() - expected).abs() < 1e-12;
        assert!(near(0.025, 1.1) && near(0.975, 8.9) && near(0.5, 4.0));
    }
}
