//! Work that the scheduler performs for the run at its current step.

use rljob_protocol::version::Version;

/// A unit of work. The learners wait for it, except where batches are sampled ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    None,
    /// The learners measure the loss of the evaluation data before the next batch.
    Validate,
    /// Evaluate `version` before the next batch, so that a replay finds every evaluation recorded.
    Evaluate(Version),
    /// Sample the batch of step `version.step + 1` from engines that hold `version`.
    Rollout(Version),
    /// Sample batches up to `Run::sampling_limit` from engines that hold any admitted version.
    RolloutAhead,
    /// Make the batch of this step from the data set.
    Prepare {
        step: u32,
    },
}

impl Work {
    /// The weights that engines must hold.
    pub fn version(self) -> Option<Version> {
        match self {
            Self::Evaluate(version) | Self::Rollout(version) => Some(version),
            Self::None | Self::Validate | Self::RolloutAhead | Self::Prepare { .. } => None,
        }
    }

    /// The work except rollouts, which run beside it.
    #[must_use]
    pub fn without_sampling(self) -> Self {
        match self {
            Self::Validate | Self::Rollout(_) | Self::RolloutAhead => Self::None,
            work => work,
        }
    }
}
