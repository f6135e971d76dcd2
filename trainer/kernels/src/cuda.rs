//! Calls of the CUDA kernels. Callers have checked device, kind and layout of the operands.

#![expect(
    unsafe_code,
    reason = "calls C++ and CUDA with pointers of live tensors whose sizes are checked by callers"
)]
#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use tch::{Kind, Tensor};

use crate::KernelError;

mod attention;
mod ffi;
mod gae;
mod pinned;
mod row_wise;

pub use attention::{attention, attention_backward};
pub use gae::advantages;
pub use pinned::{HostBytes, PinnedMemory};
pub use row_wise::{
    adamw, distribution, logits_gradient, rms_norm, rms_norm_backward, rotate, swiglu,
    swiglu_backward,
};

use ffi::Stream;

fn stream() -> Stream {
    // SAFETY: reads the thread's current stream.
    unsafe { ffi::rljob_current_stream() }
}

/// Major and minor compute capability of a GPU, if it can be used.
pub fn compute_capability(device: usize) -> Option<(i32, i32)> {
    let mut out: [c_int; 2] = [0; 2];
    // SAFETY: writes two numbers.
    let code = unsafe { ffi::rljob_compute_capability(device as c_int, out.as_mut_ptr()) };
    (code == 0).then_some((out[0], out[1]))
}

/// Bytes in use, the most that were in use, and bytes held by libtorch's allocator.
pub fn memory(device: usize) -> Option<[i64; 3]> {
    let mut out = [0; 3];
    // SAFETY: writes three numbers.
    let code = unsafe { ffi::rljob_device_memory(device as c_int, out.as_mut_ptr()) };
    (code == 0).then_some(out)
}

/// Free and total bytes of a GPU for this process.
pub fn capacity(device: usize) -> Option<[u64; 2]> {
    let mut out = [0; 2];
    // SAFETY: writes two numbers.
    let code = unsafe { ffi::rljob_device_capacity(device as c_int, out.as_mut_ptr()) };
    (code == 0).then_some(out)
}

/// Calls `run` once the operations queued on this thread's stream so far are done.
pub fn call_when_done(run: extern "C" fn()) -> Result<(), KernelError> {
    // SAFETY: `run` is a function of this program, which lives as long as the process.
    launched("queue a call", unsafe { ffi::rljob_call_when_done(run, stream()) })
}

fn pointer<T>(tensor: &Tensor) -> *mut T {
    tensor.data_ptr().cast()
}

fn launched(operation: &'static str, code: c_int) -> Result<(), KernelError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the CUDA runtime returns a static string.
    let message = unsafe { CStr::from_ptr(ffi::cudaGetErrorString(code)) };
    Err(KernelError::Cuda { operation, message: message.to_string_lossy().into_owned() })
}

fn check(operation: &'static str, message: *mut c_char) -> Result<(), KernelError> {
    let Some(message) = NonNull::new(message) else { return Ok(()) };
    // SAFETY: a NUL-terminated string from strdup, which is read and freed once, here.
    let text = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { ffi::rljob_kernel_message_free(message.as_ptr()) };
    Err(KernelError::Cuda { operation, message: text })
}

/// fp32 on the device of `like`.
fn floats<const N: usize>(shape: [i64; N], like: &Tensor) -> Result<Tensor, KernelError> {
    Ok(Tensor::f_empty(shape, (Kind::Float, like.device()))?)
}
