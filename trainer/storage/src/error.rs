//! Errors of run stores.

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("failed to {action} `{place}`")]
    Io { action: &'static str, place: String, source: std::io::Error },
    /// The bucket's server rejected the request or was unavailable for too long.
    #[error("failed to {action} `{place}`")]
    Bucket { action: &'static str, place: String, source: object_store::Error },
    /// The authority of the server's certificate is unknown.
    #[error("failed to {action} `{place}`: {advice}")]
    Untrusted { action: &'static str, place: String, advice: &'static str },
    #[error(transparent)]
    Authorities(#[from] rljob_http::AuthoritiesError),
    #[error("`{place}` has {found} bytes after its upload, expected {expected}")]
    Size { place: String, found: u64, expected: u64 },
    #[error("`{place}` is larger than {limit} bytes")]
    TooLarge { place: String, limit: u64 },
    #[error("`{path}` is not in `{run_store}`")]
    Outside { path: String, run_store: String },
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
