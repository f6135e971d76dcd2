//! The client against a server of the test's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;

use super::{ANSWER, CONTROL, ConnectionError, EngineClient, EngineError, FORM, POLL, UPDATE};
use crate::tokens::Token;

fn client(key: &str) -> EngineClient {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), key).unwrap();
    let token = Token::open(folder.path(), "key").unwrap();
    EngineClient::new(token.clone(), token)
}

/// A server's URL, and how many connections it has accepted.
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
async fn requests_one_after_another_share_a_connection_until_the_engine_is_no_more() {
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
    client.keep(|_| false);
    client.resume(&url).await.unwrap();
    assert_eq!(accepted.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn what_cannot_be_an_answer_or_an_address_or_a_key_is_named() {
    let (url, _) = serve(" ".repeat(ANSWER + 1)).await;
    let message = async |client: &EngineClient, url: &str| {
        crate::error_line(&client.model_info(url).await.unwrap_err())
    };
    let (fit, unfit) = (client("secret"), client("a\u{7}b"));
    assert_eq!(
        message(&fit, &url).await,
        "the engine's answer to /model_info is unusable: more than 1048576 bytes"
    );
    assert_eq!(
        message(&fit, "ftp://engine").await,
        "failed to reach the engine at /model_info: `ftp://engine` is no address of an engine"
    );
    assert_eq!(
        message(&unfit, &url).await,
        "failed to reach the engine at /model_info: the engine's key has characters that no header takes"
    );
}

#[test]
fn an_engine_hangs_that_lets_the_deadline_of_an_update_pass_and_not_that_of_a_question() {
    let late = |deadline| EngineError::Unreachable {
        route: "/",
        source: ConnectionError::Deadline(deadline),
    };
    assert_eq!(
        [POLL, CONTROL, FORM, UPDATE].map(|deadline| late(deadline).hangs()),
        [false, true, true, true]
    );
    assert!(!EngineError::Aborted("it went away".to_owned()).hangs());
}
