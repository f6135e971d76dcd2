//! Process-wide settings of libtorch.

use crate::{CollectiveError, ffi};

/// Makes libtorch choose deterministic kernels, and fail where there is none.
pub fn set_deterministic(on: bool) -> Result<(), CollectiveError> {
    let failed = |message| CollectiveError {
        operation: "set deterministic algorithms".to_owned(),
        place: "libtorch".to_owned(),
        message,
    };
    ffi::set_deterministic(on).map_err(failed)
}

/// Threads of one operation. One where several processes share a machine, so that they do not fight
/// for cores.
pub fn set_num_threads(threads: u32) {
    tch::set_num_threads(threads.max(1) as i32);
}

/// Keeps the memory of freed tensors in the process for the next ones, however large. For processes
/// that compute the same shapes over and over.
pub fn keep_freed_memory() {
    ffi::keep_freed_memory();
}
