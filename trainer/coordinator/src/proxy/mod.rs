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

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use answer::Completed;
use error::ProxyError;
use request::{ChatRequest, CompletionId, Rules};

/// Requests of a session that wait. Further ones are answered 429.
const WAITING: usize = 64;

/// Answer to a call.
pub type Reply<T> = oneshot::Sender<Result<T, ProxyError>>;

/// A request of an agent to its session.
#[derive(Debug)]
pub enum Call {
    Chat(ChatRequest, Reply<Completed>),
    /// Reward of a completion, or of the whole session.
    Reward(f64, Option<CompletionId>, Reply<()>),
    /// Selects the completion that ends the sample.
    Finish(Option<CompletionId>, Reply<()>),
}

/// SHA-256 of a key: a lookup takes the same time for all wrong keys.
type Digest = [u8; 32];

/// The proxy of a coordinator.
#[derive(Debug)]
pub struct Proxy {
    listener: std::net::TcpListener,
    address: SocketAddr,
    rules: Rules,
    sessions: Arc<Sessions>,
}

/// Open sessions by the digest of their keys.
#[derive(Debug, Default)]
struct Sessions {
    open: Mutex<HashMap<Digest, mpsc::Sender<Call>>>,
}

/// An open session. Dropping it invalidates its key.
#[derive(Debug)]
pub struct Session {
    pub api_key: String,
    pub calls: mpsc::Receiver<Call>,
    digest: Digest,
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
        let key: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let api_key = format!("rljob-{key}");
        let digest = digest(&api_key);
        let (sender, calls) = mpsc::channel(WAITING);
        self.sessions.open.lock().insert(digest, sender);
        Session { api_key, calls, digest, sessions: Arc::clone(&self.sessions) }
    }

    /// Serves until `stop`.
    pub async fn serve(&self, stop: CancellationToken) -> std::io::Result<()> {
        let listener = TcpListener::from_std(self.listener.try_clone()?)?;
        let router = server::router(Arc::clone(&self.sessions), self.rules.clone());
        rljob_http::serve(listener, router, server::LIMITS, stop).await;
        Ok(())
    }
}

impl Sessions {
    fn find(&self, api_key: &str) -> Result<mpsc::Sender<Call>, ProxyError> {
        self.open.lock().get(&digest(api_key)).cloned().ok_or(ProxyError::Key)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.open.lock().remove(&self.digest);
    }
}

fn digest(api_key: &str) -> Digest {
    Sha256::digest(api_key).into()
}
