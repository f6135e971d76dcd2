//! State of an accepted request: tokens and finish reason. Contains no tensors.

mod response;

use std::time::Instant;

use rljob_text::{Detokenizer, TextError, TextTokenizer};

use crate::forward::Row;
use crate::generation::FinishReason;
use crate::request::QueuedRequest;
use crate::sampling::{Draw, Sampled};

/// A waiting or running request.
#[derive(Debug)]
pub struct Sequence {
    job: QueuedRequest,
    seed: u64,
    cached_tokens: usize,
    retractions: u32,
    /// Scored prompt tokens.
    scored: Vec<Sampled>,
    sampled: Vec<Sampled>,
    /// Only for requests that stream text.
    detokenizer: Option<Detokenizer>,
    started: Option<Instant>,
}

impl Sequence {
    /// Creates a waiting request; `seed` is the default seed.
    pub fn new(job: QueuedRequest, seed: u64) -> Self {
        let seed = job.request.sampling.seed.unwrap_or(seed);
        let detokenizer = job.request.stream.then(|| {
            Detokenizer::new(&job.request.input_ids, job.request.sampling.skip_special_tokens)
        });
        Self {
            seed,
            job,
            cached_tokens: 0,
            retractions: 0,
            scored: Vec::new(),
            sampled: Vec::new(),
            detokenizer,
            started: None,
        }
    }

    pub fn rid(&self) -> &str {
        &self.job.request.rid
    }

    /// Whether the client has disconnected.
    pub fn is_disconnected(&self) -> bool {
        self.job.done.is_closed()
    }

    /// Whether the request asks for zero tokens.
    pub fn wants_no_tokens(&self) -> bool {
        self.job.max_new_tokens == 0
    }

    /// Start of the prompt log-probabilities that are still to be computed, and the number of most
    /// likely tokens per position.
    pub fn to_score(&self) -> Option<(usize, usize)> {
        let logprobs = self.job.request.logprobs.filter(|_| self.scored.is_empty())?;
        Some((logprobs.start?, logprobs.top))
    }

    /// Tokens to prefill: the prompt and, after a retraction, the tokens generated so far.
    pub fn context(&self) -> Vec<i64> {
        self.job
            .request
            .input_ids
            .iter()
            .copied()
            .chain(self.sampled.iter().map(|sampled| sampled.token))
            .collect()
    }

    /// Whether the context is only the prompt.
    pub fn is_fresh(&self) -> bool {
        self.sampled.is_empty()
    }

    /// Maximum number of token positions.
    pub fn longest(&self) -> usize {
        self.job.request.input_ids.len() + self.job.max_new_tokens
    }

    /// Marks the context as computed; `cached` of its tokens were cached.
    pub fn start(&mut self, cached: usize, scored: Vec<Sampled>, now: Instant) {
        if self.is_fresh() {
            (self.cached_tokens, self.scored) = (cached, scored);
        }
        self.started.get_or_insert(now);
    }

    /// Seconds from arrival to the first start.
    pub fn waited(&self) -> Option<f64> {
        self.started
            .map(|started| started.saturating_duration_since(self.job.arrival).as_secs_f64())
    }

    /// Seconds since arrival.
    pub fn age(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.job.arrival).as_secs_f64()
    }

    /// Moves the request back to the queue. `restart` discards its tokens, so that they equal those
    /// of an uninterrupted run.
    pub fn retract(&mut self, restart: bool) {
        self.retractions += 1;
        if restart {
            self.sampled.clear();
            if let Some(detokenizer) = &mut self.detokenizer {
                *detokenizer = Detokenizer::new(
                    &self.job.request.input_ids,
                    self.job.request.sampling.skip_special_tokens,
                );
            }
        }
    }

    /// Positions in the cache while running: all except that of the newest token.
    pub fn cached_length(&self) -> usize {
        self.job.request.input_ids.len() + self.sampled.len().saturating_sub(1)
    }

    /// Input of the next decode step: the newest token at its position.
    pub fn row(&self) -> Row {
        Row {
            token: self.sampled.last().map_or(0, |sampled| sampled.token),
            position: self.cached_length(),
        }
    }

    /// Sampling parameters of the next token.
    pub fn draw(&self, eos: &[i64]) -> Draw {
        let (sampling, logprobs) = (&self.job.request.sampling, self.job.request.logprobs);
        Draw {
            // With one candidate, sampling is greedy, including its log-probability, as in SGLang.
            temperature: if sampling.top_k == 1 { 0.0 } else { sampling.temperature },
            top_p: sampling.top_p,
            top_k: usize::try_from(sampling.top_k).ok(),
            min_p: sampling.min_p,
            seed: self.seed,
            position: self.sampled.len() as u64,
            top_logprobs: logprobs.map_or(0, |logprobs| logprobs.top),
            addends: self.addends(eos),
        }
    }

    /// Logit addends of penalties and the minimum length.
    fn addends(&self, eos: &[i64]) -> Vec<(i64, f32)> {
        let sampling = &self.job.request.sampling;
        let mut addends = Vec::new();
        if sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0 {
            let mut tokens: Vec<i64> = self.sampled.iter().map(|sampled| sampled.token).collect();
            tokens.sort_unstable();
            for run in tokens.chunk_by(|a, b| a == b) {
                addends.push((
                    run[0],
                    -(sampling.presence_penalty + sampling.frequency_penalty * run.len() as f64)
                        as f32,
                ));
            }
        }
        if (self.sampled.len() as i64) < sampling.min_new_tokens {
            addends.extend(
                eos.iter().chain(&sampling.stop_token_ids).map(|token| (*token, f32::NEG_INFINITY)),
            );
        }
        addends
    }

    /// Appends a token and returns the finish reason, if any. The length limit precedes a stop
    /// token, as in SGLang.
    pub fn push(
        &mut self,
        sampled: Sampled,
        eos: &[i64],
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<Option<FinishReason>, TextError> {
        let token = sampled.token;
        self.sampled.push(sampled);
        let sampling = &self.job.request.sampling;
        if self.sampled.len() >= self.job.max_new_tokens {
            return Ok(Some(FinishReason::Length(self.job.max_new_tokens)));
        }
        if !sampling.ignore_eos
            && (sampling.stop_token_ids.contains(&token) || eos.contains(&token))
        {
            return Ok(Some(FinishReason::StopToken(token)));
        }
        let tail = self.tail(tokenizer)?;
        Ok(sampling
            .stop
            .iter()
            .find(|stop| tail.contains(stop.as_str()))
            .map(|stop| FinishReason::StopText(stop.clone())))
    }

    /// Text of the newest tokens, long enough for any stop string; empty without stop strings.
    fn tail(&self, tokenizer: Option<&TextTokenizer>) -> Result<String, TextError> {
        let (Some(tokenizer), Some(longest)) =
            (tokenizer, self.job.request.sampling.stop.iter().map(String::len).max())
        else {
            return Ok(String::new());
        };
        // Every token except special ones has at least one byte of text; a few more cover special
        // tokens.
        let tokens: Vec<i64> = self
            .sampled
            .iter()
            .rev()
            .take(longest + 8)
            .rev()
            .map(|sampled| sampled.token)
            .collect();
        tokenizer.decode_as(&tokens, false)
    }
}
