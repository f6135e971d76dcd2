//! Served teacher of `distillation`: its log-probabilities of the tokens of a finished sample, from
//! SGLang or `rljob-engine`, at a URL or on engines of the job.
//!
//! ```text
//!  tokens   p0 p1 p2   c0 c1 c2   t0 t1   d0 d1         c, d: trained
//!  POST /generate {input_ids, max_new_tokens: 0, logprob_start_len: 2}
//!  reply         [–,p2] [l,c0] [l,c1] [l,c2] [l,t0] [l,t1] [l,d0] [l,d1]
//! ```
//!
//! Before the first call, the server tokenizes the texts of [`Probes`], which have the tokens of
//! the policy's tokenizer.
//!
//! Calls are retried, and wait for a server that is down, as those of rewards.

mod probes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rljob_crds::EnginePurpose;
use rljob_crds::algorithm::teacher::{TeacherCalls, TeacherSource};
use rljob_protocol::classifier::check_language_model;
use rljob_protocol::status::RewardOutage;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::engines::Fleet;
use crate::persistence::journal::Sample;
use crate::reward::{
    self, ModelEngines, RewardError, Server, Service, TokenizerMismatch, VerifierError, unexpected,
    without_secrets,
};
use crate::text::{TextError, TextTokenizer};

pub use probes::Probes;

/// Longest response in bytes: 64 for each token of a million.
const MAX_RESPONSE: usize = 64 << 20;
const EXPECTED: &str = "{\"meta_info\": {\"input_token_logprobs\": [[number, token id, text]]}}";

/// A teacher that a server or engines of the job serve.
#[derive(Debug)]
pub struct Teacher {
    backend: Backend,
    service: Service,
    /// Token that SGLang returns as 0: the last one of the vocabulary.
    last_token: i64,
    probes: Probes,
    /// Set once the server has a language model with the policy's tokenizer.
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

/// A teacher that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TeacherError {
    #[error("failed to create the client of the teacher's server")]
    Client(#[source] reqwest::Error),
    /// The folder of engines has no language model.
    #[error("{0}")]
    Folder(String),
    /// The tokenizer in the folder of engines.
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerMismatch),
}

/// Fields of `GET /model_info`.
#[derive(Deserialize)]
struct ModelInfo {
    is_generation: bool,
    #[serde(default)]
    model_path: String,
}

#[derive(Deserialize)]
struct Scored {
    meta_info: ScoredPrompt,
}

#[derive(Deserialize)]
struct ScoredPrompt {
    /// Of the tokens from `logprob_start_len` on; without a number for the first one.
    input_token_logprobs: Vec<ScoredToken>,
}

/// Log-probability, token, and its text if requested.
type ScoredToken = (Option<f64>, i64, Option<String>);

impl Teacher {
    /// The teacher of a policy with `vocab_size` tokens, whose tokenizer `probes` have; `None` if
    /// learners hold it. `fleet` has the engines of the job that serve a teacher.
    pub fn new(
        source: TeacherSource<'_>,
        fleet: Option<&Arc<Fleet>>,
        vocab_size: i64,
        probes: Probes,
    ) -> Result<Option<Self>, TeacherError> {
        let calls = source.calls();
        let backend = match (source.server, source.on_engines()) {
            (Some(server), _) => Backend::Server {
                server: Server::new(calls.timeout_seconds, calls.concurrency)
                    .map_err(TeacherError::Client)?
                    .with_max_response(MAX_RESPONSE)
                    .with_token(server.token_secret_ref.as_ref()),
                url: server.url.trim_end_matches('/').to_owned(),
            },
            (None, Some((path, _))) => {
                check_folder(Path::new(path), &probes)?;
                let TeacherCalls { timeout_seconds, concurrency, .. } = calls;
                let (purpose, fleet) = (EnginePurpose::Teacher, fleet.cloned());
                let engines = ModelEngines::new(purpose, fleet, timeout_seconds, concurrency);
                Backend::Engines { engines, path: path.to_owned() }
            }
            (None, None) => return Ok(None),
        };
        let max_outage = Duration::from_secs(calls.max_outage_seconds.into());
        Ok(Some(Self {
            service: Service::new(backend.label(), calls.retries, max_outage),
            backend,
            last_token: vocab_size.saturating_sub(1),
            probes,
            checked: OnceCell::new(),
        }))
    }

    /// Adds the teacher's log-probabilities to the trained segments of a sample.
    pub async fn add_logprobs(&self, sample: &mut Sample) -> Result<(), RewardError> {
        let tokens: Vec<i64> =
            sample.segments.iter().flat_map(|segment| &segment.tokens).copied().collect();
        let given = sample.segments.iter().take_while(|segment| !segment.trained);
        let given: usize = given.map(|segment| segment.tokens.len()).sum();
        // The first token of a sequence has no log-probability.
        let start = given.saturating_sub(1);
        let logprobs = self.service.call(|| self.logprobs(&tokens, start)).await?;
        let mut rest = logprobs.as_slice();
        let mut is_after = false;
        for segment in &mut sample.segments {
            is_after |= segment.trained;
            if is_after {
                let (own, after) = rest.split_at_checked(segment.tokens.len()).unwrap_or_default();
                rest = after;
                if segment.trained {
                    segment.teacher_logprobs = own.to_vec();
                }
            }
        }
        Ok(())
    }

