//! Elementwise operations of a layer with their derivatives. `…` in shapes is any number of leading
//! dimensions.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

/// Input and scale of RMSNorm, for its derivative.
#[derive(Debug)]
pub struct NormSaved {
    x_TH: Tensor,
    /// `[T, 1]` fp32: 1 ÷ root of the mean square.
    scale_T1: Tensor,
}

/// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension: `x ÷ rms(x) · weight`,
/// the mean square in fp32.
///
/// `x` is `[T, H]` with a weight `[H]`, or `[T, heads, D]` with a weight `[heads, D]`.
pub fn rms_norm(x_TH: &Tensor, weight_H: &Tensor, epsilon: f64) -> (Tensor, NormSaved) {
    let x32_TH = x_TH.to_kind(Kind::Float);
    let scale_T1 = (x32_TH.square().mean_dim([-1].as_slice(), true, Kind::Float) + epsilon).rsqrt();
    let y_TH = (x32_TH * &scale_T1).to_kind(x_TH.kind()) * weight_H;
    (y_TH, NormSaved { x_TH: x_TH.shallow_clone(), scale_T1 })
}

/// Derivative of [`rms_norm`]: from `dy_TH` to (`dx_TH` in the kind of x, `dweight_H` in fp32 and
/// the weight's shape).
pub fn rms_norm_backward(dy_TH: &Tensor, saved: &NormSaved, weight_H: &Tensor) -> (Tensor, Tensor) {
    let normed_TH = saved.x_TH.to_kind(Kind::Float) * &saved.scale_T1;
    let dy32_TH = dy_TH.to_kind(Kind::Float);
    let dweight_H = (&dy32_TH * &normed_TH).sum_dim_intlist([0].as_slice(), false, Kind::Float);
    let dnormed_TH = dy32_TH * weight_H.to_kind(Kind::Float);
    let along_T1 = (&dnormed_TH * &normed_TH).mean_dim([-1].as_slice(), true, Kind::Float);
    let dx_TH = (dnormed_TH - normed_TH * along_T1) * &saved.scale_T1;
    (dx_TH.to_kind(saved.x_TH.kind()), dweight_H)
}

/// cos, sin and −sin of the rotary embedding (Su et al., arXiv 2104.09864), each `[T, 1, D/2]`.
#[expect(clippy::struct_field_names, reason = "the postfix is the shape")]
#[derive(Debug)]
pub struct Rotary {
    cos_T1D: Tensor,
    sin_T1D: Tensor,
    minus_sin_T1D: Tensor,
}

impl Rotary {
    /// Tables for `positions_T` and the `D/2` frequencies, with angles in fp32 and the result in
    /// `kind`, as transformers computes them.
    pub fn new(positions_T: &Tensor, frequencies: &[f32], kind: Kind) -> Self {
        let frequencies_D = Tensor::from_slice(frequencies).to_device(positions_T.device());
        let angles_T1D = positions_T.to_kind(Kind::Float).view([-1, 1, 1]) * frequencies_D;
        let sin_T1D = angles_T1D.sin().to_kind(kind);
        Self { cos_T1D: angles_T1D.cos().to_kind(kind), minus_sin_T1D: sin_T1D.neg(), sin_T1D }
    }

    /// Rotates `x` `[T, heads, D]`: the pairs are (i, i + D/2), Hugging Face's order.
    pub fn apply(&self, x_TAD: &Tensor) -> Tensor {
        let out_TAD = Tensor::empty(x_TAD.size(), (x_TAD.kind(), x_TAD.device()));
        self.rotate_into(&out_TAD, x_TAD, &self.sin_T1D, &self.minus_sin_T1D);
        out_TAD
    }

    /// Derivative of [`Self::apply`], the inverse rotation, written to `out` `[T, heads, D]`.
    pub fn backward_into(&self, out_TAD: &Tensor, dy_TAD: &Tensor) {
        self.rotate_into(out_TAD, dy_TAD, &self.minus_sin_T1D, &self.sin_T1D);
    }

    fn rotate_into(
        &self,
        out_TAD: &Tensor,
        x_TAD: &Tensor,
        sin_T1D: &Tensor,
        minus_sin_T1D: &Tensor,
    ) {
        let (x, out) = (x_TAD.chunk(2, -1), out_TAD.chunk(2, -1));
        for (own, other, sin_T1D) in [(0, 1, minus_sin_T1D), (1, 0, sin_T1D)] {
            let _ = x[own].multiply_out(&out[own], &self.cos_T1D).addcmul_(&x[other], sin_T1D);
        }
    }
}

