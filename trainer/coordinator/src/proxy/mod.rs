//! Proxy of agents: an API of OpenAI's shape, with one session per sample.
//!
//! ```text
//!  agent ── POST /v1/chat/completions, key of its session ─▶ server ── Call ─▶ episode: tokens,
//!        ◀────────── completion or error ────────────────────       ◀─ reply ─ engines, sample
//! ```
//!
//! A key is valid while the try of its sample runs. Agents of this pod or machine reach the proxy
//! on a loopback port: the containers of a pod share this interface, and nothing outside the pod
//! reaches it. Requests of agents in verifier pods arrive on the connections that the coordinator
//! opened to them. Must not depend on rollouts.

pub mod answer;
mod chat_answer;
mod chat_request;
mod chunks;
pub mod error;
mod part;
mod prompt_answer;
mod prompt_request;
pub mod request;
mod response_answer;
mod response_request;
mod server;
mod sessions;
mod stream;
pub mod tools;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use rljob_http::Limits;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use server::LIMITS;
pub use sessions::{Answer, Call, Reply, Session};

use request::Rules;
use sessions::Sessions;

/// The proxy of a coordinator.
#[derive(Debug)]
pub struct Proxy {
    rules: Rules,
    sessions: Arc<Sessions>,
}

impl Proxy {
    pub fn new(rules: Rules) -> Self {
        Self { rules, sessions: Arc::default() }
    }

    /// Opens a session with an unguessable key; `secret` is random.
    pub fn session(&self, secret: [u8; 32]) -> Session {
        self.sessions.open(secret)
    }

    /// The routes of the API.
    pub fn router(&self) -> Router {
        server::router(Arc::clone(&self.sessions), self.rules.clone())
    }
}

/// A loopback port for the proxy.
#[derive(Debug)]
pub struct LoopbackPort {
    listener: std::net::TcpListener,
    address: SocketAddr,
}

impl LoopbackPort {
    /// Listens on a free port.
    pub fn open() -> std::io::Result<Self> {
        let listener = rljob_http::listen((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Base URL for clients.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Serves the proxy until `stop`.
    pub async fn serve(
        &self,
        proxy: &Proxy,
        limits: Limits,
        stop: CancellationToken,
    ) -> std::io::Result<()> {
        let listener = TcpListener::from_std(self.listener.try_clone()?)?;
        rljob_http::serve(listener, proxy.router(), limits, stop).await;
        Ok(())
    }
}
