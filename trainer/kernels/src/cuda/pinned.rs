//! Page-locked memory of the host, which GPUs read and write over PCIe.

use std::ffi::c_void;
use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use super::{ffi, launched, pointer, stream};
use crate::KernelError;

/// Owned memory.
#[derive(Debug)]
pub struct PinnedMemory(NonNull<c_void>);

// SAFETY: memory of the process, which any thread may access and free.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Memory of `bytes` bytes, whose values are not defined.
    fn new(bytes: usize) -> Result<Self, KernelError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: writes the address of the allocation, or an error code.
        launched("allocate pinned memory of the host", unsafe {
            ffi::cudaHostAlloc(&raw mut pointer, bytes.max(1), 0)
        })?;
        Ok(Self(NonNull::new(pointer).unwrap_or(NonNull::dangling())))
    }

    /// Memory for `length` fp32 values and a tensor `[length]` of zeros on `device` that is a view
    /// of it. The tensor must not be used after the memory is dropped.
    pub fn zeros(length: i64, device: Device) -> Result<(Self, Tensor), KernelError> {
        let memory = Self::new(usize::try_from(length).unwrap_or(usize::MAX).saturating_mul(4))?;
        let pointer = memory.0.as_ptr();
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

/// Bytes that a GPU has copied to the host, once it has.
#[derive(Debug)]
pub struct HostBytes {
    memory: PinnedMemory,
    length: usize,
    copied: CopyEvent,
}

impl HostBytes {
    /// Memory of `length` bytes, none of which is copied.
    pub fn new(length: usize) -> Result<Self, KernelError> {
        let mut memory =
            Self { memory: PinnedMemory::new(length)?, length, copied: CopyEvent::new()? };
        memory.copied.record()?;
        Ok(memory)
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Queues a copy of the elements of each tensor, one after another, on this thread's stream.
    /// They must be contiguous and have as many bytes together as the memory.
    pub fn copy(&mut self, tensors: &[Tensor]) -> Result<(), KernelError> {
        let mut start = 0;
        for tensor in tensors {
            let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
            // SAFETY: the tensor has `bytes` bytes, and the caller has checked that the memory has
            // as many from `start` on; the exclusive reference lasts until `copied` is recorded.
            launched("copy a tensor to the host", unsafe {
                let target = self.memory.0.as_ptr().byte_add(start);
                ffi::cudaMemcpyAsync(target, pointer(tensor), bytes, ffi::COPY_DEFAULT, stream())
            })?;
            start += bytes;
        }
        self.copied.record()
    }

    /// The bytes, once the GPU has copied them.
    pub fn wait(&self) -> Result<&[u8], KernelError> {
        self.copied.wait()?;
        // SAFETY: no copy is queued, since queueing one takes an exclusive reference.
        Ok(unsafe { std::slice::from_raw_parts(self.memory.0.as_ptr().cast(), self.length) })
    }
}

/// The end of a copy in a stream.
#[derive(Debug)]
struct CopyEvent(ffi::Event);

// SAFETY: CUDA's events may be used by any thread.
unsafe impl Send for CopyEvent {}
// SAFETY: as above.
unsafe impl Sync for CopyEvent {}

impl CopyEvent {
    fn new() -> Result<Self, KernelError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: writes the handle of an event, or an error code.
        launched("make an event", unsafe {
            ffi::cudaEventCreateWithFlags(&raw mut event, ffi::EVENT_SLEEPS_WITHOUT_TIMES)
        })?;
        Ok(Self(event))
    }

    fn record(&mut self) -> Result<(), KernelError> {
        // SAFETY: the event is alive.
        launched("record an event", unsafe { ffi::cudaEventRecord(self.0, stream()) })
    }

    fn wait(&self) -> Result<(), KernelError> {
        // SAFETY: the event is alive.
        launched("wait for a copy to the host", unsafe { ffi::cudaEventSynchronize(self.0) })
    }
}

impl Drop for CopyEvent {
    fn drop(&mut self) {
        // SAFETY: created by cudaEventCreateWithFlags and destroyed once.
        let _ = unsafe { ffi::cudaEventDestroy(self.0) };
    }
}
