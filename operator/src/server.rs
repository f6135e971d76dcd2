//! `/metrics`, `/healthz`, `/readyz`: the operator about itself. Labels are bounded: states and error variants, never names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use futures::FutureExt;
use kube::runtime::reflector::Store;
use prometheus::{Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use rljob_crds::RLJob;
use rljob_crds::names::{CONDITION_SUCCEEDED, REASON_STARTING};
use tokio_util::sync::CancellationToken;

/// Buckets of a pass's duration, in seconds.
const BUCKETS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Numbers about the operator itself.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    duration: Histogram,
    errors: IntCounterVec,
    status_writes: IntCounter,
    jobs: IntGaugeVec,
    restarts: IntGaugeVec,
}

impl Metrics {
    /// Registers every metric.
    ///
    /// # Errors
    /// A name that is registered twice or is not valid.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let duration = Histogram::with_opts(HistogramOpts::new("rljob_reconcile_duration_seconds", "Seconds that a pass took.").buckets(BUCKETS.to_vec()))?;
        let errors = IntCounterVec::new(Opts::new("rljob_reconcile_errors_total", "Passes that failed, by the step that failed."), &["variant"])?;
        let status_writes = IntCounter::new("rljob_status_writes_total", "Statuses written.")?;
        let jobs = IntGaugeVec::new(Opts::new("rljob_jobs", "RLJobs by state, the reason of condition Succeeded."), &["state"])?;
        let restarts =
            IntGaugeVec::new(Opts::new("rljob_job_restarts", "Restarts of learners recorded in the statuses of all RLJobs, counted or not."), &["counted"])?;
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        registry.register(Box::new(status_writes.clone()))?;
        registry.register(Box::new(jobs.clone()))?;
        registry.register(Box::new(restarts.clone()))?;
        Ok(Self { registry, duration, errors, status_writes, jobs, restarts })
    }

    /// A pass has ended, with the variant of its error if it failed.
    pub fn reconciled(&self, took: Duration, error: Option<&str>) {
        self.duration.observe(took.as_secs_f64());
        if let Some(variant) = error {
            self.errors.with_label_values(&[variant]).inc();
        }
    }

    /// A status was written.
    pub fn status_written(&self) {
        self.status_writes.inc();
    }

    fn count_jobs(&self, store: &Store<RLJob>) {
        let mut states: BTreeMap<String, i64> = BTreeMap::new();
        let (mut counted, mut attempts) = (0, 0);
        for job in store.state() {
            let status = job.status.clone().unwrap_or_default();
            let succeeded = status.conditions.into_iter().find(|condition| condition.type_ == CONDITION_SUCCEEDED);
            *states.entry(succeeded.map_or_else(|| REASON_STARTING.to_owned(), |condition| condition.reason)).or_default() += 1;
            counted += i64::from(status.restarts);
            attempts += i64::from(status.attempt);
        }
        self.jobs.reset();
        for (state, count) in states {
            self.jobs.with_label_values(&[&state]).set(count);
        }
        self.restarts.with_label_values(&["true"]).set(counted);
        self.restarts.with_label_values(&["false"]).set((attempts - counted).max(0));
    }

    fn text(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

struct App {
    metrics: Metrics,
    store: Store<RLJob>,
}

/// Serves until `stop`.
///
/// # Errors
/// If the address cannot be listened on, or the listener fails.
pub async fn serve(address: SocketAddr, metrics: Metrics, store: Store<RLJob>, stop: CancellationToken) -> std::io::Result<()> {
    let app = Arc::new(App { metrics, store });
    let router = Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(readyz)).route("/metrics", get(metrics_text)).with_state(app);
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Ready once every RLJob has been seen.
async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    match app.store.wait_until_ready().now_or_never() {
        Some(Ok(())) => (StatusCode::OK, "ok"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the RLJobs have not been listed yet"),
    }
}

async fn metrics_text(State(app): State<Arc<App>>) -> (StatusCode, Vec<u8>) {
    app.metrics.count_jobs(&app.store);
    app.metrics.text().map_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()), |text| (StatusCode::OK, text))
}
