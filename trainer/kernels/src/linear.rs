//! Gradients of the weights of linear layers, in fp32.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

use crate::KernelError;

/// Whether a result replaces or is added to what the output has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Set,
    Add,
}

impl Write {
    /// Writes `value` to `out`.
    ///
    /// # Errors
    /// The shapes differ.
    pub fn to(self, out: &mut Tensor, value: &Tensor) -> Result<(), KernelError> {
        match self {
            Self::Set => out.f_copy_(value)?,
            Self::Add => drop(out.f_add_(value)?),
        }
        Ok(())
    }
}

/// Writes the weight's gradient `dyᵀ · x` to `out` `[N, M]`, fp32.
///
/// # Errors
/// The shapes do not match.
pub fn weight_gradient(
    write: Write,
    out_NM: &mut Tensor,
    dy_TN: &Tensor,
    x_TM: &Tensor,
) -> Result<(), KernelError> {
    let dy_NT = dy_TN.tr();
    let (is_fp32, is_cuda) = (x_TM.kind() == Kind::Float, x_TM.device().is_cuda());
    match write {
        Write::Set if is_fp32 => drop(dy_NT.f_mm_out(out_NM, x_TM)?),
        Write::Add if is_fp32 => drop(out_NM.f_addmm_(&dy_NT, x_TM)?),
        Write::Set if is_cuda => drop(dy_NT.f_mm_dtype_out(out_NM, x_TM, Kind::Float)?),
        Write::Add if is_cuda => {
            let sum_NM = out_NM.shallow_clone();
            drop(sum_NM.f_addmm_dtype_out(out_NM, &dy_NT, x_TM, Kind::Float)?);
        }
        write => write.to(out_NM, &dy_NT.f_mm(x_TM)?)?,
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
            weight_gradient(Write::Set, &mut out, &dy, &x).unwrap();
            assert!(out.allclose(&expected, 1e-2, 1e-2, false));
            weight_gradient(Write::Add, &mut out, &dy, &x).unwrap();
            assert!(out.allclose(&(expected * 2.0), 1e-2, 1e-2, false));
        }
    }
}
