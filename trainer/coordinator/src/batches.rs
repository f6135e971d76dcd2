//! Batch server: packs the current training batch or the validation data for the ranks and caches
//! it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use rljob_crds::RunConfig;
use rljob_protocol::batch::BatchError;
use rljob_protocol::prompts::Prompts;
use tokio::sync::Mutex;

use crate::input::{Input, InputError, cost_model};
use crate::pack::batch::{SampleError, add_frozen_logprobs, from_prompts, from_samples};
use crate::pack::cost::CostModel;
use crate::pack::{PackError, TrainSample, pack};
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};
use crate::work_error::WorkError;

/// Error of a batch.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Journal(#[from] SharedJournalError),
    /// Sample of the journal.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Supervised row.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// Packing.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The sizes of the model.
    #[error(transparent)]
    Input(#[from] Box<InputError>),
    /// Serialization.
    #[error(transparent)]
    Bytes(#[from] BatchError),
    /// The dataset is still being opened.
    #[error("the data is not open yet: ask again")]
    NotOpen,
    /// No group has inferred the batch.
    #[error("no group of trainer.groups has inferred the batch of step {step}")]
    NotInferred { step: u32 },
    /// The rank does not exist.
    #[error("rank {rank} of {world}")]
    Rank {
        rank: u32,
        /// Number of ranks.
        world: u32,
    },
}

impl ServeError {
    /// Whether the coordinator has a defect, so that the run must not continue.
    pub fn defect(&self) -> Option<&WorkError> {
        match self {
            Self::Work(error @ WorkError::Panicked(_)) => Some(error),
            _ => None,
        }
    }
}

/// Data that learners request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchRequest {
    /// The batch of this step, with what groups inferred of it.
    Training(u32),
    /// The batch of this step, for a group that infers it.
    Inference(u32),
    /// The evaluation data, after this number of steps.
    Validation(u32),
}

/// Caches of the packed batch of one step, for the trainer and for groups.
#[derive(Default)]
pub struct Batches {
    input: OnceLock<Arc<Input>>,
    costs: OnceLock<CostModel>,
    of_trainer: Mutex<Option<Packed>>,
    of_groups: Mutex<Option<Packed>>,
}

struct Packed {
    request: BatchRequest,
    ranks: Vec<Bytes>,
}

impl Batches {
    /// Dataset of supervised batches and validation data.
    pub fn set_input(&self, input: Arc<Input>) {
        let _ = self.input.set(input);
    }

    /// The input, once it is open.
    pub fn input(&self) -> Option<&Input> {
        self.input.get().map(Arc::as_ref)
    }

    /// Returns the bytes for one rank. A training batch must be fixed. Concurrent requests share
    /// one packing.
    pub async fn get(
        &self,
        config: &Arc<RunConfig>,
        journal: &SharedJournal,
        request: BatchRequest,
        rank: u32,
        world: u32,
    ) -> Result<Bytes, ServeError> {
        let cache = match request {
            BatchRequest::Inference(_) => &self.of_groups,
            BatchRequest::Training(_) | BatchRequest::Validation(_) => &self.of_trainer,
        };
        let mut cached = cache.lock().await;
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
        let (training, trainer) = (&config.spec.training, &config.spec.trainer);
        let (step, samples, minibatches, gpus) = match request {
            BatchRequest::Validation(step) => {
                (step, validation(self.opened()?).await?, 1, trainer.gpus())
            }
            BatchRequest::Training(step) => {
                let mut samples = self.samples(config, journal, step).await?;
                if config.spec.frozen_group().is_some() {
                    add_inferred(journal, step, &mut samples).await?;
                }
                (step, samples, training.minibatches, trainer.gpus())
            }
            BatchRequest::Inference(step) => {
                let group = config.spec.frozen_group().map(|group| trainer.of_group(group));
                let gpus = group.map_or(0, |group| group.gpus());
                (step, self.samples(config, journal, step).await?, 1, gpus)
            }
        };
        let max_tokens = training.max_tokens_per_micro_batch;
        let prompts = Prompts::of_gpus(gpus);
        let costs = self.costs(config).await?;
        let packing = tokio::task::spawn_blocking(move || {
            let ranks = pack(step, &samples, prompts, world, minibatches, max_tokens, &costs)?;
            let bytes: Result<Vec<_>, ServeError> =
                ranks.iter().map(|rank| Ok(Bytes::from(rank.to_bytes()?))).collect();
            bytes
        });
        let ranks = packing.await.map_err(WorkError::from)??;
        Ok(Packed { request, ranks })
    }

