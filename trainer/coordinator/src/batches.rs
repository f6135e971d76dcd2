//! Batch server: packs the current training batch or the validation data for the ranks and caches
//! it.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use rljob_crds::RunConfig;
use rljob_protocol::batch::BatchError;
use tokio::sync::Mutex;

use crate::input::{Input, InputError};
use crate::pack::batch::{SampleError, from_prompts, from_samples};
use crate::pack::{PackError, TrainSample, pack};
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};
use crate::work_error::WorkError;

/// A batch that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
    /// A sample.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Supervised data.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The packing.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The bytes.
    #[error(transparent)]
    Bytes(#[from] BatchError),
    /// Supervised data is still being read.
    #[error("the data is not open yet: ask again")]
    NotOpen,
    /// No such rank.
    #[error("rank {rank} of {world}")]
    Rank {
        rank: u32,
        /// Ranks in all.
        world: u32,
    },
}

/// What learners can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchRequest {
    /// The batch of this step.
    Training(u32),
    /// The evaluation data, after so many steps.
    Validation(u32),
}

/// The cache.
#[derive(Default)]
pub struct Batches {
    input: OnceLock<Arc<Input>>,
    cached: Mutex<Option<Packed>>,
}

struct Packed {
    request: BatchRequest,
    ranks: Vec<Bytes>,
}

impl Batches {
    /// Supervised batches and validation data come from the data.
    pub fn set_input(&self, input: Arc<Input>) {
        let _ = self.input.set(input);
    }

    /// The bytes for one rank. A training batch must be fixed; ranks that ask together wait for one
    /// packing.
    pub async fn get(
        &self,
        config: &Arc<RunConfig>,
        journal: &SharedJournal,
        request: BatchRequest,
        rank: u32,
        world: u32,
    ) -> Result<Bytes, ServeError> {
        let mut cached = self.cached.lock().await;
        let known = cached.as_ref().is_some_and(|packed| {
            packed.request == request && packed.ranks.len() == world as usize
        });
        if !known {
            *cached = None;
            *cached = Some(self.packed(config, journal, request, world).await?);
        }
        cached
            .as_ref()
            .and_then(|packed| packed.ranks.get(rank as usize))
            .cloned()
            .ok_or(ServeError::Rank { rank, world })
    }

    async fn packed(
        &self,
        config: &Arc<RunConfig>,
        journal: &SharedJournal,
        request: BatchRequest,
        world: u32,
    ) -> Result<Packed, ServeError> {
        let training = &config.spec.training;
        let input = || self.input.get().map(Arc::clone).ok_or(ServeError::NotOpen);
        let (step, samples, minibatches) = match request {
            BatchRequest::Validation(step) => (step, validation(input()?).await?, 1),
            BatchRequest::Training(step) if config.spec.algorithm.has_rollouts() => {
                let samples = journal.call(move |journal| journal.samples(step)).await?;
                (step, from_samples(&samples)?, training.minibatches)
            }
            BatchRequest::Training(step) => {
                (step, supervised(Arc::clone(config), input()?, step).await?, training.minibatches)
            }
        };
        let max_tokens = training.max_tokens_per_micro_batch;
        let packing = tokio::task::spawn_blocking(move || {
            let ranks = pack(step, &samples, world, minibatches, max_tokens)?;
            let bytes: Result<Vec<_>, ServeError> =
                ranks.iter().map(|rank| Ok(Bytes::from(rank.to_bytes()?))).collect();
            bytes
        });
        let ranks = packing.await.map_err(SharedJournalError::from)??;
        Ok(Packed { request, ranks })
    }
}

/// Every row of the evaluation data, in its order.
async fn validation(input: Arc<Input>) -> Result<Vec<TrainSample>, WorkError> {
    let job = move || {
        let data = input.evaluation.as_ref().ok_or(WorkError::NoEvaluationData)?;
        let prompts: Result<Vec<_>, _> =
            (0..data.len()).map(|position| data.prompt(position)).collect();
        Ok(from_prompts(&prompts.map_err(InputError::from)?)?)
    };
    tokio::task::spawn_blocking(job).await.map_err(|_| WorkError::Interrupted)?
}

/// Step `step`'s samples for `sft`: positions (s−1)·B .. s·B of the data. A pure function of the
/// data and the spec.
pub async fn supervised(
    config: Arc<RunConfig>,
    input: Arc<Input>,
    step: u32,
) -> Result<Vec<TrainSample>, WorkError> {
    let job = move || {
        let algorithm = config.spec.algorithm.resolve();
        let size = algorithm.map_or(0, |algorithm| algorithm.batch_size(&config.spec.rollout));
        let size = u64::from(size);
        let first = u64::from(step.saturating_sub(1)) * size;
        let prompts: Result<Vec<_>, _> =
            (first..first + size).map(|position| input.train.prompt(position)).collect();
        let prompts = prompts.map_err(InputError::from)?;
        for prompt in &prompts {
            let tokens =
                prompt.tokens.len() + prompt.completion_tokens.as_ref().map_or(0, Vec::len);
            if tokens > input.context as usize {
                return Err(InputError::TooLong {
                    dataset: "training",
                    row: prompt.row,
                    tokens,
                    context: input.context,
                }
                .into());
            }
        }
        Ok(from_prompts(&prompts)?)
    };
    tokio::task::spawn_blocking(job).await.map_err(|_| WorkError::Interrupted)?
}
