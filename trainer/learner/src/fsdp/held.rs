//! Whole blocks that a rank on a CPU holds over the micro-batches of a minibatch.

use tch::{TchError, Tensor};

/// Weights and gradients of a minibatch, by block.
#[derive(Debug)]
pub struct HeldBlocks {
    /// `[numel]` in the compute kind, since a pass has used them.
    weights: Vec<Option<Tensor>>,
    /// `[numel]` in fp32, the sum over this rank's passes.
    gradients: Vec<Option<Tensor>>,
}

impl HeldBlocks {
    /// None of `blocks`.
    pub fn new(blocks: usize) -> Self {
        let none = || std::iter::repeat_with(|| None).take(blocks).collect();
        Self { weights: none(), gradients: none() }
    }

    /// A block's weights, if they are held.
    pub fn weights(&self, block: usize) -> Option<Tensor> {
        self.weights.get(block)?.as_ref().map(Tensor::shallow_clone)
    }

    /// Holds a block's weights.
    pub fn keep(&mut self, block: usize, weights: &Tensor) {
        if let Some(held) = self.weights.get_mut(block) {
            *held = Some(weights.shallow_clone());
        }
    }

    /// Adds a part of a block's gradient.
    ///
    /// # Errors
    /// The sizes differ.
    pub fn add(&mut self, block: usize, gradient: Tensor) -> Result<(), TchError> {
        match self.gradients.get_mut(block) {
            Some(Some(sum)) => sum.f_add_(&gradient).map(drop),
            Some(none) => {
                *none = Some(gradient);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes the gradients of all blocks that have one.
    pub fn take_gradients(&mut self) -> Vec<(usize, Tensor)> {
        let gradients = self.gradients.iter_mut().enumerate();
        gradients.filter_map(|(block, sum)| Some((block, sum.take()?))).collect()
    }

    /// Releases everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.weights.len());
    }
}
