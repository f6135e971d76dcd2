//! Inference forward pass of Llama, Qwen2 and Qwen3: prefill of one prompt, or one decode step of
//! all running requests.
//!
//! ```text
//!  prefill: [T] tokens ──▶ block × layers (causal attention)
//!             ──▶ kv [layers, 2, T, kv_heads, head_dim], logits of the last token
//!  decode:  [B] tokens ──▶ block × layers (attention over the KV cache, in spans of one bucket)
//!             ──▶ logits [B, vocabulary]
//!  classify: [T] tokens, as a prefill ──▶ score of the last token
//! ```
//! A step consists of few calls for any B: matrix multiplications process all rows together
//! ([`rljob_collective::linear`]; a decode step takes as long as reading the weights), and
//! attention is one call per span. In deterministic mode, a prompt is computed alone at its own
//! shape, decoded rows are padded to a multiple of [`ROWS`] and multiplied a few at a time, and the
//! attention length of a row is its own bucket.

#![expect(
    non_snake_case,
    reason = "tensors carry capital shape suffixes: T or B rows, H query heads, K key-value \
        heads, D head dimension"
)]

mod attention;

use rljob_collective::{CollectiveError, linear, linear_by_rows};
use rljob_learner::model::ModelConfig;
use tch::{Device, Kind, TchError, Tensor};

pub use self::attention::Row;
use self::attention::{cached_attention, causal_attention, spans};
use crate::cache::{CacheShape, KvCache, ROWS};
use crate::prompts::Prefilled;
use crate::sampling::{Sampled, logprobs_of};
use crate::weights::{LayerWeights, Weights};

/// Prompt positions scored at once; bounds the memory of their logits.
const SCORED_ROWS: usize = 128;

#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error(transparent)]
    Torch(#[from] TchError),
    #[error(transparent)]
    Linear(#[from] CollectiveError),
}

#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    weights: Weights,
    rotary: Rotary,
    deterministic: bool,
}

