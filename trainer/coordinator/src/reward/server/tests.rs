//! Tests of tokens in requests, with servers that check them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Redirect;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::json;

use super::{SecretToken, Server, VerifierError};

/// Values of the header `Authorization` of the requests that a server got.
type Received = Arc<Mutex<Vec<String>>>;

async fn start(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A server whose token is `good-token`. It repeats the header in its errors.
async fn guarded() -> (SocketAddr, Received) {
    let received = Received::default();
    let all = Arc::clone(&received);
    let route = async move |headers: HeaderMap| {
        let header = headers.get_all("authorization").iter().map(|value| value.to_str().unwrap());
        let header = header.collect::<Vec<_>>().join(", ");
        all.lock().push(header.clone());
        match header.as_str() {
            "Bearer good-token" => (StatusCode::OK, "done".to_owned()),
            "Bearer loud-token" => (StatusCode::OK, format!("<pre>{header}</pre>")),
            "Bearer long-token" => (StatusCode::OK, header.repeat(9)),
            "Bearer weak-token" => (StatusCode::FORBIDDEN, format!("{header} may only read")),
            _ => (StatusCode::UNAUTHORIZED, format!("invalid: {header}")),
        }
    };
    (start(Router::new().route("/", post(route))).await, received)
}

/// A server that gets the token of a folder with `lab/token`.
fn server(folder: &Path) -> Server {
    let reference = serde_json::from_value(json!({"name": "lab"})).unwrap();
    let token = Some(SecretToken::in_folder(&reference, folder));
    Server { token, ..Server::new(5, 1).unwrap() }
}

fn write(folder: &Path, token: &str) {
    std::fs::create_dir_all(folder.join("lab")).unwrap();
    std::fs::write(folder.join("lab/token"), format!("{token}\n")).unwrap();
}

async fn call(server: &Server, url: &str) -> Result<Vec<u8>, VerifierError> {
    server.call(server.client.post(url).json(&json!({}))).await
}

#[tokio::test]
async fn requests_carry_the_token_that_the_file_has_now_in_place_of_that_of_the_url() {
    let (address, received) = guarded().await;
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let url = format!("http://user:password@{address}/");
    write(folder.path(), "old-token");
    assert!(call(&server, &url).await.unwrap_err().is_outage(), "the Secret is rotated");
    write(folder.path(), "good-token");
    assert_eq!(call(&server, &url).await.unwrap(), b"done");
    assert_eq!(*received.lock(), ["Bearer old-token", "Bearer good-token"]);
}

#[tokio::test]
async fn a_rejected_token_is_an_error_that_names_its_secret_and_does_not_show_it() {
    let (address, _) = guarded().await;
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let cases = [
        ("wrong-token", "401 Unauthorized", "invalid: Bearer [token]", true),
        ("weak-token", "403 Forbidden", "Bearer [token] may only read", false),
    ];
    for (token, status, message, is_outage) in cases {
        write(folder.path(), token);
        let error = call(&server, &format!("http://{address}/")).await.unwrap_err();
        assert_eq!((error.is_outage(), error.kind()), (is_outage, "token"));
        let expected = format!(
            "the server returned {status} to the token in key token of Secret lab: {message}"
        );
        assert_eq!(crate::error_line(&error), expected);
    }
}

#[tokio::test]
async fn a_response_that_repeats_the_token_is_read_without_it() {
    let (address, _) = guarded().await;
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path()).with_max_response(100);
    let url = format!("http://{address}/");
    write(folder.path(), "loud-token");
    assert_eq!(call(&server, &url).await.unwrap(), b"<pre>Bearer [token]</pre>");
    write(folder.path(), "long-token");
    let line = crate::error_line(&call(&server, &url).await.unwrap_err());
    assert!(line.contains("longer than 100 bytes") && !line.contains("long-token"), "{line}");
}

#[tokio::test]
async fn no_request_is_sent_without_the_token_and_none_follows_a_redirect_with_it() {
    let (address, received) = guarded().await;
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let error = call(&server, &format!("http://{address}/")).await.unwrap_err();
    assert!(error.is_outage() && matches!(error, VerifierError::TokenFile(_)), "{error}");
    write(folder.path(), "good-token");
    let target = format!("http://{address}/");
    let redirect = async move || Redirect::temporary(&target);
    let other = start(Router::new().route("/", post(redirect))).await;
    let error = call(&server, &format!("http://{other}/")).await.unwrap_err();
    let expected = "the server returned 307 Temporary Redirect: redirects are not followed: set \
        `url` to the target";
    assert_eq!(crate::error_line(&error), expected);
    assert_eq!(*received.lock(), Vec::<String>::new());
}
