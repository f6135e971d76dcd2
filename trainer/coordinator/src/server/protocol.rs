//! Protocol versions of requests and responses: announces this release's, and rejects learners and
//! supervisors that cannot read the run configuration.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, ProtocolUnsupported, peer_version};

use super::error::ApiError;
use crate::coordinator::Coordinator;

/// The protocol version that a client announced.
pub fn announced(headers: &HeaderMap) -> u32 {
    peer_version(headers.get(PROTOCOL_HEADER).map(HeaderValue::as_bytes))
}

/// Adds this release's protocol version to a response.
pub async fn announce(mut response: Response) -> Response {
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL_VERSION));
    response
}

/// Rejects a client that is too old for the run configuration, and reports it in the status.
pub async fn required(
    State(coordinator): State<Arc<Coordinator>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let peer = match request.uri().path().strip_prefix("/v1/supervisors/") {
        Some(name) => format!("supervisor {name}"),
        None => "a learner".to_owned(),
    };
    let (version, needed) = (announced(request.headers()), coordinator.config.protocol);
    if let Err(error) = ProtocolUnsupported::check(peer, version, needed, "the run configuration") {
        coordinator.rejected_peers.record(error.clone(), coordinator.clock.now());
        return Err(error.into());
    }
    Ok(next.run(request).await)
}
