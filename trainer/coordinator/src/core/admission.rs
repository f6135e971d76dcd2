//! Admission of rollouts: bounds sampling ahead of training and the age of weights by AReaL's rule
//! (arXiv 2505.24298, eq. 3; `StalenessManager`), in prompt groups. Pure.
//!
//! ```text
//!  d steps done, B groups per step, maxStaleness η:
//!  groups accepted or in progress  ≤  (d + η + 1) · B
//!
//!  η = 1:   d = 2     │ step 3, in training │ step 4, sampled ahead │ step 5, not admitted
//! ```
//!
//! Learners that have completed t − 1 steps train on the groups of step t, so a group sampled with
//! weights of v steps has staleness t − 1 − v. It is admitted after t − 1 − η steps and starts when
//! an engine holds weights of at least t − 1 − η steps, so its staleness is at most η. Weights are
//! published every `everySteps` steps: the newest published ones may lack up to `everySteps` − 1
//! steps, and `staleSamples` decides whether that is allowed.
//!
//! With `batchOrder: Finished`, groups are admitted and start by the same rule, but the group of
//! step t is trained up to η steps later, so its staleness is at most 2η.

use rljob_crds::RLJobSpec;
use rljob_crds::rollout::{BatchOrder, StaleSamples};
use rljob_protocol::status::UNKNOWN_STEPS;

/// Admission rule of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Groups per step.
    pub batch_size: u32,
    /// Steps of the run, as in [`super::Settings`].
    pub total_steps: u32,
    /// `maxStaleness`, η.
    pub max_staleness: u32,
    /// Steps between weight syncs.
    pub every_steps: u32,
    /// Treatment of samples whose staleness exceeds the bound.
    pub stale: StaleSamples,
    pub order: BatchOrder,
}

impl Admission {
    /// Returns the rule of a spec.
    pub fn of(spec: &RLJobSpec) -> Self {
        Self {
            batch_size: spec.rollout.batch_size,
            total_steps: spec.training.known_steps().unwrap_or(UNKNOWN_STEPS),
            max_staleness: spec.rollout.max_staleness,
            every_steps: spec.weight_sync.every_steps,
            stale: spec.rollout.stale_samples,
            order: spec.rollout.batch_order,
        }
    }

    /// Last step whose batch may be sampled after `steps_done` steps.
    pub fn through(&self, steps_done: u32) -> u32 {
        steps_done.saturating_add(self.max_staleness).saturating_add(1).min(self.total_steps)
    }

    /// Steps of the oldest weights with which a group of `step` may start.
    pub fn oldest(&self, step: u32) -> u32 {
        let lag =
            if self.stale == StaleSamples::Drop { 0 } else { self.every_steps.saturating_sub(1) };
        step.saturating_sub(1).saturating_sub(self.max_staleness).saturating_sub(lag)
    }

    /// Batches that may pass over a group after the step that it is for.
    pub fn slack(&self) -> u32 {
        if self.order == BatchOrder::Finished { self.max_staleness } else { 0 }
    }

    /// Whether a sample whose oldest token was sampled with weights of `oldest` steps is too stale
    /// for the batch of `step`.
    pub fn rejects(&self, step: u32, oldest: u32) -> bool {
        self.stale == StaleSamples::Drop && oldest < self.oldest(step.saturating_sub(self.slack()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, BatchOrder, StaleSamples};

    const KEEP: Admission = Admission {
        batch_size: 8,
        total_steps: 10,
        max_staleness: 2,
        every_steps: 3,
        stale: StaleSamples::Keep,
        order: BatchOrder::Data,
    };
    const DROP: Admission = Admission { stale: StaleSamples::Drop, ..KEEP };

    #[test]
    fn sampling_runs_ahead_by_the_staleness_and_ends_with_the_run() {
        assert_eq!([0, 1, 6, 7, 8, 10].map(|done| KEEP.through(done)), [3, 4, 9, 10, 10, 10]);
        assert_eq!([0, 1].map(|done| Admission { max_staleness: 0, ..KEEP }.through(done)), [1, 2]);
    }

    #[test]
    fn kept_samples_may_be_older_by_what_is_not_published_and_dropped_ones_by_nothing() {
        assert_eq!([1, 5, 6, 9].map(|step| KEEP.oldest(step)), [0, 0, 1, 4]);
        assert_eq!(
            [1, 6, 9].map(|step| Admission { every_steps: 1, ..KEEP }.oldest(step)),
            [0, 3, 6]
        );
        assert_eq!([1, 3, 6, 9].map(|step| DROP.oldest(step)), [0, 0, 3, 6]);
        assert_eq!([2, 3].map(|oldest| DROP.rejects(6, oldest)), [true, false]);
        assert!(!KEEP.rejects(9, 0));
    }

    #[test]
    fn groups_that_batches_passed_over_may_be_twice_as_old() {
        let finished = Admission { order: BatchOrder::Finished, ..DROP };
        assert_eq!((DROP.slack(), finished.slack()), (0, 2));
        assert_eq!([6, 9].map(|step| finished.oldest(step)), [3, 6], "they start by the same rule");
        assert_eq!([3, 4].map(|oldest| finished.rejects(9, oldest)), [true, false]);
        assert!(!finished.rejects(3, 0));
    }

    #[test]
    fn learners_that_wait_always_find_weights_that_their_batch_may_be_sampled_with() {
        let rules = (1..=DROP.max_staleness + 1).flat_map(|every_steps| {
            [Admission { every_steps, ..DROP }, Admission { every_steps, ..KEEP }]
        });
        for rule in rules {
            for done in 0..rule.total_steps {
                let published = done - done % rule.every_steps;
                assert!(published >= rule.oldest(done + 1), "{done} steps done, {rule:?}");
            }
        }
    }
}
