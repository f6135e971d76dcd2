//! Work that the scheduler performs for the run at its current step.

use rljob_protocol::version::Version;

/// Unit of work. The learners wait for it unless batches are sampled ahead.
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
    /// Build the batch of this step from the dataset.
    Prepare {
        step: u32,
    },
}

impl Work {
    /// Weights that engines must hold.
    pub fn version(self) -> Option<Version> {
        match self {
            Self::Evaluate(version) | Self::Rollout(version) => Some(version),
            Self::None | Self::Validate | Self::RolloutAhead | Self::Prepare { .. } => None,
        }
    }

    /// The work without rollouts, which run concurrently.
    #[must_use]
    pub fn without_sampling(self) -> Self {
        match self {
            Self::Validate | Self::Rollout(_) | Self::RolloutAhead => Self::None,
            work => work,
        }
    }
}
