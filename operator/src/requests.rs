//! What every request to the API server passes through: it is counted, and a write is refused when
//! the operator's term as leader is over, whichever task it comes from.

use axum::http::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use prometheus::IntCounterVec;
use tower::BoxError;
use tower::filter::FilterLayer;

use crate::leader::Term;

/// A write after the end of the term.
#[derive(Debug, thiserror::Error)]
#[error("this operator leads no more: the write is left to its successor")]
pub struct Over;

/// A client whose requests are counted by verb, and which writes only while the term lasts.
///
/// # Errors
/// A configuration that cannot be used.
pub fn client(config: Config, term: Term, counter: IntCounterVec) -> kube::Result<Client> {
    let pass = move |request: Request<Body>| -> Result<Request<Body>, BoxError> {
        let verb = verb(&request);
        if !matches!(verb, "get" | "watch") && !term.lasts() {
            return Err(Over.into());
        }
        counter.with_label_values(&[verb]).inc();
        Ok(request)
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&FilterLayer::new(pass)).build())
}

/// The verb, as in a rule of RBAC; lists are told from single objects by nobody.
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
    fn a_request_is_counted_under_its_verb() {
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
