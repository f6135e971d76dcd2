//! Errors of the hub client.

use std::io;
use std::path::{Path, PathBuf};

/// A failed download.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("HF_ENDPOINT `{0}` is not an http or https URL")]
    Endpoint(String),
    #[error("`{0}` is not the name of a repository; expected `name` or `owner/name`")]
    RepositoryName(String),
    #[error("failed to create an HTTP client")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    Authorities(rljob_http::AuthoritiesError),
    /// The authority of the server's certificate is unknown.
    #[error("failed to reach {url}: {advice}")]
    Untrusted { url: String, advice: &'static str },
    #[error("failed to read the Hugging Face token {}", path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    /// The argument describes the token's source.
    #[error("{0} is empty or not a token")]
    TokenContent(String),
    /// 401 or 403.
    #[error("{endpoint} denied access to {repository} ({status}): {advice}")]
    AccessDenied { endpoint: String, repository: String, status: u16, advice: String },
    #[error("{endpoint} has no {repository}, or hides it from requests with {token}")]
    RepositoryNotFound { endpoint: String, repository: String, token: String },
    #[error("{repository} has no revision `{revision}`")]
    RevisionNotFound { repository: String, revision: String },
    #[error("{repository} has no file {file}")]
    FileNotFound { repository: String, file: String },
    /// The request was retried until the patience of the settings ended.
    #[error("{url} was unavailable for {seconds} s: {detail}")]
    Unavailable { url: String, seconds: u64, detail: String },
    #[error("unexpected response of {url}: {detail}")]
    Response { url: String, detail: String },
    #[error("{repository} contains a file with the unsafe name `{name}`")]
    UnsafeFileName { repository: String, name: String },
    #[error("{repository} contains {found}; expected {expected}")]
    MissingFiles { repository: String, found: &'static str, expected: &'static str },
    #[error("the files of {repository} have {bytes} bytes; the limit is {limit}")]
    TooLarge { repository: String, bytes: u64, limit: u64 },
    #[error("no space left for {}: {needed} bytes are missing, {available} are available",
        path.display())]
    DiskFull { path: PathBuf, needed: u64, available: u64 },
    /// Every attempt to download the file produced other content.
    #[error(
        "{file} of {repository} does not match its checksum: expected {expected}, found {found}"
    )]
    Corrupt { repository: String, file: String, expected: String, found: String },
    #[error("failed to {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl HubError {
    /// Maps an IO error; a full disk or an exceeded quota becomes [`HubError::DiskFull`].
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, needed: 1, available: 0 }
            }
            _ => Self::Io { action, path, source },
        }
    }
}
