//! One running request: its tokens so far, when it ends, and its answer. No tensors here.

use std::time::Instant;

use rljob_protocol::sglang::{FinishReason, GenerateResponse, MetaInfo};

use crate::forward::Row;
use crate::request::{GenerateError, Job};
use crate::sampling::{Draw, Sampled};

/// A request that has been started.
#[derive(Debug)]
pub struct Sequence {
    job: Job,
    seed: u64,
    cached_tokens: u32,
    sampled: Vec<Sampled>,
}

impl Sequence {
    /// A request whose prompt is computed. `seed` is used if the request brings none.
    pub fn new(job: Job, seed: u64, cached_tokens: u32) -> Self {
        Self { seed: job.request.sampling_params.sampling_seed.unwrap_or(seed), job, cached_tokens, sampled: Vec::new() }
    }

    /// Request id.
    pub fn rid(&self) -> &str {
        &self.job.request.rid
    }

    /// Whether nobody waits for the answer any more.
    pub fn abandoned(&self) -> bool {
        self.job.done.is_closed()
    }

    /// Token positions the request may come to.
    pub fn longest(&self) -> usize {
        longest(&self.job)
    }

    /// Positions whose keys and values are in the cache once the prompt is, which is all but the newest token's.
    pub fn cached_length(&self) -> usize {
        self.job.request.input_ids.len() + self.sampled.len().saturating_sub(1)
    }

    /// What the next decode step feeds: the newest token, at its position.
    pub fn row(&self) -> Row {
        Row { token: self.sampled.last().map_or(0, |sampled| sampled.token), position: self.cached_length() }
    }

    /// How the next token is drawn.
    pub fn draw(&self) -> Draw {
        Draw { temperature: self.job.request.sampling_params.temperature, seed: self.seed, position: self.sampled.len() as u64 }
    }

    /// Takes a token, and says why the request ends with it, if it does. Length counts before a stop token, as in SGLang.
    pub fn push(&mut self, sampled: Sampled, eos: &[i64]) -> Option<FinishReason> {
        self.sampled.push(sampled);
        let sampling = &self.job.request.sampling_params;
        if self.sampled.len() >= sampling.max_new_tokens as usize {
            return Some(FinishReason::Length { length: sampling.max_new_tokens });
        }
        let stops = !sampling.ignore_eos && (sampling.stop_token_ids.contains(&sampled.token) || eos.contains(&sampled.token));
        stops.then(|| FinishReason::Stop { matched: sampled.token.into() })
    }

    /// Sends the answer so far, if the request streams.
    pub fn stream(&self, version: &str, now: Instant) {
        if let Some(partial) = &self.job.partial {
            partial.send_replace(Some(self.response(None, version, now)));
        }
    }

    /// Answers.
    pub fn finish(self, reason: FinishReason, version: &str, now: Instant) {
        let response = self.response(Some(reason), version, now);
        // A client that is gone needs no answer.
        let _ = self.job.done.send(Ok(response));
    }

    /// Answers with an error.
    pub fn fail(self, error: GenerateError) {
        let _ = self.job.done.send(Err(error));
    }

    fn response(&self, finish_reason: Option<FinishReason>, version: &str, now: Instant) -> GenerateResponse {
        let request = &self.job.request;
        let logprobs = self.sampled.iter().filter(|_| request.return_logprob).map(|sampled| (sampled.logprob, sampled.token, None));
        GenerateResponse {
            text: String::new(),
            output_ids: self.sampled.iter().map(|sampled| sampled.token).collect(),
            meta_info: MetaInfo {
                id: request.rid.clone(),
                finish_reason,
                prompt_tokens: request.input_ids.len() as u32,
                completion_tokens: self.sampled.len() as u32,
                cached_tokens: self.cached_tokens,
                weight_version: version.to_owned(),
                output_token_logprobs: logprobs.collect(),
                e2e_latency: now.saturating_duration_since(self.job.arrival).as_secs_f64(),
            },
        }
    }
}

/// Token positions a request may come to.
pub fn longest(job: &Job) -> usize {
    job.request.input_ids.len() + job.request.sampling_params.max_new_tokens as usize
}
