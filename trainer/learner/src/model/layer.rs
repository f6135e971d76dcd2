//! Transformer layer: `forward(x, w) → (y, Saved)` and `backward(dy, Saved, w) → dx`.
//! `activations(x, w) → Saved` repeats a forward pass whose activations were not kept.
//!
//! ```text
//!  x ─┬─ norm ─ q k v ─ rotary ─ attention ─ o ─(+)─┬─ norm ─ gate up ─ SwiGLU ─ down ─(+)─▶ y
//!     └──────────────────────────────────────────┘  └──────────────────────────────────┘
//! ```

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

use super::attention::{AttentionSaved, attention, attention_backward};
use super::ops::{
    NormSaved, Rotary, linear, linear_weight_gradient, rms_norm, rms_norm_backward, swiglu,
    swiglu_backward,
};
use super::{Layout, ModelConfig, ModelError, PackedTokens};

/// Activations for the derivative, without weights.
#[derive(Debug)]
pub struct Saved {
    attention_norm: NormSaved,
    attention_input_TH: Tensor,
    qk_norm: Option<NormSaved>,
    attention: AttentionSaved,
    attention_output_TH: Tensor,
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
    pub rotary: &'a Rotary,
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
    Ok((linear(&swiglu(&saved.gate_up_T2F), &w.down, None) + middle_TH, saved))
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
    let (attention_input_TH, attention_norm) =
        rms_norm(x_TH, &w.attention_norm_H, config.rms_norm_eps);
    let (qk_TAD, v_TKD) =
        split_qkv(&linear(&attention_input_TH, &w.qkv, w.qkv_bias.as_ref()), config);
    let (qk_TAD, qk_norm) = match w.head_norms(config) {
        Some(weight_AD) => {
            let (normed_TAD, saved) = rms_norm(&qk_TAD, &weight_AD, config.rms_norm_eps);
            (normed_TAD, Some(saved))
        }
        None => (qk_TAD, None),
    };
    let rotated_TAD = context.rotary.apply(&qk_TAD);
    let q_TAD = rotated_TAD.narrow(1, 0, config.num_attention_heads);
    let k_TKD = rotated_TAD.narrow(1, config.num_attention_heads, config.num_key_value_heads);
    let (attention_output_TH, attention) =
        attention(&q_TAD, &k_TKD, &v_TKD, context.packed, config)?;
    let middle_TH = linear(&attention_output_TH, &w.o, None) + x_TH;
    let (mlp_input_TH, mlp_norm) = rms_norm(&middle_TH, &w.mlp_norm_H, config.rms_norm_eps);
    let gate_up_T2F = linear(&mlp_input_TH, &w.gate_up, None);
    Ok((
        middle_TH,
        Saved {
            attention_norm,
            attention_input_TH,
            qk_norm,
            attention,
            attention_output_TH,
            mlp_norm,
            mlp_input_TH,
            gate_up_T2F,
        },
    ))
}

/// From `dy` `[T, H]` to (`dx` `[T, H]`, the flat fp32 gradient of the layer's weights).
pub fn backward(
    context: &Context<'_>,
    layout: &Layout,
    weights: &Tensor,
    saved: &Saved,
    dy_TH: &Tensor,
) -> Result<(Tensor, Tensor), ModelError> {
    let w = Views::new(weights, layout, context.config);
    let gradient = Tensor::empty([layout.numel()], (Kind::Float, dy_TH.device()));
    let mut g = Views::new(&gradient, layout, context.config);
    let dmiddle_TH = mlp_backward(&w, &mut g, saved, dy_TH);
    let dx_TH = attention_part_backward(context, &w, &mut g, saved, &dmiddle_TH)?;
    Ok((dx_TH, gradient))
}

