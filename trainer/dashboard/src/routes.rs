//! Routes of the dashboard, all read-only, for clients on the same machine.
//!
//! ```text
//!  GET /                                    the page
//!  GET /v1/runs                             names, states and progress
//!  GET /v1/runs/RUN                         curves, evaluations, spec, report of the coordinator
//!  GET /v1/runs/RUN/samples?step=S&skip=N   rollouts of a step, at most 50
//!  GET /v1/runs/RUN/answers?step=S&skip=N   greedy completions of an evaluation, at most 50
//!  GET /v1/runs/RUN/report                  the page with the data of the run, for a file
//! ```
//! A web site that resolves its name to this machine could read the responses in a browser;
//! requests for other hosts than this machine are therefore rejected.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::document::{document, live_policy};
use crate::overview::RunInfo;
use crate::run::RunFiles;
use crate::samples::Page;

/// Most runs of a dashboard.
pub const MAX_RUNS: usize = 64;

/// A run to show.
pub struct Source {
    /// The run directory.
    pub directory: PathBuf,
    /// Reads facts that the files of records do not have. The error is shown.
    pub info: Box<dyn Fn() -> BoxFuture<'static, Result<RunInfo, String>> + Send + Sync>,
}

struct Run {
    source: Source,
    files: Arc<Mutex<RunFiles>>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no run {0}")]
    NoRun(usize),
    #[error("the run has no samples of that kind")]
    NoSamples,
    #[error("{0}")]
    Info(String),
    #[error("failed to read the run: {0}")]
    Read(#[from] io::Error),
    #[error("failed to write the response: {0}")]
    Json(#[from] serde_json::Error),
    #[error("a read of the run was aborted")]
    Aborted(#[from] tokio::task::JoinError),
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoRun(_) | Self::NoSamples => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(json!({"error": self.to_string()}))).into_response()
    }
}

type Runs = Arc<Vec<Run>>;

/// The routes. Runs are numbered in the order of `sources`.
pub fn router(sources: Vec<Source>) -> Router {
    let run = |source: Source| {
        let files = Arc::new(Mutex::new(RunFiles::new(&source.directory)));
        Run { source, files }
    };
    let runs: Runs = Arc::new(sources.into_iter().map(run).collect());
    Router::new()
        .route("/", get(page))
        .route("/v1/runs", get(list))
        .route("/v1/runs/{run}", get(overview))
        .route("/v1/runs/{run}/samples", get(samples))
        .route("/v1/runs/{run}/answers", get(answers))
        .route("/v1/runs/{run}/report", get(report))
        .layer(middleware::from_fn(for_this_machine))
        .with_state(runs)
}

/// Rejects requests for other hosts and adds headers that protect the page.
async fn for_this_machine(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_this_machine) {
        let message = "this server answers requests for 127.0.0.1 and localhost only\n";
        return (StatusCode::MISDIRECTED_REQUEST, message).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether a Host header, with or without a port, names this machine.
fn is_this_machine(host: &str) -> bool {
    let is_port = |rest: &str| {
        rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
    };
    let names = ["127.0.0.1", "localhost", "[::1]"];
    names.iter().any(|name| host.strip_prefix(name).is_some_and(is_port))
}

async fn page() -> impl IntoResponse {
    ([(header::CONTENT_SECURITY_POLICY, live_policy())], Html(document(None)))
}

async fn list(State(runs): State<Runs>) -> Result<Json<Value>, Error> {
    let mut list = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        list.push(match (run.source.info)().await {
            Ok(info) => read(run, move |files| Ok(files.summary(number, &info))).await?,
            Err(error) => json!({
                "run": number, "name": run.source.directory.display().to_string(),
                "status": "Unreadable", "isRunning": false, "cause": error, "step": 0,
                "totalSteps": 0,
            }),
        });
    }
    Ok(Json(json!({"runs": list})))
}

async fn overview(
    State(runs): State<Runs>,
    Path(number): Path<usize>,
) -> Result<Json<Value>, Error> {
    let run = runs.get(number).ok_or(Error::NoRun(number))?;
    let info = (run.source.info)().await.map_err(Error::Info)?;
    read(run, move |files| Ok(serde_json::to_value(files.overview(&info))?)).await.map(Json)
}

#[derive(Deserialize)]
struct Wanted {
    step: u32,
    #[serde(default)]
    skip: usize,
}

async fn samples(
    State(runs): State<Runs>,
    Path(number): Path<usize>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Page>, Error> {
    let run = runs.get(number).ok_or(Error::NoRun(number))?;
    let page = read(run, move |files| Ok(files.samples(wanted.step, wanted.skip)?)).await?;
    page.map(Json).ok_or(Error::NoSamples)
}

async fn answers(
    State(runs): State<Runs>,
    Path(number): Path<usize>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Page>, Error> {
    let run = runs.get(number).ok_or(Error::NoRun(number))?;
    let page = read(run, move |files| Ok(files.answers(wanted.step, wanted.skip)?)).await?;
    page.map(Json).ok_or(Error::NoSamples)
}

async fn report(
    State(runs): State<Runs>,
    Path(number): Path<usize>,
) -> Result<Html<String>, Error> {
    let run = runs.get(number).ok_or(Error::NoRun(number))?;
    let info = (run.source.info)().await.map_err(Error::Info)?;
    read(run, move |files| Ok(crate::report::report(&[(&info, files)])?)).await.map(Html)
}

/// Reads what was added to the files, then calls `use_files`, outside the asynchronous threads.
async fn read<T: Send + 'static>(
    run: &Run,
    use_files: impl FnOnce(&RunFiles) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let files = Arc::clone(&run.files);
    tokio::task::spawn_blocking(move || {
        let mut files = files.lock();
        files.refresh()?;
        use_files(&files)
    })
    .await?
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use futures::FutureExt as _;
    use tower::ServiceExt as _;

    use super::*;

    fn of(directory: &std::path::Path) -> Router {
        let info = || {
            let info = RunInfo { name: "lab/sums".to_owned(), ..RunInfo::default() };
            async { Ok(info) }.boxed()
        };
        router(vec![Source { directory: directory.to_owned(), info: Box::new(info) }])
    }

    async fn get(router: &Router, host: &str, path: &str) -> (StatusCode, Value) {
        let request = Request::builder().uri(path).header(header::HOST, host);
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    #[tokio::test]
    async fn responses_follow_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let router = of(folder.path());
        let step = async || {
            let (status, overview) = get(&router, "127.0.0.1:1", "/v1/runs/0").await;
            (status, overview["step"].clone(), overview["columns"]["reward"].clone())
        };
        assert_eq!(step().await, (StatusCode::OK, json!(0), Value::Null));
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(path, "{\"step\":1,\"attempt\":0,\"reward\":0.5}\n").unwrap();
        assert_eq!(step().await, (StatusCode::OK, json!(1), json!([0.5])));
        let (_, list) = get(&router, "localhost", "/v1/runs").await;
        assert_eq!(
            (&list["runs"][0]["name"], &list["runs"][0]["step"]),
            (&json!("lab/sums"), &json!(1))
        );
        let (status, error) = get(&router, "localhost", "/v1/runs/1").await;
        assert_eq!((status, error), (StatusCode::NOT_FOUND, json!({"error": "no run 1"})));
        let (status, _) = get(&router, "localhost", "/v1/runs/0/samples?step=1").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn requests_for_other_hosts_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let router = of(folder.path());
        for host in ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080", "[::1]"] {
            assert_eq!(get(&router, host, "/v1/runs").await.0, StatusCode::OK, "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1:80"] {
            let (status, _) = get(&router, host, "/v1/runs").await;
            assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
    }
}
