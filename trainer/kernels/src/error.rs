//! Error of a kernel.

/// A kernel that failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("failed to {operation}: {message}")]
    Cuda { operation: &'static str, message: String },
    #[error("failed in libtorch")]
    Torch(#[from] tch::TchError),
}
