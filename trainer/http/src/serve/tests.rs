//! Tests of servers.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;

const LIMITS: Limits =
    Limits { connections: 8, headers: Duration::from_secs(1), body: Duration::from_secs(1) };

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Notified when a request to `/slow` is in progress.
    slow: Arc<Notify>,
}

async fn start() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let started = Arc::new(Notify::new());
    let begun = Arc::clone(&started);
    let slow = move || async move {
        begun.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
        "done"
    };
    let echo = |body: String| async move { body };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/slow", get(slow))
        .route("/echo", post(echo));
    let task = tokio::spawn(serve(listener, router, LIMITS, stop.clone()));
    Server { address, stop, task, slow: started }
}

async fn get_text(address: SocketAddr, path: &str) -> String {
    let url = format!("http://{address}{path}");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.get(url).send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn many_slow_clients_stop_neither_probes_nor_requests_in_progress() {
    let Server { address, slow: started, .. } = start().await;
    let slow = tokio::spawn(get_text(address, "/slow"));
    started.notified().await;
    let mut clients = Vec::new();
    for _ in 0..1000 {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /healthz HTTP/1.1\r\nHost:").await.unwrap();
        clients.push(client);
    }
    assert_eq!(get_text(address, "/healthz").await, "ok");
    assert_eq!(slow.await.unwrap(), "done");
}

#[tokio::test]
async fn headers_and_bodies_that_do_not_arrive_end_their_connection() {
    let Server { address, .. } = start().await;
    for part in [
        "GET /healthz HTTP/1.1\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\na",
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(part.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = client.read_to_end(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), ended).await.unwrap().unwrap();
        assert!(!String::from_utf8_lossy(&answer).contains("200 OK"), "{part}");
    }
}

#[tokio::test]
async fn a_stopped_server_completes_requests_in_progress() {
    let Server { address, stop, task, slow: started } = start().await;
    let slow = tokio::spawn(get_text(address, "/slow"));
    started.notified().await;
    stop.cancel();
    assert_eq!(slow.await.unwrap(), "done");
    task.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
