//! Safe wrappers of the C++ shim's functions.

#![expect(
    unsafe_code,
    reason = "calls C++; every pointer is owned by a handle of this module or by a live tensor"
)]

use std::ffi::{CStr, CString, NulError, c_char, c_double, c_int, c_void};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::ptr::{NonNull, null_mut};

use tch::Tensor;

mod raw {
    use super::{c_char, c_double, c_int, c_void};

    unsafe extern "C" {
        pub fn rljob_message_free(message: *mut c_char);
        pub fn rljob_store_new(
            host: *const c_char,
            port: u16,
            listen_fd: c_int,
            timeout_ms: i64,
            out: *mut *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_store_free(store: *mut c_void);
        pub fn rljob_group_new(
            store: *mut c_void,
            prefixes: *const *const c_char,
            num_prefixes: usize,
            rank: c_int,
            world: c_int,
            address: *const c_char,
            timeout_ms: i64,
            out: *mut *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_group_free(group: *mut c_void);
        pub fn rljob_group_all_reduce(group: *mut c_void, tensor: *mut c_void) -> *mut c_char;
        pub fn rljob_group_all_gather(
            group: *mut c_void,
            out: *mut c_void,
            input: *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_group_reduce_scatter(
            group: *mut c_void,
            out: *mut c_void,
            input: *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_group_broadcast(
            group: *mut c_void,
            tensor: *mut c_void,
            root: c_int,
        ) -> *mut c_char;
        pub fn rljob_group_barrier(group: *mut c_void) -> *mut c_char;
        pub fn rljob_fused_adamw(
            parameter: *mut c_void,
            gradient: *mut c_void,
            exp_avg: *mut c_void,
            exp_avg_sq: *mut c_void,
            step: c_double,
            learning_rate: c_double,
            beta1: c_double,
            beta2: c_double,
            weight_decay: c_double,
            epsilon: c_double,
        ) -> *mut c_char;
        pub fn rljob_set_deterministic(on: bool) -> *mut c_char;
        pub fn rljob_keep_freed_memory();
    }
}

/// Converts the shim's message to a result and frees it.
pub fn check(message: *mut c_char) -> Result<(), String> {
    let Some(message) = NonNull::new(message) else { return Ok(()) };
    // SAFETY: the shim returns a NUL-terminated string from strdup, which is read and freed once,
    // here.
    let text = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { raw::rljob_message_free(message.as_ptr()) };
    Err(text)
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error: NulError| {
        format!("`{}` contains a zero byte: {error}", text.escape_debug())
    })
}

fn owned(pointer: *mut c_void) -> Result<NonNull<c_void>, String> {
    NonNull::new(pointer).ok_or_else(|| "the shim returned no object".to_owned())
}

/// Key prefixes as C strings.
pub fn prefix_strings(prefixes: &[String]) -> Result<Vec<CString>, String> {
    prefixes.iter().map(|prefix| c_string(prefix)).collect()
}

/// The pointer of a live tensor.
pub fn tensor(tensor: &Tensor) -> *mut c_void {
    tensor.as_ptr().cast_mut().cast()
}

/// An owned `c10d::TCPStore`.
#[derive(Debug)]
pub struct StoreHandle(NonNull<c_void>);

// SAFETY: TCPStore has no thread affinity, and its operations are locked.
unsafe impl Send for StoreHandle {}
// SAFETY: as above.
unsafe impl Sync for StoreHandle {}

impl StoreHandle {
    /// Connects to the store on `port` of `host`; hosts it with `listener`, which listens there.
    pub fn new(
        host: &str,
        port: u16,
        listener: Option<TcpListener>,
        timeout_ms: i64,
    ) -> Result<Self, String> {
        let host = c_string(host)?;
        let mut out = null_mut();
        let listen_fd = listener.map_or(-1, IntoRawFd::into_raw_fd);
        // SAFETY: `host` outlives the call; `out` is valid for writes; the store owns the socket.
        check(unsafe {
            raw::rljob_store_new(host.as_ptr(), port, listen_fd, timeout_ms, &raw mut out)
        })?;
        Ok(Self(owned(out)?))
    }

    /// The pointer, for calls while the handle is alive.
    #[cfg(feature = "cuda")]
    pub fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from rljob_store_new and is freed once.
        unsafe { raw::rljob_store_free(self.0.as_ptr()) };
    }
}

/// An owned `c10d::ProcessGroupGloo`, which holds a reference to the store.
#[derive(Debug)]
pub struct GroupHandle(NonNull<c_void>);

// SAFETY: ProcessGroupGloo runs operations on internal threads, so that the caller's thread may
// change. The handle is not Sync, so that calls do not overlap.
unsafe impl Send for GroupHandle {}

impl GroupHandle {
    /// Joins a process group whose keys in the store have `prefixes`, outermost first.
    pub fn new(
        store: &StoreHandle,
        prefixes: &[String],
        rank: c_int,
        world: c_int,
        address: &str,
        timeout_ms: i64,
    ) -> Result<Self, String> {
        let prefixes = prefix_strings(prefixes)?;
        let pointers: Vec<*const c_char> = prefixes.iter().map(|prefix| prefix.as_ptr()).collect();
        let address = c_string(address)?;
        let mut out = null_mut();
        // SAFETY: the store is alive, the strings outlive the call, and `out` is valid for writes.
        check(unsafe {
            raw::rljob_group_new(
                store.0.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                rank,
                world,
                address.as_ptr(),
                timeout_ms,
                &raw mut out,
            )
        })?;
        Ok(Self(owned(out)?))
    }

    pub fn all_reduce(&self, t: &Tensor) -> Result<(), String> {
        // SAFETY: group and tensor are alive for the call, which returns after the operation.
        check(unsafe { raw::rljob_group_all_reduce(self.0.as_ptr(), tensor(t)) })
    }

    pub fn all_gather(&self, out: &Tensor, input: &Tensor) -> Result<(), String> {
        // SAFETY: as for all_reduce.
        check(unsafe { raw::rljob_group_all_gather(self.0.as_ptr(), tensor(out), tensor(input)) })
    }

    pub fn reduce_scatter(&self, out: &Tensor, input: &Tensor) -> Result<(), String> {
        // SAFETY: as for all_reduce.
        check(unsafe {
            raw::rljob_group_reduce_scatter(self.0.as_ptr(), tensor(out), tensor(input))
        })
    }

    pub fn broadcast(&self, t: &Tensor, root: c_int) -> Result<(), String> {
        // SAFETY: as for all_reduce.
        check(unsafe { raw::rljob_group_broadcast(self.0.as_ptr(), tensor(t), root) })
    }

    pub fn barrier(&self) -> Result<(), String> {
        // SAFETY: the group is alive for the call.
        check(unsafe { raw::rljob_group_barrier(self.0.as_ptr()) })
    }
}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from rljob_group_new and is freed once.
        unsafe { raw::rljob_group_free(self.0.as_ptr()) };
    }
}

/// `at::_fused_adamw_` on one parameter, in place.
pub fn fused_adamw(
    [parameter, gradient, exp_avg, exp_avg_sq]: [&Tensor; 4],
    step: f64,
    learning_rate: f64,
    [beta1, beta2]: [f64; 2],
    weight_decay: f64,
    epsilon: f64,
) -> Result<(), String> {
    // SAFETY: the tensors are alive for the call.
    check(unsafe {
        raw::rljob_fused_adamw(
            tensor(parameter),
            tensor(gradient),
            tensor(exp_avg),
            tensor(exp_avg_sq),
            step,
            learning_rate,
            beta1,
            beta2,
            weight_decay,
            epsilon,
        )
    })
}

/// `torch.use_deterministic_algorithms`.
pub fn set_deterministic(on: bool) -> Result<(), String> {
    // SAFETY: sets flags of libtorch's global context.
    check(unsafe { raw::rljob_set_deterministic(on) })
}

/// Configures malloc to keep freed memory in the process.
pub fn keep_freed_memory() {
    // SAFETY: sets parameters of the C library's allocator, which is locked.
    unsafe { raw::rljob_keep_freed_memory() };
}
