//! Fault-injecting proxy between an operator and the real API server: records the operator's writes
//! and injects faults into requests, responses and watches.
//!
//! ```text
//!  operator ── http ──▶ Proxy ─┬─ faults: error code │ response lost │ halt     faults.rs
//!                              ├─ reads: current, or of an earlier version    stale_reads.rs
//!                              ├─ watches: forwarded, or held back and merged watches.rs
//!                              └─ https ──▶ kube-apiserver
//! ```
//!
//! The proxy creates only error responses; stale reads come from the API server
//! (`resourceVersionMatch=Exact`).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{self, Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{Api, runtime};
use crate::cluster::Cluster;

mod call;
pub mod faults;
mod response;
mod stale_reads;
mod watches;

pub use call::{Call, Verb};
pub use faults::{Effect, Fault};

use response::error_response;
use watches::Reads;

/// Size limit of request and response bodies.
const BODY_LIMIT: usize = 64 << 20;

/// A write with the API server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The request; an apply that created the object is a [`Verb::Create`].
    pub call: Call,
    /// HTTP status of the response.
    pub code: u16,
    /// resourceVersion after the write, if the response contains it.
    pub version: String,
    /// Whether the resourceVersion changed; a no-op apply does not change it.
    pub changed: bool,
}

struct Shared {
    api: Api,
    faults: Mutex<Vec<Fault>>,
    writes: Mutex<Vec<Write>>,
    reads: watch::Sender<Reads>,
    state: watch::Sender<ProxyState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyState {
    Serving,
    /// The last request is being forwarded.
    Halting,
    Halted,
}

/// A running proxy. Dropping it stops the server.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Proxy {
    /// Starts a proxy in the cluster's network.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let listener = cluster.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            api: cluster.api()?,
            faults: Mutex::default(),
            writes: Mutex::default(),
            reads: watch::Sender::new(Reads::default()),
            state: watch::Sender::new(ProxyState::Serving),
        });
        let router = Router::new().fallback(handle).with_state(shared.clone());
        let server = runtime().spawn(async move {
            axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await
        });
        Ok(Self { address, shared, server })
    }

    /// URL for kubeconfigs of clients in the cluster's network. The proxy forwards the client's
    /// token; clients need no certificate.
    pub fn server(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.lock().push(fault);
    }

    /// Removes all faults, serves current reads and resumes watches.
    pub fn heal(&self) {
        self.shared.faults.lock().clear();
        self.shared.reads.send_replace(Reads::default());
        self.resume();
    }

    /// Answers reads from the API server's cache with the state at `version`, the resourceVersion
    /// of any object or list; holds back new watches until [`Self::heal`].
    pub fn serve_stale_reads(&self, version: &str) {
        self.shared
            .reads
            .send_replace(Reads { past: Some(version.to_owned()), hold_watches: true });
    }

    /// Holds back watch events; [`Self::heal`] delivers only the last event of each object.
    pub fn hold_watches(&self) {
        self.shared.reads.send_modify(|reads| reads.hold_watches = true);
    }

    /// Whether [`Effect::Halt`] has taken effect; the test then kills the client.
    pub fn has_halted(&self) -> bool {
        *self.shared.state.borrow() == ProxyState::Halted
    }

    /// Serves requests again after [`Effect::Halt`].
    pub fn resume(&self) {
        self.shared.state.send_replace(ProxyState::Serving);
    }

    /// All writes so far, in order.
    pub fn writes(&self) -> Vec<Write> {
        self.shared.writes.lock().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let call = Call::parse(request.method(), request.uri());
    if *shared.state.borrow() != ProxyState::Serving {
        // The test kills the client, which ends this request.
        return std::future::pending().await;
    }
    let effect = shared.faults.lock().iter_mut().find_map(|fault| fault(&call));
    match effect {
        Some(Effect::Respond(code)) => return error_response(code, &call),
        Some(Effect::Hang) => return std::future::pending().await,
        _ => {}
    }
    if effect == Some(Effect::Halt) {
        shared.state.send_replace(ProxyState::Halting);
    }
    // A separate task forwards and records the request even if the client disconnects.
    let forwarded = tokio::spawn({
        let (shared, call) = (shared.clone(), call.clone());
        async move {
            let response = forward(&shared, &call, request).await;
            if effect == Some(Effect::Halt) {
                shared.state.send_replace(ProxyState::Halted);
            }
            response
        }
    });
    let response = forwarded
        .await
        .map_err(anyhow::Error::from)
        .flatten()
        .unwrap_or_else(|error| error_response(502, &format!("{call}: {error:#}")));
    match effect {
        Some(Effect::Halt) => std::future::pending().await,
        Some(Effect::LoseResponse) => Body::from_stream(stream::once(async {
            Err::<Bytes, _>(std::io::Error::other("the response is lost"))
        }))
        .into_response(),
        _ => response,
    }
}

async fn forward(shared: &Shared, call: &Call, request: Request) -> Result<Response> {
    let past = shared.reads.borrow().past.clone();
    if let Some(version) = past.filter(|_| stale_reads::applies_to(call, request.uri())) {
        return stale_reads::respond(&shared.api, call, request.uri(), request.headers(), &version)
            .await;
    }
    if call.verb == Verb::Watch {
        // Delays a watch that starts while watches are held back.
        let mut reads = shared.reads.subscribe();
        reads.wait_for(|reads| !reads.hold_watches).await.context("the proxy has stopped")?;
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
    let mut writes = shared.writes.lock();
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

/// Removes hop-by-hop headers, and Accept-Encoding so that bodies are readable.
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
