//! State of training on one rank. Steps and validation are in [`crate::step`].

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
    /// Divisor of logits, the same as the sampler's.
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
    #[error("a forward or backward pass failed")]
    Model(#[from] ModelError),
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error("the optimizer failed")]
    Optimizer(#[from] OptimizerError),
    #[error("failed to sum over the ranks")]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Sum(#[from] SumError),
    /// The run has diverged, or the data is corrupt.
    #[error(
        "loss or gradient was not finite in {MAX_SKIPPED_IN_A_ROW} updates in a row; \
         the last update's samples are {samples:?} of the batch"
    )]
    NotFinite {
        /// Indices into the step's table.
        samples: Vec<usize>,
    },
}
