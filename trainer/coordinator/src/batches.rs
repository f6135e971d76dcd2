//! The batch of the current step, packed for the ranks, as bytes. Kept until another step is asked for.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use rljob_crds::RunConfig;
use rljob_protocol::batch::BatchError;
use tokio::sync::Mutex;

use crate::driver::WorkError;
use crate::input::{Input, InputError};
use crate::pack::batch::{SampleError, from_prompts, from_samples};
use crate::pack::{PackError, TrainSample, pack};
use crate::store::{Store, StoreError};

/// A batch that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The journal.
    #[error(transparent)]
    Store(#[from] StoreError),
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
        /// The rank.
        rank: u32,
        /// Ranks in all.
        world: u32,
    },
}

/// The cache.
#[derive(Default)]
pub struct Batches {
    input: OnceLock<Arc<Input>>,
    cached: Mutex<Option<Packed>>,
}

struct Packed {
    step: u32,
    ranks: Vec<Bytes>,
}

impl Batches {
    /// Supervised batches come from the data.
    pub fn set_input(&self, input: Arc<Input>) {
        let _ = self.input.set(input);
    }

    /// The bytes for one rank. The batch must be fixed; ranks that ask together wait for one packing.
    pub async fn get(&self, config: &RunConfig, store: &Store, step: u32, rank: u32, world: u32) -> Result<Bytes, ServeError> {
        let mut cached = self.cached.lock().await;
        let known = cached.as_ref().is_some_and(|packed| packed.step == step && packed.ranks.len() == world as usize);
        if !known {
            *cached = None;
            *cached = Some(self.packed(config, store, step, world).await?);
        }
        cached.as_ref().and_then(|packed| packed.ranks.get(rank as usize)).cloned().ok_or(ServeError::Rank { rank, world })
    }

    async fn packed(&self, config: &RunConfig, store: &Store, step: u32, world: u32) -> Result<Packed, ServeError> {
        let training = &config.spec.training;
        let samples = if config.spec.algorithm.grpo.is_some() {
            let samples = store.call(move |journal| journal.samples(step)).await?;
            from_samples(&samples)?
        } else {
            let input = self.input.get().ok_or(ServeError::NotOpen)?;
            supervised(config.clone(), Arc::clone(input), step).await?
        };
        let (minibatches, max_tokens) = (training.minibatches, training.max_tokens_per_micro_batch);
        let packing = tokio::task::spawn_blocking(move || {
            let ranks = pack(step, &samples, world, minibatches, max_tokens)?;
            let bytes: Result<Vec<_>, ServeError> = ranks.iter().map(|rank| Ok(Bytes::from(rank.to_bytes()?))).collect();
            bytes
        });
        let ranks = packing.await.map_err(StoreError::from)??;
        Ok(Packed { step, ranks })
    }
}

/// Step `step`'s samples for `sft`: positions (s−1)·B .. s·B of the data. A pure function of the data and the spec.
pub async fn supervised(config: RunConfig, input: Arc<Input>, step: u32) -> Result<Vec<TrainSample>, WorkError> {
    let job = move || {
        let size = u64::from(config.spec.algorithm.sft.as_ref().map_or(0, |sft| sft.batch_size));
        let first = u64::from(step.saturating_sub(1)) * size;
        let prompts: Result<Vec<_>, _> = (first..first + size).map(|position| input.train.prompt(position)).collect();
        let prompts = prompts.map_err(InputError::from)?;
        for prompt in &prompts {
            let tokens = prompt.tokens.len() + prompt.completion_tokens.as_ref().map_or(0, Vec::len);
            if tokens > input.context as usize {
                return Err(InputError::TooLong { dataset: "training", row: prompt.row, tokens, context: input.context }.into());
            }
        }
        Ok(from_prompts(&prompts)?)
    };
    tokio::task::spawn_blocking(job).await.map_err(|_| WorkError::Interrupted)?
}
