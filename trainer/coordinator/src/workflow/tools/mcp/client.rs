//! HTTP client of MCP servers, and the causes of its failures without secrets.

use std::error::Error;

use reqwest::StatusCode;
use rmcp::service::ClientInitializeError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use rmcp_reqwest::{Client, redirect};

use crate::reward::{SecretToken, Token, VerifierError, rejected, unexpected, without_secrets};

const EXPECTED: &str = "a response of MCP of at most 1 MiB";

/// A client that follows no redirect, so that no other server gets a token.
pub fn client() -> Result<Client, Box<dyn Error + Send + Sync>> {
    let tls = rljob_http::outside_tls()?;
    // A response that is not read to its end delays the next one on its connection.
    Ok(Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .build()?)
}

/// What failed, without the token that was sent and without user, password and query of the URL:
/// the connection, the server by its status, or else the response, such as one that is too long.
/// Only the first, and a rejected token, are outages whatever the call.
pub fn failure(
    error: &(dyn Error + 'static),
    url: &str,
    sent: Option<(&SecretToken, &Token)>,
) -> VerifierError {
    let chain: Vec<_> = std::iter::successors(Some(error), |error| source(*error)).collect();
    if let Some(advice) = chain.iter().find_map(|error| rljob_http::untrusted(*error)) {
        return VerifierError::Untrusted(advice);
    }
    let cause = chain.last().map(|error| error.to_string().replace(url, &without_secrets(url)));
    let cause = cause.unwrap_or_default();
    let cause = sent.map_or_else(|| cause.clone(), |(_, token)| token.redact(&cause));
    if let Some(code) = chain.iter().find_map(|error| status(*error)) {
        let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return rejected(status, &cause, sent);
    }
    let lost = |error: &rmcp_reqwest::Error| !error.is_decode() && !error.is_body();
    if chain.iter().any(|error| error.downcast_ref().is_some_and(lost)) {
        return VerifierError::McpUnreachable(cause);
    }
    unexpected(b"", EXPECTED, &cause)
}

/// The status that the transport reports.
fn status(error: &(dyn Error + 'static)) -> Option<u16> {
    if let Some(client) = error.downcast_ref::<rmcp_reqwest::Error>() {
        return client.status().map(|status| status.as_u16());
    }
    match error.downcast_ref::<StreamableHttpError<rmcp_reqwest::Error>>()? {
        StreamableHttpError::HttpStatus(error) => Some(error.status),
        StreamableHttpError::AuthRequired(_) => Some(401),
        StreamableHttpError::InsufficientScope(_) => Some(403),
        StreamableHttpError::SessionExpired => Some(404),
        // `HTTP 401 Unauthorized: …`, for example without the header `WWW-Authenticate`.
        StreamableHttpError::UnexpectedServerResponse(text) => {
            text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()
        }
        _ => None,
    }
}

/// The source of an error. Those of the transport do not name theirs.
fn source<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if let Some(ClientInitializeError::TransportError { error, .. }) = error.downcast_ref() {
        return Some(error);
    }
    match error.downcast_ref::<StreamableHttpError<rmcp_reqwest::Error>>() {
        Some(StreamableHttpError::Client(client)) => Some(client),
        _ => error.source(),
    }
}
