//! GPUs of this process. Builds without feature `cuda` have none.

use tch::Device;

use crate::KernelError;

/// Memory of libtorch on a GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In use by tensors.
    pub used: i64,
    /// The most that was in use.
    pub peak: i64,
    /// Held by the allocator.
    pub held: i64,
}

/// Memory of a GPU that this process may use, in bytes: all, or the part that
/// `per_process_memory_fraction` of `PYTORCH_CUDA_ALLOC_CONF` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub free: u64,
    pub total: u64,
}

/// Major and minor compute capability of GPU `device`, if this process can use it.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are no GPUs"))]
pub fn compute_capability(device: usize) -> Option<(i32, i32)> {
    #[cfg(feature = "cuda")]
    return crate::cuda::compute_capability(device);
    #[cfg(not(feature = "cuda"))]
    None
}

/// Free and total memory of GPU `device` for this process.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are no GPUs"))]
pub fn capacity(device: usize) -> Option<Capacity> {
    #[cfg(feature = "cuda")]
    {
        let [free, total] = crate::cuda::capacity(device)?;
        Some(Capacity { free, total })
    }
    #[cfg(not(feature = "cuda"))]
    None
}

/// Memory of libtorch on GPU `device`.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there are no GPUs"))]
pub fn memory(device: usize) -> Option<Memory> {
    #[cfg(feature = "cuda")]
    {
        let [used, peak, held] = crate::cuda::memory(device)?;
        Some(Memory { used, peak, held })
    }
    #[cfg(not(feature = "cuda"))]
    None
}

/// Calls `run` once all operations that this thread has queued on `device` are done: at once on a
/// CPU, else on a thread of CUDA, where it must not use CUDA.
///
/// # Errors
/// CUDA.
pub fn call_when_done(device: Device, run: extern "C" fn()) -> Result<(), KernelError> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return crate::cuda::call_when_done(run);
    }
    let _ = device;
    run();
    Ok(())
}

/// Dense bf16 operations per second of GPU `device`: of an A100, and of an H100 SXM or H200, from
/// NVIDIA's data sheets. Unknown for others.
pub fn bf16_operations(device: usize) -> Option<f64> {
    match compute_capability(device)? {
        (8, 0) => Some(312e12),
        (9, 0) => Some(989.4e12),
        _ => None,
    }
}
