//! Passes over the whole model: embedding, layers and final norm. The passes of each head are in
//! `logprobs` and `values`.
//!
//! ```text
//!  forward_backward   gathers weights of   0, 1..=L, L+1, (0 if tied), then L..=1
//!                     adds gradients of              L+1, (0 if tied),      L..=1, 0
//!  logprobs           gathers weights of   0, 1..=L, L+1, (0 if tied)
//! ```
//! A value head has separate parameters, which a pass uses after block L+1.
//!
//! An empty micro-batch makes the same calls with tensors without rows. Of layers that
//! are computed again only the input is kept, and the forward pass is repeated with the weights of
//! the backward pass, so that the calls are the same. They are the first ones: when their turn
//! comes in the backward pass, the activations of the others are free.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::norm::{NormSaved, rms_norm};
use tch::{Kind, Tensor};

use super::attention::Positions;
use super::layer::{self, Context, Saved};
use super::{Head, Layout, ModelConfig, ModelError, ModelLayout, PackedTokens, Parameters};

mod logprobs;
mod scores;
mod top_tokens;
mod value_head;
mod values;

pub use logprobs::{Chunk, TokenLogprobs};
pub use rljob_kernels::head::{SelectedGradient, TokenGradient};
pub use top_tokens::TopTokens;
pub use values::{TokenValues, ValueHead};

/// A model: shape and layout, without weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    config: ModelConfig,
    layout: ModelLayout,
    head: Head,
    recomputed: Recomputed,
}

/// Layers that keep a part of their activations between forward and backward, and compute the rest
/// again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recomputed {
    /// Layers that keep only their input, from the first one on.
    pub layers: usize,
    /// Layers after those that keep all but the outputs of norms.
    pub selective: usize,
}

impl Recomputed {
    /// Only the input of the first `layers` layers is kept, and all of the others.
    #[must_use]
    pub fn whole(layers: usize) -> Self {
        Self { layers, selective: 0 }
    }
}

/// Kept state of a layer for its backward pass.
enum Kept {
    Saved(Saved),
    /// The layer's input `[T, H]`.
    Input(Tensor),
}

/// Final norm and head, for the rows that predict the trained tokens or some others.
struct Top {
    normed_NH: Tensor,
    norm: NormSaved,
    norm_weight_H: Tensor,
    head_VH: Tensor,
}

impl Model {
    pub fn head(&self) -> Head {
        self.head
    }

    /// A language model with this configuration.
    pub fn new(config: ModelConfig) -> Self {
        let layout = ModelLayout::new(&config);
        Self { config, layout, head: Head::LanguageModel, recomputed: Recomputed::default() }
    }

    /// The model with another head.
    #[must_use]
    pub fn with_head(self, head: Head) -> Self {
        Self { layout: ModelLayout::with_head(&self.config, head), head, ..self }
    }

    /// The model whose passes compute these activations again.
    #[must_use]
    pub fn recomputing(self, recomputed: Recomputed) -> Self {
        Self { recomputed, ..self }
    }

    /// The activations that passes compute again.
    pub fn recomputed(&self) -> Recomputed {
        self.recomputed
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    /// Runs layers and embedding backward, from the derivative with respect to the last layer's
    /// output.
    fn layers_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        kept: Vec<Kept>,
        mut dx_TH: Tensor,
    ) -> Result<(), ModelError> {
        let positions = Positions::new(packed, &self.config, dx_TH.kind());
        let context = Context { config: &self.config, packed, positions: &positions };
        let separate = packed.dropout().is_some();
        for (layer, kept) in kept.into_iter().enumerate().rev() {
            let block = layer + 1;
            let weights = parameters.layer(block, (layer > 0).then_some(layer), separate)?;
            let saved = match kept {
                Kept::Saved(saved) => saved,
                Kept::Input(x_TH) => {
                    layer::activations(&context, self.block(block), &weights, &x_TH)?
                }
            };
            let gradient = parameters.layer_gradient(block, separate)?;
            let layout = self.block(block);
            dx_TH = layer::backward(&context, layout, &weights, &saved, &dx_TH, &gradient)?;
            parameters.add_layer_gradient(block, gradient)?;
        }
        self.embedding_backward(parameters, packed, &dx_TH)?;
        parameters.end_pass()
    }

