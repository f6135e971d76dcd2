//! Client of the API server: counts requests, bounds the wait for a response, and lets no write of
//! a former leader out, whichever task it comes from.
//!
//! ```text
//!  pass, poller, event ─▶ Guard ─▶ kube's stack without its retries ─▶ API server
//!                          └─ a write fails before, and is dropped at, the end of the term
//! ```
//!
//! kube retries 429, 503 and 504 below this layer for minutes, past the end of a term. Those
//! retries are off: the next pass or the watch's backoff tries again.

use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{Method, Request};
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use prometheus::IntCounterVec;
use tower::layer::layer_fn;
use tower::{BoxError, Service};

use crate::leader::Term;

/// Longest wait for the head of a response. The API server ends requests after 60 s.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);
/// Longest silence of a connection in the middle of a response. A watch is silent for as long as it
/// lasts ([`crate::cache::WATCH_SECONDS`]).
const READ_TIMEOUT: Duration = Duration::from_secs(180);

/// A write after the end of the term.
#[derive(Debug, thiserror::Error)]
#[error("this operator is no longer the leader; its successor writes instead")]
pub struct TermOver;

/// A request without a response.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not respond within {} s", .0.as_secs())]
pub struct NoResponse(Duration);

/// Creates a client that counts requests by verb and writes only during the term.
///
/// # Errors
/// If the configuration is invalid.
pub fn client(mut config: Config, term: Term, counter: IntCounterVec) -> kube::Result<Client> {
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    let guard = layer_fn(move |inner| Guard {
        inner,
        term: term.clone(),
        counter: counter.clone(),
        timeout: RESPONSE_TIMEOUT,
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&guard).build())
}

#[derive(Clone)]
struct Guard<S> {
    inner: S,
    term: Term,
    counter: IntCounterVec,
    timeout: Duration,
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Error = BoxError>,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(&request);
        let is_write = !matches!(verb, "get" | "watch");
        let term = self.term.clone();
        if is_write && !term.is_active() {
            return async { Err(TermOver.into()) }.boxed();
        }
        self.counter.with_label_values(&[verb]).inc();
        let timeout = self.timeout;
        let response = tokio::time::timeout(timeout, self.inner.call(request));
        async move {
            tokio::select! {
                biased;
                () = term.over(), if is_write => Err(TermOver.into()),
                response = response => response.map_err(|_| NoResponse(timeout))?,
            }
        }
        .boxed()
    }
}

/// The verb as in RBAC rules; `get` includes lists.
fn verb<B>(request: &Request<B>) -> &'static str {
    match *request.method() {
        Method::GET if request.uri().query().is_some_and(|query| query.contains("watch=true")) => {
            "watch"
        }
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::{Response, StatusCode};
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::DeleteParams;
    use prometheus::Opts;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[test]
    fn requests_are_counted_by_verb() {
        let verbs = [
            ("GET", "/api?watch=true"),
            ("GET", "/api?limit=1"),
            ("POST", "/"),
            ("PUT", "/"),
            ("PATCH", "/"),
            ("DELETE", "/"),
            ("HEAD", "/"),
        ]
        .map(|(method, uri)| verb(&Request::builder().method(method).uri(uri).body(()).unwrap()));
        assert_eq!(verbs, ["watch", "get", "create", "update", "patch", "delete", "other"]);
    }

    const MOMENT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(3600);

    /// The error of a request to a server that responds after this time, if any.
    async fn error(
        method: &str,
        term: Term,
        timeout: Duration,
        response_after: Duration,
    ) -> Option<String> {
        let counter = IntCounterVec::new(Opts::new("requests", "requests"), &["verb"]).unwrap();
        let server = service_fn(move |_: Request<Body>| async move {
            tokio::time::sleep(response_after).await;
            Ok::<_, Infallible>(Response::new(()))
        });
        let inner = server.map_err(BoxError::from);
        let service = Guard { inner, term, counter, timeout };
        let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
        service.oneshot(request).await.err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_write_is_dropped_at_the_end_of_the_term_and_a_read_is_not() {
        let over = Some(TermOver.to_string());
        assert_eq!(error("PATCH", Term::inactive(), LONG, Duration::ZERO).await, over);
        assert_eq!(error("GET", Term::inactive(), LONG, MOMENT).await, None);
        assert_eq!(error("PATCH", Term::ending_in(MOMENT), LONG, LONG).await, over);
        assert_eq!(error("PATCH", Term::ending_in(LONG), LONG, MOMENT).await, None);
        assert_eq!(error("PATCH", Term::endless(), LONG, MOMENT).await, None);
    }

    #[tokio::test]
    async fn a_request_without_a_response_ends() {
        for method in ["GET", "PATCH"] {
            let error = error(method, Term::endless(), MOMENT, LONG).await;
            assert_eq!(error, Some(NoResponse(MOMENT).to_string()), "{method}");
        }
    }

    #[tokio::test]
    async fn a_rejected_write_is_not_repeated_below_the_guard() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let counted = served.clone();
        let server = Router::new().fallback(async move || {
            counted.fetch_add(1, Ordering::SeqCst);
            StatusCode::SERVICE_UNAVAILABLE
        });
        tokio::spawn(axum::serve(listener, server).into_future());
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let counter = IntCounterVec::new(Opts::new("requests", "requests"), &["verb"]).unwrap();
        let client = client(config, Term::endless(), counter).unwrap();
        let pods: Api<Pod> = Api::namespaced(client, "lab");
        pods.delete("p", &DeleteParams::default()).await.unwrap_err();
        assert_eq!(served.load(Ordering::SeqCst), 1);
    }
}
