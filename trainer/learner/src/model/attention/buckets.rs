//! Causal attention over packed sequences on CPUs, by libtorch's flash attention for each bucket of
//! sequences of similar length.
//!
//! Grouped queries (Ainslie et al., arXiv 2305.13245): query head `a` reads key head `a ÷ G`, with
//! G = A ÷ K. Each of the G members is a separate call, so that keys and values are not repeated.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::Tensor;

use crate::model::packed::Bucket;
use crate::model::{ModelConfig, ModelError, PackedTokens};

/// Padded inputs and outputs of each bucket, for the derivative.
#[derive(Debug)]
pub struct BucketsSaved {
    buckets: Vec<BucketSaved>,
}

#[derive(Debug)]
struct BucketSaved {
    /// `[B, K, S, G, D]`
    q: Tensor,
    /// `[B, K, S, D]`
    k: Tensor,
    v: Tensor,
    /// Output `[B, K, S, D]` and logsumexp of each member.
    members: Vec<(Tensor, Tensor)>,
}

/// Attention of `q` `[T, A, D]` over `k` and `v` `[T, K, D]` within each sequence; the result is
/// `[T, A · D]`.
pub fn attention(
    q_TAD: &Tensor,
    k_TKD: &Tensor,
    v_TKD: &Tensor,
    packed: &PackedTokens,
    config: &ModelConfig,
) -> Result<(Tensor, BucketsSaved), ModelError> {
    let q_TKGD = grouped(q_TAD, config);
    let out_TKGD = Tensor::empty(q_TKGD.size(), (q_TAD.kind(), q_TAD.device()));
    let mut saved = Vec::with_capacity(packed.buckets.len());
    for bucket in &packed.buckets {
        let (q, k, v) = (
            heads_first(bucket, &bucket.pad(&q_TKGD)),
            heads_first(bucket, &bucket.pad(k_TKD)),
            heads_first(bucket, &bucket.pad(v_TKD)),
        );
        let mut members = Vec::with_capacity(group_size(config));
        for member in 0..group_size(config) as i64 {
            let (out, logsumexp) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(
                &q.select(3, member),
                &k,
                &v,
                0.0,
                true,
                None::<Tensor>,
                None,
            )?;
            bucket.unpad_into(&mut out_TKGD.select(2, member), &tokens_first(&out));
            members.push((out, logsumexp));
        }
        saved.push(BucketSaved { q, k, v, members });
    }
    let width = config.num_attention_heads * config.head_dim;
    Ok((out_TKGD.view([packed.num_tokens(), width]), BucketsSaved { buckets: saved }))
}

/// Derivative of [`attention`]: from `dout` `[T, A · D]` to (`dq` `[T, A, D]`, `dk` and `dv` `[T,
/// K, D]`).
pub fn attention_backward(
    dout_TH: &Tensor,
    saved: &BucketsSaved,
    packed: &PackedTokens,
    config: &ModelConfig,
) -> Result<(Tensor, Tensor, Tensor), ModelError> {
    let dout_TKGD = grouped(
        &dout_TH.view([packed.num_tokens(), config.num_attention_heads, config.head_dim]),
        config,
    );
    let dq_TKGD = dout_TKGD.empty_like();
    let options = (dout_TH.kind(), dout_TH.device());
    let shape = [packed.num_tokens(), config.num_key_value_heads, config.head_dim];
    let (mut dk_TKD, mut dv_TKD) = (Tensor::empty(shape, options), Tensor::empty(shape, options));
    for (bucket, saved) in packed.buckets.iter().zip(&saved.buckets) {
        let dout = heads_first(bucket, &bucket.pad_with_zeros(&dout_TKGD));
        let mut sums: Option<(Tensor, Tensor)> = None;
        for (member, (out, logsumexp)) in (0..).zip(&saved.members) {
            let (dout, q) = (dout.select(3, member), saved.q.select(3, member));
            let (dq, dk, dv) =
                Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
                    &dout,
                    &q,
                    &saved.k,
                    &saved.v,
                    out,
                    logsumexp,
                    0.0,
                    true,
                    None::<Tensor>,
                    None,
                )?;
            bucket.unpad_into(&mut dq_TKGD.select(2, member), &tokens_first(&dq));
            sums = Some(match sums {
                Some((k, v)) => (k + dk, v + dv),
                None => (dk, dv),
            });
        }
        if let Some((dk, dv)) = sums {
            bucket.unpad_into(&mut dk_TKD, &tokens_first(&dk));
            bucket.unpad_into(&mut dv_TKD, &tokens_first(&dv));
        }
    }
    Ok((dq_TKGD.flatten(1, 2), dk_TKD, dv_TKD))
}

/// Query heads that share a key head.
fn group_size(config: &ModelConfig) -> usize {
    (config.num_attention_heads / config.num_key_value_heads) as usize
}

/// `[T, A, D]` → `[T, K, G, D]`, a view.
fn grouped(x_TAD: &Tensor, config: &ModelConfig) -> Tensor {
    x_TAD.unflatten(1, [config.num_key_value_heads, group_size(config) as i64])
}

/// `[B · S, K, …]` → `[B, K, S, …]`, a view.
fn heads_first(bucket: &Bucket, padded: &Tensor) -> Tensor {
    padded.unflatten(0, [bucket.num_sequences, bucket.padded]).transpose(1, 2)
}

/// `[B, K, S, D]` → `[B · S, K, D]`.
fn tokens_first(x_BKSD: &Tensor) -> Tensor {
    x_BKSD.transpose(1, 2).flatten(0, 1)
}
