//! One accepted request: its tokens so far, when it ends, and its answer. No tensors here.

use std::time::Instant;

use rljob_text::{TextError, TextTokenizer};

use crate::answer::{Answer, Finish, Meta, MetaLogprobs, TokenLogprob, TopLogprobs};
use crate::detokenizer::Detokenizer;
use crate::forward::Row;
use crate::request::{GenerateError, Job};
use crate::sampling::{Draw, Sampled};

/// A request that waits or runs.
#[derive(Debug)]
pub struct Sequence {
    job: Job,
    seed: u64,
    cached_tokens: usize,
    retractions: u32,
    /// Of the prompt's tokens after the first asked for.
    scored: Vec<Sampled>,
    sampled: Vec<Sampled>,
    /// Only of requests that stream text.
    detokenizer: Option<Detokenizer>,
    started: Option<Instant>,
}

impl Sequence {
    /// A request that waits. `seed` is used if the request brings none.
    pub fn new(job: Job, seed: u64) -> Self {
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

    /// Request id.
    pub fn rid(&self) -> &str {
        &self.job.request.rid
    }

    /// Whether nobody waits for the answer any more.
    pub fn abandoned(&self) -> bool {
        self.job.done.is_closed()
    }

    /// Whether it wants no token.
    pub fn wants_nothing(&self) -> bool {
        self.job.max_new_tokens == 0
    }

    /// Where the log-probabilities of its prompt that are still to be computed begin, and how many
    /// likeliest tokens go with each.
    pub fn to_score(&self) -> Option<(usize, usize)> {
        let logprobs = self.job.request.logprobs.filter(|_| self.scored.is_empty())?;
        Some((logprobs.start?, logprobs.top))
    }

    /// What must be computed before it runs: the prompt, and the tokens it has if a pause took it
    /// back.
    pub fn context(&self) -> Vec<i64> {
        self.job
            .request
            .input_ids
            .iter()
            .copied()
            .chain(self.sampled.iter().map(|sampled| sampled.token))
            .collect()
    }

    /// Whether the context is the prompt alone.
    pub fn is_fresh(&self) -> bool {
        self.sampled.is_empty()
    }

    /// Token positions it may come to.
    pub fn longest(&self) -> usize {
        self.job.request.input_ids.len() + self.job.max_new_tokens
    }

    /// Its context is computed; `cached` tokens of it were there.
    pub fn start(&mut self, cached: usize, scored: Vec<Sampled>, now: Instant) {
        if self.is_fresh() {
            (self.cached_tokens, self.scored) = (cached, scored);
        }
        self.started.get_or_insert(now);
    }

    /// Seconds that it waited before it ran for the first time.
    pub fn waited(&self) -> Option<f64> {
        self.started
            .map(|started| started.saturating_duration_since(self.job.arrival).as_secs_f64())
    }

    /// Seconds since it came.
    pub fn age(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.job.arrival).as_secs_f64()
    }

    /// A pause takes it back to the queue. `restart` forgets its tokens, so that they are those of
    /// an uninterrupted run.
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

    /// Positions whose keys and values are in the cache once it runs, which is all but the newest
    /// token's.
    pub fn cached_length(&self) -> usize {
        self.job.request.input_ids.len() + self.sampled.len().saturating_sub(1)
    }

    /// What the next decode step feeds: the newest token, at its position.
    pub fn row(&self) -> Row {
        Row {
            token: self.sampled.last().map_or(0, |sampled| sampled.token),
            position: self.cached_length(),
        }
    }

