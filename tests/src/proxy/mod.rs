//! Stands between an operator and the real API server, counts what the operator writes, and lets
//! requests, answers and watches go wrong.
//!
//! ```text
//!  operator ── http ──▶ Proxy ─┬─ faults: answered with a code │ answer lost │ halted          faults.rs
//!                              ├─ reads: the present, or what the API server knew at a version
//!                              ├─ watches: passed on, or held back and merged                  watches.rs
//!                              └─ https ──▶ kube-apiserver
//! ```
//!
//! It answers nothing of its own but errors: the past, too, is what the API server itself still has
//! of it (`resourceVersionMatch=Exact`).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{self, Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{Api, runtime};
use crate::cluster::Cluster;

mod call;
pub mod faults;
mod past;
mod watches;

pub use call::{Call, Verb};
pub use faults::{Effect, Fault};

/// Largest body of a request or an answer.
const BODY_LIMIT: usize = 64 << 20;

/// A write that the API server has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// What was written; an apply that made the object is a [`Verb::Create`].
    pub call: Call,
    /// The answer.
    pub code: u16,
    /// The object's version after it, as far as the answer tells.
    pub version: String,
    /// Whether it changed anything: an apply of what is there already does not.
    pub changed: bool,
}

/// What reads are answered from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reads {
    /// The version at which the client sees the cluster; none for now.
    past: Option<String>,
    hold_watches: bool,
}

struct Shared {
    api: Api,
    faults: Mutex<Vec<Fault>>,
    writes: Mutex<Vec<Write>>,
    reads: watch::Sender<Reads>,
    life: watch::Sender<Life>,
}

/// Whether requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Answers,
    /// The last request is on its way.
    Halts,
    Halted,
}

/// A running proxy. It ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Proxy {
    /// Starts one beside the cluster, in its network.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let listener = cluster.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            api: cluster.api()?,
            faults: Mutex::default(),
            writes: Mutex::default(),
            reads: watch::Sender::new(Reads::default()),
            life: watch::Sender::new(Life::Answers),
        });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let server = runtime().spawn(async move {
            axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await
        });
        Ok(Self { address, shared, server })
    }

    /// The URL for a kubeconfig of a client in the cluster's network. A client's token is passed
    /// on; certificates are not needed.
    pub fn server(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets something go wrong from now on.
    pub fn inject(&self, fault: Fault) {
        lock(&self.shared.faults).push(fault);
    }

    /// Ends every fault, and reads are those of the present; watches go on.
    pub fn heal(&self) {
        lock(&self.shared.faults).clear();
        self.shared.reads.send_replace(Reads::default());
        self.resume();
    }

    /// Reads from an API server's cache are answered as they would have been at this version, which
    /// is any object's or list's; watches that start are held back until [`Self::heal`].
    pub fn look_back(&self, version: &str) {
        self.shared
            .reads
            .send_replace(Reads { past: Some(version.to_owned()), hold_watches: true });
    }

    /// Holds the events of watches back; at [`Self::heal`] only the last of each object comes.
    pub fn hold_watches(&self) {
        self.shared.reads.send_modify(|reads| reads.hold_watches = true);
    }

    /// Whether [`Effect::Halt`] has struck; the client is to be killed then.
    pub fn has_halted(&self) -> bool {
        *self.shared.life.borrow() == Life::Halted
    }

    /// Answers again, after [`Effect::Halt`].
    pub fn resume(&self) {
        self.shared.life.send_replace(Life::Answers);
    }

    /// What was written so far, in order.
    pub fn writes(&self) -> Vec<Write> {
        lock(&self.shared.writes).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is changed in one step each.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let call = Call::parse(request.method(), request.uri());
    if *shared.life.borrow() != Life::Answers {
        // Its client is about to be killed, which ends this too.
        return std::future::pending().await;
    }
    let effect = lock(&shared.faults).iter_mut().find_map(|fault| fault(&call));
    if let Some(Effect::Answer(code)) = effect {
        return refuse(code, &call);
    }
    if effect == Some(Effect::Halt) {
        shared.life.send_replace(Life::Halts);
    }
    // What is on its way arrives and is counted, also when its client dies or hangs up meanwhile.
    let passed = tokio::spawn({
        let (shared, call) = (shared.clone(), call.clone());
        async move {
            let answer = pass(&shared, &call, request).await;
            if effect == Some(Effect::Halt) {
                shared.life.send_replace(Life::Halted);
            }
            answer
        }
    });
    let answer = passed
        .await
        .map_err(anyhow::Error::from)
        .flatten()
        .unwrap_or_else(|error| refuse(502, &format!("{call}: {error:#}")));
    match effect {
        Some(Effect::Halt) => std::future::pending().await,
        Some(Effect::LoseAnswer) => Body::from_stream(stream::once(async {
            Err::<Bytes, _>(std::io::Error::other("the answer is lost"))
        }))
        .into_response(),
        _ => answer,
    }
}

/// An error as the API server words one.
fn refuse(code: u16, what: &impl ToString) -> Response {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": reason, "code": code,
        "message": format!("injected: {}", what.to_string())});
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, [(header::CONTENT_TYPE, "application/json")], status.to_string()).into_response()
}

async fn pass(shared: &Shared, call: &Call, request: Request) -> Result<Response> {
    let past = shared.reads.borrow().past.clone();
    if let Some(version) = past.filter(|_| past::may_be(call, request.uri())) {
        return past::answer(&shared.api, call, request.uri(), request.headers(), &version).await;
    }
    if call.verb == Verb::Watch {
        // A watch that starts while watches are held back starts later, from the same version.
        let mut reads = shared.reads.subscribe();
        reads.wait_for(|reads| !reads.hold_watches).await.context("the proxy has ended")?;
    }
    let (parts, body) = request.into_parts();
    let line = parts.uri.path_and_query().map_or("/", |line| line.as_str());
    let url = format!("{}{line}", shared.api.server());
    let body = body::to_bytes(body, BODY_LIMIT).await?;
    let upstream = shared
        .api
        .plain()
        .request(parts.method, url)
        .headers(end_to_end(parts.headers))
        .body(body)
        .send()
        .await?;
    let (status, headers) = (upstream.status(), end_to_end(upstream.headers().clone()));
    if call.verb == Verb::Watch && status.is_success() {
        return Ok(
            (status, headers, watches::relay(upstream, shared.reads.subscribe())).into_response()
        );
    }
    let body = upstream.bytes().await?;
    if call.is_write() {
        record(shared, call, status, &body);
    }
    Ok((status, headers, body).into_response())
}

fn record(shared: &Shared, call: &Call, status: StatusCode, body: &[u8]) {
    let mut call = call.clone();
    if status == StatusCode::CREATED {
        call.verb = Verb::Create;
    }
    let object: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    if call.name.is_empty() {
        call.name = field("name");
    }
    let version = field("resourceVersion");
    let mut writes = lock(&shared.writes);
    let seen = |write: &Write| {
        (&write.call.resource, &write.call.namespace, &write.call.name)
            == (&call.resource, &call.namespace, &call.name)
    };
    let same = call.verb != Verb::Delete
        && writes
            .iter()
            .rev()
            .find(|write| seen(write))
            .is_some_and(|write| write.version == version);
    writes.push(Write {
        call,
        code: status.as_u16(),
        version,
        changed: status.is_success() && !same,
    });
}

/// Without what belongs to one connection; and bodies are plain, so that they can be read here.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in [
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::ACCEPT_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
    headers
}
