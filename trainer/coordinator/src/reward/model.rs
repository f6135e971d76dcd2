//! Model reward: the score that a sequence classifier gives to the text of a prompt and a
//! completion. A server or engines of the job serve it.
//!
//! ```text
//!  prompt, completion ─▶ template ─▶ POST /classify {"text"} ─▶ {"embedding": [score]}
//! ```

use std::path::Path;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _};
use minijinja::Environment;
use rljob_crds::EnginePurpose;
use rljob_crds::model_reward::ModelReward;
use rljob_protocol::classifier::check_reward_model;
use rljob_protocol::sglang::{Classified, ClassifyRequest};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::engines::Fleet;
use crate::jinja::strict_environment;
use crate::reward::engines::{ModelEngines, check_folder};
use crate::reward::external::unexpected;
use crate::reward::server::{Server, without_secrets};
use crate::reward::verifier::{Question, Score, Verifier, VerifierError};

const TEMPLATE: &str = "text";

#[derive(Debug)]
pub struct ModelVerifier {
    backend: Backend,
    text: Environment<'static>,
    retries: u32,
    /// Set once the server has said that it serves a classifier.
    checked: OnceCell<()>,
}

/// What serves the model.
#[derive(Debug)]
enum Backend {
    /// A server outside the job, at a URL without a slash at the end.
    Server { server: Server, url: String },
    /// Engines of the job, with the model in a folder.
    Engines { engines: ModelEngines, path: String },
}

/// The field of `GET /model_info` that tells a classifier.
#[derive(Deserialize)]
struct ModelInfo {
    is_generation: bool,
}

impl ModelVerifier {
    /// `fleet` has the engines of the job that serve a reward model.
    pub fn new(
        spec: &ModelReward,
        fleet: Option<&Arc<Fleet>>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut text = strict_environment();
        text.add_template_owned(TEMPLATE, spec.text.clone())?;
        if let Some((path, _)) = spec.served() {
            check_folder(Path::new(path), check_reward_model)?;
        }
        let backend = match (spec.served(), &spec.url) {
            (Some((path, _)), _) => Backend::Engines {
                engines: ModelEngines::new(
                    EnginePurpose::Reward,
                    fleet.cloned(),
                    spec.timeout_seconds,
                    spec.concurrency,
                ),
                path: path.to_owned(),
            },
            (None, Some(url)) => Backend::Server {
                server: Server::new(spec.timeout_seconds, spec.concurrency)?
                    .with_token(spec.token_secret_ref.as_ref()),
                url: url.trim_end_matches('/').to_owned(),
            },
            (None, None) => return Err("neither url nor engines are set".into()),
        };
        Ok(Self { backend, text, retries: spec.retries, checked: OnceCell::new() })
    }

    /// Checks that a server has a classifier, once.
    async fn check(&self, server: &Server, url: &str) -> Result<(), VerifierError> {
        let check = async || {
            let body = server.call(server.client.get(format!("{url}/model_info"))).await?;
            let info: ModelInfo = serde_json::from_slice(&body)
                .map_err(|error| unexpected(&body, "{\"is_generation\": false}", &error))?;
            if info.is_generation { Err(VerifierError::LanguageModel) } else { Ok(()) }
        };
        self.checked.get_or_try_init(check).await.copied()
    }

    async fn classify(&self, question: Question<'_>) -> Result<Score, VerifierError> {
        let Question { prompt, completion, .. } = question;
        let template = self.text.get_template(TEMPLATE).map_err(VerifierError::Text)?;
        let text = template.render(json!({"prompt": prompt, "completion": completion}));
        let text = text.map_err(VerifierError::Text)?;
        let classified: Classified = match &self.backend {
            Backend::Server { server, url } => {
                self.check(server, url).await?;
                let request = server.client.post(format!("{url}/classify"));
                let body = server.call(request.json(&ClassifyRequest { text })).await?;
                serde_json::from_slice(&body)
                    .map_err(|error| unexpected(&body, "{\"embedding\": [number]}", &error))?
            }
            Backend::Engines { engines, .. } => engines.classify(&text).await?,
        };
        match classified.embedding.as_slice() {
            [value] => Ok(Score { value: *value, ..Score::default() }),
            many => Err(VerifierError::Labels(many.len())),
        }
    }
}

impl Verifier for ModelVerifier {
    fn description(&self) -> String {
        match &self.backend {
            Backend::Server { url, .. } => format!("model {}", without_secrets(url)),
            Backend::Engines { path, .. } => format!("model {path} on engines of the job"),
        }
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
    use rljob_crds::model_reward::ModelReward;
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
        let question = Question { prompt: "1+1=", completion: "2", answer: None, fields: None };
        let verifier = ModelVerifier::new(&spec, None).unwrap();
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

    #[test]
    fn the_model_of_engines_is_a_classifier_with_one_label() {
        let folder = tempfile::tempdir().unwrap();
        let spec = json!({"path": folder.path(), "engines": {}, "text": "{{completion}}"});
        let spec: ModelReward = serde_json::from_value(spec).unwrap();
        let opened =
            || ModelVerifier::new(&spec, None).map(drop).map_err(|error| error.to_string());
        assert_eq!(opened(), Ok(()), "another job may write it");
        let file = folder.path().join("config.json");
        std::fs::write(&file, r#"{"architectures": ["Qwen3ForCausalLM"]}"#).unwrap();
        let message = opened().unwrap_err();
        let start = format!("{} has the architecture \"Qwen3ForCausalLM\"", file.display());
        assert!(message.starts_with(&start), "{message}");
    }
}
