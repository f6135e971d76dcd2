//! Served teacher of `distillation`: its log-probabilities of the tokens of a finished sample, from
//! SGLang or `rljob-engine`.
//!
//! ```text
//!  tokens   p0 p1 p2   c0 c1 c2   t0 t1   d0 d1         c, d: trained
//!  POST /generate {input_ids, max_new_tokens: 0, logprob_start_len: 2}
//!  reply         [–,p2] [l,c0] [l,c1] [l,c2] [l,t0] [l,t1] [l,d0] [l,d1]
//! ```
//!
//! Calls are retried, and wait for a server that is down, as those of rewards.

use std::time::Duration;

use rljob_crds::distillation::TeacherServer;
use rljob_protocol::status::RewardOutage;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::persistence::journal::Sample;
use crate::reward::{RewardError, Server, Service, VerifierError, unexpected, without_secrets};

/// Longest response in bytes: 64 for each token of a million.
const MAX_RESPONSE: usize = 64 << 20;
const EXPECTED: &str = "{\"meta_info\": {\"input_token_logprobs\": [[number, token id, text]]}}";

/// The server of a teacher.
#[derive(Debug)]
pub struct Teacher {
    server: Server,
    /// Without a slash at the end.
    url: String,
    service: Service,
    /// Token that SGLang returns as 0: the last one of the vocabulary.
    last_token: i64,
    /// Set once the server has said that it serves a language model.
    checked: OnceCell<()>,
}

/// The field of `GET /model_info` that tells a language model.
#[derive(Deserialize)]
struct ModelInfo {
    is_generation: bool,
}

#[derive(Deserialize)]
struct Scored {
    meta_info: ScoredPrompt,
}

#[derive(Deserialize)]
struct ScoredPrompt {
    /// Of the tokens from `logprob_start_len` on; without a number for the first one.
    input_token_logprobs: Vec<(Option<f64>, i64, Option<String>)>,
}

impl Teacher {
    /// A teacher of a policy with `vocab_size` tokens.
    pub fn new(spec: &TeacherServer, vocab_size: i64) -> Result<Self, reqwest::Error> {
        let url = spec.url.trim_end_matches('/').to_owned();
        let label = format!("teacher {}", without_secrets(&url));
        let max_outage = Duration::from_secs(spec.max_outage_seconds.into());
        Ok(Self {
            server: Server::new(spec.timeout_seconds, spec.concurrency)?
                .with_max_response(MAX_RESPONSE)
                .with_token(spec.token_secret_ref.as_ref()),
            url,
            service: Service::new(label, spec.retries, max_outage),
            last_token: vocab_size.saturating_sub(1),
            checked: OnceCell::new(),
        })
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
        let request = json!({
            "input_ids": tokens,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": true,
            "logprob_start_len": start,
        });
        let url = format!("{}/generate", self.url);
        let body = self.server.call(self.server.client.post(url).json(&request)).await?;
        let scored: Scored =
            serde_json::from_slice(&body).map_err(|error| unexpected(&body, EXPECTED, &error))?;
        let scored = scored.meta_info.input_token_logprobs;
        let asked = tokens.get(start..).unwrap_or_default();
        let is_same = |((_, found, _), token): (&(_, i64, _), &i64)| {
            found == token || (*found == 0 && *token == self.last_token)
        };
        if scored.len() != asked.len() || !scored.iter().zip(asked).all(is_same) {
            return Err(unexpected(&body, EXPECTED, &"it has other tokens than the request"));
        }
        let finite = |logprob: &Option<f64>| logprob.filter(|logprob| logprob.is_finite());
        let logprobs = scored.iter().skip(1).map(|(logprob, ..)| Some(finite(logprob)? as f32));
        let logprobs: Option<Vec<f32>> = logprobs.collect();
        logprobs.ok_or_else(|| unexpected(&body, EXPECTED, &"a token has no log-probability"))
    }

