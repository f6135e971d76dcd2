//! Process-wide settings of libtorch.

use crate::{CollectiveError, ffi};

/// Makes libtorch use deterministic kernels, and fail for operations without one.
///
/// # Errors
/// libtorch fails.
pub fn set_deterministic(on: bool) -> Result<(), CollectiveError> {
    let failed = |message| CollectiveError {
        operation: "set deterministic algorithms".to_owned(),
        place: "libtorch".to_owned(),
        message,
    };
    ffi::set_deterministic(on).map_err(failed)
}

/// Sets the number of threads per operation; 1 avoids contention if several processes share a
/// machine.
pub fn set_num_threads(threads: u32) {
    tch::set_num_threads(threads.max(1) as i32);
}

/// Configures the allocator to reuse the memory of freed tensors of any size instead of returning
/// it to the operating system. For processes that compute the same shapes repeatedly.
pub fn keep_freed_memory() {
    ffi::keep_freed_memory();
}
