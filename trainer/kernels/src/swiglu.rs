//! SwiGLU (Shazeer, arXiv 2002.05202): `silu(gate) · up` of `gate_up` `[T, 2F]`.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::Tensor;

use crate::KernelError;
#[cfg(feature = "cuda")]
use crate::has_kernel;

/// `silu(gate) · up`.
pub fn swiglu(gate_up_T2F: &Tensor) -> Result<Tensor, KernelError> {
    #[cfg(feature = "cuda")]
    if fits(gate_up_T2F) {
        return crate::cuda::swiglu(gate_up_T2F);
    }
    Ok(plain(gate_up_T2F))
}

/// [`swiglu`] in libtorch's operations.
pub fn plain(gate_up_T2F: &Tensor) -> Tensor {
    let halves = gate_up_T2F.chunk(2, -1);
    halves[0].silu().g_mul_(&halves[1])
}

/// [`swiglu`] and its derivative with respect to `gate_up`.
pub fn swiglu_backward(
    dy_TF: &Tensor,
    gate_up_T2F: &Tensor,
) -> Result<(Tensor, Tensor), KernelError> {
    #[cfg(feature = "cuda")]
    if fits(gate_up_T2F) && has_kernel(dy_TF) {
        return crate::cuda::swiglu_backward(dy_TF, gate_up_T2F);
    }
    Ok(plain_backward(dy_TF, gate_up_T2F))
}

/// [`swiglu_backward`] in libtorch's operations.
pub fn plain_backward(dy_TF: &Tensor, gate_up_T2F: &Tensor) -> (Tensor, Tensor) {
    let dgate_up_T2F =
        Tensor::empty(gate_up_T2F.size(), (gate_up_T2F.kind(), gate_up_T2F.device()));
    let (halves, derivatives) = (gate_up_T2F.chunk(2, -1), dgate_up_T2F.chunk(2, -1));
    let (gate_TF, up_TF) = (&halves[0], &halves[1]);
    let mut silu_TF = gate_TF.silu();
    let _ = dy_TF.multiply_out(&derivatives[1], &silu_TF);
    let _ = gate_TF.silu_backward_grad_input(&derivatives[0], &(dy_TF * up_TF));
    (silu_TF.g_mul_(up_TF), dgate_up_T2F)
}

/// Whether the kernel accepts the operand: each half is whole packs.
#[cfg(feature = "cuda")]
fn fits(gate_up_T2F: &Tensor) -> bool {
    has_kernel(gate_up_T2F) && gate_up_T2F.size()[1] % (2 * crate::PACK) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{difference, random};

    #[test]
    fn the_derivative_of_swiglu_matches_autograd() {
        let (x, dy) = (random(&[5, 8]).set_requires_grad(true), random(&[5, 4]));
        let (y, derivative) = swiglu_backward(&dy, &x.detach()).unwrap();
        assert!(difference(&plain(&x), &dy, &x, &derivative) < 1e-12);
        assert_eq!(y, swiglu(&x).unwrap());
    }
}
