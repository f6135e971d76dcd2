//! `/metrics`, `/healthz`, `/readyz`: the operator about itself.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use futures::FutureExt;
use jiff::Timestamp;
use kube::runtime::reflector::Store;
use rljob_crds::RLJob;
use tokio_util::sync::CancellationToken;

use crate::controller::Context;
use crate::leader::Term;
use crate::metrics::Metrics;

/// What is asked about: the operator, and its jobs while it leads.
#[derive(Clone)]
pub struct App {
    metrics: Metrics,
    term: Term,
    work: Arc<Mutex<Option<Work>>>,
}

/// What a leader works on.
#[derive(Clone)]
struct Work {
    jobs: Store<RLJob>,
    context: Arc<Context>,
}

impl App {
    /// An operator that has not led yet.
    pub fn new(metrics: Metrics, term: Term) -> Self {
        Self { metrics, term, work: Arc::default() }
    }

    /// It leads, with these jobs, until the answer is dropped.
    pub fn leads(&self, jobs: Store<RLJob>, context: Arc<Context>) -> Leads {
        self.set(Some(Work { jobs, context }));
        Leads(self.clone())
    }

    fn set(&self, work: Option<Work>) {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) = work;
    }

    fn work(&self) -> Option<Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An operator that leads.
#[must_use]
pub struct Leads(App);

impl Drop for Leads {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Serves until `stop`.
///
/// # Errors
/// If the address cannot be listened on, or the listener fails.
pub async fn serve(address: SocketAddr, app: App, stop: CancellationToken) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(app);
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// A leader is ready once every RLJob has been seen; a stand-by is ready to take over.
async fn readyz(State(app): State<App>) -> (StatusCode, &'static str) {
    match app
        .work()
        .map(|work| work.jobs.wait_until_ready().now_or_never().is_some_and(|ready| ready.is_ok()))
    {
        Some(false) => (StatusCode::SERVICE_UNAVAILABLE, "the RLJobs have not been listed yet"),
        Some(true) | None => (StatusCode::OK, "ok"),
    }
}

async fn metrics_text(State(app): State<App>) -> (StatusCode, Vec<u8>) {
    let work = app.work();
    let reports = work.as_ref().map(|work| work.context.pollers.reports()).unwrap_or_default();
    let text = app.metrics.text(
        app.term.lasts(),
        work.as_ref().map(|work| &work.jobs),
        &reports,
        Timestamp::now(),
    );
    text.map_or_else(
        |error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
        |text| (StatusCode::OK, text),
    )
}
