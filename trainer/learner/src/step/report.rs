//! Metrics of a step, reduced over all ranks.

use std::collections::BTreeMap;

use rljob_protocol::status::StepMetrics;

use super::sums::Sums;
use crate::objective::Statistic;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Reduces this rank's sums and writes them to `metrics`.
    pub(super) fn report(&self, metrics: &mut StepMetrics, sums: &Sums) -> Result<(), StepError> {
        let statistics = self.objective.statistics();
        let means = statistics.iter().filter_map(|statistic| match statistic {
            Statistic::Mean(name) => Some((*name, sums.statistics.get(*statistic))),
            Statistic::Max(_) => None,
        });
        let (names, mut totals): (Vec<_>, Vec<_>) =
            [("entropy", sums.entropy)].into_iter().chain(means).unzip();
        self.ranks.sum_slice(&mut totals)?;
        let tokens = metrics.trainable_tokens.max(1) as f64;
        let mut reduced: BTreeMap<&str, f64> =
            names.into_iter().zip(totals.iter().map(|total| finite(total / tokens))).collect();
        for statistic in &statistics {
            if let Statistic::Max(name) = statistic {
                let value = self.ranks.max(sums.statistics.get(*statistic))?;
                reduced.insert(name, finite(value));
            }
        }
        let value = |name: &str| reduced.get(name).copied().unwrap_or_default();
        let derived = self.objective.derived(&value);
        reduced.extend(derived);
        for (name, value) in reduced {
            set(metrics, name, value);
        }
        Ok(())
    }
}

fn set(metrics: &mut StepMetrics, name: &str, value: f64) {
    let field = match name {
        "entropy" => {
            metrics.entropy = value;
            return;
        }
        "clipFraction" => &mut metrics.clip_fraction,
        "clipFractionUpper" => &mut metrics.clip_fraction_upper,
        "clipFractionLower" => &mut metrics.clip_fraction_lower,
        "clipFractionDual" => &mut metrics.clip_fraction_dual,
        "kl" => &mut metrics.kl,
        "mismatchMean" => &mut metrics.mismatch_mean,
        "mismatchMax" => &mut metrics.mismatch_max,
        "referenceKl" => &mut metrics.reference_kl,
        "behaviorWeight" => &mut metrics.behavior_weight,
        "behaviorBounded" => &mut metrics.behavior_bounded,
        _ => return,
    };
    *field = Some(value);
}

/// JSON has no infinity.
fn finite(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-f64::MAX, f64::MAX) }
}
