//! How old the samples of a batch are when they are trained on. Pure.

use std::collections::BTreeMap;

use crate::journal::Sample;

/// Samples of step `step` by staleness: the steps that learners have done since the oldest weights
/// that any of a sample's tokens was sampled with.
pub fn histogram(step: u32, samples: &[Sample]) -> BTreeMap<u32, u32> {
    let mut histogram = BTreeMap::new();
    for oldest in samples.iter().filter_map(Sample::oldest) {
        *histogram.entry(step.saturating_sub(1).saturating_sub(oldest)).or_default() += 1;
    }
    histogram
}
