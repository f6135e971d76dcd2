//! HTTP client of a bucket: its settings, the errors after which a request is repeated, and its
//! threads.

use std::sync::OnceLock;
use std::time::Duration;

use object_store::{Certificate, ClientOptions, Error};
use tokio::runtime::Runtime;

use crate::StorageError;

/// Timeout of one request including its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a repeated call may succeed: no response, 5xx, 429 or 408. Missing objects, denied
/// access, bad requests and untrusted certificates are final.
pub(super) fn is_transient(error: &Error) -> bool {
    let refused = |text: &str| {
        text.contains("status code: 4")
            && !["status code: 429", "status code: 408"].iter().any(|code| text.contains(code))
    };
    matches!(error, Error::Generic { .. })
        && !refused(&line(error))
        && rljob_http::untrusted(error).is_none()
}

/// Settings of the HTTP client, with the authorities of the system.
pub(super) fn client_options() -> Result<ClientOptions, Error> {
    let options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT);
    rljob_http::local_authorities().iter().try_fold(options, |options, authority| {
        Ok(options.with_root_certificate(Certificate::from_der(authority)?))
    })
}

/// An error and its causes in one line.
pub(super) fn line(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(|error| error.to_string().replace('\n', " "))
        .last()
        .unwrap_or_default()
}

/// The client's thread pool, one per process. Never shut down, because a runtime must not be
/// dropped inside another one.
pub(crate) fn runtime() -> Result<&'static Runtime, StorageError> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("s3")
        .enable_all()
        .build();
    let runtime = runtime.map_err(StorageError::Runtime)?;
    Ok(RUNTIME.get_or_init(|| runtime))
}
