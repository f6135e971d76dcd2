//! Gradients of the weights of linear layers, in fp32.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

use crate::KernelError;

/// Writes the weight's gradient `dyᵀ · x` to `out` `[N, M]`, fp32.
pub fn weight_gradient(
    out_NM: &mut Tensor,
    dy_TN: &Tensor,
    x_TM: &Tensor,
) -> Result<(), KernelError> {
    if x_TM.kind() == Kind::Float {
        let _ = dy_TN.tr().f_mm_out(out_NM, x_TM)?;
    } else if x_TM.device().is_cuda() {
        let _ = dy_TN.tr().f_mm_dtype_out(out_NM, x_TM, Kind::Float)?;
    } else {
        out_NM.f_copy_(&dy_TN.tr().f_mm(x_TM)?)?;
    }
    Ok(())
}

/// Adds the weight's gradient `dyᵀ · x` to `out` `[N, M]`, fp32.
pub fn add_weight_gradient(
    out_NM: &mut Tensor,
    dy_TN: &Tensor,
    x_TM: &Tensor,
) -> Result<(), KernelError> {
    if x_TM.kind() == Kind::Float {
        let _ = out_NM.f_addmm_(&dy_TN.tr(), x_TM)?;
    } else if x_TM.device().is_cuda() {
        let _ = out_NM.f_addmm_dtype_out(out_NM, &dy_TN.tr(), x_TM, Kind::Float)?;
    } else {
        let _ = out_NM.f_add_(&dy_TN.tr().f_mm(x_TM)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::random;

    #[test]
    fn gradients_are_written_and_added() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let (dy, x) = (random(&[6, 3]).to_kind(kind), random(&[6, 4]).to_kind(kind));
            let expected = dy.to_kind(Kind::Float).tr().mm(&x.to_kind(Kind::Float));
            let mut out = Tensor::zeros([3, 4], (Kind::Float, dy.device()));
            weight_gradient(&mut out, &dy, &x).unwrap();
            assert!(out.allclose(&expected, 1e-2, 1e-2, false));
            add_weight_gradient(&mut out, &dy, &x).unwrap();
            assert!(out.allclose(&(expected * 2.0), 1e-2, 1e-2, false));
        }
    }
}
