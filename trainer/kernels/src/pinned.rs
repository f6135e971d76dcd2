//! Page-locked memory of the host: vectors that a GPU accesses over PCIe, and copies that it makes
//! while the host continues.

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
        Err(without_cuda())
    }

    /// The vector, for as long as `self` is alive.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

/// A copy of tensors of a GPU in page-locked memory of the host. The host queues it and continues;
/// a reader of the bytes waits for the GPU.
#[derive(Debug)]
pub struct HostCopy {
    #[cfg(feature = "cuda")]
    bytes: crate::cuda::HostBytes,
}

impl HostCopy {
    /// Memory for `length` bytes, which later copies use again.
    ///
    /// # Errors
    /// The memory cannot be allocated, or the build has no GPUs.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are no GPUs"))]
    pub fn new(length: usize) -> Result<Self, KernelError> {
        #[cfg(feature = "cuda")]
        return Ok(Self { bytes: crate::cuda::HostBytes::new(length)? });
        #[cfg(not(feature = "cuda"))]
        Err(without_cuda())
    }

    /// Bytes of the memory.
    pub fn length(&self) -> usize {
        #[cfg(feature = "cuda")]
        return self.bytes.len();
        #[cfg(not(feature = "cuda"))]
        0
    }

    /// Queues a copy of the tensors' elements, one tensor after another, behind this thread's
    /// earlier operations on the GPU.
    ///
    /// # Errors
    /// The tensors are not contiguous or do not fill the memory; CUDA.
    pub fn begin(&mut self, tensors: &[Tensor]) -> Result<(), KernelError> {
        let bytes = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        let total: usize = tensors.iter().map(bytes).sum();
        if total != self.length() || !tensors.iter().all(Tensor::is_contiguous) {
            return Err(KernelError::Cuda {
                operation: "copy tensors to the host",
                message: format!("expected {} contiguous bytes, not {total}", self.length()),
            });
        }
        #[cfg(feature = "cuda")]
        return self.bytes.copy(tensors);
        #[cfg(not(feature = "cuda"))]
        Err(without_cuda())
    }

    /// The bytes of the last copy, once the GPU has made it.
    ///
    /// # Errors
    /// CUDA.
    pub fn wait(&self) -> Result<&[u8], KernelError> {
        #[cfg(feature = "cuda")]
        return self.bytes.wait();
        #[cfg(not(feature = "cuda"))]
        Err(without_cuda())
    }
}

#[cfg(not(feature = "cuda"))]
fn without_cuda() -> KernelError {
    KernelError::Cuda {
        operation: "allocate pinned memory of the host",
        message: "this program was built without CUDA".to_owned(),
    }
}
