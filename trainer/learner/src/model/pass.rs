//! Passes over the whole model, with and without gradients.
//!
//! ```text
//!  forward_backward   gathers weights of   0, 1..=L, L+1, (0 if tied), then L..=1
//!                     adds gradients of              L+1, (0 if tied),      L..=1, 0
//!  logprobs           gathers weights of   0, 1..=L, L+1, (0 if tied)
//! ```
//! An empty micro-batch makes the same calls with tensors without rows. With recomputation only the
//! input of each layer is kept, and its forward pass is repeated with the weights of its backward
//! pass, so that the calls are the same.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use tch::{Kind, Tensor};

use super::layer::{self, Context, Saved};
use super::ops::{NormSaved, Rotary, rms_norm, rms_norm_backward};
use super::{Head, Layout, ModelConfig, ModelError, ModelLayout, PackedTokens, Parameters, head};

mod values;

/// A model: shape and layout, without weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    config: ModelConfig,
    layout: ModelLayout,
    head: Head,
    recompute: bool,
}

/// Kept state of a layer for its backward pass.
enum Kept {
    Everything(Saved),
    /// The layer's input `[T, H]`.
    Input(Tensor),
}

/// A chunk of the trained tokens of a micro-batch.
#[derive(Debug)]
pub struct Chunk {
    /// Range within the N trained tokens, [`PackedTokens::trained_N`].
    pub range: Range<i64>,
    /// Log-probabilities and entropies of these tokens.
    pub tokens: TokenLogprobs,
}

impl Chunk {
    /// This chunk's part of a tensor over all N trained tokens.
    pub fn of(&self, tensor_N: &Tensor) -> Tensor {
        tensor_N.narrow(0, self.range.start, self.range.end - self.range.start)
    }
}

/// Log-probabilities of trained tokens: of a micro-batch or of a chunk of it.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `[N]`, of logits ÷ temperature, fp32.
    pub logprobs_N: Tensor,
    /// `[N]` entropies in nats, fp32.
    pub entropy_N: Tensor,
}

/// The final norm's input rows and the head, for the trained tokens.
struct Top {
    normed_NH: Tensor,
    norm: NormSaved,
    norm_weight_H: Tensor,
    head_VH: Tensor,
}

impl Model {
    /// A language model with this configuration.
    pub fn new(config: ModelConfig) -> Self {
        let layout = ModelLayout::new(&config);
        Self { config, layout, head: Head::LanguageModel, recompute: false }
    }

    /// The model with another head.
    #[must_use]
    pub fn with_head(self, head: Head) -> Self {
        Self { layout: ModelLayout::with_head(&self.config, head), head, ..self }
    }

    /// With `recompute`, only the input of each layer is kept between forward and backward.
    #[must_use]
    pub fn recomputing(self, recompute: bool) -> Self {
        Self { recompute, ..self }
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    /// Runs the micro-batch forward and backward. `loss` gets each chunk of trained tokens once, in
    /// order, and returns the derivative of the total loss by each of its log-probabilities; the
    /// gradients are added to `parameters`.
    ///
    /// # Errors
    /// The model has another head, or its weights or gradients are not available.
    pub fn forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        temperature: f64,
        loss: &mut dyn FnMut(&Chunk) -> Tensor,
    ) -> Result<(), ModelError> {
        self.require(Head::LanguageModel)?;
        let (x_TH, kept) = self.layers_forward(parameters, packed, true)?;
        let dx_TH = self.top_forward_backward(parameters, packed, &x_TH, temperature, loss)?;
        drop(x_TH);
        self.layers_backward(parameters, packed, kept, dx_TH)
    }