    /// Adds the gradient of the embedding's rows. Without values, libtorch's operation is faster
    /// than adding to zeros.
    fn embedding_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        dx_TH: &Tensor,
    ) -> Result<(), ModelError> {
        if !parameters.trains(0) {
            return Ok(());
        }
        let (dx_TH, tokens_T) = (dx_TH.to_kind(Kind::Float), &packed.tokens_T);
        let mut gradient = parameters.gradient(0)?;
        if gradient.has_values {
            let (vocab_size, hidden_size) = (self.config.vocab_size, self.config.hidden_size);
            let mut table_VH = gradient.flat.view([vocab_size, hidden_size]);
            let _ = table_VH.f_index_put_(&[Some(tokens_T)], &dx_TH, true)?;
        } else {
            let dtable_VH = Tensor::f_embedding_dense_backward(
                &dx_TH,
                tokens_T,
                self.config.vocab_size,
                -1,
                false,
            )?;
            gradient.flat.f_copy_(&dtable_VH.view([-1]))?;
        }
        parameters.add_gradient(0, gradient)
    }

    fn require(&self, expected: Head) -> Result<(), ModelError> {
        let found = self.head;
        if found == expected { Ok(()) } else { Err(ModelError::Head { found, expected }) }
    }

    fn block(&self, block: usize) -> &Layout {
        &self.layout.blocks()[block]
    }

    /// Runs embedding and layers forward; with `keep`, also returns the state for the backward
    /// pass.
    fn layers_forward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        keep: bool,
    ) -> Result<(Tensor, Vec<Kept>), ModelError> {
        let table_VH =
            parameters.weights(0, Some(1))?.view([self.config.vocab_size, self.config.hidden_size]);
        let mut x_TH = table_VH.index_select(0, &packed.tokens_T);
        drop(table_VH);
        let positions = Positions::new(packed, &self.config, x_TH.kind());
        let context = Context { config: &self.config, packed, positions: &positions };
        let mut kept = Vec::with_capacity(self.config.num_hidden_layers);
        for block in 1..=self.config.num_hidden_layers {
            let weights = parameters.layer(block, Some(block + 1), packed.dropout().is_some())?;
            let (y_TH, saved) = layer::forward(&context, self.block(block), &weights, &x_TH)?;
            let input_TH = std::mem::replace(&mut x_TH, y_TH);
            kept.extend(keep.then(|| self.kept(block, input_TH, saved)));
        }
        Ok((x_TH, kept))
    }

    /// What a layer keeps for the backward pass.
    fn kept(&self, block: usize, input_TH: Tensor, saved: Saved) -> Kept {
        let Recomputed { layers, selective } = self.recomputed;
        if block <= layers {
            Kept::Input(input_TH)
        } else if block <= layers + selective {
            Kept::Saved(saved.without_norms())
        } else {
            Kept::Saved(saved)
        }
    }

    /// Weights of the final norm `[H]` and of the head, `[V, H]` or, if scalar, `[1, H]`.
    fn top_weights(&self, parameters: &mut dyn Parameters) -> Result<(Tensor, Tensor), ModelError> {
        let last = self.config.num_hidden_layers + 1;
        let tied = self.config.tie_word_embeddings && self.head == Head::LanguageModel;
        let weights = parameters.weights(last, tied.then_some(0))?;
        let mut views = self.block(last).views(&weights).into_iter();
        let norm_H = views
            .next()
            .ok_or_else(|| ModelError::Packed("the last block has no norm".to_owned()))?;
        let head_VH = if let Some(head) = views.next() {
            head
        } else {
            let table = parameters.weights(0, None)?;
            table.view([self.config.vocab_size, self.config.hidden_size])
        };
        Ok((norm_H, head_VH))
    }

    /// Final norm and head of some rows.
    fn top(
        &self,
        parameters: &mut dyn Parameters,
        rows_N: &Tensor,
        x_TH: &Tensor,
    ) -> Result<Top, ModelError> {
        let (norm_weight_H, head_VH) = self.top_weights(parameters)?;
        let x_NH = x_TH.index_select(0, rows_N);
        let (normed_NH, scale_T1) = rms_norm(&x_NH, &norm_weight_H, self.config.rms_norm_eps)?;
        let norm = NormSaved { x_TH: x_NH, scale_T1 };
        Ok(Top { normed_NH, norm, norm_weight_H, head_VH })
    }
}
