//! Attention of a layer: from projected queries, keys and values to the heads' outputs. On CPUs in
//! padded [`buckets`]; elsewhere by kernels that read packed rows in place.
//!
//! ```text
//!  qkv_TW ─ split ─ norms of heads ─ rotary ─ attention ─▶ out_TH
//! ```
//! W = (A + 2K) · D.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::attention::{self as rows, Heads, Sequences};
use rljob_kernels::norm::{NormSaved, rms_norm, rms_norm_backward};
use rljob_kernels::rotary::{Direction, Rotary, rotate_rows};
use tch::{Kind, Tensor};

use super::{ModelConfig, ModelError, PackedTokens};

mod buckets;
mod prefix;

use buckets::BucketsSaved;

/// Inputs that the attention of all layers of a pass shares.
#[derive(Debug)]
pub struct Positions {
    rotary: Rotary,
    /// Tables of the rotation, and the sequences, of rows that are not on a CPU.
    rows: Option<([Tensor; 2], Sequences)>,
}

impl Positions {
    /// The positions of packed tokens, for passes in `kind`.
    pub fn new(packed: &PackedTokens, config: &ModelConfig, kind: Kind) -> Self {
        let rotary = Rotary::new(&packed.positions_T, &config.rope_frequencies(), kind);
        let device = packed.positions_T.device();
        let rows = device.is_cuda().then(|| {
            let (heads, deterministic) = (heads(config), packed.deterministic);
            let (lengths, prefixes) = (&packed.lengths, &packed.prefixes);
            let sequences = Sequences::new(lengths, prefixes, heads, device, deterministic);
            (rotary.tables(), sequences)
        });
        Self { rotary, rows }
    }
}

/// State of a layer's attention for the derivative.
#[derive(Debug)]
pub struct AttentionSaved {
    pub out_TH: Tensor,
    qk_norm: Option<NormSaved>,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Buckets(BucketsSaved),
    Rows(rows::AttentionSaved),
}

fn heads(config: &ModelConfig) -> Heads {
    Heads {
        queries: config.num_attention_heads,
        keys: config.num_key_value_heads,
        size: config.head_dim,
    }
}

/// Heads that are normed and rotated: queries and keys.
fn rotated(config: &ModelConfig) -> i64 {
    config.num_attention_heads + config.num_key_value_heads
}

/// The heads' outputs from `qkv_TW`, which may be overwritten. `norms_AD`: weights of the norms of
/// query and key heads `[A + K, D]`, for architectures that have them.
pub fn attention(
    positions: &Positions,
    config: &ModelConfig,
    packed: &PackedTokens,
    norms_AD: Option<&Tensor>,
    qkv_TW: &Tensor,
) -> Result<AttentionSaved, ModelError> {
    let (qk_TAD, v_TKD) = split(qkv_TW, config);
    let normed =
        norms_AD.map(|weight_AD| rms_norm(&qk_TAD, weight_AD, config.rms_norm_eps)).transpose()?;
    let Some((tables, sequences)) = &positions.rows else {
        let (qk_TAD, qk_norm) = match normed {
            Some((normed_TAD, scale_T1)) => {
                (normed_TAD, Some(NormSaved { x_TH: qk_TAD, scale_T1 }))
            }
            None => (qk_TAD, None),
        };
        let rotated_TAD = positions.rotary.apply(&qk_TAD);
        let q_TAD = rotated_TAD.narrow(1, 0, config.num_attention_heads);
        let k_TKD = rotated_TAD.narrow(1, config.num_attention_heads, config.num_key_value_heads);
        let (out_TH, kept) = buckets::attention(&q_TAD, &k_TKD, &v_TKD, packed, config)?;
        return Ok(AttentionSaved { out_TH, qk_norm, kept: Kept::Buckets(kept) });
    };
    let qk_norm = normed.map(|(normed_TAD, scale_T1)| {
        let x_TH = qk_TAD.copy();
        qk_TAD.shallow_clone().copy_(&normed_TAD);
        NormSaved { x_TH, scale_T1 }
    });
    rotate_rows(qkv_TW, tables, rotated(config), Direction::Forward)?;
    let kept = rows::attention(qkv_TW, sequences)?;
    Ok(AttentionSaved { out_TH: kept.out_TH.shallow_clone(), qk_norm, kept: Kept::Rows(kept) })
}

/// Derivative of [`attention`]: from `dout` `[T, A · D]` to `dqkv_TW`, and the gradient
/// `[A + K, D]` of the norms' weights in fp32.
pub fn attention_backward(
    positions: &Positions,
    config: &ModelConfig,
    packed: &PackedTokens,
    norms_AD: Option<&Tensor>,
    saved: &AttentionSaved,
    dout_TH: &Tensor,
) -> Result<(Tensor, Option<Tensor>), ModelError> {
    let (queries, keys) = (config.num_attention_heads, config.num_key_value_heads);
    let dqkv_TW = match (&saved.kept, &positions.rows) {
        (Kept::Rows(kept), Some((tables, sequences))) => {
            let dqkv_TW = rows::attention_backward(dout_TH, kept, sequences)?;
            rotate_rows(&dqkv_TW, tables, rotated(config), Direction::Backward)?;
            dqkv_TW
        }
        (Kept::Buckets(kept), _) => {
            let (dq_TAD, dk_TKD, dv_TKD) =
                buckets::attention_backward(dout_TH, kept, packed, config)?;
            let options = (dout_TH.kind(), dout_TH.device());
            let dqkv =
                Tensor::empty([packed.num_tokens(), queries + 2 * keys, config.head_dim], options);
            positions.rotary.backward_into(&dqkv.narrow(1, 0, queries), &dq_TAD);
            positions.rotary.backward_into(&dqkv.narrow(1, queries, keys), &dk_TKD);
            dqkv.narrow(1, queries + keys, keys).copy_(&dv_TKD);
            dqkv.flatten(1, 2)
        }
        (Kept::Rows(_), None) => return Err(ModelError::Device),
    };
    let (Some(weight_AD), Some(norm)) = (norms_AD, &saved.qk_norm) else {
        return Ok((dqkv_TW, None));
    };
    let (mut dqk_TAD, _) = split(&dqkv_TW, config);
    let (dx_TAD, dweight_AD) = rms_norm_backward(&dqk_TAD, norm, weight_AD, None)?;
    dqk_TAD.copy_(&dx_TAD);
    Ok((dqkv_TW, Some(dweight_AD)))
}

/// `[T, W]` → (q and k together `[T, A + K, D]`, v `[T, K, D]`), views.
fn split(qkv_TW: &Tensor, config: &ModelConfig) -> (Tensor, Tensor) {
    let (rotated, keys) = (rotated(config), config.num_key_value_heads);
    let heads = qkv_TW.view([qkv_TW.size()[0], rotated + keys, config.head_dim]);
    (heads.narrow(1, 0, rotated), heads.narrow(1, rotated, keys))
}
