//! Rotary embedding (Su et al., arXiv 2104.09864). The pairs are (i, i + D/2), Hugging Face's
//! order.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use tch::{Kind, Tensor};

pub use crate::operands::Direction;

use crate::KernelError;
#[cfg(feature = "cuda")]
use crate::has_kernel;

/// cos, sin and −sin of the angles, each `[T, 1, D/2]`.
#[expect(clippy::struct_field_names, reason = "the postfix is the shape")]
#[derive(Debug)]
pub struct Rotary {
    cos_T1D: Tensor,
    sin_T1D: Tensor,
    minus_sin_T1D: Tensor,
}

impl Rotary {
    /// Tables for `positions_T` and the `D/2` frequencies, with angles in fp32 and the result
    /// rounded to `kind`, as transformers computes them.
    pub fn new(positions_T: &Tensor, frequencies: &[f32], kind: Kind) -> Self {
        let frequencies_D = Tensor::from_slice(frequencies).to_device(positions_T.device());
        let angles_T1D = positions_T.to_kind(Kind::Float).view([-1, 1, 1]) * frequencies_D;
        let sin_T1D = angles_T1D.sin().to_kind(kind);
        Self { cos_T1D: angles_T1D.cos().to_kind(kind), minus_sin_T1D: sin_T1D.neg(), sin_T1D }
    }

    /// The tables as the kernel reads them: cos and sin in fp32, `[T, D/2]`.
    pub fn tables(&self) -> [Tensor; 2] {
        [&self.cos_T1D, &self.sin_T1D].map(|table| table.squeeze_dim(1).to_kind(Kind::Float))
    }

    /// Rotates `x` `[T, heads, D]`.
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

/// Rotates the first `heads` heads of size D of each row of `x` `[T, W]`, in place, with tables
/// `[cos, sin]`, fp32 `[T, D/2]`.
pub fn rotate_rows(
    x_TW: &Tensor,
    tables: &[Tensor; 2],
    heads: i64,
    direction: Direction,
) -> Result<(), KernelError> {
    let half = tables[0].size()[1];
    #[cfg(feature = "cuda")]
    if has_kernel(x_TW) && half % crate::PACK == 0 {
        return crate::cuda::rotate(x_TW, tables, heads, direction);
    }
    let x_TAD = x_TW.narrow(1, 0, heads * 2 * half).unflatten(1, [heads, 2 * half]);
    let [cos, sin] = [0, 1].map(|table: usize| tables[table].unsqueeze(1).to_kind(x_TW.kind()));
    let sin = if direction == Direction::Forward { sin } else { sin.neg() };
    let halves = x_TAD.chunk(2, -1);
    let low = &halves[0] * &cos - &halves[1] * &sin;
    let high = &halves[1] * &cos + &halves[0] * &sin;
    halves[0].shallow_clone().f_copy_(&low)?;
    halves[1].shallow_clone().f_copy_(&high)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::random;

    fn rotary() -> Rotary {
        let positions = Tensor::from_slice(&[0_i64, 1, 700]);
        Rotary::new(&positions, &[1.0, 0.1, 0.01, 0.001], Kind::Double)
    }

    #[test]
    fn the_inverse_rotation_restores_the_input_and_position_0_is_not_rotated() {
        let (rotary, x) = (rotary(), random(&[3, 2, 8]));
        let y = rotary.apply(&x);
        let back = x.empty_like();
        rotary.backward_into(&back, &y);
        assert!(f64::try_from((back - &x).abs().max()).unwrap() < 1e-6);
        assert_eq!(y.get(0), x.get(0));
        assert_ne!(y.get(1), x.get(1));
    }

    #[test]
    fn rows_are_rotated_in_place_up_to_their_last_heads() {
        let (rotary, x) = (rotary(), random(&[3, 24]));
        let rotated = x.copy();
        rotate_rows(&rotated, &rotary.tables(), 2, Direction::Forward).unwrap();
        let expected = rotary.apply(&x.narrow(1, 0, 16).view([3, 2, 8])).view([3, 16]);
        let close = |a: &Tensor, b: &Tensor| a.allclose(b, 1e-6, 1e-6, false);
        assert!(close(&rotated.narrow(1, 0, 16), &expected));
        assert_eq!(rotated.narrow(1, 16, 8), x.narrow(1, 16, 8));
        rotate_rows(&rotated, &rotary.tables(), 2, Direction::Backward).unwrap();
        assert!(close(&rotated, &x));
    }
}
