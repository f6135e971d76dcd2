//! HTTP reward: one POST per completion to a server.

use futures::future::{BoxFuture, FutureExt as _};
use rljob_crds::reward::HttpReward;

use crate::reward::external::{Request, parse};
use crate::reward::server::{Server, without_secrets};
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

#[derive(Debug)]
pub struct HttpVerifier {
    server: Server,
    url: String,
    retries: u32,
}

impl HttpVerifier {
    pub fn new(spec: &HttpReward) -> Result<Self, reqwest::Error> {
        Ok(Self {
            server: Server::new(spec.timeout_seconds, spec.concurrency)?
                .with_token(spec.token_secret_ref.as_ref()),
            url: spec.url.clone(),
            retries: spec.retries,
        })
    }
}

impl Verifier for HttpVerifier {
    fn description(&self) -> String {
        format!("http {}", without_secrets(&self.url))
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        async move {
            let request = self.server.client.post(&self.url).json(&Request::new(None, question));
            parse(&self.server.call(request).await?, None)
        }
        .boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }
}
