//! One transformer layer: `forward(x, w) → (y, Saved)` and `backward(dy, Saved, w) → dx`.
//!
//! ```text
//!  x ─┬─ norm ─ q k v ─ rotary ─ attention ─ o ─(+)─┬─ norm ─ gate up ─ SwiGLU ─ down ─(+)─▶ y
//!     └──────────────────────────────────────────┘  └──────────────────────────────────┘
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

use super::attention::{AttentionSaved, attention, attention_backward};
use super::ops::{NormSaved, Rotary, linear, linear_weight_gradient, rms_norm, rms_norm_backward, swiglu, swiglu_backward};
use super::{Layout, ModelConfig, ModelError, PackedTokens};

/// Activations the derivative needs; no weights.
#[derive(Debug)]
pub struct Saved {
    attention_norm: NormSaved,
    attention_input_TH: Tensor,
    attention: AttentionSaved,
    attention_output_TH: Tensor,
    mlp_norm: NormSaved,
    mlp_input_TH: Tensor,
    gate_up_T2F: Tensor,
}

/// A layer's matrices as views of its flat vector (weights, or the gradient being written). q, k, v are one matrix, and so are gate and up.
struct Views {
    attention_norm_H: Tensor,
    qkv: Tensor,
    o: Tensor,
    mlp_norm_H: Tensor,
    gate_up: Tensor,
    down: Tensor,
}

impl Views {
    fn new(flat: &Tensor, layout: &Layout, hidden: i64) -> Self {
        let tensors = layout.tensors();
        // The tensors `first..=last` as one matrix with rows of `width`.
        let join = |first: usize, last: usize, width: i64| {
            let end = tensors[last].offset + tensors[last].numel();
            flat.narrow(0, tensors[first].offset, end - tensors[first].offset).view([-1, width])
        };
        Self {
            attention_norm_H: join(0, 0, hidden).view([hidden]),
            qkv: join(1, 3, hidden),
            o: join(4, 4, tensors[4].shape[1]),
            mlp_norm_H: join(5, 5, hidden).view([hidden]),
            gate_up: join(6, 7, hidden),
            down: join(8, 8, tensors[8].shape[1]),
        }
    }
}

/// What every layer of a pass shares.
pub struct Context<'a> {
    pub config: &'a ModelConfig,
    pub packed: &'a PackedTokens,
    pub rotary: &'a Rotary,
}

/// `x` `[T, H]` through the layer with flat weights `weights`.
pub fn forward(context: &Context<'_>, layout: &Layout, weights: &Tensor, x_TH: &Tensor) -> Result<(Tensor, Saved), ModelError> {
    let config = context.config;
    let w = Views::new(weights, layout, config.hidden_size);
    let (attention_input_TH, attention_norm) = rms_norm(x_TH, &w.attention_norm_H, config.rms_norm_eps);
    let (qk_TAD, v_TKD) = split_qkv(&linear(&attention_input_TH, &w.qkv), config);
    let rotated_TAD = context.rotary.apply(&qk_TAD);
    let q_TAD = rotated_TAD.narrow(1, 0, config.num_attention_heads);
    let k_TKD = rotated_TAD.narrow(1, config.num_attention_heads, config.num_key_value_heads);
    let (attention_output_TH, attention) = attention(&q_TAD, &k_TKD, &v_TKD, context.packed, config)?;
    let middle_TH = x_TH + linear(&attention_output_TH, &w.o);
    let (mlp_input_TH, mlp_norm) = rms_norm(&middle_TH, &w.mlp_norm_H, config.rms_norm_eps);
    let gate_up_T2F = linear(&mlp_input_TH, &w.gate_up);
    let y_TH = middle_TH + linear(&swiglu(&gate_up_T2F), &w.down);
    Ok((y_TH, Saved { attention_norm, attention_input_TH, attention, attention_output_TH, mlp_norm, mlp_input_TH, gate_up_T2F }))
}

/// From `dy` `[T, H]` to (`dx` `[T, H]`, the flat fp32 gradient of the layer's weights).
pub fn backward(context: &Context<'_>, layout: &Layout, weights: &Tensor, saved: &Saved, dy_TH: &Tensor) -> Result<(Tensor, Tensor), ModelError> {
    let w = Views::new(weights, layout, context.config.hidden_size);
    let gradient = Tensor::empty([layout.numel()], (Kind::Float, dy_TH.device()));
    let mut g = Views::new(&gradient, layout, context.config.hidden_size);
    let dmiddle_TH = mlp_backward(&w, &mut g, saved, dy_TH);
    let dx_TH = attention_part_backward(context, &w, &mut g, saved, &dmiddle_TH)?;
    Ok((dx_TH, gradient))
}

fn mlp_backward(w: &Views, g: &mut Views, saved: &Saved, dy_TH: &Tensor) -> Tensor {
    linear_weight_gradient(&mut g.down, dy_TH, &swiglu(&saved.gate_up_T2F));
    let dgate_up_T2F = swiglu_backward(&dy_TH.matmul(&w.down), &saved.gate_up_T2F);
    linear_weight_gradient(&mut g.gate_up, &dgate_up_T2F, &saved.mlp_input_TH);
    let (dthrough_TH, dnorm_H) = rms_norm_backward(&dgate_up_T2F.matmul(&w.gate_up), &saved.mlp_norm, &w.mlp_norm_H);
    g.mlp_norm_H.copy_(&dnorm_H);
    dy_TH + dthrough_TH
}

fn attention_part_backward(context: &Context<'_>, w: &Views, g: &mut Views, saved: &Saved, dy_TH: &Tensor) -> Result<Tensor, ModelError> {
    linear_weight_gradient(&mut g.o, dy_TH, &saved.attention_output_TH);
    let (dq_TAD, dk_TKD, dv_TKD) = attention_backward(&dy_TH.matmul(&w.o), &saved.attention, context.packed, context.config)?;
    let dqk_TAD = context.rotary.backward(&Tensor::cat(&[dq_TAD, dk_TKD], 1));
    let dqkv = Tensor::cat(&[dqk_TAD, dv_TKD], 1).flatten(1, 2);
    linear_weight_gradient(&mut g.qkv, &dqkv, &saved.attention_input_TH);
    let (dthrough_TH, dnorm_H) = rms_norm_backward(&dqkv.matmul(&w.qkv), &saved.attention_norm, &w.attention_norm_H);
    g.attention_norm_H.copy_(&dnorm_H);
    Ok(dy_TH + dthrough_TH)
}

/// `[T, (A + 2K) · D]` → (q and k together `[T, A + K, D]`, v `[T, K, D]`).
fn split_qkv(qkv: &Tensor, config: &ModelConfig) -> (Tensor, Tensor) {
    let rotated = config.num_attention_heads + config.num_key_value_heads;
    let heads = qkv.view([qkv.size()[0], rotated + config.num_key_value_heads, config.head_dim]);
    (heads.narrow(1, 0, rotated), heads.narrow(1, rotated, config.num_key_value_heads))
}
