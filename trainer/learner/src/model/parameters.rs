//! Where the passes get a block's weights and leave its gradient.

use tch::{Kind, Tensor};

use super::{ModelError, ModelLayout};

/// Where the passes get a block's weights and leave its gradient: whole in one process, sharded in
/// `fsdp`.
///
/// Behind a sharded one the calls are collectives. Their order and number therefore depend on the
/// layout and the kind of pass only, never on data: an empty micro-batch makes the same calls as a
/// full one.
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
    /// Holds `blocks` (flat, fp32, one a block); passes see them in kind `compute`.
    pub fn new(layout: &ModelLayout, blocks: Vec<Tensor>, compute: Kind) -> Self {
        let gradients = layout
            .blocks()
            .iter()
            .zip(&blocks)
            .map(|(block, flat)| Tensor::zeros([block.numel()], (Kind::Float, flat.device())))
            .collect();
        Self { blocks, gradients, compute }
    }

    /// The flat fp32 weights, one a block.
    pub fn blocks(&self) -> &[Tensor] {
        &self.blocks
    }

    /// The flat fp32 gradients added up since the last [`Self::zero_gradients`], one a block.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// Forgets the gradients.
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
