//! What can go wrong between a model folder and a pass.

use std::path::PathBuf;

use super::Head;

/// A model that cannot be read, written or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file of the folder cannot be read or written.
    #[error("failed to {operation} {path}", path = path.display())]
    File {
        /// What was attempted.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// `config.json` or an index is not the JSON it should be.
    #[error("failed to understand {path}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// The configuration asks for something that is not supported, or contradicts itself.
    #[error("{path}: {reason}", path = path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Which key, what was found and what is supported.
        reason: String,
    },
    /// Tensors are missing, of another shape or kind, or unknown.
    #[error("the weights in {path} do not fit config.json: {problems}", path = path.display(), problems = problems.join("; "))]
    Weights {
        /// The folder.
        path: PathBuf,
        /// Every problem found.
        problems: Vec<String>,
    },
    /// A safetensors file is damaged or cannot be written.
    #[error("failed to {operation} safetensors file {path}", path = path.display())]
    Safetensors {
        /// What was attempted.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: safetensors::SafeTensorError,
    },
    /// Tokens, masks and lengths disagree.
    #[error("the packed tokens are inconsistent: {0}")]
    Packed(String),
    /// Fetching a block's weights or adding its gradient failed, in the words of what is behind
    /// [`super::Parameters`].
    #[error("failed to {operation} of block {block}")]
    Parameters {
        /// What was attempted.
        operation: &'static str,
        /// The block.
        block: usize,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The pass needs another head.
    #[error("the model has the head {found:?}, expected {expected:?}")]
    Head { found: Head, expected: Head },
    /// libtorch refused.
    #[error("failed in libtorch")]
    Torch(#[from] tch::TchError),
}
