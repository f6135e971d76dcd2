//! Safe wrappers of the functions of `nccl.cpp`.

#![expect(
    unsafe_code,
    reason = "calls C++; every pointer is owned by a handle of this module or by a live tensor"
)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tch::Tensor;

use crate::Store;
use crate::ffi::{check, prefix_strings, tensor};
use crate::store::milliseconds;

mod raw {
    use super::{c_char, c_int, c_void};

    unsafe extern "C" {
        pub fn rljob_nccl_new(
            store: *mut c_void,
            prefixes: *const *const c_char,
            num_prefixes: usize,
            rank: c_int,
            world: c_int,
            device: c_int,
            blocking: bool,
            timeout_ms: i64,
            out: *mut *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_nccl_free(group: *mut c_void);
        pub fn rljob_nccl_all_gather(
            group: *mut c_void,
            out: *mut c_void,
            input: *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_nccl_reduce_scatter(
            group: *mut c_void,
            out: *mut c_void,
            input: *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_nccl_all_reduce(group: *mut c_void, tensor: *mut c_void) -> *mut c_char;
        pub fn rljob_nccl_broadcast(
            group: *mut c_void,
            tensor: *mut c_void,
            root: c_int,
        ) -> *mut c_char;
        pub fn rljob_nccl_add(
            group: *mut c_void,
            sum: *mut c_void,
            term: *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_nccl_copy(
            group: *mut c_void,
            out: *mut c_void,
            input: *mut c_void,
        ) -> *mut c_char;
        pub fn rljob_nccl_finish(group: *mut c_void, given_up: *const bool) -> *mut c_char;
        pub fn rljob_event_new(out: *mut *mut c_void) -> *mut c_char;
        pub fn rljob_event_free(event: *mut c_void);
        pub fn rljob_event_record(event: *mut c_void, group: *mut c_void) -> *mut c_char;
        pub fn rljob_event_wait(event: *mut c_void, group: *mut c_void) -> *mut c_char;
    }
}

/// An owned communicator with its stream.
#[derive(Debug)]
pub struct NcclHandle(NonNull<c_void>);

// SAFETY: NCCL's calls may come from any thread, one at a time; the handle is not Sync.
unsafe impl Send for NcclHandle {}

fn owned(pointer: *mut c_void) -> Result<NonNull<c_void>, String> {
    NonNull::new(pointer).ok_or_else(|| "the shim returned no object".to_owned())
}

impl NcclHandle {
    pub fn new(
        store: &Store,
        prefixes: &[String],
        (rank, world_size): (u32, u32),
        device: usize,
        blocking: bool,
        timeout: Duration,
    ) -> Result<Self, String> {
        let prefixes: Vec<CString> = prefix_strings(prefixes)?;
        let pointers: Vec<*const c_char> = prefixes.iter().map(|prefix| prefix.as_ptr()).collect();
        let mut out = null_mut();
        // SAFETY: the store is alive, the strings outlive the call, and `out` is valid for writes.
        check(unsafe {
            raw::rljob_nccl_new(
                store.handle.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                rank as c_int,
                world_size as c_int,
                device as c_int,
                blocking,
                milliseconds(timeout),
                &raw mut out,
            )
        })?;
        Ok(Self(owned(out)?))
    }

    pub fn all_gather(&self, out: &Tensor, input: &Tensor) -> Result<(), String> {
        // SAFETY: the group is alive; the caller keeps the tensors until the stream has used them.
        check(unsafe { raw::rljob_nccl_all_gather(self.0.as_ptr(), tensor(out), tensor(input)) })
    }

    pub fn reduce_scatter(&self, out: &Tensor, input: &Tensor) -> Result<(), String> {
        // SAFETY: as for all_gather.
        check(unsafe {
            raw::rljob_nccl_reduce_scatter(self.0.as_ptr(), tensor(out), tensor(input))
        })
    }

    pub fn all_reduce(&self, t: &Tensor) -> Result<(), String> {
        // SAFETY: as for all_gather.
        check(unsafe { raw::rljob_nccl_all_reduce(self.0.as_ptr(), tensor(t)) })
    }

    pub fn broadcast(&self, t: &Tensor, root: u32) -> Result<(), String> {
        // SAFETY: as for all_gather.
        check(unsafe { raw::rljob_nccl_broadcast(self.0.as_ptr(), tensor(t), root as c_int) })
    }

    pub fn add(&self, sum: &Tensor, term: &Tensor) -> Result<(), String> {
        // SAFETY: as for all_gather.
        check(unsafe { raw::rljob_nccl_add(self.0.as_ptr(), tensor(sum), tensor(term)) })
    }

    pub fn copy(&self, out: &Tensor, input: &Tensor) -> Result<(), String> {
        // SAFETY: as for all_gather.
        check(unsafe { raw::rljob_nccl_copy(self.0.as_ptr(), tensor(out), tensor(input)) })
    }

    pub fn finish(&self, given_up: Option<&AtomicBool>) -> Result<(), String> {
        let given_up = given_up.map_or(null(), |flag| flag.as_ptr().cast_const());
        // SAFETY: the group is alive, and the flag outlives the call, which reads it atomically.
        check(unsafe { raw::rljob_nccl_finish(self.0.as_ptr(), given_up) })
    }
}

impl Drop for NcclHandle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from rljob_nccl_new and is freed once.
        unsafe { raw::rljob_nccl_free(self.0.as_ptr()) };
    }
}

/// An owned event of CUDA.
#[derive(Debug)]
pub struct EventHandle(NonNull<c_void>);

// SAFETY: events may be used from any thread.
unsafe impl Send for EventHandle {}
// SAFETY: CUDA's calls on events may overlap.
unsafe impl Sync for EventHandle {}

impl EventHandle {
    pub fn new() -> Result<Self, String> {
        let mut out = null_mut();
        // SAFETY: `out` is valid for writes.
        check(unsafe { raw::rljob_event_new(&raw mut out) })?;
        Ok(Self(owned(out)?))
    }

    pub fn record(&self, group: Option<&NcclHandle>) -> Result<(), String> {
        let group = group.map_or(null_mut(), |group| group.0.as_ptr());
        // SAFETY: event and group are alive; null is the stream of libtorch.
        check(unsafe { raw::rljob_event_record(self.0.as_ptr(), group) })
    }

    pub fn wait(&self, group: Option<&NcclHandle>) -> Result<(), String> {
        let group = group.map_or(null_mut(), |group| group.0.as_ptr());
        // SAFETY: as for record.
        check(unsafe { raw::rljob_event_wait(self.0.as_ptr(), group) })
    }
}

impl Drop for EventHandle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from rljob_event_new and is freed once.
        unsafe { raw::rljob_event_free(self.0.as_ptr()) };
    }
}
