//! Normalization of rewards (over samples) or advantages (over trainable tokens), within prompt
//! groups or the whole batch.
//!
//! ```text
//!  y = (x − mean) ÷ (std + epsilon)      mean and std of the prompt group, the batch, or none
//!  leave-one-out mean of the others      (S − x) ÷ (n − 1); the std is taken about these means
//! ```
//! Computed from two sums, so that values can be distributed over ranks: [`totals`] of each group,
//! then [`squares`] about their means.

use rljob_crds::algorithm::grpo::{
    NormalizationLevel, NormalizationMean, NormalizationScale, NormalizationSpec,
};

/// A value and the index of its prompt group, from 0.
pub type Grouped = (f64, usize);

/// Number of values and their sum, of every group and of the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Totals {
    counts: Vec<f64>,
    sums: Vec<f64>,
    count: f64,
    sum: f64,
}

/// Numbers of values, then sums, of each of `groups` prompt groups: `[2 · groups]`, additive over
/// ranks.
pub fn totals(values: &[Grouped], groups: usize) -> Vec<f64> {
    let mut parts = vec![0.0; 2 * groups];
    for &(value, group) in values {
        parts[group] += 1.0;
        parts[groups + group] += value;
    }
    parts
}

/// Σ (x − mean)² of each prompt group: `[groups]`, additive over ranks.
pub fn squares(spec: &NormalizationSpec, values: &[Grouped], totals: &Totals) -> Vec<f64> {
    let mut parts = vec![0.0; totals.counts.len()];
    for &(value, group) in values {
        parts[group] += (value - totals.mean(spec, value, group)).powi(2);
    }
    parts
}

/// Normalized values; `totals` and `squares` are sums over all ranks.
pub fn normalized(
    spec: &NormalizationSpec,
    values: &[Grouped],
    totals: &Totals,
    squares: &[f64],
) -> Vec<f64> {
    values
        .iter()
        .map(|&(value, group)| {
            (value - totals.mean(spec, value, group)) / divisor(spec, totals, squares, group)
        })
        .collect()
}

/// Normalized values, given all values of the batch, and the factor of each value in its own.
pub fn normalize(
    spec: &NormalizationSpec,
    values: &[Grouped],
    groups: usize,
) -> (Vec<f64>, Vec<f64>) {
    let totals = Totals::new(totals(values, groups));
    let squares = squares(spec, values, &totals);
    let scale = |&(_, group): &Grouped| 1.0 / divisor(spec, &totals, &squares, group);
    (normalized(spec, values, &totals, &squares), values.iter().map(scale).collect())
}

/// What values of a group are divided by.
fn divisor(spec: &NormalizationSpec, totals: &Totals, squares: &[f64], group: usize) -> f64 {
    match (spec.scale, spec.scale_level) {
        (NormalizationScale::None, _) => 1.0,
        (NormalizationScale::Std, NormalizationLevel::Group) => {
            deviation(spec, totals.counts[group], squares[group]) + spec.epsilon
        }
        (NormalizationScale::Std, NormalizationLevel::Batch) => {
            deviation(spec, totals.count, squares.iter().sum()) + spec.epsilon
        }
    }
}

/// Standard deviation of `count` values; 1 if there are too few.
fn deviation(spec: &NormalizationSpec, count: f64, squares: f64) -> f64 {
    let degrees = if spec.unbiased { count - 1.0 } else { count };
    if degrees > 0.0 { (squares / degrees).sqrt() } else { 1.0 }
}

impl Totals {
    /// From [`totals`], summed over ranks.
    pub fn new(mut parts: Vec<f64>) -> Self {
        let sums = parts.split_off(parts.len() / 2);
        Self { count: parts.iter().sum(), sum: sums.iter().sum(), counts: parts, sums }
    }

