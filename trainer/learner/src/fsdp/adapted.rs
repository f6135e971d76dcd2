//! Parameters of a model whose adapters are trained, over a frozen base.
//!
//! ```text
//!  weights(b)        gather of the base's block, gather of its adapters ──▶ merged block
//!  add_gradient(b)   gradient of the merged block ──▶ gradient of the adapters ──▶ sum over ranks
//!  layer(b)          with dropout: gather of the base's block, gather of its adapters
//! ```
//! The base is sharded in the compute kind and shared by the models of a rank that have it;
//! adapters are fp32 everywhere.

use rljob_crds::algorithm::Sharding;
use std::rc::Rc;

use sha2::{Digest as _, Sha256};
use tch::{Kind, Tensor};

use super::frozen::FrozenParameters;
use super::sharded::{Passes, ShardedParameters};
use super::shards::failed;
use crate::model::lora::{Lora, TrainedPart};
use crate::model::{Gradient, LayerGradient, LayerWeights, ModelError, Parameters};
use crate::ranks::Ranks;

/// Elements of a block that identify it, evenly spaced; all, if it has fewer than twice as many.
const SAMPLE: i64 = 1 << 20;

/// A frozen model under adapters. Copies share the memory.
#[derive(Clone, Debug)]
pub struct Base {
    parameters: FrozenParameters,
    /// SHA-256 of a sample of its weights.
    sha256: Rc<[u8]>,
}

impl Base {
    /// Keeps this rank's shards of `blocks`, flat vectors, in kind `compute`.
    ///
    /// # Errors
    /// A block cannot be read, or memory or CUDA.
    pub fn new(
        ranks: Rc<Ranks>,
        compute: Kind,
        blocks: impl IntoIterator<Item = Result<Tensor, ModelError>>,
    ) -> Result<Self, ModelError> {
        let mut hash = Sha256::new();
        let blocks = blocks.into_iter().map(|block| {
            let block = block?;
            hash.update(sample(&block)?);
            Ok(block)
        });
        let parameters = FrozenParameters::new(ranks, compute, blocks)?;
        Ok(Self { parameters, sha256: hash.finalize().as_slice().into() })
    }

    /// SHA-256 of what adapters of this scale belong to, in hexadecimal: a sample of the weights,
    /// and the scale.
    pub fn sha256(&self, scale: f64) -> String {
        let hash = Sha256::new_with_prefix(&self.sha256);
        format!("{:x}", hash.chain_update(scale.to_le_bytes()).finalize())
    }

    /// The model without adapters.
    pub fn parameters(&self) -> FrozenParameters {
        self.parameters.clone()
    }
}

/// Bytes of a sample of a block's elements.
fn sample(block: &Tensor) -> Result<Vec<u8>, ModelError> {
    let step = (block.numel() as i64 / SAMPLE).max(1);
    let sample = block.f_slice(0, None, None, step)?.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut bytes = vec![0; sample.numel() * 4];
    sample.f_copy_data_u8(&mut bytes, sample.numel())?;
    Ok(bytes)
}

/// Adapters of a model, sharded over the ranks, and their base.
#[derive(Debug)]
pub struct AdaptedParameters {
    lora: Lora,
    base: Base,
    trained: ShardedParameters,
}

impl AdaptedParameters {
    /// Parameters with `masters`, this rank's fp32 shards of the trained blocks.
    ///
    /// # Errors
    /// Memory or CUDA.
    pub fn new(
        ranks: Rc<Ranks>,
        sharding: Sharding,
        (lora, base): (Lora, Base),
        masters: Vec<Tensor>,
    ) -> Result<Self, ModelError> {
        let numels = lora.layout().block_numels();
        let passes = Passes { compute: Kind::Float, sharding, offload: false };
        let trained = ShardedParameters::new(ranks, passes, &numels, masters)?;
        Ok(Self { lora, base, trained })
    }

    pub fn lora(&self) -> &Lora {
        &self.lora
    }

    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The kind of merged blocks.
    pub fn compute(&self) -> Kind {
        self.base.parameters.compute()
    }

