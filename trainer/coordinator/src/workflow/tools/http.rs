//! Tool behind HTTP: a POST per call.

use rljob_crds::workflow::HttpTool;

use super::call::{Answer, Outcome, Request};
use crate::reward::{Server, VerifierError, unexpected};

/// Statuses of arguments that a tool rejects.
const REJECTED: [u16; 2] = [400, 422];

#[derive(Debug)]
pub struct ToolServer {
    url: String,
    server: Server,
}

impl ToolServer {
    pub fn new(spec: &HttpTool) -> Result<Self, reqwest::Error> {
        let server = Server::new(spec.timeout_seconds, spec.concurrency)?
            .with_token(spec.token_secret_ref.as_ref());
        Ok(Self { url: spec.url.clone(), server })
    }

    pub async fn call(&self, request: &Request<'_>) -> Result<Answer, VerifierError> {
        let request = self.server.client.post(&self.url).json(request);
        answer(self.server.call(request).await)
    }
}

fn answer(response: Result<Vec<u8>, VerifierError>) -> Result<Answer, VerifierError> {
    match response {
        Ok(body) => String::from_utf8(body)
            .map(|text| (Outcome::Result, text))
            .map_err(|error| unexpected(error.as_bytes(), "text or JSON", &error.utf8_error())),
        Err(VerifierError::Status { status, excerpt }) if REJECTED.contains(&status.as_u16()) => {
            Ok((Outcome::Error, format!("error: {excerpt}")))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_text() {
        let text = "{\"sum\": 3}".to_owned();
        let result = answer(Ok(text.clone().into_bytes())).unwrap();
        assert_eq!(result, (Outcome::Result, text));
        let error = answer(Ok(vec![0xff])).unwrap_err().to_string();
        assert!(error.contains("expected text or JSON: invalid utf-8 sequence"), "{error}");
    }
}
