//! Page-locked memory of the host, which kernels read and write over PCIe.

use std::ffi::c_void;
use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use super::{ffi, launched};
use crate::KernelError;

/// Owned memory.
#[derive(Debug)]
pub struct PinnedMemory(NonNull<c_void>);

impl PinnedMemory {
    /// Memory for `length` fp32 values and a tensor `[length]` of zeros on `device` that is a view
    /// of it. The tensor must not be used after the memory is dropped.
    pub fn zeros(length: i64, device: Device) -> Result<(Self, Tensor), KernelError> {
        let bytes = usize::try_from(length.max(1)).unwrap_or(usize::MAX).saturating_mul(4);
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes the address of the allocation, or an error code.
        launched("allocate pinned memory of the host", unsafe {
            ffi::cudaHostAlloc(&raw mut pointer, bytes, 0)
        })?;
        let memory = Self(NonNull::new(pointer).unwrap_or(NonNull::dangling()));
        // SAFETY: the memory has `length` values, and the device can access it (unified virtual
        // addressing); the caller keeps it alive.
        let tensor =
            unsafe { Tensor::f_from_blob(pointer.cast(), &[length], &[1], Kind::Float, device) }?;
        let _ = tensor.shallow_clone().f_fill_(0.0)?;
        Ok((memory, tensor))
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by cudaHostAlloc and freed once; waits for kernels that use it.
        let _ = unsafe { ffi::cudaFreeHost(self.0.as_ptr()) };
    }
}
