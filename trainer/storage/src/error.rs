//! What can go wrong with a store.

/// A store that cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file operation failed.
    #[error("failed to {action} `{place}`")]
    Io {
        /// What was done.
        action: &'static str,
        /// To what.
        place: String,
        /// Why.
        source: std::io::Error,
    },
    /// A bucket's server refused, or did not answer for as long as it is waited for.
    #[error("failed to {action} `{place}`")]
    Bucket {
        /// What was done.
        action: &'static str,
        /// To what.
        place: String,
        /// Why.
        source: object_store::Error,
    },
    /// An object is not what was uploaded.
    #[error("`{place}` has {found} bytes after its upload, expected {expected}")]
    Size {
        /// The object.
        place: String,
        /// Its size.
        found: u64,
        /// The file's.
        expected: u64,
    },
    /// A name outside the store.
    #[error("`{path}` is not in `{run_store}`")]
    Outside {
        /// The name.
        path: String,
        /// The store.
        run_store: String,
    },
    /// No runtime for the client.
    #[error("failed to start the threads of the S3 client")]
    Runtime(#[source] std::io::Error),
}

impl StorageError {
    pub(crate) fn io(
        action: &'static str,
        place: impl Into<String>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, place: place.into(), source }
    }
}
