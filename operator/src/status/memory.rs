//! Memory of the learners' GPUs in the status.

use rljob_crds::status::{MemoryPart, MemoryStatus, RLJobStatus};
use rljob_protocol::memory::MemoryPlan;
use rljob_protocol::metrics::{PEAK_MEMORY, StepMetrics};
use rljob_protocol::status::CoordinatorStatus;

/// What the coordinator reports; while none reports a plan, the recorded one.
pub(super) fn memory(
    old: &RLJobStatus,
    report: Option<&CoordinatorStatus>,
) -> Option<MemoryStatus> {
    let Some((plan, report)) = report.and_then(|report| Some((report.memory.as_ref()?, report)))
    else {
        return old.memory.clone();
    };
    Some(planned(plan, report.metrics.as_ref()))
}

/// A plan with what the learners have used up to a step.
pub fn planned(plan: &MemoryPlan, newest: Option<&StepMetrics>) -> MemoryStatus {
    let part = |part: &rljob_protocol::memory::MemoryPart| MemoryPart {
        name: part.name.clone(),
        bytes: part.bytes,
    };
    let peak = newest.and_then(|step| step.get(PEAK_MEMORY));
    MemoryStatus {
        total_bytes: plan.total_bytes,
        usable_bytes: plan.usable_bytes,
        // Other processes send it: saturates to the numbers that the API server stores.
        peak_bytes: peak.map(|bytes| (bytes as u64).min(i64::MAX as u64)),
        fits: plan.fits,
        sharding: plan.sharding.clone(),
        recomputed_layers: plan.recomputed_layers,
        selective_layers: plan.selective_layers,
        layers: plan.layers,
        parts: plan.parts.iter().map(part).collect(),
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::MemoryPlan;

    /// The plan of the 1.5B shape on one GPU of 139.8 GiB.
    pub fn plan() -> MemoryPlan {
        serde_json::from_value(serde_json::json!({
            "parts": [
                {"name": "weights", "bytes": 9_261_000_000_u64},
                {"name": "activations", "bytes": 25_340_000_000_u64},
            ],
            "totalBytes": 34_601_000_000_u64, "usableBytes": 141_100_000_000_u64, "fits": true,
            "sharding": "Full", "recomputedLayers": 3, "layers": 28,
        }))
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::test_support::report;

    #[test]
    fn the_newest_plan_is_kept_while_a_coordinator_reports_none() {
        let plan = test_support::plan();
        let step = StepMetrics::with_scalars(7, [(PEAK_MEMORY, 3e10)]);
        let planned = CoordinatorStatus { memory: Some(plan), metrics: Some(step), ..report() };
        let old = RLJobStatus {
            memory: memory(&RLJobStatus::default(), Some(&planned)),
            ..RLJobStatus::default()
        };
        let line = "32.2 GiB planned of 131.4 GiB on each GPU; 27.9 GiB used at most; \
                    sharding Full, 3 of 28 layers are computed again";
        assert_eq!(old.memory.as_ref().map(ToString::to_string), Some(line.to_owned()));
        assert_eq!(memory(&old, Some(&report())), old.memory);
        assert_eq!(memory(&old, None), old.memory);
        assert_eq!(memory(&RLJobStatus::default(), Some(&report())), None, "on CPUs");
    }

    #[test]
    fn numbers_of_other_processes_stay_in_the_range_of_the_api_server() {
        let step = |peak| StepMetrics::with_scalars(1, [(PEAK_MEMORY, peak)]);
        for (peak, expected) in [(1e30, i64::MAX as u64), (-1.0, 0), (f64::NAN, 0)] {
            let status = planned(&test_support::plan(), Some(&step(peak)));
            assert_eq!(status.peak_bytes, Some(expected), "{peak}");
        }
    }
}