    /// Mean that is subtracted from `value`. With leave-one-out, it is the value for a group of
    /// one, and 0 for a batch of one.
    fn mean(&self, spec: &NormalizationSpec, value: f64, group: usize) -> f64 {
        let (count, sum, alone) = match spec.mean {
            NormalizationMean::None => return 0.0,
            NormalizationMean::Group => (self.counts[group], self.sums[group], value),
            NormalizationMean::Batch => (self.count, self.sum, 0.0),
        };
        match (spec.leave_one_out, count > 1.0) {
            (false, _) => sum / count,
            (true, true) => (sum - value) / (count - 1.0),
            (true, false) => alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Totals, normalize, normalized, squares, totals};
    use rljob_crds::algorithm::grpo::{
        NormalizationLevel, NormalizationMean, NormalizationScale, NormalizationSpec,
    };

    const REWARDS: [(f64, usize); 8] =
        [(1.0, 0), (0.0, 0), (0.0, 0), (1.0, 0), (1.0, 1), (1.0, 1), (0.0, 1), (0.0, 1)];
    const MIXED: [(f64, usize); 5] = [(1.0, 0), (2.0, 1), (0.0, 0), (4.0, 1), (6.0, 1)];

    fn close(actual: &[f64], expected: &[f64], tolerance: f64) {
        let near = actual.len() == expected.len()
            && actual.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance);
        assert!(near, "{actual:?} is not {expected:?}");
    }

    fn signed(size: f64) -> Vec<f64> {
        REWARDS.iter().map(|(reward, _)| if *reward > 0.5 { size } else { -size }).collect()
    }

    #[test]
    fn groups_of_four_are_areals_golden_values() {
        close(&normalize(&NormalizationSpec::default(), &REWARDS, 2).0, &signed(0.866_01), 1e-5);
    }

    #[test]
    fn rloo_is_areals_golden_value() {
        let spec = NormalizationSpec {
            leave_one_out: true,
            scale: NormalizationScale::None,
            ..NormalizationSpec::default()
        };
        close(&normalize(&spec, &REWARDS, 2).0, &signed(0.666_67), 1e-5);
    }

    #[test]
    fn groups_may_be_interleaved_and_of_any_size() {
        close(
            &normalize(&NormalizationSpec::default(), &MIXED, 2).0,
            &[0.707_097, -0.999_995, -0.707_097, 0.0, 0.999_995],
            1e-6,
        );
    }

    #[test]
    fn a_group_of_one_and_a_group_of_equals_get_zero() {
        let values = [(1.0, 1), (0.25, 0), (0.25, 0)];
        assert_eq!(normalize(&NormalizationSpec::default(), &values, 2).0, [0.0; 3]);
        let spec = NormalizationSpec { leave_one_out: true, ..NormalizationSpec::default() };
        assert_eq!(normalize(&spec, &values, 2).0, [0.0; 3]);
    }

    #[test]
    fn group_mean_with_batch_deviation_is_lite_ppo() {
        let spec = NormalizationSpec {
            scale_level: NormalizationLevel::Batch,
            epsilon: 0.0,
            ..NormalizationSpec::default()
        };
        let deviation = ((0.25 + 0.25 + 4.0 + 4.0) / 4.0_f64).sqrt();
        let expected = [0.5, -2.0, -0.5, 0.0, 2.0].map(|difference| difference / deviation);
        close(&normalize(&spec, &MIXED, 2).0, &expected, 1e-12);
    }

    #[test]
    fn batch_statistics_are_of_all_values_and_a_mean_may_be_left() {
        let batch = NormalizationSpec {
            mean: NormalizationMean::Batch,
            scale_level: NormalizationLevel::Batch,
            unbiased: false,
            epsilon: 0.0,
            ..NormalizationSpec::default()
        };
        let deviation = ((2.56 + 0.36 + 6.76 + 1.96 + 11.56) / 5.0_f64).sqrt();
        close(
            &normalize(&batch, &MIXED, 2).0,
            &[-1.6, -0.6, -2.6, 1.4, 3.4].map(|difference| difference / deviation),
            1e-12,
        );
        let none = NormalizationSpec {
            mean: NormalizationMean::None,
            scale: NormalizationScale::None,
            ..NormalizationSpec::default()
        };
        assert_eq!(normalize(&none, &MIXED, 2).0, [1.0, 2.0, 0.0, 4.0, 6.0]);
    }

    #[test]
    fn values_on_two_ranks_give_the_numbers_of_one() {
        for leave_one_out in [false, true] {
            let spec = NormalizationSpec { leave_one_out, ..NormalizationSpec::default() };
            let (here, there) = MIXED.split_at(2);
            let sum = |a: Vec<f64>, b: Vec<f64>| {
                a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>()
            };
            let all = Totals::new(sum(totals(here, 2), totals(there, 2)));
            let about = sum(squares(&spec, here, &all), squares(&spec, there, &all));
            let together =
                [normalized(&spec, here, &all, &about), normalized(&spec, there, &all, &about)]
                    .concat();
            close(&together, &normalize(&spec, &MIXED, 2).0, 1e-12);
        }
    }
}
