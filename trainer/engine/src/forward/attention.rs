//! Attention of a prompt, and of the rows of a decode step over the KV cache.

#![expect(
    non_snake_case,
    reason = "tensors carry capital shape suffixes: T or B rows, S slots, L positions, H query \
        heads, K key-value heads, G query heads per key-value head, D head dimension"
)]

use tch::{Device, Kind, TchError, Tensor};

use crate::cache::bucket;

/// Input of a decode step for one request.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Input token.
    pub token: i64,
    /// Position from 0. The row attends to this and all earlier positions.
    pub position: usize,
}

/// Consecutive rows of a decode step with the same attention length.
pub struct Span {
    start: i64,
    rows: i64,
    length: i64,
    /// `[rows, 1, 1, length]`: 0 where the row attends, −∞ beyond its position.
    mask: Tensor,
}

/// Groups consecutive rows by bucket.
pub fn spans(rows: &[Row], positions_B: &Tensor, kind: Kind) -> Result<Vec<Span>, TchError> {
    let mut start = 0_i64;
    let mut spans = Vec::new();
    for run in rows.chunk_by(|a, b| bucket(a.position + 1) == bucket(b.position + 1)) {
        let (count, length) = (run.len() as i64, bucket(run[0].position + 1) as i64);
        let beyond = Tensor::f_arange(length, (Kind::Int64, Device::Cpu))?
            .f_unsqueeze(0)?
            .f_gt_tensor(&positions_B.f_narrow(0, start, count)?.f_unsqueeze(1)?)?;
        let mask = Tensor::f_zeros([count, length], (kind, Device::Cpu))?
            .f_masked_fill_(&beyond, f64::NEG_INFINITY)?;
        spans.push(Span { start, rows: count, length, mask: mask.f_view([count, 1, 1, length])? });
        start += count;
    }
    Ok(spans)
}

/// Causal attention of one prompt. The heads of a group share keys and values.
pub fn causal_attention(
    q_THD: &Tensor,
    k_TKD: &Tensor,
    v_TKD: &Tensor,
) -> Result<Tensor, TchError> {
    let (q, k) = (q_THD.size(), k_TKD.size());
    let group = q[1] / k[1];
    let repeat = |x: &Tensor| {
        x.f_unsqueeze(2)?
            .f_expand([k[0], k[1], group, k[2]], false)?
            .f_reshape([k[0], q[1], k[2]])?
            .f_transpose(0, 1)?
            .f_unsqueeze(0)
    };
    let q_1HTD = q_THD.f_transpose(0, 1)?.f_unsqueeze(0)?;
    let out = Tensor::f_scaled_dot_product_attention(
        &q_1HTD,
        &repeat(k_TKD)?,
        &repeat(v_TKD)?,
        None::<Tensor>,
        0.0,
        true,
        None,
        false,
    )?;
    out.f_squeeze_dim(0)?.f_transpose(0, 1)?.f_reshape([q[0], q[1] * q[2]])
}

/// Attention of one token per row over the cache. The heads of a group are the queries of their
/// shared key-value head, `[rows, K, group, D]`.
pub fn cached_attention(
    q_BHD: &Tensor,
    keys_SLKD: &Tensor,
    values_SLKD: &Tensor,
    spans: &[Span],
) -> Result<Tensor, TchError> {
    let (q, K) = (q_BHD.size(), keys_SLKD.size()[2]);
    let attend = |span: &Span| {
        let q_BKGD =
            q_BHD.f_narrow(0, span.start, span.rows)?.f_reshape([span.rows, K, q[1] / K, q[2]])?;
        let of = |x: &Tensor| {
            x.f_narrow(0, span.start, span.rows)?.f_narrow(1, 0, span.length)?.f_transpose(1, 2)
        };
        let out = Tensor::f_scaled_dot_product_attention(
            &q_BKGD,
            &of(keys_SLKD)?,
            &of(values_SLKD)?,
            Some(&span.mask),
            0.0,
            false,
            None,
            false,
        )?;
        out.f_reshape([span.rows, q[1] * q[2]])
    };
    match spans {
        [only] => attend(only),
        _ => Tensor::f_cat(&spans.iter().map(attend).collect::<Result<Vec<_>, _>>()?, 0),
    }
}
