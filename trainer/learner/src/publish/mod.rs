//! Weights leave the learners: as a Hugging Face folder, or by broadcast to each engine. Either way they are gathered into a copy first, so that training goes on
//! while engines read, and no collective of the learners ever waits for an engine.
//!
//! ```text
//!  every rank: gather block by block ──▶ staging copy on the ranks that need it ──▶ disk.rs       a folder, complete when it has its name
//!                                                                                └▶ broadcast.rs  a thread per engine
//! ```

pub mod broadcast;
pub mod disk;

use std::path::PathBuf;

use rljob_protocol::learner::TensorInfo;
use tch::{Kind, Tensor};

use crate::coordinator_client::ClientError;
use crate::fsdp::ShardedParameters;
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
    /// The store for broadcasts could not be hosted, or its thread not started.
    #[error("failed to prepare a broadcast: {0}")]
    Broadcast(String),
    /// The coordinator could not be told.
    #[error("failed to report that weights are ready")]
    Report(#[from] ClientError),
}

/// A copy of all weights in the compute kind, by Hugging Face name, in order of blocks.
#[derive(Debug)]
pub struct Staged {
    /// Name and tensor.
    pub tensors: Vec<(String, Tensor)>,
}

impl Staged {
    /// Gathers all blocks: a collective of every rank. Only ranks that `keep` hold more than one block at a time; the others get none.
    pub fn gather(parameters: &ShardedParameters, layout: &ModelLayout, keep: bool) -> Result<Option<Self>, PublishError> {
        let mut tensors = Vec::new();
        for (index, block) in layout.blocks().iter().enumerate() {
            let flat = parameters.gather(index)?;
            if keep {
                // In a world of one `flat` may be the master itself.
                let copy = flat.f_copy().map_err(ModelError::from)?;
                tensors.extend(block.tensors().iter().map(|spec| spec.name.clone()).zip(block.views(&copy)));
            }
        }
        Ok(keep.then_some(Self { tensors }))
    }

    /// Names, types and shapes in order, in SGLang's words.
    pub fn infos(&self) -> Vec<TensorInfo> {
        let info = |(name, tensor): &(String, Tensor)| TensorInfo { name: name.clone(), dtype: dtype_name(tensor.kind()).to_owned(), shape: tensor.size() };
        self.tensors.iter().map(info).collect()
    }

    /// Another handle of the same copy, for another thread.
    fn share(&self) -> Self {
        Self { tensors: self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect() }
    }
}

fn dtype_name(kind: Kind) -> &'static str {
    if kind == Kind::BFloat16 { "bfloat16" } else { "float32" }
}

#[cfg(test)]
mod tests;
