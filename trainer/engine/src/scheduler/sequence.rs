//! State of an accepted request: tokens, finish reason and response. Contains no tensors.

use std::time::Instant;

use rljob_text::{TextError, TextTokenizer};

use crate::detokenizer::Detokenizer;
use crate::forward::Row;
use crate::generation::{
    FinishReason, Generation, GenerationLogprobs, GenerationMeta, TokenLogprob, TopLogprobs,
};
use crate::request::{GenerateError, QueuedRequest};
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

    /// Sends a partial response to a streaming request every `interval` tokens, from the first one
    /// on, unless its end may start a stop string.
    pub fn stream(
        &mut self,
        interval: u32,
        version: &str,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<(), TextError> {
        let Some(detokenizer) = &mut self.detokenizer else { return Ok(()) };
        if let (Some(tokenizer), Some(newest)) = (tokenizer, self.sampled.last()) {
            detokenizer.push(tokenizer, &[newest.token])?;
        }
        let interval = self.job.request.sampling.stream_interval.unwrap_or(interval.into());
        let interval = usize::try_from(interval).unwrap_or(1).max(1);
        if !self.sampled.len().saturating_sub(1).is_multiple_of(interval) {
            return Ok(());
        }
        let text = detokenizer.so_far();
        let tail = self.tail(tokenizer)?;
        let begins = |stop: &String| {
            (1..=stop.len()).any(|end| stop.is_char_boundary(end) && tail.ends_with(&stop[..end]))
        };
        if let Some(partial) =
            self.job.partial.as_ref().filter(|_| !self.job.request.sampling.stop.iter().any(begins))
        {
            partial.send_replace(Some(self.generation(text, None, version, None, tokenizer)?));
        }
        Ok(())
    }

    /// Sends the final response.
    pub fn finish(
        self,
        reason: FinishReason,
        version: &str,
        now: Instant,
        tokenizer: Option<&TextTokenizer>,
    ) {
        let latency = Some(self.age(now));
        let generation = self
            .text(&reason, tokenizer)
            .and_then(|text| self.generation(text, Some(reason), version, latency, tokenizer));
        let _ = self
            .job
            .done
            .send(generation.map_err(|error| GenerateError::Internal(error.to_string())));
    }

    /// Sends an error.
    pub fn fail(self, error: GenerateError) {
        let _ = self.job.done.send(Err(error));
    }

    /// Text of the completion without the stop string or token.
    fn text(
        &self,
        reason: &FinishReason,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<String, TextError> {
        let Some(tokenizer) = tokenizer else { return Ok(String::new()) };
        let (request, mut tokens) = (&self.job.request, self.tokens());
        let trim = !request.sampling.no_stop_trim;
        if trim && matches!(reason, FinishReason::StopToken(_)) {
            tokens.pop();
        }
        let mut detokenizer =
            Detokenizer::new(&request.input_ids, request.sampling.skip_special_tokens);
        detokenizer.push(tokenizer, &tokens)?;
        let mut text = detokenizer.whole();
        if let FinishReason::StopText(stop) = reason
            && trim
            && let Some(end) = text.find(stop.as_str())
        {
            text.truncate(end);
        }
        Ok(text)
    }

    fn tokens(&self) -> Vec<i64> {
        self.sampled.iter().map(|sampled| sampled.token).collect()
    }

    fn generation(
        &self,
        text: String,
        reason: Option<FinishReason>,
        version: &str,
        latency: Option<f64>,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<Generation, TextError> {
        let request = &self.job.request;
        let meta_info = GenerationMeta {
            id: request.rid.clone(),
            finish_reason: reason,
            prompt_tokens: request.input_ids.len(),
            weight_version: version.to_owned(),
            num_retractions: self.retractions,
            logprobs: self.logprobs(tokenizer)?,
            completion_tokens: self.sampled.len(),
            cached_tokens: self.cached_tokens,
            e2e_latency: latency,
        };
        Ok(Generation { text, output_ids: self.tokens(), meta_info, index: None })
    }

    fn logprobs(
        &self,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<Option<GenerationLogprobs>, TextError> {
        let Some(wanted) = self.job.request.logprobs else { return Ok(None) };
        let text = |token: i64| {
            tokenizer
                .filter(|_| wanted.text)
                .map(|tokenizer| tokenizer.decode_as(&[token], false))
                .transpose()
        };
        let one = |logprob: Option<f64>, token: i64| {
            Ok::<TokenLogprob, TextError>((logprob, token, text(token)?))
        };
        let all = |sampled: &[Sampled]| {
            sampled
                .iter()
                .map(|sampled| one(Some(sampled.logprob), sampled.token))
                .collect::<Result<Vec<_>, _>>()
        };
        let tops = |sampled: &Sampled| {
            sampled
                .top
                .iter()
                .map(|(logprob, token)| one(Some(*logprob), *token))
                .collect::<Result<Vec<_>, _>>()
        };
        let first =
            wanted.start.map(|start| one(None, self.job.request.input_ids[start])).transpose()?;
        let top = || {
            let of_prompt = self.scored.iter().map(|sampled| tops(sampled).map(Some));
            let input_top_logprobs = first
                .iter()
                .map(|_| Ok(None))
                .chain(of_prompt)
                .collect::<Result<_, TextError>>()?;
            Ok::<_, TextError>(TopLogprobs {
                input_top_logprobs,
                output_top_logprobs: self.sampled.iter().map(tops).collect::<Result<_, _>>()?,
            })
        };
        Ok(Some(GenerationLogprobs {
            input_token_logprobs: first.clone().into_iter().chain(all(&self.scored)?).collect(),
            output_token_logprobs: all(&self.sampled)?,
            output_token_logprobs_length: self.sampled.len(),
            top: (wanted.top > 0).then(top).transpose()?,
        }))
    }
}
