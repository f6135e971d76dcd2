//! Causal attention over packed sequences with grouped queries (Ainslie et al., arXiv 2305.13245):
//! query head `a` reads key head `a ÷ (A ÷ K)`.
//!
//! Queries, keys and values are heads of one row per token. On GPUs, cuDNN's fused attention reads
//! and writes such rows in place; its graphs are built once for each [`Bucket`] and reused for all
//! batches that fit. The plain version runs on every device, one sequence at a time.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

pub use crate::operands::{AttentionSaved, Bucket, Heads, Sequences};

use crate::KernelError;
#[cfg(feature = "cuda")]
use crate::has_kernel;

/// Attention within each sequence; the result is `[T, A · D]`.
pub fn attention(qkv_TW: &Tensor, sequences: &Sequences) -> Result<AttentionSaved, KernelError> {
    #[cfg(feature = "cuda")]
    if has_kernel(qkv_TW) {
        return crate::cuda::attention(qkv_TW, sequences);
    }
    let out_TH = plain(qkv_TW, sequences);
    let statistics_TA = Tensor::empty([0], (Kind::Float, qkv_TW.device()));
    Ok(AttentionSaved { qkv_TW: qkv_TW.shallow_clone(), out_TH, statistics_TA })
}

/// Derivative of [`attention`] with respect to the rows, `[T, W]`.
pub fn attention_backward(
    dout_TH: &Tensor,
    saved: &AttentionSaved,
    sequences: &Sequences,
) -> Result<Tensor, KernelError> {
    #[cfg(feature = "cuda")]
    if has_kernel(&saved.qkv_TW) && has_kernel(dout_TH) {
        return crate::cuda::attention_backward(dout_TH, saved, sequences);
    }
    Ok(plain_backward(dout_TH, &saved.qkv_TW, sequences))
}

/// [`attention`] in libtorch's operations, as a product of matrices per sequence.
pub fn plain(qkv_TW: &Tensor, sequences: &Sequences) -> Tensor {
    let Heads { queries, size, .. } = sequences.heads;
    let parts: Vec<Tensor> = each_sequence(qkv_TW, sequences)
        .map(|[q, k, v]| {
            let out = Tensor::scaled_dot_product_attention(
                &q,
                &k,
                &v,
                None::<&Tensor>,
                0.0,
                true,
                Some(sequences.heads.scale()),
                false,
            );
            out.transpose(0, 1).reshape([-1, queries * size])
        })
        .collect();
    Tensor::cat(&parts, 0)
}

/// [`attention_backward`] by automatic differentiation of [`plain`].
pub fn plain_backward(dout_TH: &Tensor, qkv_TW: &Tensor, sequences: &Sequences) -> Tensor {
    tch::with_grad(|| {
        let leaf = qkv_TW.detach().set_requires_grad(true);
        let product = (plain(&leaf, sequences) * dout_TH).sum(Kind::Float);
        Tensor::run_backward(&[product], &[&leaf], false, false).remove(0)
    })
}

/// Queries, keys and values of each sequence, `[A, S, D]`; keys and values are repeated for the
/// query heads that read them.
fn each_sequence<'a>(
    qkv_TW: &'a Tensor,
    sequences: &'a Sequences,
) -> impl Iterator<Item = [Tensor; 3]> + 'a {
    let Heads { queries, keys, size } = sequences.heads;
    let starts = sequences.lengths.iter().scan(0, |end, length| {
        let start = *end;
        *end += length;
        Some((start, *length))
    });
    starts.map(move |(start, length)| {
        let rows = qkv_TW.narrow(0, start, length).view([length, -1, size]).transpose(0, 1);
        let repeated = |first: i64| {
            rows.narrow(0, first, keys).repeat_interleave_self_int(queries / keys, 0, None)
        };
        [rows.narrow(0, 0, queries), repeated(queries), repeated(queries + keys)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::random;

    const HEADS: Heads = Heads { queries: 4, keys: 2, size: 8 };

    #[test]
    fn tokens_of_other_sequences_and_later_tokens_change_nothing() {
        let sequences = Sequences::new(&[3, 2], HEADS, tch::Device::Cpu, false);
        let qkv = random(&[5, HEADS.width()]);
        let out = plain(&qkv, &sequences);
        let changed = qkv.copy();
        let _ = changed.narrow(0, 2, 2).fill_(9.0);
        let other = plain(&changed, &sequences);
        assert_eq!(out.narrow(0, 0, 2), other.narrow(0, 0, 2));
        assert_ne!(out.narrow(0, 2, 3), other.narrow(0, 2, 3));
        let alone = Sequences::new(&[2], HEADS, tch::Device::Cpu, false);
        assert!(plain(&qkv.narrow(0, 3, 2), &alone).allclose(
            &out.narrow(0, 3, 2),
            1e-9,
            1e-9,
            false
        ));
    }

    #[test]
    fn batches_of_similar_sizes_share_a_bucket() {
        let bucket = Bucket::of(&[100, 1900, 3000]);
        assert_eq!(bucket, Bucket { sequences: 8, length: 3072, tokens: 5120 });
        assert_eq!(bucket, Bucket::of(&[3072, 700, 1200, 50]));
        assert_eq!(Bucket::of(&[]), Bucket { sequences: 8, length: 128, tokens: 1024 });
    }

    #[test]
    fn offsets_repeat_the_end_after_the_last_sequence() {
        let sequences = Sequences::new(&[3, 2], HEADS, tch::Device::Cpu, false);
        let values = |tensor: &Tensor| Vec::<i64>::try_from(tensor).unwrap();
        let [rows, outs, statistics] = &sequences.offsets;
        assert_eq!(values(rows), [0, 3, 5, 5, 5, 5, 5, 5, 5].map(|start| start * 64));
        assert_eq!(values(outs), [0, 3, 5, 5, 5, 5, 5, 5, 5].map(|start| start * 32));
        assert_eq!(values(statistics), [0, 3, 5, 5, 5, 5, 5, 5, 5].map(|start| start * 4));
        let lengths = sequences.lengths_B.to_kind(Kind::Int64);
        assert_eq!(values(&lengths), [3, 2, 0, 0, 0, 0, 0, 0]);
    }
}
