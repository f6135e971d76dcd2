//! Passes of a model with a language-model head: log-probabilities and entropies of the trained
//! tokens, in chunks.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use rljob_kernels::head::{Distribution, TokenGradient};
use rljob_kernels::linear::{Write, weight_gradient};
use rljob_kernels::norm::{rms_norm, rms_norm_backward};
use tch::{Kind, Tensor};

use super::{Model, ValueHead};
use crate::model::{Gradient, Head, ModelError, PackedTokens, Parameters, head};

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

    /// This chunk's part of derivatives by all N trained tokens.
    pub fn of_gradient(&self, gradient: &TokenGradient) -> TokenGradient {
        let (start, length) = (self.range.start, self.range.end - self.range.start);
        TokenGradient {
            logprobs_C: self.of(&gradient.logprobs_C),
            entropy_C: gradient.entropy_C.as_ref().map(|entropy_N| self.of(entropy_N)),
            selected: gradient.selected.as_ref().map(|selected| selected.narrow(start, length)),
        }
    }
}

/// Log-probabilities of trained tokens: of a micro-batch or of a chunk of it.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `[N]`, of logits ÷ temperature, fp32.
    pub logprobs_N: Tensor,
    /// `[N]` entropies in nats, fp32.
    pub entropy_N: Tensor,
    /// `[N, K]` of [`PackedTokens::selected_NK`], of logits ÷ temperature, fp32.
    pub selected_NK: Option<Tensor>,
}

impl TokenLogprobs {
    /// Without selected tokens.
    pub fn new(logprobs_N: Tensor, entropy_N: Tensor) -> Self {
        Self { logprobs_N, entropy_N, selected_NK: None }
    }
}

/// Rows of trained tokens whose logits exist at once.
struct Rows {
    range: Range<i64>,
    targets_C: Tensor,
    normed_CH: Tensor,
    /// `[C, K]` int64, selected tokens.
    selected_CK: Option<Tensor>,
}

impl Rows {
    /// Logits ÷ temperature as a distribution, and the log-probabilities of selected tokens.
    fn distribution(
        &self,
        head_VH: &Tensor,
        temperature: f64,
    ) -> Result<(Distribution, Option<Tensor>), ModelError> {
        let logits_CV = self.normed_CH.matmul(&head_VH.tr());
        // The logits are overwritten.
        let read = self.selected_CK.as_ref().map(|own_CK| logits_CV.gather(-1, own_CK, false));
        let distribution = Distribution::new(&logits_CV, &self.targets_C, temperature)?;
        let selected_CK = read.map(|own_CK| distribution.logprobs_of(&own_CK, temperature));
        Ok((distribution, selected_CK))
    }
}