    /// The outage, if the server is down.
    pub fn outage(&self) -> Option<RewardOutage> {
        self.service.outage()
    }

    /// Log-probabilities of the tokens after `start`.
    async fn logprobs(&self, tokens: &[i64], start: usize) -> Result<Vec<f32>, VerifierError> {
        self.checked.get_or_try_init(|| self.check()).await?;
        let prompt = (json!({"input_ids": tokens}), tokens.len());
        let (scored, body) = self.scored(prompt, start).await?;
        let asked = tokens.get(start..).unwrap_or_default();
        let found: Vec<i64> = scored.iter().map(|(_, token, _)| *token).collect();
        if !self.are_same(&found, asked) {
            return Err(unexpected(&body, EXPECTED, &"it has other tokens than the request"));
        }
        let finite = |logprob: &Option<f64>| logprob.filter(|logprob| logprob.is_finite());
        let logprobs = scored.iter().skip(1).map(|(logprob, ..)| Some(finite(logprob)? as f32));
        let logprobs: Option<Vec<f32>> = logprobs.collect();
        logprobs.ok_or_else(|| unexpected(&body, EXPECTED, &"a token has no log-probability"))
    }

    /// The tokens of a prompt of some `length` from `start` on with their log-probabilities, and
    /// the response.
    async fn scored(
        &self,
        (mut prompt, length): (Value, usize),
        start: usize,
    ) -> Result<(Vec<ScoredToken>, Vec<u8>), VerifierError> {
        let settings = json!({
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": true,
            "logprob_start_len": start,
        });
        if let (Value::Object(prompt), Value::Object(settings)) = (&mut prompt, settings) {
            prompt.extend(settings);
        }
        let body = match &self.backend {
            Backend::Server { server, url } => {
                server.call(server.client.post(format!("{url}/generate")).json(&prompt)).await?
            }
            Backend::Engines { engines, .. } => {
                engines.generate(&prompt, length as u64, MAX_RESPONSE).await?
            }
        };
        let scored: Scored =
            serde_json::from_slice(&body).map_err(|error| unexpected(&body, EXPECTED, &error))?;
        Ok((scored.meta_info.input_token_logprobs, body))
    }

    /// Whether the server means these tokens.
    fn are_same(&self, found: &[i64], tokens: &[i64]) -> bool {
        let is_same = |(found, token): (&i64, &i64)| {
            found == token || (*found == 0 && *token == self.last_token)
        };
        found.len() == tokens.len() && found.iter().zip(tokens).all(is_same)
    }

    async fn check(&self) -> Result<(), VerifierError> {
        let (server, url) = match &self.backend {
            Backend::Server { server, url } => (server, url),
            Backend::Engines { path, .. } => return self.check_tokenizer(path.clone()).await,
        };
        let body = server.call(server.client.get(format!("{url}/model_info"))).await?;
        let info: ModelInfo = serde_json::from_slice(&body)
            .map_err(|error| unexpected(&body, "{\"is_generation\": true}", &error))?;
        if !info.is_generation {
            return Err(VerifierError::Classifier);
        }
        self.check_tokenizer(info.model_path).await
    }

    /// Compares the tokens of the probes. A server may add special tokens around a text. One that
    /// takes no texts, such as SGLang with `--skip-tokenizer-init`, is not checked.
    async fn check_tokenizer(&self, teacher: String) -> Result<(), VerifierError> {
        for (text, expected) in self.probes.iter() {
            let prompt = (json!({"text": text}), text.len());
            let scored = match self.scored(prompt, 0).await {
                Err(VerifierError::Status { status, excerpt }) if status.as_u16() == 400 => {
                    let reason =
                        "the teacher's server takes no texts: its tokenizer is not compared";
                    tracing::warn!(teacher, excerpt, "{reason}");
                    return Ok(());
                }
                scored => scored?.0,
            };
            let found: Vec<i64> = scored.into_iter().map(|(_, token, _)| token).collect();
            if !found.windows(expected.len()).any(|part| self.are_same(part, expected)) {
                let mismatch = self.probes.mismatch(teacher, text, found, expected);
                return Err(VerifierError::Tokenizer(Box::new(mismatch)));
            }
        }
        Ok(())
    }
}

impl Backend {
    /// Name of the teacher for messages, without secrets.
    fn label(&self) -> String {
        match self {
            Self::Server { url, .. } => format!("teacher {}", without_secrets(url)),
            Self::Engines { path, .. } => format!("teacher {path} on engines of the job"),
        }
    }
}

/// Checks the folder of a teacher that engines of the job serve: it has a language model with the
/// tokenizer of the policy. Files that do not exist yet are not checked. Blocks.
///
/// # Errors
/// A file cannot be read, or is another model's.
pub fn check_folder(folder: &Path, probes: &Probes) -> Result<(), TeacherError> {
    reward::check_folder(folder, check_language_model).map_err(TeacherError::Folder)?;
    if !folder.join("tokenizer.json").is_file() {
        return Ok(());
    }
    let tokenizer = TextTokenizer::open(folder)?;
    for (text, expected) in probes.iter() {
        let found = tokenizer.encode(text)?;
        if found != expected {
            let teacher = folder.display().to_string();
            return Err(probes.mismatch(teacher, text, found, expected).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
