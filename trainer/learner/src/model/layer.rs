//! Transformer layer: `forward(x, w) → (y, Saved)` and `backward(dy, Saved, w) → dx`.
//! `activations(x, w) → Saved` repeats a forward pass whose activations were not kept. `backward`
//! repeats the norms whose outputs were not kept.
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
use super::low_rank::{LowRank, Part};
use super::{LayerGradient, LayerWeights, Layout, ModelConfig, ModelError, PackedTokens};

/// Activations for the derivative, without weights.
#[derive(Debug)]
pub struct Saved {
    attention_norm: NormSaved,
    /// Outputs of the norms, `[T, H]`; `None` if the backward pass computes them again.
    attention_input_TH: Option<Tensor>,
    attention: AttentionSaved,
    mlp_norm: NormSaved,
    mlp_input_TH: Option<Tensor>,
    gate_up_T2F: Tensor,
}

impl Saved {
    /// The state without the outputs of norms.
    #[must_use]
    pub fn without_norms(self) -> Self {
        Self { attention_input_TH: None, mlp_input_TH: None, ..self }
    }
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

/// Runs `x` `[T, H]` through the layer.
pub fn forward(
    context: &Context<'_>,
    layout: &Layout,
    weights: &LayerWeights,
    x_TH: &Tensor,
) -> Result<(Tensor, Saved), ModelError> {
    let w = Views::new(&weights.flat, layout, context.config);
    let low_rank = LowRank::new(context.config, weights, context.packed);
    let (middle_TH, saved) = until_gate_up(context, &w, low_rank, x_TH)?;
    let activated_TF = swiglu(&saved.gate_up_T2F)?;
    let y_TH = residual_linear(&activated_TF, &w.down, &middle_TH);
    low_rank.add_outputs(Part::Down, &activated_TF, &y_TH)?;
    Ok((y_TH, saved))
}

/// The activations of [`forward`], without its output.
pub fn activations(
    context: &Context<'_>,
    layout: &Layout,
    weights: &LayerWeights,
    x_TH: &Tensor,
) -> Result<Saved, ModelError> {
    let w = Views::new(&weights.flat, layout, context.config);
    let low_rank = LowRank::new(context.config, weights, context.packed);
    Ok(until_gate_up(context, &w, low_rank, x_TH)?.1)
}

/// Runs the layer up to its last product; returns (residual stream between attention and
/// feed-forward `[T, H]`, saved activations).
fn until_gate_up(
    context: &Context<'_>,
    w: &Views,
    low_rank: LowRank<'_>,
    x_TH: &Tensor,
) -> Result<(Tensor, Saved), ModelError> {
    let config = context.config;
    let (attention_input_TH, attention_norm) = norm(x_TH, &w.attention_norm_H, config)?;
    let qkv_TW = attention_input_TH.linear(&w.qkv, w.qkv_bias.as_ref());
    low_rank.add_outputs(Part::Qkv, &attention_input_TH, &qkv_TW)?;
    let norms_AD = w.head_norms(config);
    let attention =
        attention(context.positions, config, context.packed, norms_AD.as_ref(), &qkv_TW)?;
    let middle_TH = residual_linear(&attention.out_TH, &w.o, x_TH);
    low_rank.add_outputs(Part::O, &attention.out_TH, &middle_TH)?;
    let (mlp_input_TH, mlp_norm) = norm(&middle_TH, &w.mlp_norm_H, config)?;
    let gate_up_T2F = mlp_input_TH.linear(&w.gate_up, None::<&Tensor>);
    low_rank.add_outputs(Part::GateUp, &mlp_input_TH, &gate_up_T2F)?;
    Ok((
        middle_TH,
        Saved {
            attention_norm,
            attention_input_TH: Some(attention_input_TH),
            attention,
            mlp_norm,
            mlp_input_TH: Some(mlp_input_TH),
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

/// The kept output of a norm, or the output again.
fn normed(
    kept_TH: Option<&Tensor>,
    saved: &NormSaved,
    weight_H: &Tensor,
    config: &ModelConfig,
) -> Result<Tensor, ModelError> {
    match kept_TH {
        Some(kept_TH) => Ok(kept_TH.shallow_clone()),
        None => Ok(norm(&saved.x_TH, weight_H, config)?.0),
    }
}

/// `x · weightᵀ + residual`, on a GPU in one operation.
fn residual_linear(x: &Tensor, weight: &Tensor, residual: &Tensor) -> Tensor {
    if x.device().is_cuda() {
        residual.addmm(x, &weight.tr())
    } else {
        x.linear(weight, None::<&Tensor>) + residual
    }
}

/// Gradients of a layer: of all its tensors, or of its adapters.
struct Gradients<'a> {
    low_rank: LowRank<'a>,
    memory: &'a LayerGradient,
    /// Unless the gradients are those of adapters.
    all: Option<Views>,
    write: Write,
}

impl Gradients<'_> {
    /// Writes the gradient of a matrix, with the output's derivative and the input.
    fn matrix(
        &mut self,
        of: impl Fn(&mut Views) -> &mut Tensor,
        dy: &Tensor,
        x: &Tensor,
    ) -> Result<(), ModelError> {
        let Some(all) = &mut self.all else { return Ok(()) };
        Ok(weight_gradient(self.write, of(all), dy, x)?)
    }

    /// Writes the gradient of a vector.
    fn vector(
        &mut self,
        of: impl Fn(&mut Views) -> Option<&mut Tensor>,
        value: impl FnOnce() -> Tensor,
    ) -> Result<(), ModelError> {
        let Some(vector) = self.all.as_mut().and_then(of) else { return Ok(()) };
        Ok(self.write.to(vector, &value())?)
    }

    /// Writes the gradients of adapters and adds to the derivative of their input.
    fn adapters(&self, part: Part, xdy: [&Tensor; 2], dx: &mut Tensor) -> Result<(), ModelError> {
        self.low_rank.backward(part, self.memory, xdy, dx)
    }
}

/// From `dy` `[T, H]` to `dx` `[T, H]`; writes the gradient of the layer's weights or adapters.
pub fn backward(
    context: &Context<'_>,
    layout: &Layout,
    weights: &LayerWeights,
    saved: &Saved,
    dy_TH: &Tensor,
    gradient: &LayerGradient,
) -> Result<Tensor, ModelError> {
    let views = |flat| Views::new(flat, layout, context.config);
    let w = views(&weights.flat);
    let mut g = Gradients {
        low_rank: LowRank::new(context.config, weights, context.packed),
        memory: gradient,
        all: gradient.adapters.is_none().then(|| views(&gradient.memory.flat)),
        write: gradient.memory.write(),
    };
    let dmiddle_TH = mlp_backward(context.config, &w, &mut g, saved, dy_TH)?;
    attention_part_backward(context, &w, &mut g, saved, &dmiddle_TH)
}

fn mlp_backward(
    config: &ModelConfig,
    w: &Views,
    g: &mut Gradients<'_>,
    saved: &Saved,
    dy_TH: &Tensor,
) -> Result<Tensor, ModelError> {
    let mut dactivated_TF = dy_TH.matmul(&w.down);
    if g.all.is_none() {
        let activated_TF = swiglu(&saved.gate_up_T2F)?;
        g.adapters(Part::Down, [&activated_TF, dy_TH], &mut dactivated_TF)?;
    }
    let (activated_TF, dgate_up_T2F) = swiglu_backward(&dactivated_TF, &saved.gate_up_T2F)?;
    drop(dactivated_TF);
    g.matrix(|g| &mut g.down, dy_TH, &activated_TF)?;
    drop(activated_TF);
    let input_TH = normed(saved.mlp_input_TH.as_ref(), &saved.mlp_norm, &w.mlp_norm_H, config)?;
    g.matrix(|g| &mut g.gate_up, &dgate_up_T2F, &input_TH)?;
    let mut dthrough_TH = dgate_up_T2F.matmul(&w.gate_up);
    g.adapters(Part::GateUp, [&input_TH, &dgate_up_T2F], &mut dthrough_TH)?;
    drop((dgate_up_T2F, input_TH));
    let (dx_TH, dnorm_H) =
        rms_norm_backward(&dthrough_TH, &saved.mlp_norm, &w.mlp_norm_H, Some(dy_TH))?;
    g.vector(|g| Some(&mut g.mlp_norm_H), || dnorm_H)?;
    Ok(dx_TH)
}

fn attention_part_backward(
    context: &Context<'_>,
    w: &Views,
    g: &mut Gradients<'_>,
    saved: &Saved,
    dy_TH: &Tensor,
) -> Result<Tensor, ModelError> {
    let (config, norms_AD) = (context.config, w.head_norms(context.config));
    let out_TH = &saved.attention.out_TH;
    g.matrix(|g| &mut g.o, dy_TH, out_TH)?;
    let mut dout_TH = dy_TH.matmul(&w.o);
    g.adapters(Part::O, [out_TH, dy_TH], &mut dout_TH)?;
    let (positions, packed) = (context.positions, context.packed);
    let (dqkv_TW, dnorms_AD) = attention_backward(
        positions,
        config,
        packed,
        norms_AD.as_ref(),
        &saved.attention,
        &dout_TH,
    )?;
    drop(dout_TH);
    if let Some(dnorms_AD) = dnorms_AD {
        let sum = |first, heads| {
            dnorms_AD.narrow(0, first, heads).sum_dim_intlist([0].as_slice(), false, Kind::Float)
        };
        let (queries, keys) = (config.num_attention_heads, config.num_key_value_heads);
        g.vector(|g| g.head_norms.as_mut().map(|[q, _]| q), || sum(0, queries))?;
        g.vector(|g| g.head_norms.as_mut().map(|[_, k]| k), || sum(queries, keys))?;
    }
    let kept_TH = saved.attention_input_TH.as_ref();
    let input_TH = normed(kept_TH, &saved.attention_norm, &w.attention_norm_H, config)?;
    g.matrix(|g| &mut g.qkv, &dqkv_TW, &input_TH)?;
    let of_bias = || dqkv_TW.sum_dim_intlist([0].as_slice(), false, Kind::Float);
    g.vector(|g| g.qkv_bias.as_mut(), of_bias)?;
    let mut dthrough_TH = dqkv_TW.matmul(&w.qkv);
    g.adapters(Part::Qkv, [&input_TH, &dqkv_TW], &mut dthrough_TH)?;
    let (dx_TH, dnorm_H) =
        rms_norm_backward(&dthrough_TH, &saved.attention_norm, &w.attention_norm_H, Some(dy_TH))?;
    g.vector(|g| Some(&mut g.attention_norm_H), || dnorm_H)?;
    Ok(dx_TH)
}
