//! Causal attention over packed sequences with grouped queries (Ainslie et al., arXiv 2305.13245):
//! query head `a` reads key head `a ÷ (A ÷ K)`.
//!
//! Queries, keys and values are heads of one row per token. Spans of rows may share a [`Prefix`]
//! before them. On GPUs, cuDNN's fused attention reads and writes such rows in place; its graphs
//! are built once for each [`Bucket`] and reused for all batches that fit. The plain version runs
//! on every device, one span at a time.
//!
//! With prefixes there are two calls. With the outputs o₁, o₂ of a query over its span and over the
//! prefix, and the logarithms l₁, l₂ of their sums of exponentials, the output over both is
//! o₁ + (o₂ − o₁) · σ(l₂ − l₁), and the logarithm of its sum is log(exp l₁ + exp l₂). The
//! derivative over each set of keys is that of FlashAttention (Dao, arXiv 2307.08691), which uses
//! output and logarithm, with those of both sets; the two derivatives add up.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

pub use crate::operands::{AttentionSaved, Bucket, Heads, Prefix, Sequences};

use crate::KernelError;
#[cfg(feature = "cuda")]
use crate::has_kernel;
use crate::operands::{Segment, spans};

/// Attention within each span and over its prefix; the result is `[T, A · D]`.
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

/// [`attention`] in libtorch's operations, as a product of matrices per span.
pub fn plain(qkv_TW: &Tensor, sequences: &Sequences) -> Tensor {
    let Heads { queries, size, .. } = sequences.heads;
    let of_span = |span: Segment| {
        let prefix = sequences.prefix_of(span.first);
        let [q_ASD, k_AUD, v_AUD] = heads_of(qkv_TW, span, prefix, sequences.heads);
        let keys = k_AUD.size()[1];
        let seen_SU = Tensor::ones([span.length, keys], (Kind::Bool, qkv_TW.device()))
            .tril(keys - span.length);
        let scale = Some(sequences.heads.scale());
        let out_ASD = Tensor::scaled_dot_product_attention(
            &q_ASD,
            &k_AUD,
            &v_AUD,
            Some(&seen_SU),
            0.0,
            false,
            scale,
            false,
        );
        out_ASD.transpose(0, 1).reshape([-1, queries * size])
    };
    let parts: Vec<Tensor> = spans(&sequences.lengths).map(of_span).collect();
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

/// Queries `[A, S, D]` of a span, keys and values `[A, U, D]` of the prefix and the span, repeated
/// for the query heads that read them.
fn heads_of(qkv_TW: &Tensor, span: Segment, prefix: Option<Prefix>, heads: Heads) -> [Tensor; 3] {
    let Heads { queries, keys, size } = heads;
    let rows =
        |first, length| qkv_TW.narrow(0, first, length).view([length, -1, size]).transpose(0, 1);
    let own = rows(span.first, span.length);
    let repeated = |first: i64| {
        let own = own.narrow(0, first, keys);
        let all = match prefix {
            Some(prefix) => {
                let before = rows(prefix.first, prefix.rows).narrow(0, first, keys);
                Tensor::cat(&[before, own], 1)
            }
            None => own,
        };
        all.repeat_interleave_self_int(queries / keys, 0, None)
    };
    [own.narrow(0, 0, queries), repeated(queries), repeated(queries + keys)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operands::Segments;
    use crate::test_support::random;

    const HEADS: Heads = Heads { queries: 4, keys: 2, size: 8 };

    #[test]
    fn tokens_of_other_sequences_and_later_tokens_change_nothing() {
        let sequences = Sequences::new(&[3, 2], &[], HEADS, tch::Device::Cpu, false);
        let qkv = random(&[5, HEADS.width()]);
        let out = plain(&qkv, &sequences);
        let changed = qkv.copy();
        let _ = changed.narrow(0, 2, 2).fill_(9.0);
        let other = plain(&changed, &sequences);
        assert_eq!(out.narrow(0, 0, 2), other.narrow(0, 0, 2));
        assert_ne!(out.narrow(0, 2, 3), other.narrow(0, 2, 3));
        let alone = Sequences::new(&[2], &[], HEADS, tch::Device::Cpu, false);
        assert!(plain(&qkv.narrow(0, 3, 2), &alone).allclose(
            &out.narrow(0, 3, 2),
            1e-9,
            1e-9,
            false
        ));
    }

    #[test]
    fn spans_after_a_prefix_have_the_attention_of_whole_sequences() {
        // The sequences of rows 0 1 2 and 0 1 3 4 share the prefix 0 1; 5 is alone.
        let prefix = Prefix { first: 0, rows: 2, followers: 3 };
        let shared = Sequences::new(&[2, 1, 2, 1], &[prefix], HEADS, tch::Device::Cpu, false);
        let whole = Sequences::new(&[3, 4, 1], &[], HEADS, tch::Device::Cpu, false);
        let qkv = random(&[6, HEADS.width()]);
        let repeated = Tensor::from_slice(&[0_i64, 1, 2, 0, 1, 3, 4, 5]);
        let all = plain(&qkv.index_select(0, &repeated), &whole);
        let expected = all.index_select(0, &Tensor::from_slice(&[0_i64, 1, 2, 5, 6, 7]));
        assert!(plain(&qkv, &shared).allclose(&expected, 1e-9, 1e-9, false));
    }

    #[test]
    fn batches_of_similar_sizes_share_a_bucket() {
        let bucket = |lengths: &[i64]| {
            Sequences::new(lengths, &[], HEADS, tch::Device::Cpu, false).within_spans.bucket
        };
        let expected = Bucket { segments: 8, queries: 3072, keys: 3072, tokens: 5120 };
        assert_eq!(bucket(&[100, 1900, 3000]), expected);
        assert_eq!(bucket(&[3072, 700, 1200, 50]), expected);
        assert_eq!(bucket(&[]), Bucket { segments: 8, queries: 128, keys: 128, tokens: 1024 });
    }

    #[test]
    fn offsets_repeat_the_end_after_the_last_segment() {
        let prefix = Prefix { first: 3, rows: 4, followers: 6 };
        let sequences = Sequences::new(&[3, 4, 5, 1], &[prefix], HEADS, tch::Device::Cpu, false);
        let values = |tensor: &Tensor| Vec::<i64>::try_from(tensor.to_kind(Kind::Int64)).unwrap();
        let of = |segments: &Segments| segments.inputs.each_ref().map(values);
        let starts = [0, 3, 7, 12, 13, 13, 13, 13, 13];
        let lengths = vec![3, 4, 5, 1, 0, 0, 0, 0];
        let rows = starts.map(|start| start * 64).to_vec();
        let [outs, statistics] = [32, 4].map(|width| starts.map(|start| start * width).to_vec());
        assert_eq!(
            of(&sequences.within_spans),
            [rows.clone(), outs, statistics, rows, lengths.clone(), lengths]
        );
        let filled = |first: i64, end: i64, number: usize| {
            let mut all = vec![end; number];
            all[0] = first;
            all
        };
        assert_eq!(
            of(sequences.over_prefixes.as_ref().unwrap()),
            [
                filled(7 * 64, 13 * 64, 9),
                filled(7 * 32, 13 * 32, 9),
                filled(7 * 4, 13 * 4, 9),
                filled(3 * 64, 7 * 64, 9),
                filled(6, 0, 8),
                filled(4, 0, 8)
            ]
        );
    }
}
