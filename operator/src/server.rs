//! HTTP server of the operator: `/metrics`, `/healthz`, `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::routing::get;
use jiff::Timestamp;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use rljob_crds::RLJob;
use rljob_http::Limits;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::leader::Term;
use crate::metrics::Metrics;

/// State of the endpoints: the operator's metrics, and its jobs while it leads.
#[derive(Clone)]
pub struct App {
    metrics: Metrics,
    term: Term,
    leader: Arc<Mutex<Option<LeaderState>>>,
}

/// The jobs of a leader.
#[derive(Clone)]
struct LeaderState {
    jobs: Store<RLJob>,
    context: Arc<Context>,
}

impl App {
    pub fn new(metrics: Metrics, term: Term) -> Self {
        Self { metrics, term, leader: Arc::default() }
    }

    /// Marks the operator as leader of these jobs until the guard is dropped.
    pub fn lead(&self, jobs: Store<RLJob>, context: Arc<Context>) -> LeaderGuard {
        self.set(Some(LeaderState { jobs, context }));
        LeaderGuard(self.clone())
    }

    fn set(&self, leader: Option<LeaderState>) {
        *self.leader.lock() = leader;
    }

    fn leader(&self) -> Option<LeaderState> {
        self.leader.lock().clone()
    }
}

/// Ends the leader state when dropped.
#[must_use]
pub struct LeaderGuard(App);

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Serves until `stop`. The address `[::]` is all addresses, of IPv4 too.
///
/// # Errors
/// If the address cannot be listened on.
pub async fn serve(address: SocketAddr, app: App, stop: CancellationToken) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(app);
    let listener = tokio::net::TcpListener::from_std(rljob_http::listen(address)?)?;
    rljob_http::serve(listener, router, Limits::default(), stop).await;
    Ok(())
}

/// A leader is ready while all its watches work; the response has a line for each, as that of the
/// API server has for its checks. A standby is always ready.
async fn readyz(State(app): State<App>) -> (StatusCode, String) {
    let Some(leader) = app.leader() else { return (StatusCode::OK, "ok: standby\n".to_owned()) };
    let watches = leader.context.health.report(Instant::now());
    let is_ready = watches.iter().all(|(_, problem)| problem.is_none());
    let line = |(resource, problem): &(String, Option<String>)| match problem {
        None => format!("[+]watch of {resource}: ok\n"),
        Some(problem) => format!("[-]watch of {resource}: {problem}\n"),
    };
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, watches.iter().map(line).collect())
}

/// Prometheus 3 rejects a scrape whose content type is not one of its formats.
async fn metrics_text(
    State(app): State<App>,
) -> (StatusCode, [(HeaderName, &'static str); 1], Vec<u8>) {
    let leader = app.leader();
    let reports =
        leader.as_ref().map(|leader| leader.context.pollers.reports()).unwrap_or_default();
    let watches = leader.as_ref().map(|leader| leader.context.health.report(Instant::now()));
    let watches = watches.unwrap_or_default();
    let text = app.metrics.text(
        app.term.is_active(),
        leader.as_ref().map(|leader| &leader.jobs),
        &reports,
        &watches,
        Timestamp::now(),
    );
    let (status, text) = text.map_or_else(
        |error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
        |text| (StatusCode::OK, text),
    );
    (status, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text)
}
