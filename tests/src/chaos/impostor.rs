//! A server that takes the place of a job's coordinator for the operator. It has the coordinator's
//! certificate, and the firewall of the coordinator's pod redirects the operator's connections to
//! it. Dropping it ends the redirection.
//!
//! ```text
//!  operator ──▶ coordinator pod, port 8080 ──(redirected)──▶ impostor
//!  learners, engines ──▶ coordinator
//! ```

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use rljob_crds::names::{COORDINATOR_PORT, TOKENS_MOUNT};
use rljob_http::{Role, ServerTls};
use rustix::process::Pid;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::testbed::{STEPS, Testbed};
use crate::api::runtime;
use crate::firewall::Firewall;
use crate::netns::NetworkNamespace;
use crate::tls::TlsListener;

/// How an impostor answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    /// Accepts connections and never answers.
    Silent,
    /// Answers with impossible states.
    Lying,
    /// Answers without end.
    Flooding,
}

/// A running impostor.
pub(super) struct Impostor {
    _redirection: Firewall,
    task: JoinHandle<()>,
    state: Arc<Shared>,
}

struct Shared {
    behavior: Behavior,
    lies: Vec<String>,
    requests: AtomicUsize,
}

impl Impostor {
    /// Takes the place of the coordinator whose process is `coordinator`.
    pub(super) fn start(testbed: &Testbed, coordinator: Pid, behavior: Behavior) -> Result<Self> {
        let job = testbed.job()?;
        let uid = job["metadata"]["uid"].as_str().context("the job has no UID")?;
        let pid = coordinator.as_raw_nonzero();
        let file = format!("/proc/{pid}/root{TOKENS_MOUNT}/{}", Role::Coordinator.file());
        let pem = fs::read_to_string(&file).with_context(|| format!("failed to read {file}"))?;
        let tls = ServerTls::of_pem(&pem, &[Role::Operator.server_name(uid)])?;

        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listener = NetworkNamespace::of_process(pid.get().unsigned_abs())?.listen(any)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let requests = AtomicUsize::new(0);
        let state = Arc::new(Shared { behavior, lies: lies(&job), requests });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&state));
        let task = runtime().spawn(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let listener = TlsListener::new(listener, move |_| Some(tls.clone()));
            // Ends with the task only.
            let _ = axum::serve(listener, router).await;
        });
        let operators = testbed.operator_addresses()?;
        let redirection = Firewall::redirect(coordinator, &operators, COORDINATOR_PORT, port);
        match redirection {
            Ok(redirection) => Ok(Self { _redirection: redirection, task, state }),
            Err(error) => {
                task.abort();
                Err(error)
            }
        }
    }

    /// Number of requests so far.
    pub(super) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(state): State<Arc<Shared>>, method: Method) -> Response {
    let number = state.requests.fetch_add(1, Ordering::Relaxed);
    match state.behavior {
        Behavior::Silent => std::future::pending().await,
        Behavior::Flooding => {
            let chunks =
                futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65536]));
            Body::from_stream(chunks).into_response()
        }
        // An accepted order would not be sent to the coordinator again.
        Behavior::Lying if method == Method::PUT => StatusCode::CONFLICT.into_response(),
        Behavior::Lying => {
            let lie = state.lies.get(number % state.lies.len().max(1));
            lie.cloned().unwrap_or_default().into_response()
        }
    }
}

/// Status bodies that are impossible, too large, or about other pods.
fn lies(job: &Value) -> Vec<String> {
    let status = &job["status"];
    let of = |field: &str| status.pointer(field).cloned().unwrap_or_else(|| json!(0));
    let believable = json!({
        "epoch": of("/epoch"), "generation": job["metadata"]["generation"], "phase": "Running",
        "attempt": of("/attempt"), "restarts": of("/restarts"), "step": of("/progress/step"),
        "totalSteps": STEPS, "lastFailure": null, "metrics": null, "evaluation": null,
        "activity": "Rollouts", "supervisors": [], "engines": [], "checkpoint": null,
    });
    let with = |changes: &[(&str, Value)]| {
        let mut lie = believable.clone();
        for (field, value) in changes {
            lie[*field] = value.clone();
        }
        lie.to_string()
    };
    // Engines of this name whose pods are others: their silence is not that of the job's engines.
    let engine = |number: usize| {
        json!({
            "name": format!("{}-inference-{number}", super::testbed::JOB), "uid": "other",
            "state": "Unreachable", "version": null, "silentSeconds": 86400,
        })
    };
    vec![
        with(&[("epoch", json!(u64::MAX))]),
        with(&[("step", json!(u32::MAX))]),
        with(&[("step", json!(STEPS + 1))]),
        with(&[("step", json!(1_000_000)), ("totalSteps", json!(1_000_000))]),
        with(&[("phase", json!("Finished")), ("totalSteps", json!(1)), ("step", json!(1_000))]),
        with(&[("attempt", json!(u32::MAX)), ("restarts", json!(u32::MAX))]),
        with(&[("step", json!(-1))]),
        with(&[("step", json!(1e300))]),
        with(&[("engines", (0..20_000).map(engine).collect())]),
        with(&[("engines", (0..3).map(engine).collect())]),
        with(&[(
            "supervisors",
            json!([{"name": "x".repeat(1 << 20), "alive": true, "learners": 1}]),
        )]),
        "[".repeat(100_000),
        "<html>not a coordinator</html>".to_owned(),
        String::new(),
    ]
}
