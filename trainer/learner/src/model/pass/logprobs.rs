//! Passes of a model with a language-model head: log-probabilities and entropies of the trained
//! tokens, in chunks.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ops::Range;

use rljob_kernels::head::Distribution;
use rljob_kernels::linear::{Write, weight_gradient};
use rljob_kernels::norm::{rms_norm, rms_norm_backward};
use tch::{Kind, Tensor};

use super::Model;
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
}

/// Log-probabilities of trained tokens: of a micro-batch or of a chunk of it.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `[N]`, of logits ÷ temperature, fp32.
    pub logprobs_N: Tensor,
    /// `[N]` entropies in nats, fp32.
    pub entropy_N: Tensor,
}

impl Model {
    /// Runs the micro-batch forward and backward. `loss` gets each chunk of trained tokens once, in
    /// order, and returns the derivative of the total loss with respect to each of its
    /// log-probabilities; the gradients are added to `parameters`.
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
        let options = (Kind::Float, x_TH.device());
        let (logprobs_N, entropy_N) = (
            Tensor::empty([packed.num_trained()], options),
            Tensor::empty([packed.num_trained()], options),
        );
        for (range, targets_C, normed_CH) in self.chunks(packed, &top.normed_NH) {
            let logits_CV = normed_CH.matmul(&top.head_VH.tr());
            let distribution = Distribution::new(&logits_CV, &targets_C, temperature)?;
            logprobs_N
                .narrow(0, range.start, range.end - range.start)
                .copy_(&distribution.logprobs_C);
            entropy_N
                .narrow(0, range.start, range.end - range.start)
                .copy_(&distribution.entropy_C);
        }
        Ok(TokenLogprobs { logprobs_N, entropy_N })
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

    /// (range, target ids, normed hidden states) of each chunk of trained tokens.
    fn chunks(
        &self,
        packed: &PackedTokens,
        normed_NH: &Tensor,
    ) -> impl Iterator<Item = (Range<i64>, Tensor, Tensor)> {
        let targets_N = packed.targets_N.shallow_clone();
        let device = normed_NH.device();
        head::chunks(packed.num_trained(), self.config.vocab_size, device).map(move |range| {
            let length = range.end - range.start;
            (
                range.clone(),
                targets_N.narrow(0, range.start, length),
                normed_NH.narrow(0, range.start, length),
            )
        })
    }

    /// Runs final norm and head forward and backward; returns `dx` `[T, H]`.
    fn top_forward_backward(
        &self,
        parameters: &mut dyn Parameters,
        packed: &PackedTokens,
        x_TH: &Tensor,
        temperature: f64,
        loss: &mut dyn FnMut(&Chunk) -> Tensor,
    ) -> Result<Tensor, ModelError> {
        let top = self.top(parameters, &packed.predictors_N, x_TH)?;
        let last = self.config.num_hidden_layers + 1;
        let tied = self.config.tie_word_embeddings;
        let gradient = parameters.gradient(last)?.with_values();
        let dtable = tied.then(|| parameters.gradient(0)).transpose()?;
        let dtable = dtable.map(Gradient::with_values);
        let mut last_views = self.block(last).views(&gradient.flat);
        let mut dhead_VH = match &dtable {
            Some(table) => table.flat.view([self.config.vocab_size, self.config.hidden_size]),
            None => last_views.remove(1),
        };
        let dnormed_NH = top.normed_NH.empty_like();
        for (range, targets_C, normed_CH) in self.chunks(packed, &top.normed_NH) {
            let logits_CV = normed_CH.matmul(&top.head_VH.tr());
            let distribution = Distribution::new(&logits_CV, &targets_C, temperature)?;
            let tokens = TokenLogprobs {
                logprobs_N: distribution.logprobs_C.shallow_clone(),
                entropy_N: distribution.entropy_C.shallow_clone(),
            };
            let chunk = Chunk { range, tokens };
            let dlogits_CV = distribution
                .logits_gradient(&targets_C, &loss(&chunk), temperature)?
                .to_kind(normed_CH.kind());
            chunk.of(&dnormed_NH).copy_(&dlogits_CV.matmul(&top.head_VH));
            weight_gradient(Write::Add, &mut dhead_VH, &dlogits_CV, &normed_CH)?;
        }
        let (dx_NH, dnorm_H) = rms_norm_backward(&dnormed_NH, &top.norm, &top.norm_weight_H, None)?;
        let _ = last_views[0].f_add_(&dnorm_H)?;
        parameters.add_gradient(last, gradient)?;
        if let Some(dtable) = dtable {
            parameters.add_gradient(0, dtable)?;
        }
        Ok(packed.sum_by_predictor(&dx_NH))
    }
}