    /// The trained blocks.
    pub fn trained(&self) -> &ShardedParameters {
        &self.trained
    }

    /// The trained blocks.
    pub fn trained_mut(&mut self) -> &mut ShardedParameters {
        &mut self.trained
    }

    /// The index of the trained block of a block of the model.
    fn trained_index(&self, block: usize) -> Option<usize> {
        match self.lora.trained(block) {
            TrainedPart::Nothing => None,
            TrainedPart::Adapters(index) | TrainedPart::Whole(index) => Some(index),
        }
    }
}

impl Parameters for AdaptedParameters {
    fn weights(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError> {
        let next_trained = next.and_then(|next| self.trained_index(next));
        match self.lora.trained(block) {
            TrainedPart::Nothing => self.base.parameters.weights(block, next),
            TrainedPart::Adapters(index) => {
                let weights = self.base.parameters.weights(block, next)?;
                let adapters = self.trained.weights(index, next_trained)?;
                self.lora.merged(index, &weights, &adapters)
            }
            TrainedPart::Whole(index) => {
                let weights = self.trained.weights(index, next_trained)?;
                Ok(weights.f_to_kind(self.compute())?)
            }
        }
    }

    fn trains(&self, block: usize) -> bool {
        self.lora.trained(block) != TrainedPart::Nothing
    }

    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError> {
        match self.lora.trained(block) {
            TrainedPart::Nothing => {
                let frozen = std::io::Error::other("the block is frozen");
                Err(failed("provide the gradient", block, frozen))
            }
            TrainedPart::Adapters(_) => {
                let numel = self.lora.base().blocks()[block].numel();
                Gradient::uninitialized(numel, self.base.parameters.device())
            }
            TrainedPart::Whole(index) => self.trained.gradient(index),
        }
    }

    fn add_gradient(&mut self, block: usize, gradient: Gradient) -> Result<(), ModelError> {
        match self.lora.trained(block) {
            TrainedPart::Nothing => self.gradient(block).map(drop),
            TrainedPart::Adapters(index) => {
                let adapters = self.trained.weights(index, None)?;
                let out = self.trained.gradient(index)?;
                self.lora.write_gradient(index, &gradient.flat, &adapters, &out)?;
                self.trained.add_gradient(index, out)
            }
            TrainedPart::Whole(index) => self.trained.add_gradient(index, gradient),
        }
    }

    fn layer(
        &mut self,
        block: usize,
        next: Option<usize>,
        separate_adapters: bool,
    ) -> Result<LayerWeights, ModelError> {
        match self.lora.trained(block) {
            TrainedPart::Adapters(index) if separate_adapters => {
                let flat = self.base.parameters.weights(block, next)?;
                let next = next.and_then(|next| self.trained_index(next));
                let adapters = self.trained.weights(index, next)?;
                Ok(LayerWeights { flat, adapters: Some(self.lora.adapters(index, &adapters)) })
            }
            _ => Ok(LayerWeights { flat: self.weights(block, next)?, adapters: None }),
        }
    }

    fn layer_gradient(
        &mut self,
        block: usize,
        separate_adapters: bool,
    ) -> Result<LayerGradient, ModelError> {
        match self.lora.trained(block) {
            TrainedPart::Adapters(index) if separate_adapters => {
                let memory = self.trained.gradient(index)?;
                let adapters = Some(self.lora.adapters(index, &memory.flat));
                Ok(LayerGradient { memory, adapters })
            }
            _ => Ok(LayerGradient { memory: self.gradient(block)?, adapters: None }),
        }
    }

    fn add_layer_gradient(
        &mut self,
        block: usize,
        gradient: LayerGradient,
    ) -> Result<(), ModelError> {
        match gradient.adapters {
            Some(adapters) => self.trained.add_gradient(adapters.layer, gradient.memory),
            None => self.add_gradient(block, gradient.memory),
        }
    }

    fn end_pass(&mut self) -> Result<(), ModelError> {
        self.trained.end_pass()
    }
}
