//! Responses of other processes, read up to a limit.

use reqwest::Response;

/// A response that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the response has more than {0} bytes")]
    TooLong(usize),
    #[error("failed to read the response")]
    Broken(#[from] reqwest::Error),
}

/// Reads the body of a response. The time is limited by the request's timeout.
///
/// # Errors
/// The body is longer than `limit` bytes, or the connection breaks.
pub async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, ReadError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len().saturating_add(chunk.len()) > limit {
            return Err(ReadError::TooLong(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
