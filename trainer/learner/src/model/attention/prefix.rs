//! Attention of rows over the shared prefix before them, joined with their attention over their
//! spans.
//!
//! The header of [`rljob_kernels::attention`], which does the same on GPUs, has the formulas.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_kernels::attention::Prefix;
use tch::{Kind, Tensor};

use crate::model::ModelError;

/// Outputs of all rows, and logarithms of their sums of exponentials.
#[derive(Debug)]
pub struct Outputs {
    /// `[T, K, G, D]`
    pub out_TKGD: Tensor,
    /// `[G, T, K]`, fp32.
    pub logsumexp_GTK: Tensor,
}

/// Queries and keys of a prefix for the derivative. R rows attend to its P rows.
#[derive(Debug)]
pub struct PrefixSaved {
    q_GKRD: Tensor,
    k_GKPD: Tensor,
    v_GKPD: Tensor,
}

/// Adds the attention over the prefix to the outputs of the rows that attend to it.
pub fn attend(
    prefix: &Prefix,
    q_TKGD: &Tensor,
    [k_TKD, v_TKD]: [&Tensor; 2],
    outputs: &Outputs,
) -> Result<PrefixSaved, ModelError> {
    let members = q_TKGD.size()[2];
    // Copies, so that the derivative does not keep the rows of all keys and values.
    let keys = |x_TKD: &Tensor| {
        let x_KPD = x_TKD.narrow(0, prefix.first, prefix.rows).transpose(0, 1).contiguous();
        x_KPD.unsqueeze(0).expand([members, -1, -1, -1], false)
    };
    let q_GKRD = followers_of(prefix, q_TKGD);
    let (k_GKPD, v_GKPD) = (keys(k_TKD), keys(v_TKD));
    let (out_GKRD, logsumexp_GKR) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu(
        &q_GKRD,
        &k_GKPD,
        &v_GKPD,
        0.0,
        false,
        None::<Tensor>,
        None,
    )?;
    join(
        &followers_of(prefix, &outputs.out_TKGD),
        &sums_of(prefix, outputs),
        &out_GKRD,
        &logsumexp_GKR,
    );
    Ok(PrefixSaved { q_GKRD, k_GKPD, v_GKPD })
}

/// Joins the attention `out`, `logsumexp` over one set of keys with `other` over another, in place.
fn join(out_GKRD: &Tensor, logsumexp_GKR: &Tensor, other_GKRD: &Tensor, other_GKR: &Tensor) {
    let share_GKR1 = (other_GKR - logsumexp_GKR).sigmoid().unsqueeze(-1);
    let [own, other] = [out_GKRD, other_GKRD].map(|out| out.to_kind(Kind::Float));
    out_GKRD.shallow_clone().copy_(&own.lerp_tensor(&other, &share_GKR1));
    logsumexp_GKR.shallow_clone().copy_(&logsumexp_GKR.logaddexp(other_GKR));
}

/// Adds the derivatives over the prefix to those of its rows and of the rows that attend to it:
/// `dq` `[T, K, G, D]`, `dk` and `dv` `[T, K, D]`.
pub fn add_backward(
    prefix: &Prefix,
    saved: &PrefixSaved,
    outputs: &Outputs,
    dout_TKGD: &Tensor,
    [dq_TKGD, dk_TKD, dv_TKD]: [&Tensor; 3],
) -> Result<(), ModelError> {
    let (dq_GKRD, dk_GKPD, dv_GKPD) =
        Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &followers_of(prefix, dout_TKGD),
            &saved.q_GKRD,
            &saved.k_GKPD,
            &saved.v_GKPD,
            &followers_of(prefix, &outputs.out_TKGD),
            &sums_of(prefix, outputs),
            0.0,
            false,
            None::<Tensor>,
            None,
        )?;
    let _ = followers_of(prefix, dq_TKGD).f_add_(&dq_GKRD)?;
    for (sum_TKD, part_GKPD) in [(dk_TKD, dk_GKPD), (dv_TKD, dv_GKPD)] {
        let kind = part_GKPD.kind();
        let part_KPD = part_GKPD.sum_dim_intlist([0].as_slice(), false, kind);
        let prefix_KPD = sum_TKD.narrow(0, prefix.first, prefix.rows).transpose(0, 1);
        let _ = prefix_KPD.shallow_clone().f_add_(&part_KPD)?;
    }
    Ok(())
}

/// The rows that attend to the prefix, `[T, K, G, D]` → `[G, K, R, D]`, a view.
fn followers_of(prefix: &Prefix, x_TKGD: &Tensor) -> Tensor {
    x_TKGD.narrow(0, prefix.first + prefix.rows, prefix.followers).permute([2, 1, 0, 3])
}

/// The logarithms of the sums of these rows, `[G, K, R]`, a view.
fn sums_of(prefix: &Prefix, outputs: &Outputs) -> Tensor {
    let rows = outputs.logsumexp_GTK.narrow(1, prefix.first + prefix.rows, prefix.followers);
    rows.transpose(1, 2)
}
