//! Causal attention over packed sequences: one call of libtorch's flash attention for each bucket of sequences of like length.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::Tensor;

use super::{ModelConfig, ModelError, PackedTokens};

/// What the derivative needs: the padded inputs and outputs of each bucket.
#[derive(Debug)]
pub struct AttentionSaved {
    buckets: Vec<BucketSaved>,
}

#[derive(Debug)]
struct BucketSaved {
    q_BASD: Tensor,
    k_BASD: Tensor,
    v_BASD: Tensor,
    out_BASD: Tensor,
    logsumexp: Tensor,
}

/// Attention of `q` `[T, A, D]` over `k` and `v` `[T, K, D]` within each sequence; the result is `[T, A · D]`.
pub fn attention(q_TAD: &Tensor, k_TKD: &Tensor, v_TKD: &Tensor, packed: &PackedTokens, config: &ModelConfig) -> Result<(Tensor, AttentionSaved), ModelError> {
    let (k_TAD, v_TAD) = (repeat_heads(k_TKD, config), repeat_heads(v_TKD, config));
    let mut out_TAD = q_TAD.empty_like();
    let mut saved = Vec::with_capacity(packed.buckets.len());
    for bucket in &packed.buckets {
        let heads_first = |x_TAD: &Tensor| {
            let padded = bucket.pad(x_TAD).view([bucket.num_sequences, bucket.padded, config.num_attention_heads, config.head_dim]);
            padded.transpose(1, 2)
        };
        let (q_BASD, k_BASD, v_BASD) = (heads_first(q_TAD), heads_first(&k_TAD), heads_first(&v_TAD));
        let (out_BASD, logsumexp) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(&q_BASD, &k_BASD, &v_BASD, 0.0, true, None::<Tensor>, None)?;
        bucket.unpad_into(&mut out_TAD, &tokens_first(&out_BASD));
        saved.push(BucketSaved { q_BASD, k_BASD, v_BASD, out_BASD, logsumexp });
    }
    let width = config.num_attention_heads * config.head_dim;
    Ok((out_TAD.view([packed.num_tokens(), width]), AttentionSaved { buckets: saved }))
}

/// Derivative of [`attention`]: from `dout` `[T, A · D]` to (`dq` `[T, A, D]`, `dk` and `dv` `[T, K, D]`).
pub fn attention_backward(
    dout_TH: &Tensor,
    saved: &AttentionSaved,
    packed: &PackedTokens,
    config: &ModelConfig,
) -> Result<(Tensor, Tensor, Tensor), ModelError> {
    let dout_TAD = dout_TH.view([packed.num_tokens(), config.num_attention_heads, config.head_dim]);
    let (mut dq_TAD, mut dk_TAD, mut dv_TAD) = (dout_TAD.empty_like(), dout_TAD.empty_like(), dout_TAD.empty_like());
    for (bucket, saved) in packed.buckets.iter().zip(&saved.buckets) {
        let padded = bucket.pad(&dout_TAD).view([bucket.num_sequences, bucket.padded, config.num_attention_heads, config.head_dim]);
        let (dq, dk, dv) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &padded.transpose(1, 2),
            &saved.q_BASD,
            &saved.k_BASD,
            &saved.v_BASD,
            &saved.out_BASD,
            &saved.logsumexp,
            0.0,
            true,
            None::<Tensor>,
            None,
        )?;
        bucket.unpad_into(&mut dq_TAD, &tokens_first(&dq));
        bucket.unpad_into(&mut dk_TAD, &tokens_first(&dk));
        bucket.unpad_into(&mut dv_TAD, &tokens_first(&dv));
    }
    Ok((dq_TAD, sum_heads(&dk_TAD, config), sum_heads(&dv_TAD, config)))
}

/// `[B, A, S, D]` → `[B · S, A, D]`.
fn tokens_first(x_BASD: &Tensor) -> Tensor {
    x_BASD.transpose(1, 2).flatten(0, 1)
}

/// Grouped queries (Ainslie et al., arXiv 2305.13245): query head `a` reads key head `a ÷ (A ÷ K)`.
fn repeat_heads(x_TKD: &Tensor, config: &ModelConfig) -> Tensor {
    let each = config.num_attention_heads / config.num_key_value_heads;
    if each == 1 {
        return x_TKD.shallow_clone();
    }
    x_TKD.unsqueeze(2).expand([-1, -1, each, -1], false).flatten(1, 2)
}

/// Derivative of [`repeat_heads`].
fn sum_heads(dx_TAD: &Tensor, config: &ModelConfig) -> Tensor {
    let each = config.num_attention_heads / config.num_key_value_heads;
    if each == 1 {
        return dx_TAD.shallow_clone();
    }
    let size = dx_TAD.size();
    dx_TAD.view([size[0], config.num_key_value_heads, each, config.head_dim]).sum_dim_intlist([2].as_slice(), false, dx_TAD.kind())
}
