//! Parameters of a model that is trained: all of them, or adapters.

use tch::{Kind, Tensor};

use super::adapted::AdaptedParameters;
use super::sharded::{Shard, ShardedParameters};
use crate::model::{Gradient, LayerGradient, LayerWeights, ModelError, Parameters};

/// Parameters of a model with an optimizer.
#[derive(Debug)]
pub enum TrainedParameters {
    All(Box<ShardedParameters>),
    Adapters(Box<AdaptedParameters>),
}

impl TrainedParameters {
    /// What the optimizer updates.
    pub fn trained(&self) -> &ShardedParameters {
        match self {
            Self::All(all) => all,
            Self::Adapters(adapted) => adapted.trained(),
        }
    }

    /// What the optimizer updates.
    pub fn trained_mut(&mut self) -> &mut ShardedParameters {
        match self {
            Self::All(all) => all,
            Self::Adapters(adapted) => adapted.trained_mut(),
        }
    }

    /// This rank's shards of what is trained, by block.
    pub fn shards(&self) -> &[Shard] {
        self.trained().shards()
    }

    /// The kind in which passes get blocks.
    pub fn compute(&self) -> Kind {
        match self {
            Self::All(all) => all.compute(),
            Self::Adapters(adapted) => adapted.compute(),
        }
    }

    /// The whole block `[numel]` of the model in the compute kind, with its adapters merged, on
    /// every rank. A collective.
    ///
    /// # Errors
    /// The block does not exist, or the collective fails.
    pub fn gather(&mut self, block: usize) -> Result<Tensor, ModelError> {
        match self {
            Self::All(all) => all.gather(block),
            Self::Adapters(adapted) => adapted.weights(block, None),
        }
    }

    /// As [`ShardedParameters::begin_minibatch`].
    pub fn begin_minibatch(&mut self, passes: usize) {
        self.trained_mut().begin_minibatch(passes);
    }

    fn of_passes(&mut self) -> &mut dyn Parameters {
        match self {
            Self::All(all) => all.as_mut(),
            Self::Adapters(adapted) => adapted.as_mut(),
        }
    }
}

impl Parameters for TrainedParameters {
    fn weights(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError> {
        self.of_passes().weights(block, next)
    }

    fn trains(&self, block: usize) -> bool {
        match self {
            Self::All(all) => all.trains(block),
            Self::Adapters(adapted) => adapted.trains(block),
        }
    }

    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError> {
        self.of_passes().gradient(block)
    }

    fn add_gradient(&mut self, block: usize, gradient: Gradient) -> Result<(), ModelError> {
        self.of_passes().add_gradient(block, gradient)
    }

    fn layer(
        &mut self,
        block: usize,
        next: Option<usize>,
        separate_adapters: bool,
    ) -> Result<LayerWeights, ModelError> {
        self.of_passes().layer(block, next, separate_adapters)
    }

    fn layer_gradient(
        &mut self,
        block: usize,
        separate_adapters: bool,
    ) -> Result<LayerGradient, ModelError> {
        self.of_passes().layer_gradient(block, separate_adapters)
    }

    fn add_layer_gradient(
        &mut self,
        block: usize,
        gradient: LayerGradient,
    ) -> Result<(), ModelError> {
        self.of_passes().add_layer_gradient(block, gradient)
    }

    fn end_pass(&mut self) -> Result<(), ModelError> {
        self.of_passes().end_pass()
    }
}
