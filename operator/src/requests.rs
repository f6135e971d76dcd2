//! Client of the API server: counts requests, and rejects writes after the operator's term as
//! leader, whichever task they come from.

use axum::http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use prometheus::IntCounterVec;
use tower::BoxError;
use tower::filter::FilterLayer;

use crate::leader::Term;

/// A write after the end of the term.
#[derive(Debug, thiserror::Error)]
#[error("this operator is no longer the leader; its successor writes instead")]
pub struct TermOver;

/// Creates a client that counts requests by verb and writes only during the term.
///
/// # Errors
/// If the configuration is invalid.
pub fn client(config: Config, term: Term, counter: IntCounterVec) -> kube::Result<Client> {
    let pass = move |request: Request<Body>| -> Result<Request<Body>, BoxError> {
        let verb = verb(&request);
        if !matches!(verb, "get" | "watch") && !term.is_active() {
            return Err(TermOver.into());
        }
        counter.with_label_values(&[verb]).inc();
        Ok(request)
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&FilterLayer::new(pass)).build())
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
}
