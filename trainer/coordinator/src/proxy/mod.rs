//! Proxy of agents: an API of OpenAI's shape on a loopback port, with one session per sample.
//!
//! ```text
//!  agent ── POST /v1/chat/completions, key of its session ─▶ server ── Call ─▶ episode: tokens,
//!        ◀────────── completion or error ────────────────────       ◀─ reply ─ engines, sample
//! ```
//!
//! A key is valid while the try of its sample runs. The containers of a pod share its loopback
//! interface, so that agents reach the proxy from the container that runs them, and nothing
//! outside the pod does. Must not depend on rollouts.

pub mod answer;
pub mod error;
pub mod request;
mod server;
mod sessions;
mod stream;
pub mod tools;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use sessions::{Call, Reply, Session};

use request::Rules;
use sessions::Sessions;

/// The proxy of a coordinator.
#[derive(Debug)]
pub struct Proxy {
    listener: std::net::TcpListener,
    address: SocketAddr,
    rules: Rules,
    sessions: Arc<Sessions>,
}

impl Proxy {
    /// Listens on a free loopback port.
    pub fn open(rules: Rules) -> std::io::Result<Self> {
        let listener = rljob_http::listen((Ipv4Addr::LOCALHOST, 0).into())?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, rules, sessions: Arc::default() })
    }

    /// Base URL for clients.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Opens a session with an unguessable key; `secret` is random.
    pub fn session(&self, secret: [u8; 32]) -> Session {
        self.sessions.open(secret)
    }

    /// Serves until `stop`.
    pub async fn serve(&self, stop: CancellationToken) -> std::io::Result<()> {
        let listener = TcpListener::from_std(self.listener.try_clone()?)?;
        let router = server::router(Arc::clone(&self.sessions), self.rules.clone());
        rljob_http::serve(listener, router, server::LIMITS, stop).await;
        Ok(())
    }
}
