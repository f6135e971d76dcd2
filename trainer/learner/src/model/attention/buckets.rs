//! Causal attention over packed sequences on CPUs, by libtorch's flash attention for each bucket of
//! spans of similar length, joined with attention over shared prefixes.
//!
//! Grouped queries (Ainslie et al., arXiv 2305.13245): query head `a` reads key head `a ÷ G`, with
//! G = A ÷ K. Each of the G members is a separate call, so that keys and values are not repeated.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

use super::prefix::{self, Outputs, PrefixSaved};
use crate::model::bucket::Bucket;
use crate::model::{ModelConfig, ModelError, PackedTokens};

/// Inputs and outputs for the derivative.
#[derive(Debug)]
pub struct BucketsSaved {
    buckets: Vec<BucketSaved>,
    prefixes: Vec<PrefixSaved>,
    outputs: Outputs,
}

#[derive(Debug)]
struct BucketSaved {
    /// `[B, K, S, G, D]`
    q: Tensor,
    /// `[B, K, S, D]`
    k: Tensor,
    v: Tensor,
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
    let (rows, keys) = (packed.num_tokens(), config.num_key_value_heads);
    let sums = [group_size(config), rows, keys];
    let mut outputs = Outputs {
        out_TKGD: Tensor::empty(q_TKGD.size(), (q_TAD.kind(), q_TAD.device())),
        logsumexp_GTK: Tensor::empty(sums, (Kind::Float, q_TAD.device())),
    };
    let buckets = packed.buckets.iter().map(|bucket| {
        let saved = BucketSaved {
            q: heads_first(bucket, &bucket.pad(&q_TKGD)),
            k: heads_first(bucket, &bucket.pad(k_TKD)),
            v: heads_first(bucket, &bucket.pad(v_TKD)),
        };
        spans_attention(bucket, &saved, &mut outputs)?;
        Ok(saved)
    });
    let buckets = buckets.collect::<Result<_, ModelError>>()?;
    let attend = |one| prefix::attend(one, &q_TKGD, [k_TKD, v_TKD], &outputs);
    let prefixes = packed.prefixes.iter().map(attend).collect::<Result<_, _>>()?;
    let out_TH = outputs.out_TKGD.view([rows, config.num_attention_heads * config.head_dim]);
    Ok((out_TH, BucketsSaved { buckets, prefixes, outputs }))
}

/// Attention of a bucket's rows within their spans.
fn spans_attention(
    bucket: &Bucket,
    saved: &BucketSaved,
    outputs: &mut Outputs,
) -> Result<(), ModelError> {
    for member in 0..saved.q.size()[3] {
        let (out, logsumexp) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(
            &saved.q.select(3, member),
            &saved.k,
            &saved.v,
            0.0,
            true,
            None::<Tensor>,
            None,
        )?;
        bucket.unpad_into(&mut outputs.out_TKGD.select(2, member), &tokens_first(&out));
        bucket.unpad_into(&mut outputs.logsumexp_GTK.select(0, member), &tokens_first(&logsumexp));
    }
    Ok(())
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
    let mut dq_TKGD = dout_TKGD.empty_like();
    let options = (dout_TH.kind(), dout_TH.device());
    let shape = [packed.num_tokens(), config.num_key_value_heads, config.head_dim];
    let (mut dk_TKD, mut dv_TKD) = (Tensor::empty(shape, options), Tensor::empty(shape, options));
    for (bucket, of_bucket) in packed.buckets.iter().zip(&saved.buckets) {
        let derivatives = [&mut dq_TKGD, &mut dk_TKD, &mut dv_TKD];
        spans_backward(bucket, of_bucket, &saved.outputs, &dout_TKGD, derivatives)?;
    }
    for (rows, of_prefix) in packed.prefixes.iter().zip(&saved.prefixes) {
        let derivatives = [&dq_TKGD, &dk_TKD, &dv_TKD];
        prefix::add_backward(rows, of_prefix, &saved.outputs, &dout_TKGD, derivatives)?;
    }
    Ok((dq_TKGD.flatten(1, 2), dk_TKD, dv_TKD))
}

/// Derivatives of a bucket's rows within their spans.
fn spans_backward(
    bucket: &Bucket,
    saved: &BucketSaved,
    outputs: &Outputs,
    dout_TKGD: &Tensor,
    [dq_TKGD, dk_TKD, dv_TKD]: [&mut Tensor; 3],
) -> Result<(), ModelError> {
    let dout = heads_first(bucket, &bucket.pad_with(0.0, dout_TKGD));
    let out = heads_first(bucket, &bucket.pad(&outputs.out_TKGD));
    let mut sums: Option<(Tensor, Tensor)> = None;
    for member in 0..saved.q.size()[3] {
        // Probabilities at padding are exp(−∞).
        let logsumexp = bucket.pad_with(f64::INFINITY, &outputs.logsumexp_GTK.select(0, member));
        let (dq, dk, dv) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &dout.select(3, member),
            &saved.q.select(3, member),
            &saved.k,
            &saved.v,
            &out.select(3, member),
            &heads_first(bucket, &logsumexp),
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
        bucket.unpad_into(dk_TKD, &tokens_first(&dk));
        bucket.unpad_into(dv_TKD, &tokens_first(&dv));
    }
    Ok(())
}

/// Query heads that share a key head.
fn group_size(config: &ModelConfig) -> i64 {
    config.num_attention_heads / config.num_key_value_heads
}

/// `[T, A, D]` → `[T, K, G, D]`, a view.
fn grouped(x_TAD: &Tensor, config: &ModelConfig) -> Tensor {
    x_TAD.unflatten(1, [config.num_key_value_heads, group_size(config)])
}

/// `[B · S, K, …]` → `[B, K, S, …]`, a view.
fn heads_first(bucket: &Bucket, padded: &Tensor) -> Tensor {
    padded.unflatten(0, [bucket.num_spans, bucket.padded]).transpose(1, 2)
}

/// `[B, K, S, …]` → `[B · S, K, …]`.
fn tokens_first(x_BKS: &Tensor) -> Tensor {
    x_BKS.transpose(1, 2).flatten(0, 1)
}
