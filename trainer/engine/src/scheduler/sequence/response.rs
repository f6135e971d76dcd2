//! Responses to a request: partial ones, the final one, log-probabilities.

use std::time::Instant;

use rljob_text::{Detokenizer, TextError, TextTokenizer};

use super::Sequence;
use crate::generation::{
    FinishReason, Generation, GenerationLogprobs, GenerationMeta, TokenLogprob, TopLogprobs,
};
use crate::request::GenerateError;
use crate::sampling::Sampled;

impl Sequence {
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
