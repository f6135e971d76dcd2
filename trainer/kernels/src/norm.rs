//! RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

pub use crate::operands::NormSaved;

use crate::KernelError;
#[cfg(feature = "cuda")]
use crate::has_kernel;

/// `x ÷ rms(x) · weight` in the kind of `x`, and `1 ÷ rms(x)` in fp32, `[T, 1]`. The mean square is
/// fp32.
///
/// `x` is `[T, H]` with a weight `[H]`, or `[T, heads, D]` with a weight `[heads, D]`.
pub fn rms_norm(
    x_TH: &Tensor,
    weight_H: &Tensor,
    epsilon: f64,
) -> Result<(Tensor, Tensor), KernelError> {
    #[cfg(feature = "cuda")]
    if fits(x_TH, weight_H) {
        return crate::cuda::rms_norm(x_TH, weight_H, epsilon);
    }
    Ok(plain(x_TH, weight_H, epsilon))
}

/// [`rms_norm`] in libtorch's operations.
pub fn plain(x_TH: &Tensor, weight_H: &Tensor, epsilon: f64) -> (Tensor, Tensor) {
    let x32_TH = x_TH.to_kind(Kind::Float);
    let scale_T1 = (x32_TH.square().mean_dim([-1].as_slice(), true, Kind::Float) + epsilon).rsqrt();
    let y_TH = (x32_TH * &scale_T1).to_kind(x_TH.kind()) * weight_H;
    (y_TH, scale_T1)
}

/// Derivative of [`rms_norm`]: from `dy_TH` to (`dx_TH` in the kind of x, `dweight_H` in fp32 and
/// the weight's shape). `residual_TH` is added to `dx_TH`.
pub fn rms_norm_backward(
    dy_TH: &Tensor,
    saved: &NormSaved,
    weight_H: &Tensor,
    residual_TH: Option<&Tensor>,
) -> Result<(Tensor, Tensor), KernelError> {
    #[cfg(feature = "cuda")]
    if fits(&saved.x_TH, weight_H) && residual_TH.is_none_or(has_kernel) && has_kernel(dy_TH) {
        return crate::cuda::rms_norm_backward(dy_TH, saved, weight_H, residual_TH);
    }
    let (dx_TH, dweight_H) = plain_backward(dy_TH, saved, weight_H);
    Ok((residual_TH.map_or_else(|| dx_TH.shallow_clone(), |other| &dx_TH + other), dweight_H))
}

/// [`rms_norm_backward`] in libtorch's operations, without a residual.
pub fn plain_backward(dy_TH: &Tensor, saved: &NormSaved, weight_H: &Tensor) -> (Tensor, Tensor) {
    let normed_TH = saved.x_TH.to_kind(Kind::Float) * &saved.scale_T1;
    let dy32_TH = dy_TH.to_kind(Kind::Float);
    let dweight_H = (&dy32_TH * &normed_TH).sum_dim_intlist([0].as_slice(), false, Kind::Float);
    let dnormed_TH = dy32_TH * weight_H.to_kind(Kind::Float);
    let along_T1 = (&dnormed_TH * &normed_TH).mean_dim([-1].as_slice(), true, Kind::Float);
    let dx_TH = (dnormed_TH - normed_TH * along_T1) * &saved.scale_T1;
    (dx_TH.to_kind(saved.x_TH.kind()), dweight_H)
}

/// Whether the kernel accepts the operands: one weight for all rows, of at most 16,384 values.
#[cfg(feature = "cuda")]
fn fits(x_TH: &Tensor, weight_H: &Tensor) -> bool {
    has_kernel(x_TH) && has_kernel(weight_H) && weight_H.dim() == 1 && weight_H.numel() <= 16_384
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{difference, random};

    #[test]
    fn the_derivative_of_rms_norm_matches_autograd() {
        let (x, weight, dy) = (
            random(&[5, 8]).to_kind(Kind::Float).set_requires_grad(true),
            random(&[8]).to_kind(Kind::Float),
            random(&[5, 8]),
        );
        let weight = weight.set_requires_grad(true);
        let (y, scale_T1) = rms_norm(&x, &weight, 1e-6).unwrap();
        let saved = NormSaved { x_TH: x.shallow_clone(), scale_T1 };
        let (dx, dweight) = rms_norm_backward(&dy, &saved, &weight, None).unwrap();
        assert!(difference(&y, &dy, &x, &dx) < 1e-5);
        assert!(difference(&y, &dy, &weight, &dweight) < 1e-5);
        let residual = random(&[5, 8]);
        let (sum, _) = rms_norm_backward(&dy, &saved, &weight, Some(&residual)).unwrap();
        assert_eq!(sum, dx + residual);
    }
}