/// Rotary embedding, `[positions, head_dim]` each. The first half of `sin` is negated, so that the
/// rotation is `x · cos + roll(x, head_dim / 2) · sin`.
#[derive(Debug)]
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Model {
    /// Creates a model for positions below `context`.
    pub fn new(
        config: ModelConfig,
        weights: Weights,
        context: usize,
        deterministic: bool,
    ) -> Result<Self, TchError> {
        let rotary = Rotary::new(&config, context, weights.kind())?;
        Ok(Self { config, weights, rotary, deterministic })
    }

    /// Weights, which are updated in place.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    pub fn cache_shape(&self) -> CacheShape {
        cache_shape(&self.config, self.weights.kind())
    }

    /// Prefills a prompt.
    pub fn prefill(&self, prompt: &[i64]) -> Result<Prefilled, ForwardError> {
        self.prefill_with_hidden(prompt).map(|(prefilled, _)| prefilled)
    }

    /// Prefills a prompt and computes the log-probabilities of its tokens after `start`, each given
    /// the preceding tokens, with the `top` most likely tokens of each position.
    pub fn score(
        &self,
        prompt: &[i64],
        start: usize,
        top: usize,
    ) -> Result<(Prefilled, Vec<Sampled>), ForwardError> {
        let (prefilled, x_TE) = self.prefill_with_hidden(prompt)?;
        let mut scored = Vec::with_capacity(prompt.len() - start - 1);
        for first in (start..prompt.len() - 1).step_by(SCORED_ROWS) {
            let rows = SCORED_ROWS.min(prompt.len() - 1 - first);
            let logits_TV = self.logits(&x_TE.f_narrow(0, first as i64, rows as i64)?)?;
            scored.extend(logprobs_of(&logits_TV, &prompt[first + 1..=first + rows], top)?);
        }
        Ok((prefilled, scored))
    }

    /// Score of a classifier for a sequence.
    pub fn classify(&self, tokens: &[i64]) -> Result<f64, ForwardError> {
        Ok(self.prefill(tokens)?.logits.f_double_value(&[0])?)
    }

    /// Returns the prefill and the residual stream after the last layer, `[T, hidden]`.
    fn prefill_with_hidden(&self, prompt: &[i64]) -> Result<(Prefilled, Tensor), ForwardError> {
        let (T, config) = (prompt.len() as i64, &self.config);
        let kv = Tensor::f_zeros(
            [config.num_hidden_layers as i64, 2, T, config.num_key_value_heads, config.head_dim],
            (self.weights.kind(), Device::Cpu),
        )?;
        let angles = [
            self.rotary.cos.f_narrow(0, 0, T)?.f_unsqueeze(1)?,
            self.rotary.sin.f_narrow(0, 0, T)?.f_unsqueeze(1)?,
        ];
        let mut x_TE = self.embed(prompt)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let slot = kv.f_select(0, index as i64)?;
            x_TE = self.block(layer, &x_TE, &angles, |q_THD, k_TKD, v_TKD| {
                slot.f_select(0, 0)?.f_copy_(k_TKD)?;
                slot.f_select(0, 1)?.f_copy_(v_TKD)?;
                causal_attention(q_THD, k_TKD, v_TKD)
            })?;
        }
        let logits = self.logits(&x_TE.f_narrow(0, T - 1, 1)?)?.f_squeeze_dim(0)?;
        Ok((Prefilled { kv, logits }, x_TE))
    }

    /// Decodes one token per request; row `i` is slot `i`. Writes keys and values to `cache` and
    /// returns logits `[rows, vocabulary]` in fp32.
    pub fn decode(&self, cache: &KvCache, rows: &[Row]) -> Result<Tensor, ForwardError> {
        let count = rows.len() as i64;
        let rows = self.padded(rows);
        let tokens: Vec<i64> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<i64> = rows.iter().map(|row| row.position as i64).collect();
        let cells: Vec<i64> = rows
            .iter()
            .enumerate()
            .map(|(slot, row)| (slot * cache.length() + row.position) as i64)
            .collect();
        let (positions_B, cells_B) =
            (Tensor::f_from_slice(&positions)?, Tensor::f_from_slice(&cells)?);
        let spans = spans(&rows, &positions_B, self.weights.kind())?;
        let angles = [
            self.rotary.cos.f_index_select(0, &positions_B)?.f_unsqueeze(1)?,
            self.rotary.sin.f_index_select(0, &positions_B)?.f_unsqueeze(1)?,
        ];
        let mut x_BE = self.embed(&tokens)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let [keys, values] = cache.layer(index);
            x_BE = self.block(layer, &x_BE, &angles, |q_BHD, k_BKD, v_BKD| {
                keys.cells.shallow_clone().f_index_copy_(0, &cells_B, k_BKD).map(drop)?;
                values.cells.shallow_clone().f_index_copy_(0, &cells_B, v_BKD).map(drop)?;
                cached_attention(q_BHD, &keys.rows_SLKD, &values.rows_SLKD, &spans)
            })?;
        }
        Ok(self.logits(&x_BE)?.f_narrow(0, 0, count)?)
    }

    /// Pads the rows to a multiple of [`ROWS`] in deterministic mode. The padding uses free slots
    /// and the shapes of the last row.
    fn padded(&self, rows: &[Row]) -> Vec<Row> {
        let wanted =
            if self.deterministic { rows.len().next_multiple_of(ROWS) } else { rows.len() };
        let spare = rows.last().map(|row| Row { token: 0, ..*row });
        rows.iter().copied().chain(spare.into_iter().cycle()).take(wanted).collect()
    }

    fn embed(&self, tokens: &[i64]) -> Result<Tensor, TchError> {
        self.weights.embedding.f_index_select(0, &Tensor::f_from_slice(tokens)?)
    }

    fn logits(&self, x_TE: &Tensor) -> Result<Tensor, ForwardError> {
        Ok(self
            .linear(&self.norm(x_TE, &self.weights.norm)?, &self.weights.head)?
            .f_to_kind(Kind::Float)?)
    }

    fn linear(&self, x_TE: &Tensor, weight: &Tensor) -> Result<Tensor, CollectiveError> {
        if self.deterministic { linear_by_rows(x_TE, weight) } else { linear(x_TE, weight) }
    }

    fn norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, TchError> {
        x.f_rms_norm(weight.size(), Some(weight), self.config.rms_norm_eps)
    }

    /// Computes one block. `attend` takes rotated q `[T, H, D]`, rotated k and v `[T, K, D]` and
    /// returns `[T, H · D]`.
    fn block<A>(
        &self,
        layer: &LayerWeights,
        x_TE: &Tensor,
        angles: &[Tensor; 2],
        attend: A,
    ) -> Result<Tensor, ForwardError>
    where
        A: FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor, TchError>,
    {
        let (H, K, D) = (
            self.config.num_attention_heads,
            self.config.num_key_value_heads,
            self.config.head_dim,
        );
        let mut qkv = self.linear(&self.norm(x_TE, &layer.input_norm)?, &layer.qkv)?;
        if let Some(bias) = &layer.qkv_bias {
            qkv = qkv.f_add_(bias)?;
        }
        let qkv = qkv.f_view([-1, H + 2 * K, D])?;
        let mut qk = qkv.f_narrow(1, 0, H + K)?;
        if let Some([of_queries, of_keys]) = &layer.qk_norms {
            qk = Tensor::f_cat(
                &[
                    self.norm(&qk.f_narrow(1, 0, H)?, of_queries)?,
                    self.norm(&qk.f_narrow(1, H, K)?, of_keys)?,
                ],
                1,
            )?;
        }
        let [cos, sin] = angles;
        let qk = qk.f_mul(cos)?.f_addcmul(&qk.f_roll([D / 2], [-1])?, sin)?;
        let attended =
            attend(&qk.f_narrow(1, 0, H)?, &qk.f_narrow(1, H, K)?, &qkv.f_narrow(1, H + K, K)?)?;
        let x_TE = self.linear(&attended, &layer.output)?.f_add_(x_TE)?;
        let gate_up = self.linear(&self.norm(&x_TE, &layer.mlp_norm)?, &layer.gate_up)?;
        let inner = self.config.intermediate_size;
        let activated =
            gate_up.f_narrow(1, 0, inner)?.f_silu()?.f_mul_(&gate_up.f_narrow(1, inner, inner)?)?;
        Ok(self.linear(&activated, &layer.down)?.f_add_(&x_TE)?)
    }
}

pub fn cache_shape(config: &ModelConfig, kind: Kind) -> CacheShape {
    CacheShape {
        layers: config.num_hidden_layers as i64,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        kind,
    }
}

impl Rotary {
    fn new(config: &ModelConfig, context: usize, kind: Kind) -> Result<Self, TchError> {
        let options = (Kind::Float, Device::Cpu);
        let frequencies = Tensor::f_from_slice(&config.rope_frequencies())?;
        let angles = Tensor::f_arange(context as i64, options)?
            .f_unsqueeze(1)?
            .f_mul(&frequencies.f_unsqueeze(0)?)?;
        let (cos, sin) = (angles.f_cos()?, angles.f_sin()?);
        Ok(Self {
            cos: Tensor::f_cat(&[&cos, &cos], 1)?.f_to_kind(kind)?,
            sin: Tensor::f_cat(&[&sin.f_neg()?, &sin], 1)?.f_to_kind(kind)?,
        })
    }
}
