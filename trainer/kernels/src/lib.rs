//! Numeric operations of training on tensors: RMSNorm, SwiGLU, rotary embedding, attention over
//! packed sequences, log-probabilities of a head, gradients of linear layers, AdamW, advantages.
//!
//! Every operation has a plain version in libtorch's operations or a loop, which runs on every
//! device. With feature `cuda`, tensors on a GPU use the kernels in `cuda/`: bfloat16, or fp32 of
//! AdamW and advantages. Tests compare the two. The crate has no models, ranks or IO.
//!
//! Shape suffixes: T tokens, H hidden size, A attention heads, K key-value heads, D head size, W =
//! (A + 2K) · D, F feed-forward size, C tokens of a chunk, V vocabulary, N and M outputs and inputs
//! of a linear layer, or N trained tokens and Q sequences.

pub mod adamw;
pub mod attention;
pub mod device;
mod error;
pub mod gae;
pub mod head;
pub mod linear;
pub mod norm;
mod operands;
pub mod pinned;
pub mod rotary;
pub mod swiglu;

#[cfg(feature = "cuda")]
mod cuda;

pub use error::KernelError;

#[cfg(feature = "cuda")]
use tch::{Kind, Tensor};

/// Values that a kernel reads with one instruction.
#[cfg(feature = "cuda")]
const PACK: i64 = 8;

/// Whether kernels accept the tensor: bfloat16 on a GPU, contiguous, with rows of whole packs.
#[cfg(feature = "cuda")]
fn has_kernel(tensor: &Tensor) -> bool {
    tensor.device().is_cuda()
        && tensor.kind() == Kind::BFloat16
        && tensor.is_contiguous()
        && tensor.numel() > 0
        && tensor.size().last().is_some_and(|width| width % PACK == 0)
}

/// Number of rows of the last dimension.
#[cfg(feature = "cuda")]
fn rows(tensor: &Tensor) -> i64 {
    let width = tensor.size().last().copied().unwrap_or(1).max(1);
    tensor.numel() as i64 / width
}

#[cfg(test)]
mod test_support {
    use tch::{Device, Kind, Tensor};

    pub fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Double, Device::Cpu))
    }

    /// Largest difference between the derivative given and autograd's.
    pub fn difference(output: &Tensor, dy: &Tensor, leaf: &Tensor, given: &Tensor) -> f64 {
        let sum = (output * dy).sum(Kind::Double);
        let expected = Tensor::run_backward(&[sum], &[leaf], true, false);
        f64::try_from((&expected[0] - given.to_kind(Kind::Double)).abs().max()).unwrap()
    }
}
