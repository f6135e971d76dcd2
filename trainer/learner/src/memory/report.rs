//! Memory plan of all learners, for the status of the run.

use rljob_collective::CollectiveError;
use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Sharding;
use rljob_protocol::memory::{MemoryPart, MemoryPlan as ReportedPlan};
use tch::Kind;

use super::fit::usable;
use super::plan::MemoryPlan;
use super::start::{Planned, PlannedGroup, with_settings};
use crate::mesh::GroupSize;
use crate::model::ModelLayout;
use crate::ranks::Ranks;

/// The plan with the sharding on which the ranks have agreed, which the spec has: of each number,
/// the largest of all ranks. `None` on CPUs. A collective.
///
/// # Errors
/// A rank does not take part.
pub fn of_all_ranks(
    planned: &Planned,
    teacher: Option<&ModelLayout>,
    spec: &RLJobSpec,
    (ranks, size): (&Ranks, GroupSize),
    compute: Kind,
) -> Result<Option<ReportedPlan>, CollectiveError> {
    if !ranks.device().is_cuda() {
        return Ok(None);
    }
    let (model, learner) = (&planned.model, (true, size));
    let plan = with_settings(model, teacher, spec, learner, compute, |mut settings| {
        settings.sharding = spec.training.sharding.unwrap_or(settings.sharding);
        MemoryPlan::new(&settings, model.recomputed())
    });
    let sharding = spec.training.sharding.unwrap_or(Sharding::Full);
    let layers = model.config().num_hidden_layers;
    reduced(&plan, planned.free, (sharding, layers), ranks).map(Some)
}

/// The plan of a group of `trainer.groups`, as [`of_all_ranks`]. A collective of its ranks.
///
/// # Errors
/// A rank does not take part.
pub fn of_group_ranks(
    planned: &PlannedGroup,
    ranks: &Ranks,
) -> Result<ReportedPlan, CollectiveError> {
    reduced(&planned.plan, planned.free, (Sharding::Full, planned.layers), ranks)
}

fn reduced(
    plan: &MemoryPlan,
    free: Option<u64>,
    (sharding, layers): (Sharding, usize),
    ranks: &Ranks,
) -> Result<ReportedPlan, CollectiveError> {
    let mut numbers = Numbers::of(plan, free.map(usable));
    ranks.max_slice(&mut numbers.parts)?;
    ranks.max_slice(&mut numbers.others)?;
    Ok(numbers.reported(plan, sharding, u32::try_from(layers).unwrap_or(u32::MAX)))
}

/// What the ranks compare.
struct Numbers {
    /// Bytes of each of [`MemoryPlan::parts`].
    parts: Vec<f64>,
    /// The total, the negated usable bytes, whether micro-batches may not fit, and the layers that
    /// are computed again, wholly and selectively. A rank that does not know its memory has
    /// infinitely much.
    others: [f64; 5],
}

impl Numbers {
    fn of(plan: &MemoryPlan, usable: Option<u64>) -> Self {
        let is_tight = usable.is_some_and(|usable| plan.total() > usable);
        Self {
            parts: plan.parts().map(|(_, bytes)| bytes as f64).collect(),
            others: [
                plan.total() as f64,
                -usable.map_or(f64::INFINITY, |usable| usable as f64),
                f64::from(u8::from(is_tight)),
                plan.recomputed.layers as f64,
                plan.recomputed.selective as f64,
            ],
        }
    }

    /// The plan of these numbers, with the names of a rank's parts.
    fn reported(&self, plan: &MemoryPlan, sharding: Sharding, layers: u32) -> ReportedPlan {
        let parts = plan.parts().zip(&self.parts).filter(|(_, bytes)| **bytes > 0.0);
        let part = |((name, _), bytes): ((&str, u64), &f64)| MemoryPart {
            name: name.trim_start_matches("the ").to_owned(),
            bytes: *bytes as u64,
        };
        let [total, less_usable, is_tight, recomputed, selective] = self.others;
        ReportedPlan {
            parts: parts.map(part).collect(),
            total_bytes: total as u64,
            usable_bytes: less_usable.is_finite().then_some(-less_usable as u64),
            fits: is_tight == 0.0,
            sharding: format!("{sharding:?}"),
            recomputed_layers: recomputed as u32,
            selective_layers: selective as u32,
            layers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Recomputed;

    fn plan(activations: u64, layers: usize) -> MemoryPlan {
        MemoryPlan {
            weights: 60,
            gradients: 40,
            optimizer: 0,
            buffers: 0,
            critic: 0,
            reference: 20,
            teacher: 0,
            base: 0,
            publication: 0,
            activations,
            work: 5,
            recomputed: Recomputed { layers, selective: 3 - layers },
        }
    }

    #[test]
    fn the_report_has_the_largest_numbers_of_all_ranks_and_the_smallest_memory() {
        let plans = [(plan(100, 1), Some(500)), (plan(90, 2), Some(210))];
        let [first, second] = plans.map(|(plan, usable)| Numbers::of(&plan, usable));
        let mut largest = first;
        let all = largest.parts.iter_mut().chain(&mut largest.others);
        for (one, other) in all.zip(second.parts.iter().chain(&second.others)) {
            *one = one.max(*other);
        }
        let part = |name: &str, bytes| MemoryPart { name: name.to_owned(), bytes };
        let expected = ReportedPlan {
            parts: vec![
                part("weights", 60),
                part("gradients", 40),
                part("reference model", 20),
                part("activations", 100),
                part("temporaries", 5),
            ],
            total_bytes: 225,
            usable_bytes: Some(210),
            fits: false,
            sharding: "Full".to_owned(),
            recomputed_layers: 2,
            selective_layers: 2,
            layers: 4,
        };
        assert_eq!(largest.reported(&plan(100, 1), Sharding::Full, 4), expected);
        let fitting = ReportedPlan { fits: true, usable_bytes: None, ..expected };
        let fitting = ReportedPlan { selective_layers: 1, ..fitting };
        let unknown = Numbers::of(&plan(100, 2), None);
        assert_eq!(unknown.reported(&plan(100, 2), Sharding::Full, 4), fitting);
    }
}
