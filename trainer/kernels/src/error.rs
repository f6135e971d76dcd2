//! Error of a kernel.

/// A kernel that failed.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("failed to {operation}: {message}")]
    Cuda { operation: &'static str, message: String },
    #[error("failed to {operation}: the operands do not fit: {message}")]
    Operands { operation: &'static str, message: &'static str },
    #[error("failed in libtorch")]
    Torch(#[from] tch::TchError),
}
