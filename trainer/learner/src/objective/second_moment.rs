//! Limit of the second moment of the importance weights (M2PO: Zheng et al., arXiv 2510.01161).
//!
//! ```text
//!  m = (proximal − sampler log-probability)²    of each trained token of the step
//!  kept: m ≤ c, with the largest c for which the mean of the kept tokens' m is below the limit
//! ```
//! c is found by bisection over the bits of fp32 numbers, which are ordered as their values are, so
//! that ranks exchange sums only.

use super::interface::{SumError, SumOverRanks};

/// The largest moment that is kept; tokens above it have no loss, and equal moments are kept or
/// dropped together. None if the mean of all is below
/// the limit.
///
/// # Errors
/// A sum over ranks fails.
pub fn cut(moments: &[f32], limit: f64, sum: &SumOverRanks<'_>) -> Result<Option<f32>, SumError> {
    let is_below = |cut: f32| {
        let kept = moments.iter().filter(|moment| **moment <= cut);
        let mut totals = kept
            .fold([0.0, 0.0], |[total, count], moment| [total + f64::from(*moment), count + 1.0]);
        sum(&mut totals)?;
        let [total, count] = totals;
        Ok::<bool, SumError>(count < 1.0 || total < limit * count)
    };
    if is_below(f32::INFINITY)? {
        return Ok(None);
    }
    // The mean does not decrease with the cut. It is below the limit at `low` if that is not
    // negative, and not at `high`.
    let (mut low, mut high) = (-1, i64::from(f32::INFINITY.to_bits()));
    while high - low > 1 {
        let middle = i64::midpoint(low, high);
        let is_below = is_below(f32::from_bits(u32::try_from(middle).unwrap_or(0)))?;
        *(if is_below { &mut low } else { &mut high }) = middle;
    }
    Ok(Some(u32::try_from(low).map_or(-1.0, f32::from_bits)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::cut;
    use crate::objective::SumError;

    fn of_one_rank(moments: &[f32], limit: f64) -> Option<f32> {
        cut(moments, limit, &|_: &mut [f64]| Ok::<(), SumError>(())).unwrap()
    }

    /// AReaL's rule: sorted, the largest are dropped until the mean of the rest is below the limit.
    fn kept_by_sorting(moments: &[f32], limit: f64) -> Vec<f32> {
        let mut kept = moments.to_vec();
        kept.sort_by(f32::total_cmp);
        let mean = |kept: &[f32]| {
            kept.iter().map(|moment| f64::from(*moment)).sum::<f64>() / kept.len() as f64
        };
        while !kept.is_empty() && mean(&kept) >= limit {
            kept.pop();
        }
        kept
    }

    #[test]
    fn the_largest_moments_are_dropped_until_the_mean_is_below_the_limit() {
        let moments: Vec<f32> =
            (0..200).map(|index| ((index * 37 % 211) as f32 / 100.0).powi(3)).collect();
        for limit in [0.001, 0.04, 0.5, 1.5, 10.0] {
            let cut = of_one_rank(&moments, limit).unwrap_or(f32::INFINITY);
            let mut kept: Vec<f32> =
                moments.iter().copied().filter(|moment| *moment <= cut).collect();
            kept.sort_by(f32::total_cmp);
            assert_eq!(kept, kept_by_sorting(&moments, limit), "limit {limit}");
        }
    }

    #[test]
    fn moments_below_the_limit_have_no_cut_and_moments_above_it_are_all_dropped() {
        assert_eq!(of_one_rank(&[0.01, 0.02], 0.04), None);
        assert_eq!(of_one_rank(&[0.5, 0.6], 0.04), Some(0.5_f32.next_down()));
        assert_eq!(of_one_rank(&[0.0], 0.0), Some(-1.0));
    }

    #[test]
    fn ranks_find_the_cut_of_all_their_tokens() {
        let parts: [&[f32]; 2] = [&[0.01, 0.5, 0.3], &[0.02, 0.03]];
        let (total, barrier) = (Mutex::new(vec![0.0; 2]), Barrier::new(2));
        let sum = |totals: &mut [f64]| {
            for (all, own) in total.lock().unwrap().iter_mut().zip(totals.iter()) {
                *all += own;
            }
            barrier.wait();
            totals.copy_from_slice(&total.lock().unwrap());
            if barrier.wait().is_leader() {
                total.lock().unwrap().fill(0.0);
            }
            barrier.wait();
            Ok::<(), SumError>(())
        };
        let found = std::thread::scope(|scope| {
            let ranks = parts.map(|moments| scope.spawn(|| cut(moments, 0.04, &sum).unwrap()));
            ranks.map(|rank| rank.join().unwrap())
        });
        assert_eq!(found, [of_one_rank(&parts.concat(), 0.04); 2]);
    }
}
