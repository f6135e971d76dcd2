//! Tests of the engine client with a local server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;

use crate::engines::client::{
    CONTROL_TIMEOUT, EngineClient, EngineError, INIT_GROUP_TIMEOUT, POLL_TIMEOUT,
    SCHEDULER_TIMEOUT, UPDATE_TIMEOUT,
};
use crate::engines::connection::ConnectionError;
use crate::engines::transport::MAX_RESPONSE;
use crate::tokens::Token;

fn client(key: &str) -> EngineClient {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), key).unwrap();
    let token = Token::open(folder.path(), "key").unwrap();
    EngineClient::new(token.clone(), token, None)
}

/// Starts a server; returns its URL and its number of accepted connections.
async fn serve(info: String) -> (String, Arc<AtomicU32>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&accepted);
    let listener = listener.tap_io(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let routes = Router::new()
        .route("/model_info", get(async || info))
        .route("/continue_generation", post(async || "{}"));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, accepted)
}

#[tokio::test]
async fn successive_requests_share_a_connection_until_the_engine_is_removed() {
    let (url, accepted) = serve(
        r#"{"model_path": "/model", "is_generation": true, "weight_version": "default"}"#
            .to_owned(),
    )
    .await;
    let client = client("secret");
    for _ in 0..3 {
        assert_eq!(client.model_info(&url).await.unwrap().weight_version, "default");
        client.resume(&url).await.unwrap();
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
    client.retain(|_| false);
    client.resume(&url).await.unwrap();
    assert_eq!(accepted.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn invalid_responses_urls_and_keys_are_errors() {
    let (url, _) = serve(" ".repeat(MAX_RESPONSE + 1)).await;
    let message = async |client: &EngineClient, url: &str| {
        crate::error_line(&client.model_info(url).await.unwrap_err())
    };
    let (valid, invalid) = (client("secret"), client("a\u{7}b"));
    assert_eq!(
        message(&valid, &url).await,
        "the engine's response to /model_info is invalid: more than 1048576 bytes"
    );
    assert_eq!(
        message(&valid, "ftp://engine").await,
        "failed to reach the engine at /model_info: \
         invalid engine URL `ftp://engine`, expected https://HOST:PORT"
    );
    assert_eq!(
        message(&invalid, &url).await,
        "failed to reach the engine at /model_info: \
         the engine's API key has characters that are invalid in a header"
    );
}

#[test]
fn an_exceeded_deadline_is_a_hang_for_updates_and_not_for_polls() {
    let late = |deadline| EngineError::Unreachable {
        route: "/",
        source: ConnectionError::Deadline(deadline),
    };
    assert_eq!(
        [POLL_TIMEOUT, SCHEDULER_TIMEOUT, CONTROL_TIMEOUT, INIT_GROUP_TIMEOUT, UPDATE_TIMEOUT]
            .map(|deadline| late(deadline).is_hang()),
        [false, true, true, true, true]
    );
    assert!(!EngineError::Aborted("lost".to_owned()).is_hang());
}
