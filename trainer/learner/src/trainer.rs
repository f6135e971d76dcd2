//! State of training on one rank. Steps and validation are in [`crate::step`].

use std::rc::Rc;

use rljob_collective::CollectiveError;
use rljob_crds::RLJobSpec;
use rljob_kernels::KernelError;

use crate::checkpoint::{CheckpointError, Snapshot, SnapshotMemory};
use crate::memory::out_of_memory::guard;
use crate::memory::{OutOfMemory, Phase};
use crate::model::ModelError;
use crate::models::{Models, RoleError};
use crate::objective::{Objective, PrepareError};
use crate::optimizer::{MAX_SKIPPED_IN_A_ROW, OptimizerError};
use crate::ranks::Ranks;
use crate::spans::Spans;
use crate::step::calls::CallTimes;
use crate::step::micro_batch::BatchError;

/// Models, objective and settings of one rank.
#[derive(Debug)]
pub struct Trainer {
    pub ranks: Rc<Ranks>,
    pub models: Models,
    pub objective: Box<dyn Objective>,
    pub spec: RLJobSpec,
    /// What the trainer does, for errors about memory.
    pub phase: Phase,
    /// What was done since the last report.
    pub spans: Spans,
    /// Durations of the calls of the newest step.
    pub calls: CallTimes,
}

impl Trainer {
    /// Divisor of logits; that of the sampler, if there is one.
    pub fn temperature(&self) -> f64 {
        temperature(&self.spec)
    }

    /// A copy of this rank's part of a checkpoint, in `memory` if the models are on a GPU.
    ///
    /// # Errors
    /// libtorch or CUDA cannot copy a tensor.
    pub fn snapshot(&self, memory: &mut SnapshotMemory) -> Result<Snapshot, CheckpointError> {
        let mut snapshot = self.models.snapshot(memory)?;
        snapshot.objective = self.objective.state();
        Ok(snapshot)
    }

    /// Runs a part of the work, whose out-of-memory errors say what to change.
    ///
    /// # Errors
    /// Those of the action.
    pub fn guarded<T, E: std::error::Error + From<OutOfMemory> + 'static>(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        guard(self, |trainer| (trainer.phase, trainer.spec.clone()), action)
    }
}

/// Divisor of logits; that of the sampler, if there is one.
pub fn temperature(spec: &RLJobSpec) -> f64 {
    let algorithm = spec.algorithm.resolve();
    algorithm.map_or(1.0, |algorithm| algorithm.temperature(&spec.rollout))
}

/// A step or validation that failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch is of another step or rank, or inconsistent.
    #[error("the batch cannot be trained on")]
    Batch(#[from] BatchError),
    #[error("a forward or backward pass failed")]
    Model(#[from] ModelError),
    #[error("failed to queue a heartbeat")]
    Heartbeat(#[from] KernelError),
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error("the optimizer failed")]
    Optimizer(#[from] OptimizerError),
    #[error("failed to sum over the ranks")]
    Collective(#[from] CollectiveError),
    #[error("failed to compute advantages and weights")]
    Prepare(#[from] PrepareError),
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