    async fn check(&self) -> Result<(), VerifierError> {
        let body = self.server.call(self.server.client.get(format!("{}/model_info", self.url)));
        let body = body.await?;
        let info: ModelInfo = serde_json::from_slice(&body)
            .map_err(|error| unexpected(&body, "{\"is_generation\": true}", &error))?;
        if info.is_generation { Ok(()) } else { Err(VerifierError::Classifier) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use axum::Router;
    use axum::routing::{get, post};
    use rljob_crds::distillation::TeacherServer;
    use serde_json::{Value, json};

    use super::Teacher;
    use crate::persistence::journal::{Sample, Segment};

    fn segment(tokens: &[i64], trained: bool) -> Segment {
        Segment { tokens: tokens.to_vec(), trained, ..Segment::default() }
    }

    fn sample() -> Sample {
        let parts: [(&[i64], bool); 4] =
            [(&[5, 6], false), (&[7, 8], true), (&[9], false), (&[7], true)];
        Sample {
            position: 0,
            index: 0,
            row: 0,
            segments: parts.map(|(tokens, trained)| segment(tokens, trained)).into(),
            finish_reason: "stop".to_owned(),
            sampling: Value::Null,
            reward: 0.0,
            reward_components: BTreeMap::new(),
            turn_rewards: vec![0.0, 0.0],
            metadata: serde_json::Map::new(),
        }
    }

    /// Log-probabilities of the segments by a server with these responses.
    async fn added(info: &'static str, scored: Value) -> Result<Vec<Vec<f32>>, String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let generate = async move |body: String| {
            let expected = json!({
                "input_ids": [5, 6, 7, 8, 9, 7], "return_logprob": true, "logprob_start_len": 1,
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            });
            assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
            json!({"meta_info": {"input_token_logprobs": scored, "id": "1"}}).to_string()
        };
        let routes = Router::new()
            .route("/model_info", get(async move || info))
            .route("/generate", post(generate));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let spec: TeacherServer =
            serde_json::from_value(json!({"url": url, "retries": 0})).unwrap();
        let mut sample = sample();
        let result = Teacher::new(&spec, 10).unwrap().add_logprobs(&mut sample).await;
        result.map_err(|error| crate::error_line(&error).replace(&url, "URL"))?;
        Ok(sample.segments.into_iter().map(|segment| segment.teacher_logprobs).collect())
    }

    #[tokio::test]
    async fn trained_segments_get_the_log_probabilities_of_their_tokens() {
        let scored = json!([
            [null, 6, null],
            [-1.5, 7, null],
            [-0.25, 8, null],
            [-9.0, 0, null],
            [-2.0, 7, null],
        ]);
        let found = added(r#"{"is_generation": true, "model_path": "m"}"#, scored).await.unwrap();
        assert_eq!(found, [vec![], vec![-1.5, -0.25], vec![], vec![-2.0]]);
    }

    #[tokio::test]
    async fn responses_about_other_tokens_and_servers_without_a_language_model_are_errors() {
        let model = r#"{"is_generation": true}"#;
        let other = json!([[null, 6, null], [-1.5, 4, null]]);
        let error = added(model, other).await.unwrap_err();
        assert!(error.starts_with("teacher URL failed 1 times for a completion; "), "{error}");
        assert!(error.ends_with(": it has other tokens than the request"), "{error}");
        let missing = json!([
            [null, 6, null],
            [null, 7, null],
            [-0.25, 8, null],
            [-9.0, 9, null],
            [-2.0, 7, null],
        ]);
        let error = added(model, missing).await.unwrap_err();
        assert!(error.ends_with(": a token has no log-probability"), "{error}");
        let error = added(r#"{"is_generation": false}"#, json!([])).await.unwrap_err();
        let expected = "the server scores text and has no log-probabilities: serve the teacher as \
            a language model (SGLang and rljob-engine: without --is-embedding)";
        assert!(error.ends_with(expected), "{error}");
    }
}
