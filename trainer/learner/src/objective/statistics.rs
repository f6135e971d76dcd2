//! Named statistics of trained tokens, accumulated over chunks, micro-batches and minibatches.

use std::collections::BTreeMap;

use super::deferred::Deferred;

/// A statistic and its reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// Sum over tokens; reported divided by the step's trainable tokens.
    Mean(&'static str),
    /// Sum over prompt groups; reported divided by the step's groups.
    GroupMean(&'static str),
    /// Maximum over tokens.
    Max(&'static str),
}

/// Values of statistics by name; a missing one is 0.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub struct Statistics {
    sums: BTreeMap<&'static str, Deferred>,
    maxima: BTreeMap<&'static str, Deferred>,
}

impl Statistics {
    /// Statistics with these values.
    pub fn new<T: Into<Deferred>>(values: impl IntoIterator<Item = (Statistic, T)>) -> Self {
        let mut statistics = Self::default();
        for (statistic, value) in values {
            match statistic {
                Statistic::Mean(name) | Statistic::GroupMean(name) => {
                    statistics.sums.insert(name, value.into())
                }
                Statistic::Max(name) => statistics.maxima.insert(name, value.into()),
            };
        }
        statistics
    }

    /// The value of a statistic: a sum that is not yet divided, or a maximum.
    pub fn get(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Mean(name) | Statistic::GroupMean(name) => self.sums.get(name),
            Statistic::Max(name) => self.maxima.get(name),
        }
        .map_or(0.0, Deferred::value)
    }

    /// Adds the statistics of further tokens.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (name, value) in other.sums {
            let sum = self.sums.entry(name).or_default();
            *sum = std::mem::take(sum).plus(value);
        }
        for (name, value) in other.maxima {
            let maximum = self.maxima.entry(name).or_default();
            *maximum = std::mem::take(maximum).larger(value);
        }
        self
    }

    /// The statistics with sums ÷ `divisor`.
    #[must_use]
    pub fn divided_by(mut self, divisor: f64) -> Self {
        self.sums.values_mut().for_each(|sum| *sum = (sum.value() / divisor).into());
        self
    }

    /// All values.
    pub fn numbers_mut(&mut self) -> impl Iterator<Item = &mut Deferred> {
        self.sums.values_mut().chain(self.maxima.values_mut())
    }

    /// Replaces or adds the statistics of `other`.
    #[must_use]
    pub fn replaced_by(mut self, other: Self) -> Self {
        self.sums.extend(other.sums);
        self.maxima.extend(other.maxima);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{Statistic, Statistics};

    const SUM: Statistic = Statistic::Mean("sum");
    const MAX: Statistic = Statistic::Max("max");

    #[test]
    fn sums_are_added_and_the_larger_maximum_is_kept() {
        let all = Statistics::new([(SUM, 1.5), (MAX, 4.0)])
            .plus(Statistics::new([(SUM, 2.0), (MAX, 3.0)]))
            .plus(Statistics::default());
        let missing = all.get(Statistic::Mean("missing"));
        assert_eq!((all.get(SUM), all.get(MAX), missing), (3.5, 4.0, 0.0));
    }

    #[test]
    fn replacing_keeps_statistics_that_the_other_lacks() {
        let before = Statistics::new([(MAX, 1.0)]);
        let replaced = Statistics::new([(SUM, 1.5), (MAX, 4.0)]).replaced_by(before);
        assert_eq!((replaced.get(SUM), replaced.get(MAX)), (1.5, 1.0));
    }
}