fn mlp_backward(w: &Views, g: &mut Views, saved: &Saved, dy_TH: &Tensor) -> Tensor {
    let (activated_TF, dgate_up_T2F) = swiglu_backward(&dy_TH.matmul(&w.down), &saved.gate_up_T2F);
    linear_weight_gradient(&mut g.down, dy_TH, &activated_TF);
    drop(activated_TF);
    linear_weight_gradient(&mut g.gate_up, &dgate_up_T2F, &saved.mlp_input_TH);
    let (dthrough_TH, dnorm_H) =
        rms_norm_backward(&dgate_up_T2F.matmul(&w.gate_up), &saved.mlp_norm, &w.mlp_norm_H);
    g.mlp_norm_H.copy_(&dnorm_H);
    dthrough_TH + dy_TH
}

fn attention_part_backward(
    context: &Context<'_>,
    w: &Views,
    g: &mut Views,
    saved: &Saved,
    dy_TH: &Tensor,
) -> Result<Tensor, ModelError> {
    let (config, tokens) = (context.config, context.packed.num_tokens());
    let (queries, keys) = (config.num_attention_heads, config.num_key_value_heads);
    linear_weight_gradient(&mut g.o, dy_TH, &saved.attention_output_TH);
    let (dq_TAD, dk_TKD, dv_TKD) =
        attention_backward(&dy_TH.matmul(&w.o), &saved.attention, context.packed, config)?;
    let dqkv = Tensor::empty(
        [tokens, queries + 2 * keys, config.head_dim],
        (dy_TH.kind(), dy_TH.device()),
    );
    let mut dqk_TAD = dqkv.narrow(1, 0, queries + keys);
    context.rotary.backward_into(&dqk_TAD.narrow(1, 0, queries), &dq_TAD);
    context.rotary.backward_into(&dqk_TAD.narrow(1, queries, keys), &dk_TKD);
    dqkv.narrow(1, queries + keys, keys).copy_(&dv_TKD);
    head_norms_backward(config, w, g, saved, &mut dqk_TAD);
    let dqkv = dqkv.flatten(1, 2);
    linear_weight_gradient(&mut g.qkv, &dqkv, &saved.attention_input_TH);
    if let Some(bias) = &mut g.qkv_bias {
        bias.copy_(&dqkv.sum_dim_intlist([0].as_slice(), false, Kind::Float));
    }
    let (dthrough_TH, dnorm_H) =
        rms_norm_backward(&dqkv.matmul(&w.qkv), &saved.attention_norm, &w.attention_norm_H);
    g.attention_norm_H.copy_(&dnorm_H);
    Ok(dthrough_TH + dy_TH)
}

/// Propagates `dqk` back through the norms of query and key heads, in place, for architectures that
/// have them.
fn head_norms_backward(
    config: &ModelConfig,
    w: &Views,
    g: &mut Views,
    saved: &Saved,
    dqk_TAD: &mut Tensor,
) {
    let (Some(weight_AD), Some(saved), Some([q, k])) =
        (w.head_norms(config), &saved.qk_norm, &mut g.head_norms)
    else {
        return;
    };
    let (dx_TAD, dweight_AD) = rms_norm_backward(dqk_TAD, saved, &weight_AD);
    let sum = |first, heads| {
        dweight_AD.narrow(0, first, heads).sum_dim_intlist([0].as_slice(), false, Kind::Float)
    };
    q.copy_(&sum(0, config.num_attention_heads));
    k.copy_(&sum(config.num_attention_heads, config.num_key_value_heads));
    dqk_TAD.copy_(&dx_TAD);
}

/// `[T, (A + 2K) · D]` → (q and k together `[T, A + K, D]`, v `[T, K, D]`).
fn split_qkv(qkv: &Tensor, config: &ModelConfig) -> (Tensor, Tensor) {
    let rotated = config.num_attention_heads + config.num_key_value_heads;
    let heads = qkv.view([qkv.size()[0], rotated + config.num_key_value_heads, config.head_dim]);
    (heads.narrow(1, 0, rotated), heads.narrow(1, rotated, config.num_key_value_heads))
}
