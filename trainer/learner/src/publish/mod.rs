//! Weight publication: as a Hugging Face folder, or by broadcast to each engine. Weights are
//! gathered into a copy first, so that training continues while engines read, and no collective of
//! the learners waits for an engine.
//!
//! ```text
//!  every rank: gather block by block ──▶ staged copy on the ranks that publish
//!     ├──▶ writer.rs      a folder on a thread, complete once it has its final name (disk.rs)
//!     ├──▶ export.rs      the same on a thread, with the tokenizer and adapters.rs
//!     └──▶ broadcast.rs   a thread per engine, in buckets
//! ```

pub mod adapters;
pub mod broadcast;
pub mod buckets;
pub mod disk;
mod engine_groups;
pub mod export;
pub mod probes;
pub mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adapters::StagedAdapters;
use buckets::{Bucket, MAX_BUCKET, StagedMemory};
use rljob_collective::{DeviceEvent, Stream};
use rljob_protocol::learner::TensorInfo;
use rljob_protocol::probe::WeightProbe;
use tch::{Kind, Tensor};

use crate::background::ThreadError;
use crate::coordinator_client::ClientError;
use crate::fsdp::TrainedParameters;
use crate::memory::OutOfMemory;
use crate::model::hugging_face::named_tensors;
use crate::model::{ModelError, ModelLayout};

/// Weights that could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Gathering or writing failed.
    #[error("failed to publish the weights")]
    Model(#[from] ModelError),
    #[error("failed to {action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Storage(#[from] rljob_storage::StorageError),
    /// The store for broadcasts could not be hosted, or its thread could not be started.
    #[error("failed to prepare a broadcast: {0}")]
    Broadcast(String),
    #[error("failed to report that weights are ready")]
    Report(#[from] ClientError),
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

impl PublishError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// A copy of all weights in the compute kind.
#[derive(Debug)]
pub struct Staged {
    layout: ModelLayout,
    kind: Kind,
    /// Copies of the blocks, on the device of the parameters.
    memory: StagedMemory,
    /// The end of copying, on a GPU.
    copied: Option<Arc<DeviceEvent>>,
    /// Adapters that the weights contain, for an export.
    adapters: Option<StagedAdapters>,
    /// Elements by which engines are checked, for a publication.
    probes: Vec<WeightProbe>,
}

impl Staged {
    /// Gathers all blocks. A collective: every rank calls it; only those with `keep` get a copy,
    /// the others hold one block at a time.
    ///
    /// # Errors
    /// A collective fails.
    pub fn gather(
        parameters: &mut TrainedParameters,
        layout: &ModelLayout,
        keep: bool,
    ) -> Result<Option<Self>, PublishError> {
        let mut memory = StagedMemory::new(MAX_BUCKET);
        for index in 0..layout.blocks().len() {
            let flat = parameters.gather(index)?;
            crate::heartbeat::advance();
            if keep {
                // A copy, because with a world size of 1 `flat` may be the master weights.
                memory.push(layout, &flat)?;
            }
        }
        if !keep {
            return Ok(None);
        }
        let on_gpu = memory.blocks().iter().any(|block| block.device().is_cuda());
        let copied = on_gpu.then(end_of_copying).transpose()?;
        let (layout, kind) = (layout.clone(), parameters.compute());
        Ok(Some(Self { layout, kind, memory, copied, adapters: None, probes: Vec::new() }))
    }

    /// The same copy with the adapters that it contains.
    #[must_use]
    pub fn with_adapters(self, adapters: Option<StagedAdapters>) -> Self {
        Self { adapters, ..self }
    }

    /// The same copy with elements by which engines are checked.
    #[must_use]
    pub fn with_probes(self, probes: Vec<WeightProbe>) -> Self {
        Self { probes, ..self }
    }

    /// Every tensor by its Hugging Face name, in order of blocks.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        named_tensors(&self.layout, self.memory.blocks())
    }

    /// The same tensors as buckets.
    pub fn buckets(&self) -> Vec<Bucket> {
        self.memory.buckets(&self.layout)
    }

    /// Names, types and shapes in the same order, with SGLang's names of types.
    pub fn infos(&self) -> Vec<TensorInfo> {
        let dtype = if self.kind == Kind::BFloat16 { "bfloat16" } else { "float32" };
        self.tensors()
            .into_iter()
            .map(|(name, tensor)| TensorInfo {
                name,
                dtype: dtype.to_owned(),
                shape: tensor.size(),
            })
            .collect()
    }

    /// Another handle of the same weights, without adapters and probes, for another thread.
    fn share(&self) -> Self {
        Self {
            layout: self.layout.clone(),
            kind: self.kind,
            memory: self.memory.share(),
            copied: self.copied.clone(),
            adapters: None,
            probes: Vec::new(),
        }
    }
}

/// An event after the operations of this thread.
fn end_of_copying() -> Result<Arc<DeviceEvent>, PublishError> {
    let event = DeviceEvent::new().and_then(|event| event.record(Stream::Compute).map(|()| event));
    event.map(Arc::new).map_err(|error| PublishError::Broadcast(error.to_string()))
}

#[cfg(test)]
mod tests;
