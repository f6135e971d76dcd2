//! Open sessions of the proxy by their keys, and the calls of their agents.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot, watch};

use super::answer::Completed;
use super::error::ProxyError;
use super::request::{CompletionId, CompletionRequest};

/// Requests of a session that wait. Further ones are answered 429.
const WAITING: usize = 64;

/// Answer to a call.
pub type Reply<T> = oneshot::Sender<Result<T, ProxyError>>;

/// Answer to a request for completions.
#[derive(Debug)]
pub struct Answer {
    /// What is certain of the completions while they are sampled. A request that is not streamed
    /// has no reader.
    pub partial: watch::Sender<Completed>,
    pub reply: Reply<Completed>,
}

/// A request of an agent to its session.
#[derive(Debug)]
pub enum Call {
    Complete(CompletionRequest, Answer),
    /// Reward of a completion, or of the whole session.
    Reward(f64, Option<CompletionId>, Reply<()>),
    /// Selects the completion that ends the sample.
    Finish(Option<CompletionId>, Reply<()>),
}

/// SHA-256 of a key: a lookup takes the same time for all wrong keys.
type Digest = [u8; 32];

/// Open sessions by the digest of their keys.
#[derive(Debug, Default)]
pub struct Sessions {
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

impl Sessions {
    /// Opens a session whose key is made of `secret`.
    pub fn open(self: &Arc<Self>, secret: [u8; 32]) -> Session {
        let api_key = format!("rljob-{}", secret.map(|byte| format!("{byte:02x}")).concat());
        let digest = digest(&api_key);
        let (sender, calls) = mpsc::channel(WAITING);
        self.open.lock().insert(digest, sender);
        Session { api_key, calls, digest, sessions: Arc::clone(self) }
    }

    /// The open session with this key.
    pub fn find(&self, api_key: &str) -> Result<mpsc::Sender<Call>, ProxyError> {
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
