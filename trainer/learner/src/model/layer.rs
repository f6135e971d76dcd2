//! Transformer layer: `forward(x, w) → (y, Saved)` and `backward(dy, Saved, w) → dx`.
//! `activations(x, w) → Saved` repeats a forward pass whose activations were not kept.
//!
//! ```text
//!  x ─┬─ norm ─ q k v ─ rotary ─ attention ─ o ─(+)─┬─ norm ─ gate up ─ SwiGLU ─ down ─(+)─▶ y
//!     └──────────────────────────────────────────┘  └──────────────────────────────────┘
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::linear::{Write, weight_gradient};
use rljob_kernels::norm::{NormSaved, rms_norm, rms_norm_backward};
use rljob_kernels::swiglu::{swiglu, swiglu_backward};
use tch::{Kind, Tensor};

use super::attention::{AttentionSaved, Positions, attention, attention_backward};
use super::{Gradient, Layout, ModelConfig, ModelError, PackedTokens};

/// Activations for the derivative, without weights.
#[derive(Debug)]
pub struct Saved {
    attention_norm: NormSaved,
    attention_input_TH: Tensor,
    attention: AttentionSaved,
    mlp_norm: NormSaved,
    mlp_input_TH: Tensor,
    gate_up_T2F: Tensor,
}

/// A layer's tensors as views of its flat vector (weights, or the gradient being written). q, k, v
/// are one matrix, and so are gate and up.
struct Views {
    attention_norm_H: Tensor,
    qkv: Tensor,
    qkv_bias: Option<Tensor>,
    /// Weights of the heads' norms, query and key, `[D]` each.
    head_norms: Option<[Tensor; 2]>,
    o: Tensor,
    mlp_norm_H: Tensor,
    gate_up: Tensor,
    down: Tensor,
}

impl Views {
    fn new(flat: &Tensor, layout: &Layout, config: &ModelConfig) -> Self {
        let tensors = layout.tensors();
        // The tensors `first..=last` as one vector, and as one matrix with the columns of the
        // first.
        let vector = |first: usize, last: usize| {
            flat.narrow(
                0,
                tensors[first].offset,
                tensors[last].offset + tensors[last].numel() - tensors[first].offset,
            )
        };
        let matrix =
            |first: usize, last: usize| vector(first, last).view([-1, tensors[first].shape[1]]);
        // Biases and head norms exist in some architectures only.
        let head_norms = 4 + if config.qkv_bias { 3 } else { 0 };
        let o = head_norms + if config.qk_norm { 2 } else { 0 };
        Self {
            attention_norm_H: vector(0, 0),
            qkv: matrix(1, 3),
            qkv_bias: config.qkv_bias.then(|| vector(4, 6)),
            head_norms: config
                .qk_norm
                .then(|| [vector(head_norms, head_norms), vector(head_norms + 1, head_norms + 1)]),
            o: matrix(o, o),
            mlp_norm_H: vector(o + 1, o + 1),
            gate_up: matrix(o + 2, o + 3),
            down: matrix(o + 4, o + 4),
        }
    }

    /// The heads' norms side by side, `[A + K, D]`.
    fn head_norms(&self, config: &ModelConfig) -> Option<Tensor> {
        let [q, k] = self.head_norms.as_ref()?;
        let heads = |weight_D: &Tensor, heads| weight_D.unsqueeze(0).expand([heads, -1], false);
        Some(Tensor::cat(
            &[heads(q, config.num_attention_heads), heads(k, config.num_key_value_heads)],
            0,
        ))
    }
}

/// Inputs that all layers of a pass share.
pub struct Context<'a> {
    pub config: &'a ModelConfig,
    pub packed: &'a PackedTokens,
    pub positions: &'a Positions,
}

/// Runs `x` `[T, H]` through the layer with flat weights `weights`.
pub fn forward(
    context: &Context<'_>,
    layout: &Layout,
    weights: &Tensor,
    x_TH: &Tensor,
) -> Result<(Tensor, Saved), ModelError> {
    let w = Views::new(weights, layout, context.config);
    let (middle_TH, saved) = until_gate_up(context, &w, x_TH)?;
    Ok((residual_linear(&swiglu(&saved.gate_up_T2F)?, &w.down, &middle_TH), saved))
}

/// The activations of [`forward`], without its output.
pub fn activations(
    context: &Context<'_>,
    layout: &Layout,
    weights: &Tensor,
    x_TH: &Tensor,
) -> Result<Saved, ModelError> {
    Ok(until_gate_up(context, &Views::new(weights, layout, context.config), x_TH)?.1)
}

