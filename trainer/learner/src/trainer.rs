//! State of training on one rank. [`crate::step`] trains on a batch, and measures the loss of data
//! that is not trained on.

use std::rc::Rc;

use rljob_collective::CollectiveError;
use rljob_crds::RLJobSpec;

use crate::model::ModelError;
use crate::models::{Models, RoleError};
use crate::objective::{Objective, SumError};
use crate::optimizer::{MAX_SKIPPED_IN_A_ROW, OptimizerError};
use crate::ranks::Ranks;
use crate::step::micro_batch::BatchError;

/// Models, objective and settings of one rank.
#[derive(Debug)]
pub struct Trainer {
    pub ranks: Rc<Ranks>,
    pub models: Models,
    pub objective: Box<dyn Objective>,
    pub spec: RLJobSpec,
}

impl Trainer {
    /// Log-probabilities are of logits ÷ this, as the sampler's are.
    pub fn temperature(&self) -> f64 {
        if self.spec.algorithm.has_rollouts() { self.spec.rollout.temperature } else { 1.0 }
    }
}

/// A step or validation that failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch is of another step or rank, or inconsistent.
    #[error("the batch cannot be trained on")]
    Batch(#[from] BatchError),
    /// A pass with gradients failed.
    #[error("a forward or backward pass failed")]
    Model(#[from] ModelError),
    /// A pass without gradients failed.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// An update failed.
    #[error("the optimizer failed")]
    Optimizer(#[from] OptimizerError),
    /// A sum over ranks failed.
    #[error("failed to sum over the ranks")]
    Collective(#[from] CollectiveError),
    /// A sum of the objective failed.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// The run has diverged, or the data is broken.
    #[error(
        "loss or gradient was not finite in {MAX_SKIPPED_IN_A_ROW} updates in a row; \
         the last update's samples are {samples:?} of the batch"
    )]
    NotFinite {
        /// Indices into the step's table.
        samples: Vec<usize>,
    },
}
