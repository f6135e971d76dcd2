//! The kernel of advantages.

use tch::Tensor;

use super::{ffi, launched, pointer, stream};
use crate::KernelError;
use crate::operands::{Discounts, Packed};

pub fn advantages(
    packed: &Packed<'_>,
    rewards_N: &Tensor,
    Discounts { discount, lambda_Q }: Discounts<'_>,
) -> Result<Tensor, KernelError> {
    let advantages_N = rewards_N.f_empty_like()?;
    // SAFETY: the tensors are alive, contiguous and of these kinds and sizes; the positions are
    // ascending and within the tokens.
    let code = unsafe {
        ffi::rljob_gae(
            pointer(rewards_N),
            pointer(packed.values_N),
            pointer(packed.ends_Q),
            pointer(packed.end_values_Q),
            pointer(&advantages_N),
            packed.ends_Q.numel() as i64,
            discount,
            pointer(lambda_Q),
            stream(),
        )
    };
    launched("compute advantages", code)?;
    Ok(advantages_N)
}
