//! How far sampling may run ahead of training, and how old weights may be: AReaL's rule (arXiv
//! 2505.24298, eq. 3; its `StalenessManager`), counted in groups. Pure.
//!
//! ```text
//!  d steps done, B groups per step, maxStaleness η:
//!  groups accepted or in progress  ≤  (d + η + 1) · B
//!
//!  η = 1:   d = 2     │ step 3, in training │ step 4, sampled ahead │ step 5, not admitted
//! ```
//!
//! A group for step t is trained on by learners that have done t − 1 steps, so that one begun with
//! weights of v steps has a staleness of t − 1 − v. It is admitted at the earliest after t − 1 − η
//! steps, and begun when an engine holds weights of so many steps: then nothing is staler than η.
//! Weights are published every `everySteps` steps, so that the newest there are may lack up to
//! `everySteps` − 1 of them; `staleSamples` says whether that counts.

use rljob_crds::RLJobSpec;
use rljob_crds::rollout::StaleSamples;

/// The rule of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Groups a step.
    pub batch_size: u32,
    /// Steps in all.
    pub total_steps: u32,
    /// η.
    pub max_staleness: u32,
    /// Steps between publications.
    pub every_steps: u32,
    /// What becomes of samples that are staler than η.
    pub stale: StaleSamples,
}

impl Admission {
    /// The rule of a spec.
    pub fn of(spec: &RLJobSpec) -> Self {
        Self {
            batch_size: spec.rollout.batch_size,
            total_steps: spec.training.steps,
            max_staleness: spec.rollout.max_staleness,
            every_steps: spec.weight_sync.every_steps,
            stale: spec.rollout.stale_samples,
        }
    }

    /// The last step whose batch may be sampled after `steps_done` steps.
    pub fn through(&self, steps_done: u32) -> u32 {
        steps_done.saturating_add(self.max_staleness).saturating_add(1).min(self.total_steps)
    }

    /// Steps of the oldest weights that a group for `step` may be begun with.
    pub fn oldest(&self, step: u32) -> u32 {
        let lag =
            if self.stale == StaleSamples::Drop { 0 } else { self.every_steps.saturating_sub(1) };
        step.saturating_sub(1 + self.max_staleness + lag)
    }

    /// Whether a sample whose oldest token is of weights after `oldest` steps is not to be trained
    /// on in `step`.
    pub fn refuses(&self, step: u32, oldest: u32) -> bool {
        self.stale == StaleSamples::Drop && oldest < self.oldest(step)
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, StaleSamples};

    const KEEP: Admission = Admission {
        batch_size: 8,
        total_steps: 10,
        max_staleness: 2,
        every_steps: 3,
        stale: StaleSamples::Keep,
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
        assert_eq!([2, 3].map(|oldest| DROP.refuses(6, oldest)), [true, false]);
        assert!(!KEEP.refuses(9, 0));
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
