//! Errors of a run directory.

use std::io;
use std::path::PathBuf;

use rljob_protocol::run_config::RunConfigError;

/// Error of a run directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process holds the lock.
    #[error("another `rljob run` is using {0}; wait for it, stop it, or choose another --dir")]
    Locked(PathBuf),
    /// The spec differs from that of the run.
    #[error(
        "{directory} has a run of another spec: {} differ{}; restore them, pass --accept-changes \
         to continue with the new ones, or choose another --dir",
        fields.join(", "),
        match &contents[..] {
            [] => String::new(),
            contents => format!(", and the contents of {} are others", contents.join(", ")),
        }
    )]
    Changed {
        directory: PathBuf,
        fields: Vec<String>,
        /// Fields of inputs at other paths whose contents differ.
        contents: Vec<String>,
    },
    /// Programs or functions that were edited.
    #[error(
        "the contents of {} have changed since the last start of the run in {directory}: restore \
         them, pass --accept-changes to continue with the new ones, or choose another --dir",
        fields.join(", ")
    )]
    Edited {
        directory: PathBuf,
        /// Fields that name them.
        fields: Vec<String>,
    },
    /// Fewer steps than are done.
    #[error(
        "spec.training.steps is {steps}, but the run in {directory} has done {done} steps: set it \
         to {done} or more, or choose another --dir"
    )]
    Steps { directory: PathBuf, steps: u32, done: u32 },
    /// A link leads elsewhere.
    #[error(
        "{directory} is a link to a folder outside {runs}: pass the folder that should hold the \
         runs as --dir"
    )]
    Outside { directory: PathBuf, runs: PathBuf },
    /// The directory contains a different run.
    #[error(
        "{directory} contains a run with another {what}; rename the job, choose another \
            --dir, or remove the folder"
    )]
    Mismatch {
        directory: PathBuf,
        /// Path of the field that differs.
        what: &'static str,
    },
    /// The run configuration of an earlier run is unreadable.
    #[error(transparent)]
    RunConfig(#[from] RunConfigError),
    /// A file cannot be parsed.
    #[error("failed to read {path}: {message}")]
    Malformed { path: PathBuf, message: String },
    /// A file operation failed.
    #[error("failed to {action} {path}")]
    Io {
        /// Verb of the operation.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}
