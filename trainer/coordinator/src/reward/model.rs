//! Model reward: the score that a sequence classifier, served by SGLang or `rljob-engine`, gives to
//! the text of a prompt and a completion.
//!
//! ```text
//!  prompt, completion ─▶ template ─▶ POST /classify {"text"} ─▶ {"embedding": [score]}
//! ```

use futures::future::{BoxFuture, FutureExt as _};
use minijinja::Environment;
use rljob_crds::reward::ModelReward;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::jinja::strict_environment;
use crate::reward::external::unexpected;
use crate::reward::server::{Server, without_secrets};
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

const TEMPLATE: &str = "text";

#[derive(Debug)]
pub struct ModelVerifier {
    server: Server,
    /// Without a slash at the end.
    url: String,
    text: Environment<'static>,
    retries: u32,
    /// Set once the server has said that it serves a classifier.
    checked: OnceCell<()>,
}

/// The field of `GET /model_info` that tells a classifier.
#[derive(Deserialize)]
struct ModelInfo {
    is_generation: bool,
}

/// The field of a response of `/classify` with the scores.
#[derive(Deserialize)]
struct Classified {
    /// One number per label.
    embedding: Vec<f64>,
}

impl ModelVerifier {
    pub fn new(spec: &ModelReward) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut text = strict_environment();
        text.add_template_owned(TEMPLATE, spec.text.clone())?;
        Ok(Self {
            server: Server::new(spec.timeout_seconds, spec.concurrency)?
                .with_token(spec.token_secret_ref.as_ref()),
            url: spec.url.trim_end_matches('/').to_owned(),
            text,
            retries: spec.retries,
            checked: OnceCell::new(),
        })
    }

    async fn check(&self) -> Result<(), VerifierError> {
        let request = self.server.client.get(format!("{}/model_info", self.url));
        let body = self.server.call(request).await?;
        let info: ModelInfo = serde_json::from_slice(&body)
            .map_err(|error| unexpected(&body, "{\"is_generation\": false}", &error))?;
        if info.is_generation { Err(VerifierError::LanguageModel) } else { Ok(()) }
    }

    async fn classify(&self, question: Question<'_>) -> Result<Score, VerifierError> {
        self.checked.get_or_try_init(|| self.check()).await?;
        let Question { prompt, completion, .. } = question;
        let template = self.text.get_template(TEMPLATE).map_err(VerifierError::Text)?;
        let text = template.render(json!({"prompt": prompt, "completion": completion}));
        let text = text.map_err(VerifierError::Text)?;
        let url = format!("{}/classify", self.url);
        let body = self.server.call(self.server.client.post(url).json(&json!({"text": text})));
        let body = body.await?;
        let classified: Classified = serde_json::from_slice(&body)
            .map_err(|error| unexpected(&body, "{\"embedding\": [number]}", &error))?;
        match classified.embedding.as_slice() {
            [value] => Ok(Score { value: *value, ..Score::default() }),
            many => Err(VerifierError::Labels(many.len())),
        }
    }
}

impl Verifier for ModelVerifier {
    fn description(&self) -> String {
        format!("model {}", without_secrets(&self.url))
    }

    fn score<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Score, VerifierError>> {
        self.classify(question).boxed()
    }

    fn retries(&self) -> u32 {
        self.retries
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::{get, post};
    use rljob_crds::reward::ModelReward;
    use serde_json::json;

    use super::ModelVerifier;
    use crate::reward::verifier::{Question, Score, Verifier as _};

    /// Starts a server with these responses of `/model_info` and `/classify`, and scores a
    /// completion with it.
    async fn scored(info: &'static str, classified: &'static str) -> Result<Score, String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/models/", listener.local_addr().unwrap());
        let classify = async move |body: String| {
            assert_eq!(body, r#"{"text":"1+1=2</s>"}"#);
            classified
        };
        let routes = Router::new()
            .route("/models/model_info", get(async move || info))
            .route("/models/classify", post(classify));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let spec = json!({"url": url, "text": "{{prompt}}{{completion}}</s>"});
        let spec: ModelReward = serde_json::from_value(spec).unwrap();
        let question = Question { prompt: "1+1=", completion: "2", answer: None };
        let verifier = ModelVerifier::new(&spec).unwrap();
        verifier.score(question).await.map_err(|error| crate::error_line(&error))
    }

    #[tokio::test]
    async fn the_reward_is_the_only_number_that_the_server_returns_for_the_text() {
        let classified = r#"{"embedding": [-1.5], "meta_info": {"prompt_tokens": 6}}"#;
        let score = scored(r#"{"is_generation": false, "model_path": "m"}"#, classified).await;
        assert_eq!(score, Ok(Score { value: -1.5, ..Score::default() }));
    }

    #[tokio::test]
    async fn servers_without_a_reward_model_are_rejected() {
        let classifier = r#"{"is_generation": false}"#;
        for (info, classified, message) in [
            (
                r#"{"is_generation": true}"#,
                "",
                "the server generates text: serve a sequence classifier with one label (SGLang \
                 and rljob-engine: --is-embedding)",
            ),
            (
                "{}",
                "",
                "invalid response `{}`, expected {\"is_generation\": false}: missing field \
                 `is_generation` at line 1 column 2",
            ),
            (
                classifier,
                r#"{"embedding": [1, 2]}"#,
                "the classifier has 2 labels; a reward model has one",
            ),
            (
                classifier,
                "[]",
                "invalid response `[]`, expected {\"embedding\": [number]}: invalid length 0, \
                 expected struct Classified with 1 element at line 1 column 2",
            ),
        ] {
            assert_eq!(scored(info, classified).await, Err(message.to_owned()));
        }
    }
}
