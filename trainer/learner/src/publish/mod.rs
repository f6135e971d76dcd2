//! Weights leave the learners: as a Hugging Face folder, or by broadcast to each engine. Either way
//! they are gathered into a copy first, so that training goes on while engines read, and no
//! collective of the learners ever waits for an engine.
//!
//! ```text
//!  every rank: gather block by block ──▶ staging copy on the ranks that need it ──▶ disk.rs       a folder, complete when it has its name
//!                                                                                ├▶ export.rs     the same in a thread, with the tokenizer
//!                                                                                └▶ broadcast.rs  a thread per engine
//! ```

pub mod broadcast;
pub mod disk;
pub mod export;

use std::path::{Path, PathBuf};

use rljob_protocol::learner::TensorInfo;
use tch::{Kind, Tensor};

use crate::background::ThreadError;
use crate::coordinator_client::ClientError;
use crate::fsdp::ShardedParameters;
use crate::model::hugging_face::named_tensors;
use crate::model::{ModelError, ModelLayout};

/// Weights that could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Gathering or writing them failed.
    #[error("failed to publish the weights")]
    Model(#[from] ModelError),
    /// A file operation failed.
    #[error("failed to {action} `{}`", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A bucket failed.
    #[error(transparent)]
    Storage(#[from] rljob_storage::StorageError),
    /// The store for broadcasts could not be hosted, or its thread not started.
    #[error("failed to prepare a broadcast: {0}")]
    Broadcast(String),
    /// The coordinator could not be told.
    #[error("failed to report that weights are ready")]
    Report(#[from] ClientError),
    /// The exporter's thread could not be started or did not end well.
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
    /// The flat vector of each block.
    blocks: Vec<Tensor>,
}

impl Staged {
    /// Gathers all blocks: a collective of every rank. Only ranks that `keep` hold more than one
    /// block at a time; the others get none.
    pub fn gather(
        parameters: &ShardedParameters,
        layout: &ModelLayout,
        keep: bool,
    ) -> Result<Option<Self>, PublishError> {
        let mut blocks = Vec::new();
        for index in 0..layout.blocks().len() {
            let flat = parameters.gather(index)?;
            crate::heartbeat::advance();
            if keep {
                // A copy, since in a world of one `flat` may be the master itself.
                blocks.push(flat.copy());
            }
        }
        Ok(keep.then(|| Self { layout: layout.clone(), kind: parameters.compute(), blocks }))
    }

    /// Every tensor by its Hugging Face name, in order of blocks.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        named_tensors(&self.layout, &self.blocks)
    }

    /// Names, types and shapes in the same order, in SGLang's words.
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

    /// Another handle of the same copy, for another thread.
    fn share(&self) -> Self {
        Self {
            layout: self.layout.clone(),
            kind: self.kind,
            blocks: self.blocks.iter().map(Tensor::shallow_clone).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
