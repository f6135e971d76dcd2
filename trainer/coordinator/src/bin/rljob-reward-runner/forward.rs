//! Port for the agent of a session in a verifier pod: forwards its requests to the proxy of the
//! coordinator on the connection of the session. The pod needs no network and no key for it.
//!
//! ```text
//!  program ── HTTP/1.1, loopback ─▶ AgentPort ── HTTP/2, connection of the session ─▶ coordinator
//! ```
//!
//! A program that has got an answer shares the fate of its session: no request is repeated.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rljob_coordinator::reward::session::{AGENT_PATH, Answer, EXIT_PATH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// Wait after a failed accept, for example without file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A loopback port for one program.
#[derive(Debug)]
pub struct AgentPort(TcpListener);

impl AgentPort {
    /// Listens on a free port.
    pub fn open() -> anyhow::Result<Self> {
        let listener = rljob_http::listen((Ipv4Addr::LOCALHOST, 0).into())
            .context("failed to listen for the program of an agent on a loopback port")?;
        Ok(Self(TcpListener::from_std(listener)?))
    }

    /// Base URL for clients.
    pub fn base_url(&self) -> std::io::Result<String> {
        Ok(format!("http://{}/v1", self.0.local_addr()?))
    }

    /// Forwards requests until the program has ended or the connection is closed, and reports the
    /// end.
    pub async fn forward(
        self,
        connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        program: impl Future<Output = anyhow::Result<Answer>>,
    ) -> anyhow::Result<()> {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(connection));
        let (mut coordinator, connection) =
            handshake.await.context("failed to open the connection for an agent's requests")?;
        let mut connection = tokio::spawn(connection);
        tokio::spawn(accept(self.0, coordinator.clone()));
        let answer = tokio::select! {
            answer = program => answer?,
            // The coordinator gave up.
            _ = &mut connection => return Ok(()),
        };
        let exit = Request::post(uri(EXIT_PATH)?)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(serde_json::to_vec(&answer)?))?;
        // The coordinator closes the connection without a response.
        let _ = coordinator.send_request(exit).await;
        Ok(())
    }
}

/// Accepts connections of the program until the session ends.
async fn accept(listener: TcpListener, coordinator: SendRequest<Body>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let coordinator = coordinator.clone();
        let requests = service_fn(move |request| send(coordinator.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), requests));
    }
}

/// Sends a request of the program. One that fails closes the connection of the program.
async fn send(
    mut coordinator: SendRequest<Body>,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Incoming>> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = uri(&format!("{AGENT_PATH}{path}"))?;
    Ok(coordinator.send_request(Request::from_parts(head, Body::new(body))).await?)
}

/// HTTP/2 needs an authority, which the coordinator ignores.
fn uri(path: &str) -> anyhow::Result<Uri> {
    Ok(Uri::builder().scheme("http").authority("coordinator").path_and_query(path).build()?)
}
