//! HTTP client of MCP servers, and the causes of its failures without secrets.

use std::error::Error;
use std::sync::Arc;

use rmcp::service::ClientInitializeError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use rmcp_reqwest::{Client, redirect};
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};

use crate::reward::without_secrets;

/// A client that follows no redirect. It has the certificates of webpki-roots, because the image
/// may contain none.
pub fn client() -> Result<Client, Box<dyn Error + Send + Sync>> {
    let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect::<RootCertStore>();
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // A response that is not read to its end delays the next one on its connection.
    Ok(Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .build()?)
}

/// The innermost cause, without user, password and query of the URL.
pub fn cause(error: &(dyn Error + 'static), url: &str) -> String {
    let mut error = error;
    while let Some(source) = source(error) {
        error = source;
    }
    error.to_string().replace(url, &without_secrets(url))
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