    /// Layers and embedding backward, from the derivative by the last layer's output.
    fn layers_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        kept: Vec<Kept>,
        mut dx_TH: Tensor,
    ) -> Result<(), ModelError> {
        let rotary = self.rotary(packed, dx_TH.kind());
        let context = Context { config: &self.config, packed, rotary: &rotary };
        for (layer, kept) in kept.into_iter().enumerate().rev() {
            let block = layer + 1;
            let weights = parameters.weights(block)?;
            let saved = match kept {
                Kept::Everything(saved) => saved,
                Kept::Input(x_TH) => {
                    layer::activations(&context, self.block(block), &weights, &x_TH)?
                }
            };
            let (dx, gradient) =
                layer::backward(&context, self.block(block), &weights, &saved, &dx_TH)?;
            dx_TH = dx;
            parameters.add_gradient(block, &gradient)?;
        }
        let dtable_VH = Tensor::embedding_dense_backward(
            &dx_TH.to_kind(Kind::Float),
            &packed.tokens_T,
            self.config.vocab_size,
            -1,
            false,
        );
        parameters.add_gradient(0, &dtable_VH.view([-1]))
    }

    /// Log-probabilities of the trained tokens, without gradients.
    ///
    /// # Errors
    /// The model has another head, or its weights are not available.
    pub fn logprobs(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        temperature: f64,
    ) -> Result<TokenLogprobs, ModelError> {
        self.require(Head::LanguageModel)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let top = self.top(parameters, packed, &x_TH)?;
        let options = (Kind::Float, x_TH.device());
        let (logprobs_N, entropy_N) = (
            Tensor::empty([packed.num_trained()], options),
            Tensor::empty([packed.num_trained()], options),
        );
        for (range, targets_C, normed_CH) in self.chunks(packed, &top.normed_NH) {
            let distribution =
                head::Distribution::new(&normed_CH, &top.head_VH, &targets_C, temperature);
            logprobs_N
                .narrow(0, range.start, range.end - range.start)
                .copy_(&distribution.logprobs_C);
            entropy_N
                .narrow(0, range.start, range.end - range.start)
                .copy_(&distribution.entropy_C);
        }
        Ok(TokenLogprobs { logprobs_N, entropy_N })
    }

    /// Logits `[T, V]` of every token in fp32, not divided by a temperature. Not in chunks: for
    /// small inputs.
    ///
    /// # Errors
    /// The model has another head, or its weights are not available.
    pub fn logits(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
    ) -> Result<Tensor, ModelError> {
        self.require(Head::LanguageModel)?;
        let (x_TH, _) = self.layers_forward(parameters, packed, false)?;
        let (norm_weight_H, head_VH) = self.top_weights(parameters)?;
        let (normed_TH, _) = rms_norm(&x_TH, &norm_weight_H, self.config.rms_norm_eps);
        Ok(normed_TH.matmul(&head_VH.tr()).to_kind(Kind::Float))
    }

    fn require(&self, expected: Head) -> Result<(), ModelError> {
        let found = self.head;
        if found == expected { Ok(()) } else { Err(ModelError::Head { found, expected }) }
    }

    fn block(&self, block: usize) -> &Layout {
        &self.layout.blocks()[block]
    }

    fn rotary(&self, packed: &PackedTokens, kind: Kind) -> Rotary {
        Rotary::new(&packed.positions_T, &self.config.rope_frequencies(), kind)
    }

    /// Embedding and layers; with `keep`, also the state for the backward pass.
    fn layers_forward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        keep: bool,
    ) -> Result<(Tensor, Vec<Kept>), ModelError> {
        let table_VH =
            parameters.weights(0)?.view([self.config.vocab_size, self.config.hidden_size]);
        let mut x_TH = table_VH.index_select(0, &packed.tokens_T);
        drop(table_VH);
        let rotary = self.rotary(packed, x_TH.kind());
        let context = Context { config: &self.config, packed, rotary: &rotary };
        let mut kept = Vec::with_capacity(self.config.num_hidden_layers);
        for block in 1..=self.config.num_hidden_layers {
            let (y_TH, saved) =
                layer::forward(&context, self.block(block), &parameters.weights(block)?, &x_TH)?;
            let input_TH = std::mem::replace(&mut x_TH, y_TH);
            kept.extend(keep.then(|| {
                if self.recompute { Kept::Input(input_TH) } else { Kept::Everything(saved) }
            }));
        }
        Ok((x_TH, kept))
    }

    /// Weights of the final norm `[H]` and of the head, `[V, H]` or, if scalar, `[1, H]`.
    fn top_weights(&self, parameters: &mut dyn Parameters) -> Result<(Tensor, Tensor), ModelError> {
        let last = self.config.num_hidden_layers + 1;
        let mut views = self.block(last).views(&parameters.weights(last)?).into_iter();
        let norm_H = views
            .next()
            .ok_or_else(|| ModelError::Packed("the last block has no norm".to_owned()))?;
        let head_VH = match views.next() {
            Some(head) => head,
            None => parameters.weights(0)?.view([self.config.vocab_size, self.config.hidden_size]),
        };
        Ok((norm_H, head_VH))
    }

    fn top(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        x_TH: &Tensor,
    ) -> Result<Top, ModelError> {
        let (norm_weight_H, head_VH) = self.top_weights(parameters)?;
        let (normed_NH, norm) = rms_norm(
            &x_TH.index_select(0, &packed.predictors_N()),
            &norm_weight_H,
            self.config.rms_norm_eps,
        );
        Ok(Top { normed_NH, norm, norm_weight_H, head_VH })
    }

    /// (range, target ids, normed hidden states) of each chunk of trained tokens.
    fn chunks(
        &self,
        packed: &PackedTokens,
        normed_NH: &Tensor,
    ) -> impl Iterator<Item = (Range<i64>, Tensor, Tensor)> {
        let targets_N = packed.targets_N();
        head::chunks(packed.num_trained(), self.config.vocab_size).map(move |range| {
            let length = range.end - range.start;
            (
                range.clone(),
                targets_N.narrow(0, range.start, length),
                normed_NH.narrow(0, range.start, length),
            )
        })
    }

    /// Final norm and head in both directions, to `dx` `[T, H]`.
    fn top_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        x_TH: &Tensor,
        temperature: f64,
        loss: &mut dyn FnMut(&Chunk) -> Tensor,
    ) -> Result<Tensor, ModelError> {
        let top = self.top(parameters, packed, x_TH)?;
        let last = self.config.num_hidden_layers + 1;
        let tied = self.config.tie_word_embeddings;
        let (gradient, dtable) =
            (zeros(self.block(last), x_TH), tied.then(|| zeros(self.block(0), x_TH)));
        let mut last_views = self.block(last).views(&gradient);
        let mut dhead_VH = match &dtable {
            Some(flat) => flat.view([self.config.vocab_size, self.config.hidden_size]),
            None => last_views.remove(1),
        };
        let dnormed_NH = top.normed_NH.empty_like();
        for (range, targets_C, normed_CH) in self.chunks(packed, &top.normed_NH) {
            let distribution =
                head::Distribution::new(&normed_CH, &top.head_VH, &targets_C, temperature);
            let tokens = TokenLogprobs {
                logprobs_N: distribution.logprobs_C.shallow_clone(),
                entropy_N: distribution.entropy_C.shallow_clone(),
            };
            let chunk = Chunk { range, tokens };
            let dlogits_CV = distribution
                .logits_gradient(&targets_C, &loss(&chunk), temperature)
                .to_kind(normed_CH.kind());
            chunk.of(&dnormed_NH).copy_(&dlogits_CV.matmul(&top.head_VH));
            add_product(&mut dhead_VH, &dlogits_CV, &normed_CH);
        }
        let (dx_NH, dnorm_H) = rms_norm_backward(&dnormed_NH, &top.norm, &top.norm_weight_H);
        last_views[0].copy_(&dnorm_H);
        parameters.add_gradient(last, &gradient)?;
        if let Some(dtable) = dtable {
            parameters.add_gradient(0, &dtable)?;
        }
        Ok(x_TH.zeros_like().index_copy_(0, &packed.predictors_N(), &dx_NH))
    }
}

/// A block's flat fp32 gradient, zero.
fn zeros(block: &Layout, like: &Tensor) -> Tensor {
    Tensor::zeros([block.numel()], (Kind::Float, like.device()))
}

/// Adds `dyᵀ · x` to the fp32 `out`.
fn add_product(out: &mut Tensor, dy: &Tensor, x: &Tensor) {
    if x.kind() == Kind::Float {
        let _ = out.addmm_(&dy.tr(), x);
    } else {
        let _ = out.g_add_(&dy.tr().mm(x));
    }
}