    fn opened(&self) -> Result<Arc<Input>, ServeError> {
        self.input.get().map(Arc::clone).ok_or(ServeError::NotOpen)
    }

    /// Samples of the batch of a step.
    async fn samples(
        &self,
        config: &Arc<RunConfig>,
        journal: &SharedJournal,
        step: u32,
    ) -> Result<Vec<TrainSample>, ServeError> {
        if config.spec.algorithm.has_rollouts() {
            let samples = journal.call(move |journal| journal.samples(step)).await?;
            return Ok(from_samples(&samples)?);
        }
        Ok(supervised(Arc::clone(config), self.opened()?, step).await?)
    }

    /// Costs of sequences with the run's model, whose configuration is read once.
    async fn costs(&self, config: &Arc<RunConfig>) -> Result<CostModel, ServeError> {
        if let Some(costs) = self.costs.get() {
            return Ok(*costs);
        }
        let config = Arc::clone(config);
        let reading = tokio::task::spawn_blocking(move || cost_model(&config.model_directory));
        let costs = reading.await.map_err(WorkError::from)?.map_err(Box::new)?;
        Ok(*self.costs.get_or_init(|| costs))
    }
}

/// Adds what a group inferred to the samples of a step.
async fn add_inferred(
    journal: &SharedJournal,
    step: u32,
    samples: &mut [TrainSample],
) -> Result<(), ServeError> {
    let inferred = journal.call(move |journal| journal.inferred(step)).await?;
    let inferred = inferred.ok_or(ServeError::NotInferred { step })?;
    Ok(add_frozen_logprobs(samples, &inferred.logprobs)?)
}

/// All rows of the evaluation data, in order.
async fn validation(input: Arc<Input>) -> Result<Vec<TrainSample>, WorkError> {
    let job = move || {
        // Suites measure accuracy only.
        let data = &input.evaluation.first().ok_or(WorkError::NoEvaluationData)?.data;
        let prompts: Result<Vec<_>, _> =
            (0..data.len()).map(|position| data.prompt(position)).collect();
        Ok(from_prompts(&prompts.map_err(InputError::from)?)?)
    };
    tokio::task::spawn_blocking(job).await?
}

/// Loader positions of a step that trains on completions of the data; empty of other algorithms.
pub fn positions(config: &RunConfig, step: u32) -> Range<u64> {
    let algorithm = config.spec.algorithm.resolve().filter(|algorithm| !algorithm.has_rollouts());
    let size = algorithm.map_or(0, |algorithm| algorithm.batch_size(&config.spec.rollout));
    let first = u64::from(step.saturating_sub(1)).saturating_mul(size.into());
    first..first.saturating_add(size.into())
}

/// Samples of a step that trains on completions of the data: positions (s−1)·B .. s·B of the
/// dataset. A pure function of dataset and spec.
pub async fn supervised(
    config: Arc<RunConfig>,
    input: Arc<Input>,
    step: u32,
) -> Result<Vec<TrainSample>, WorkError> {
    let job = move || {
        let prompts: Result<Vec<_>, InputError> =
            positions(&config, step).map(|position| Ok(input.train()?.prompt(position)?)).collect();
        let prompts = prompts?;
        for prompt in &prompts {
            let tokens = prompt.len_with_completion();
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
    tokio::task::spawn_blocking(job).await?
}
