//! Metrics of a step, reduced over all ranks.

use std::collections::BTreeMap;

use rljob_crds::algorithm::Precision;
use rljob_kernels::device::{bf16_operations, memory};
use rljob_protocol::metrics::{self, StepMetrics};
use tch::Device;

use super::sums::Sums;
use crate::objective::Statistic;
use crate::trainer::{StepError, Trainer};

impl Trainer {
    /// Reduces this rank's sums and adds them to the scalars of a step of `groups` prompt groups.
    pub(super) fn report(
        &self,
        step: &mut StepMetrics,
        sums: &Sums,
        groups: usize,
    ) -> Result<(), StepError> {
        let statistics = self.objective.statistics();
        let tokens = step.scalars.get_or_zero(metrics::TRAINABLE_TOKENS).max(1.0);
        let means = statistics.iter().filter_map(|statistic| {
            let (name, divisor) = match statistic {
                Statistic::Mean(name) => (*name, tokens),
                Statistic::GroupMean(name) => (*name, groups.max(1) as f64),
                Statistic::Max(_) => return None,
            };
            Some(((name, divisor), sums.statistics.get(*statistic)))
        });
        let (names, mut totals): (Vec<_>, Vec<_>) =
            [((metrics::ENTROPY, tokens), sums.entropy.value())].into_iter().chain(means).unzip();
        self.ranks.sum_slice(&mut totals)?;
        let mean = |((name, divisor), total)| (name, finite(total / divisor));
        let mut reduced: BTreeMap<&str, f64> = names.into_iter().zip(totals).map(mean).collect();
        for statistic in &statistics {
            if let Statistic::Max(name) = statistic {
                let value = self.ranks.max(sums.statistics.get(*statistic))?;
                reduced.insert(name, finite(value));
            }
        }
        let value = |name: &str| reduced.get(name).copied().unwrap_or_default();
        let derived = self.objective.derived(&value);
        reduced.extend(derived);
        if self.scores() {
            reduced.remove(metrics::ENTROPY);
        }
        for (name, value) in reduced {
            step.scalars.set(name, value);
        }
        self.calls.report(step);
        Ok(())
    }
}

impl Trainer {
    /// Adds what the learners' GPUs did: memory, and their use at this rate of operations per
    /// second of all ranks.
    pub(super) fn report_device(&self, step: &mut StepMetrics, rate: f64) -> Result<(), StepError> {
        let Device::Cuda(device) = self.ranks.device() else { return Ok(()) };
        let peak = memory(device).map_or(0, |memory| memory.peak);
        step.scalars.set(metrics::PEAK_MEMORY, self.ranks.max(peak as f64)?);
        if self.spec.precision() == Precision::BF16
            && let Some(operations) = bf16_operations(device)
        {
            let all = operations * f64::from(self.ranks.world_size());
            step.scalars.set(metrics::MFU, finite(rate / all));
        }
        Ok(())
    }
}

/// JSON has no infinity.
fn finite(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-f64::MAX, f64::MAX) }
}
