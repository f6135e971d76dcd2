//! Access of passes to weights and gradients.

use tch::{Kind, Tensor};

use super::{ModelError, ModelLayout};

/// Source of weights and sink of gradients, by block: unsharded here, sharded in `fsdp`.
///
/// Calls of sharded parameters are collectives. Their order and number depend on the layout and the
/// kind of pass only, not on data: an empty micro-batch makes the same calls as a full one.
pub trait Parameters {
    /// The block's flat weights `[numel]` in the compute kind.
    fn weights(&mut self, block: usize) -> Result<Tensor, ModelError>;
    /// Adds `gradient` `[numel]`, fp32, to the block's gradient. A block may get several in a pass
    /// (tied embedding and head).
    fn add_gradient(&mut self, block: usize, gradient: &Tensor) -> Result<(), ModelError>;
}

/// Unsharded parameters: fp32 weights and their gradients.
#[derive(Debug)]
pub struct WholeParameters {
    blocks: Vec<Tensor>,
    gradients: Vec<Tensor>,
    compute: Kind,
}

impl WholeParameters {
    /// Parameters with `blocks`, one flat fp32 vector per block; passes get them in kind `compute`.
    pub fn new(layout: &ModelLayout, blocks: Vec<Tensor>, compute: Kind) -> Self {
        let gradients = layout
            .blocks()
            .iter()
            .zip(&blocks)
            .map(|(block, flat)| Tensor::zeros([block.numel()], (Kind::Float, flat.device())))
            .collect();
        Self { blocks, gradients, compute }
    }

    /// Flat fp32 weights, by block.
    pub fn blocks(&self) -> &[Tensor] {
        &self.blocks
    }

    /// Flat fp32 gradients, by block, accumulated since the last [`Self::zero_gradients`].
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// Sets the gradients to zero.
    pub fn zero_gradients(&mut self) {
        for gradient in &mut self.gradients {
            let _ = gradient.zero_();
        }
    }
}

impl Parameters for WholeParameters {
    fn weights(&mut self, block: usize) -> Result<Tensor, ModelError> {
        Ok(self.blocks[block].to_kind(self.compute))
    }

    fn add_gradient(&mut self, block: usize, gradient: &Tensor) -> Result<(), ModelError> {
        let _ = self.gradients[block].f_add_(gradient)?;
        Ok(())
    }
}
