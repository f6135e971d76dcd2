//! Locking of mutexes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also after a panic of another holder. Only for values whose changes a panic
/// cannot leave half-written.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