/// SwiGLU (Shazeer, arXiv 2002.05202): `silu(gate) · up` of `gate_up` `[T, 2F]`.
pub fn swiglu(gate_up_T2F: &Tensor) -> Tensor {
    let halves = gate_up_T2F.chunk(2, -1);
    halves[0].silu().g_mul_(&halves[1])
}

/// [`swiglu`] and its derivative with respect to `gate_up`.
pub fn swiglu_backward(dy_TF: &Tensor, gate_up_T2F: &Tensor) -> (Tensor, Tensor) {
    let dgate_up_T2F =
        Tensor::empty(gate_up_T2F.size(), (gate_up_T2F.kind(), gate_up_T2F.device()));
    let (halves, derivatives) = (gate_up_T2F.chunk(2, -1), dgate_up_T2F.chunk(2, -1));
    let (gate_TF, up_TF) = (&halves[0], &halves[1]);
    let mut silu_TF = gate_TF.silu();
    let _ = dy_TF.multiply_out(&derivatives[1], &silu_TF);
    let _ = gate_TF.silu_backward_grad_input(&derivatives[0], &(dy_TF * up_TF));
    (silu_TF.g_mul_(up_TF), dgate_up_T2F)
}

/// `x · weightᵀ + bias` for a weight `[out, in]` and a bias `[out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    x.linear(weight, bias)
}

/// Writes the weight's gradient `dyᵀ · x` to `out` `[out, in]` in fp32.
pub fn linear_weight_gradient(out: &mut Tensor, dy: &Tensor, x: &Tensor) {
    if x.kind() == Kind::Float {
        let _ = dy.tr().mm_out(out, x);
    } else {
        out.copy_(&dy.tr().mm(x));
    }
}

#[cfg(test)]
mod tests {
    use super::{Rotary, rms_norm, rms_norm_backward, swiglu, swiglu_backward};
    use tch::{Device, Kind, Tensor};

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Double, Device::Cpu))
    }

    /// Largest difference between the derivative given and autograd's.
    fn difference(output: &Tensor, dy: &Tensor, leaf: &Tensor, given: &Tensor) -> f64 {
        let expected =
            Tensor::run_backward(&[(output * dy).sum(Kind::Double)], &[leaf], true, false);
        f64::try_from((&expected[0] - given.to_kind(Kind::Double)).abs().max()).unwrap()
    }

    #[test]
    fn the_derivative_of_rms_norm_matches_autograd() {
        let (x, weight, dy) = (
            random(&[5, 8]).to_kind(Kind::Float).set_requires_grad(true),
            random(&[8]).to_kind(Kind::Float),
            random(&[5, 8]),
        );
        let weight = weight.set_requires_grad(true);
        let (y, saved) = rms_norm(&x, &weight, 1e-6);
        let (dx, dweight) = rms_norm_backward(&dy, &saved, &weight);
        assert!(difference(&y, &dy, &x, &dx) < 1e-5);
        assert!(difference(&y, &dy, &weight, &dweight) < 1e-5);
    }

    #[test]
    fn the_derivative_of_swiglu_matches_autograd() {
        let (x, dy) = (random(&[5, 8]).set_requires_grad(true), random(&[5, 4]));
        let (y, derivative) = swiglu_backward(&dy, &x.detach());
        assert!(difference(&swiglu(&x), &dy, &x, &derivative) < 1e-12);
        assert_eq!(y, swiglu(&x));
    }

    #[test]
    fn the_inverse_rotation_restores_the_input_and_position_0_is_not_rotated() {
        let rotary = Rotary::new(
            &Tensor::from_slice(&[0_i64, 1, 700]),
            &[1.0, 0.1, 0.01, 0.001],
            Kind::Double,
        );
        let x = random(&[3, 2, 8]);
        let y = rotary.apply(&x);
        let back = x.empty_like();
        rotary.backward_into(&back, &y);
        assert!(f64::try_from((back - &x).abs().max()).unwrap() < 1e-6);
        assert_eq!(y.get(0), x.get(0));
        assert_ne!(y.get(1), x.get(1));
    }
}
