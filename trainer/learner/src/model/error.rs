//! Errors of model folders and passes.

use std::path::PathBuf;

use super::Head;

/// Problems of weights that a message has.
const SHOWN: usize = 8;

/// A model that cannot be read, written or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("failed to {operation} {path}", path = path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("failed to parse {path}", path = path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// A setting is not supported, or contradicts another.
    #[error("{path}: {reason}", path = path.display())]
    Config { path: PathBuf, reason: String },
    /// Tensors are missing, of another shape or kind, or unknown.
    #[error(
        "the weights in {path} do not fit its config.json: {problems}; use the config.json and \
         the weights of one model",
        path = path.display(),
        problems = first(problems)
    )]
    Weights { path: PathBuf, problems: Vec<String> },
    #[error("failed to {operation} safetensors file {path}", path = path.display())]
    Safetensors { operation: &'static str, path: PathBuf, source: safetensors::SafeTensorError },
    /// Tokens, masks and lengths disagree.
    #[error("the packed tokens are inconsistent: {0}")]
    Packed(String),
    /// An implementation of [`super::Parameters`] failed.
    #[error("failed to {operation} of block {block}")]
    Parameters {
        operation: &'static str,
        block: usize,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pass needs another head.
    #[error("the model has the head {found:?}, expected {expected:?}")]
    Head { found: Head, expected: Head },
    /// A backward pass got the activations of a forward pass on another device.
    #[error("the activations are on another device")]
    Device,
    #[error(transparent)]
    Kernel(#[from] rljob_kernels::KernelError),
    #[error("failed in libtorch")]
    Torch(#[from] tch::TchError),
}

/// The first problems, and the number of others: a model has thousands of tensors.
fn first(problems: &[String]) -> String {
    let shown = problems.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    match problems.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}