    /// How the next token is drawn.
    pub fn draw(&self, eos: &[i64]) -> Draw {
        let (sampling, logprobs) = (&self.job.request.sampling, self.job.request.logprobs);
        Draw {
            // One token to choose from is no choice: greedy, log-probabilities included, as in
            // SGLang.
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

    /// What penalties and the least length add to logits.
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

    /// Takes a token, and says why the request ends with it, if it does. Length counts before a
    /// stop token, as in SGLang.
    pub fn push(
        &mut self,
        sampled: Sampled,
        eos: &[i64],
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<Option<Finish>, TextError> {
        let token = sampled.token;
        self.sampled.push(sampled);
        let sampling = &self.job.request.sampling;
        if self.sampled.len() >= self.job.max_new_tokens {
            return Ok(Some(Finish::Length(self.job.max_new_tokens)));
        }
        if !sampling.ignore_eos
            && (sampling.stop_token_ids.contains(&token) || eos.contains(&token))
        {
            return Ok(Some(Finish::StopToken(token)));
        }
        let tail = self.tail(tokenizer)?;
        Ok(sampling
            .stop
            .iter()
            .find(|stop| tail.contains(stop.as_str()))
            .map(|stop| Finish::StopText(stop.clone())))
    }

    /// Text of the newest tokens, as long as a stop string can be; empty if there is none to look
    /// for.
    fn tail(&self, tokenizer: Option<&TextTokenizer>) -> Result<String, TextError> {
        let (Some(tokenizer), Some(longest)) =
            (tokenizer, self.job.request.sampling.stop.iter().map(String::len).max())
        else {
            return Ok(String::new());
        };
        // No token has less than a byte of text, but special ones; a few more cover those.
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

    /// Sends the answer so far, if the request streams, unless its end may be the beginning of a
    /// stop string.
    pub fn stream(
        &mut self,
        version: &str,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<(), TextError> {
        let Some(detokenizer) = &mut self.detokenizer else { return Ok(()) };
        if let (Some(tokenizer), Some(newest)) = (tokenizer, self.sampled.last()) {
            detokenizer.push(tokenizer, &[newest.token])?;
        }
        let text = detokenizer.so_far();
        let tail = self.tail(tokenizer)?;
        let begins = |stop: &String| {
            (1..=stop.len()).any(|end| stop.is_char_boundary(end) && tail.ends_with(&stop[..end]))
        };
        if let Some(partial) =
            self.job.partial.as_ref().filter(|_| !self.job.request.sampling.stop.iter().any(begins))
        {
            partial.send_replace(Some(self.answer(text, None, version, None, tokenizer)?));
        }
        Ok(())
    }

    /// Answers.
    pub fn finish(
        self,
        reason: Finish,
        version: &str,
        now: Instant,
        tokenizer: Option<&TextTokenizer>,
    ) {
        let latency = Some(self.age(now));
        let answer = self
            .text(&reason, tokenizer)
            .and_then(|text| self.answer(text, Some(reason), version, latency, tokenizer));
        // A client that is gone needs no answer.
        let _ =
            self.job.done.send(answer.map_err(|error| GenerateError::Internal(error.to_string())));
    }

    /// Answers with an error.
    pub fn fail(self, error: GenerateError) {
        let _ = self.job.done.send(Err(error));
    }

    /// The whole text, without what ended it.
    fn text(
        &self,
        reason: &Finish,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<String, TextError> {
        let Some(tokenizer) = tokenizer else { return Ok(String::new()) };
        let (request, mut tokens) = (&self.job.request, self.tokens());
        let trim = !request.sampling.no_stop_trim;
        if trim && matches!(reason, Finish::StopToken(_)) {
            tokens.pop();
        }
        let mut detokenizer =
            Detokenizer::new(&request.input_ids, request.sampling.skip_special_tokens);
        detokenizer.push(tokenizer, &tokens)?;
        let mut text = detokenizer.whole();
        if let Finish::StopText(stop) = reason
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

    fn answer(
        &self,
        text: String,
        reason: Option<Finish>,
        version: &str,
        latency: Option<f64>,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<Answer, TextError> {
        let request = &self.job.request;
        let meta_info = Meta {
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
        Ok(Answer { text, output_ids: self.tokens(), meta_info, index: None })
    }

    fn logprobs(
        &self,
        tokenizer: Option<&TextTokenizer>,
    ) -> Result<Option<MetaLogprobs>, TextError> {
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
        Ok(Some(MetaLogprobs {
            input_token_logprobs: first.clone().into_iter().chain(all(&self.scored)?).collect(),
            output_token_logprobs: all(&self.sampled)?,
            output_token_logprobs_length: self.sampled.len(),
            top: (wanted.top > 0).then(top).transpose()?,
        }))
    }
}
