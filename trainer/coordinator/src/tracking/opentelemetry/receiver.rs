//! Receiver of OTLP over HTTP with protobuf (opentelemetry.io/docs/specs/otlp).

use std::env;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use percent_encoding::percent_decode_str;
use prost::Message;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use rljob_crds::tracking::TRACES_PATH;

use crate::tracking::server::{Server, ServerError};

/// Environment variable of OpenTelemetry with the headers of requests.
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// A receiver that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// Does not contain the value, which may be secret.
    #[error("{HEADERS} is not a list `NAME=VALUE,…` of headers: entry {entry} is invalid")]
    Headers { entry: usize },
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Headers of requests, such as those that authenticate the run.
pub struct Headers(HeaderMap);

impl Headers {
    /// Those of the environment.
    ///
    /// # Errors
    /// [`ReceiverError::Headers`].
    pub fn of_environment() -> Result<Self, ReceiverError> {
        Self::parse(&env::var(HEADERS).unwrap_or_default())
    }

    /// `NAME=VALUE,…`, with percent-encoded values.
    fn parse(text: &str) -> Result<Self, ReceiverError> {
        let mut headers = HeaderMap::new();
        for (index, entry) in text.split(',').enumerate().filter(|(_, entry)| !entry.is_empty()) {
            let header = || {
                let (name, value) = entry.split_once('=')?;
                let value: Vec<u8> = percent_decode_str(value.trim()).collect();
                let mut value = HeaderValue::from_bytes(&value).ok()?;
                value.set_sensitive(true);
                Some((name.trim().parse::<HeaderName>().ok()?, value))
            };
            let entry = index.saturating_add(1);
            let (name, value) = header().ok_or(ReceiverError::Headers { entry })?;
            headers.append(name, value);
        }
        Ok(Self(headers))
    }
}

/// What a receiver did with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// It did not take all spans, and would not take them later either.
    Rejected(String),
}

/// The message in an error of a receiver, a `google.rpc.Status`.
#[derive(Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// A receiver.
pub struct Receiver {
    server: Server,
    headers: HeaderMap,
}

impl Receiver {
    /// The receiver at `endpoint`, without `v1/traces`.
    ///
    /// # Errors
    /// [`ReceiverError::Server`].
    pub fn new(endpoint: &str, Headers(headers): Headers) -> Result<Self, ReceiverError> {
        Ok(Self { server: Server::new("OpenTelemetry receiver", endpoint)?, headers })
    }

    /// Sends spans.
    ///
    /// # Errors
    /// The receiver may take the request later.
    pub async fn export(
        &self,
        request: &ExportTraceServiceRequest,
    ) -> Result<Outcome, ServerError> {
        let request = self
            .server
            .request(Method::POST, TRACES_PATH)?
            .headers(self.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(request.encode_to_vec());
        match self.server.send(TRACES_PATH, request, message).await {
            Ok(body) => Ok(outcome(&body)),
            Err(ServerError::Status { status, message, .. })
                if [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE].contains(&status) =>
            {
                Ok(Outcome::Rejected(format!("{status}: {message}")))
            }
            Err(error) => Err(error),
        }
    }
}

/// The message of an error; proxies and unknown paths have plain text.
fn message(body: &[u8]) -> Option<String> {
    let status = Status::decode(body).map(|status| status.message);
    let text = status.unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned());
    Some(text).filter(|text| !text.is_empty())
}

/// What a successful response says. Some receivers send an empty or another body.
fn outcome(body: &[u8]) -> Outcome {
    let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    match response.partial_success.filter(|partial| partial.rejected_spans > 0) {
        Some(partial) => {
            let (spans, reason) = (partial.rejected_spans, partial.error_message);
            Outcome::Rejected(format!("{spans} spans: {reason}"))
        }
        None => Outcome::Accepted,
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    #[test]
    fn headers_are_percent_encoded_pairs_whose_values_no_error_shows() {
        let Headers(headers) = Headers::parse("Authorization=Bearer%20a%3D, x-team = b,").unwrap();
        assert_eq!(headers["authorization"], "Bearer a=");
        assert_eq!(headers["x-team"], "b");
        assert!(headers["authorization"].is_sensitive());
        assert!(Headers::parse("").unwrap().0.is_empty());
        for (text, entry) in [("secret", 1), ("a=b,=secret", 2), ("a=secret%0A", 1)] {
            let error = Headers::parse(text).err().unwrap().to_string();
            let expected = format!(
                "OTEL_EXPORTER_OTLP_HEADERS is not a list `NAME=VALUE,…` of headers: entry \
                 {entry} is invalid"
            );
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn responses_say_how_many_spans_were_rejected() {
        let response = |rejected_spans| {
            let error_message = "too old".to_owned();
            let partial = ExportTracePartialSuccess { rejected_spans, error_message };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        assert_eq!(outcome(&response(3)), Outcome::Rejected("3 spans: too old".to_owned()));
        assert_eq!(outcome(&response(0)), Outcome::Accepted, "a warning");
        assert_eq!(outcome(b""), Outcome::Accepted);
        assert_eq!(outcome(b"<html>"), Outcome::Accepted);
    }

    #[test]
    fn errors_have_a_status_or_text() {
        let status = Status { message: "no token".to_owned() }.encode_to_vec();
        assert_eq!(message(&status).as_deref(), Some("no token"));
        assert_eq!(message(b"404 page not found").as_deref(), Some("404 page not found"));
        assert_eq!(message(b""), None);
    }
}
