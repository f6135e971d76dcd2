//! Access of passes to weights and gradients.

use rljob_kernels::linear::Write;
use tch::{Device, Kind, Tensor};

use super::{ModelError, ModelLayout};

/// A and B of the adapters of a layer, or their gradients.
#[derive(Debug)]
pub struct Adapters {
    /// Number of the layer.
    pub layer: usize,
    /// alpha ÷ rank.
    pub scale: f64,
    /// Of the linear layers that have adapters, by `LoraTarget::ALL`.
    pub pairs: [Option<[Tensor; 2]>; 7],
}

/// Weights of a layer in a pass.
#[derive(Debug)]
pub struct LayerWeights {
    /// Flat weights `[numel]` in the compute kind.
    pub flat: Tensor,
    /// Adapters that are not part of `flat`.
    pub adapters: Option<Adapters>,
}

/// Memory for the gradient of a layer.
#[derive(Debug)]
pub struct LayerGradient {
    /// For all weights, or for adapters.
    pub memory: Gradient,
    /// Views of `memory`, if it is for adapters.
    pub adapters: Option<Adapters>,
}

/// Source of weights and sink of gradients, by block: unsharded here, sharded in `fsdp`.
///
/// Calls of sharded parameters are collectives. Their order and number depend on the layout and the
/// kind of pass only, not on data: an empty micro-batch makes the same calls as a full one.
pub trait Parameters {
    /// The block's flat weights `[numel]` in the compute kind, valid until the pass gets the
    /// weights of two further blocks between the first and the last. `next` is the block that the
    /// pass needs afterwards; it may be gathered meanwhile.
    fn weights(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError>;

    /// Whether the block has a gradient. Passes do not compute that of other blocks.
    fn trains(&self, _block: usize) -> bool {
        true
    }

    /// Memory for a part of the block's gradient.
    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError>;

    /// Adds a part of the block's gradient, in memory from [`Self::gradient`]. A block may get
    /// several in a pass (tied embedding and head).
    fn add_gradient(&mut self, block: usize, gradient: Gradient) -> Result<(), ModelError>;

    /// As [`Self::weights`], of a layer. With `separate_adapters`, its adapters are not merged.
    fn layer(
        &mut self,
        block: usize,
        next: Option<usize>,
        _separate_adapters: bool,
    ) -> Result<LayerWeights, ModelError> {
        Ok(LayerWeights { flat: self.weights(block, next)?, adapters: None })
    }

    /// As [`Self::gradient`], of a layer, with `separate_adapters` as in [`Self::layer`].
    fn layer_gradient(
        &mut self,
        block: usize,
        _separate_adapters: bool,
    ) -> Result<LayerGradient, ModelError> {
        Ok(LayerGradient { memory: self.gradient(block)?, adapters: None })
    }

    /// As [`Self::add_gradient`], in memory from [`Self::layer_gradient`].
    fn add_layer_gradient(
        &mut self,
        block: usize,
        gradient: LayerGradient,
    ) -> Result<(), ModelError> {
        self.add_gradient(block, gradient.memory)
    }

    /// Ends a pass with gradients.
    fn end_pass(&mut self) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Memory for a part of a block's gradient: what the block has already, or uninitialized.
#[derive(Debug)]
pub struct Gradient {
    /// `[numel]`, fp32.
    pub flat: Tensor,
    /// Whether `flat` has values, to which others are added.
    pub has_values: bool,
}

impl Gradient {
    /// Uninitialized memory for `numel` elements.
    ///
    /// # Errors
    /// libtorch cannot allocate it.
    pub fn uninitialized(numel: i64, device: Device) -> Result<Self, ModelError> {
        let flat = Tensor::f_empty([numel], (Kind::Float, device))?;
        Ok(Self { flat, has_values: false })
    }

    /// The same memory with values: zeros, if it had none.
    #[must_use]
    pub fn with_values(mut self) -> Self {
        if !self.has_values {
            let _ = self.flat.zero_();
        }
        Self { has_values: true, ..self }
    }

    /// How a part is written.
    pub fn write(&self) -> Write {
        if self.has_values { Write::Add } else { Write::Set }
    }
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
    fn weights(&mut self, block: usize, _: Option<usize>) -> Result<Tensor, ModelError> {
        Ok(self.blocks[block].to_kind(self.compute))
    }

    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError> {
        let whole = &self.gradients[block];
        Gradient::uninitialized(whole.numel() as i64, whole.device())
    }

    fn add_gradient(&mut self, block: usize, gradient: Gradient) -> Result<(), ModelError> {
        let _ = self.gradients[block].f_add_(&gradient.flat)?;
        Ok(())
    }
}