impl Model {
    /// Runs the micro-batch forward and backward. `loss` gets each chunk of trained tokens once, in
    /// order, and returns the derivatives of the total loss with respect to its log-probabilities
    /// and entropies; the gradients are added to `parameters`. With a value head, they have those
    /// of its loss, too.
    ///
    /// # Errors
    /// The model has another head, or its weights or gradients are not available.
    pub fn forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        value_head: Option<ValueHead<'_>>,
        packed: &PackedTokens,
        temperature: f64,
        loss: &mut dyn FnMut(&Chunk) -> TokenGradient,
    ) -> Result<(), ModelError> {
        self.require(Head::LanguageModel)?;
        let (x_TH, kept) = self.layers_forward(parameters, packed, true)?;
        let dx_TH =
            self.top_forward_backward(parameters, value_head, packed, &x_TH, temperature, loss)?;
        drop(x_TH);
        self.layers_backward(parameters, packed, kept, dx_TH)
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
        let top = self.top(parameters, &packed.predictors_N, &x_TH)?;
        self.logprobs_of(packed, &top.normed_NH, &top.head_VH, temperature)
    }

    /// Log-probabilities of the trained tokens from the normed states that predict them.
    pub(super) fn logprobs_of(
        &self,
        packed: &PackedTokens,
        normed_NH: &Tensor,
        head_VH: &Tensor,
        temperature: f64,
    ) -> Result<TokenLogprobs, ModelError> {
        let options = (Kind::Float, normed_NH.device());
        let (logprobs_N, entropy_N) = (
            Tensor::empty([packed.num_trained()], options),
            Tensor::empty([packed.num_trained()], options),
        );
        let mut selected = Vec::new();
        for rows in self.chunks(packed, normed_NH) {
            let (distribution, selected_CK) = rows.distribution(head_VH, temperature)?;
            let (start, length) = (rows.range.start, rows.range.end - rows.range.start);
            logprobs_N.narrow(0, start, length).copy_(&distribution.logprobs_C);
            entropy_N.narrow(0, start, length).copy_(&distribution.entropy_C);
            selected.extend(selected_CK);
        }
        let selected_NK = packed.selected_NK.as_ref().map(|tokens_NK| match &*selected {
            [] => tokens_NK.to_kind(Kind::Float),
            parts => Tensor::cat(parts, 0),
        });
        Ok(TokenLogprobs { logprobs_N, entropy_N, selected_NK })
    }

    /// Logits `[T, V]` of every row in fp32, not divided by a temperature. Not computed in
    /// chunks; for small inputs only.
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
        let (normed_TH, _) = rms_norm(&x_TH, &norm_weight_H, self.config.rms_norm_eps)?;
        Ok(normed_TH.matmul(&head_VH.tr()).to_kind(Kind::Float))
    }

    /// Chunks of the trained tokens with their normed states.
    fn chunks<'a>(
        &self,
        packed: &'a PackedTokens,
        normed_NH: &'a Tensor,
    ) -> impl Iterator<Item = Rows> + use<'a> {
        let device = normed_NH.device();
        head::chunks(packed.num_trained(), self.config.vocab_size, device).map(move |range| {
            let part = |tensor: &Tensor| tensor.narrow(0, range.start, range.end - range.start);
            let selected = packed.selected_NK.as_ref();
            Rows {
                targets_C: part(&packed.targets_N),
                normed_CH: part(normed_NH),
                selected_CK: selected.map(|own_NK| part(own_NK).to_kind(Kind::Int64)),
                range,
            }
        })
    }

    /// Runs final norm and heads forward and backward; returns `dx` `[T, H]`.
    fn top_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        value_head: Option<ValueHead<'_>>,
        packed: &PackedTokens,
        x_TH: &Tensor,
        temperature: f64,
        loss: &mut dyn FnMut(&Chunk) -> TokenGradient,
    ) -> Result<Tensor, ModelError> {
        let top = self.top(parameters, &packed.predictors_N, x_TH)?;
        let mut gradients = TopGradients::new(self, parameters)?;
        let mut dnormed_NH = top.normed_NH.empty_like();
        for rows in self.chunks(packed, &top.normed_NH) {
            let (distribution, selected_NK) = rows.distribution(&top.head_VH, temperature)?;
            let tokens = TokenLogprobs {
                logprobs_N: distribution.logprobs_C.shallow_clone(),
                entropy_N: distribution.entropy_C.shallow_clone(),
                selected_NK,
            };
            let Rows { range, targets_C, normed_CH, .. } = rows;
            let chunk = Chunk { range, tokens };
            let dlogits_CV = distribution
                .logits_gradient(&targets_C, &loss(&chunk), temperature)?
                .to_kind(normed_CH.kind());
            chunk.of(&dnormed_NH).copy_(&dlogits_CV.matmul(&top.head_VH));
            if let Some(head_VH) = &mut gradients.head_VH {
                weight_gradient(Write::Add, head_VH, &dlogits_CV, &normed_CH)?;
            }
        }
        if let Some(value_head) = value_head {
            value_head.forward_backward(&top.normed_NH, Some(&mut dnormed_NH))?;
        }
        let (dx_NH, dnorm_H) = rms_norm_backward(&dnormed_NH, &top.norm, &top.norm_weight_H, None)?;
        if let Some(norm_H) = &mut gradients.norm_H {
            let _ = norm_H.f_add_(&dnorm_H)?;
        }
        for (block, gradient) in gradients.blocks {
            parameters.add_gradient(block, gradient)?;
        }
        Ok(packed.sum_by_predictor(&dx_NH))
    }
}

/// Gradients of final norm and head; none of a frozen one.
struct TopGradients {
    norm_H: Option<Tensor>,
    head_VH: Option<Tensor>,
    /// Memory of the blocks that contain them.
    blocks: Vec<(usize, Gradient)>,
}

impl TopGradients {
    fn new(model: &Model, parameters: &mut dyn Parameters) -> Result<Self, ModelError> {
        let last = model.config.num_hidden_layers + 1;
        let shared = model.config.tie_word_embeddings.then_some(0);
        let (mut tensors, mut blocks) = (Vec::new(), Vec::new());
        for block in std::iter::once(last).chain(shared) {
            if parameters.trains(block) {
                let gradient = parameters.gradient(block)?.with_values();
                tensors.extend(model.block(block).views(&gradient.flat));
                blocks.push((block, gradient));
            }
        }
        let mut tensors = tensors.into_iter();
        Ok(Self { norm_H: tensors.next(), head_VH: tensors.next(), blocks })
    }
}
