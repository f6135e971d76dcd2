//! Vectors in memory of the host that a GPU accesses over PCIe.

use tch::{Device, Tensor};

use crate::KernelError;

/// A vector of fp32 zeros on a GPU whose memory is page-locked memory of the host.
#[derive(Debug)]
pub struct PinnedVector {
    /// `[length]`, a view of the memory, as are its slices.
    tensor: Tensor,
    #[cfg(feature = "cuda")]
    _memory: crate::cuda::PinnedMemory,
}

impl PinnedVector {
    /// A vector of `length` zeros.
    ///
    /// # Errors
    /// The memory cannot be allocated, or the build has no GPUs.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are no GPUs"))]
    pub fn zeros(length: i64, device: Device) -> Result<Self, KernelError> {
        #[cfg(feature = "cuda")]
        {
            let (memory, tensor) = crate::cuda::PinnedMemory::zeros(length, device)?;
            Ok(Self { tensor, _memory: memory })
        }
        #[cfg(not(feature = "cuda"))]
        Err(KernelError::Cuda {
            operation: "allocate pinned memory of the host",
            message: "this program was built without CUDA".to_owned(),
        })
    }

    /// The vector, for as long as `self` is alive.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}