/// Runs the layer up to its last product; returns (residual stream between attention and
/// feed-forward `[T, H]`, saved activations).
fn until_gate_up(
    context: &Context<'_>,
    w: &Views,
    x_TH: &Tensor,
) -> Result<(Tensor, Saved), ModelError> {
    let config = context.config;
    let (attention_input_TH, attention_norm) = norm(x_TH, &w.attention_norm_H, config)?;
    let qkv_TW = attention_input_TH.linear(&w.qkv, w.qkv_bias.as_ref());
    let norms_AD = w.head_norms(config);
    let attention =
        attention(context.positions, config, context.packed, norms_AD.as_ref(), &qkv_TW)?;
    let middle_TH = residual_linear(&attention.out_TH, &w.o, x_TH);
    let (mlp_input_TH, mlp_norm) = norm(&middle_TH, &w.mlp_norm_H, config)?;
    let gate_up_T2F = mlp_input_TH.linear(&w.gate_up, None::<&Tensor>);
    Ok((
        middle_TH,
        Saved {
            attention_norm,
            attention_input_TH,
            attention,
            mlp_norm,
            mlp_input_TH,
            gate_up_T2F,
        },
    ))
}

/// RMSNorm of the residual stream, with the state for its derivative.
fn norm(
    x_TH: &Tensor,
    weight_H: &Tensor,
    config: &ModelConfig,
) -> Result<(Tensor, NormSaved), ModelError> {
    let (y_TH, scale_T1) = rms_norm(x_TH, weight_H, config.rms_norm_eps)?;
    Ok((y_TH, NormSaved { x_TH: x_TH.shallow_clone(), scale_T1 }))
}

/// `x · weightᵀ + residual`, on a GPU in one operation.
fn residual_linear(x: &Tensor, weight: &Tensor, residual: &Tensor) -> Tensor {
    if x.device().is_cuda() {
        residual.addmm(x, &weight.tr())
    } else {
        x.linear(weight, None::<&Tensor>) + residual
    }
}

/// From `dy` `[T, H]` to `dx` `[T, H]`; writes the gradient of the layer's weights.
pub fn backward(
    context: &Context<'_>,
    layout: &Layout,
    weights: &Tensor,
    saved: &Saved,
    dy_TH: &Tensor,
    gradient: &Gradient,
) -> Result<Tensor, ModelError> {
    let w = Views::new(weights, layout, context.config);
    let mut g = Views::new(&gradient.flat, layout, context.config);
    let write = gradient.write();
    let dmiddle_TH = mlp_backward(&w, &mut g, write, saved, dy_TH)?;
    attention_part_backward(context, &w, (&mut g, write), saved, &dmiddle_TH)
}

fn mlp_backward(
    w: &Views,
    g: &mut Views,
    write: Write,
    saved: &Saved,
    dy_TH: &Tensor,
) -> Result<Tensor, ModelError> {
    let (activated_TF, dgate_up_T2F) = swiglu_backward(&dy_TH.matmul(&w.down), &saved.gate_up_T2F)?;
    weight_gradient(write, &mut g.down, dy_TH, &activated_TF)?;
    drop(activated_TF);
    weight_gradient(write, &mut g.gate_up, &dgate_up_T2F, &saved.mlp_input_TH)?;
    let dthrough_TH = dgate_up_T2F.matmul(&w.gate_up);
    drop(dgate_up_T2F);
    let (dx_TH, dnorm_H) =
        rms_norm_backward(&dthrough_TH, &saved.mlp_norm, &w.mlp_norm_H, Some(dy_TH))?;
    write.to(&mut g.mlp_norm_H, &dnorm_H)?;
    Ok(dx_TH)
}

fn attention_part_backward(
    context: &Context<'_>,
    w: &Views,
    (g, write): (&mut Views, Write),
    saved: &Saved,
    dy_TH: &Tensor,
) -> Result<Tensor, ModelError> {
    let (config, norms_AD) = (context.config, w.head_norms(context.config));
    weight_gradient(write, &mut g.o, dy_TH, &saved.attention.out_TH)?;
    let (dqkv_TW, dnorms_AD) = attention_backward(
        context.positions,
        config,
        context.packed,
        norms_AD.as_ref(),
        &saved.attention,
        &dy_TH.matmul(&w.o),
    )?;
    if let (Some(dnorms_AD), Some([q, k])) = (dnorms_AD, &mut g.head_norms) {
        let sum = |first, heads| {
            dnorms_AD.narrow(0, first, heads).sum_dim_intlist([0].as_slice(), false, Kind::Float)
        };
        write.to(q, &sum(0, config.num_attention_heads))?;
        write.to(k, &sum(config.num_attention_heads, config.num_key_value_heads))?;
    }
    weight_gradient(write, &mut g.qkv, &dqkv_TW, &saved.attention_input_TH)?;
    if let Some(bias) = &mut g.qkv_bias {
        write.to(bias, &dqkv_TW.sum_dim_intlist([0].as_slice(), false, Kind::Float))?;
    }
    let dthrough_TH = dqkv_TW.matmul(&w.qkv);
    let (dx_TH, dnorm_H) =
        rms_norm_backward(&dthrough_TH, &saved.attention_norm, &w.attention_norm_H, Some(dy_TH))?;
    write.to(&mut g.attention_norm_H, &dnorm_H)?;
    Ok(dx_TH)
}
