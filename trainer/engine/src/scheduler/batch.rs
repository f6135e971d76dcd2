//! Admission of waiting requests and the decode step.

use std::rc::Rc;
use std::time::Instant;

use tch::Tensor;

use super::Scheduler;
use super::sequence::Sequence;
use crate::forward::ForwardError;
use crate::generation::FinishReason;
use crate::prompts::Prefilled;
use crate::request::GenerateError;
use crate::sampling::{Draw, Sampled, sample};

/// Prompt tokens computed between two decode steps. A longer prompt is computed alone.
const PREFILL_TOKENS: usize = 4096;

const NON_FINITE: &str = "the model's logits are not finite";

/// A sequence with the prefill of its context.
type Started = (Sequence, Rc<Prefilled>);

impl Scheduler {
    /// Starts waiting requests, oldest first, while they fit.
    pub(super) fn admit(&mut self) {
        let mut started: Vec<Started> = Vec::new();
        let mut longest_yet = self.running.iter().map(Sequence::longest).max().unwrap_or(0);
        let mut computed = 0;
        while computed < PREFILL_TOKENS {
            let requests = self.running.len() + started.len() + 1;
            let fits = self
                .waiting
                .front()
                .is_some_and(|sequence| self.fits(requests, longest_yet.max(sequence.longest())));
            if !fits {
                break;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            if sequence.is_disconnected() {
                self.metrics.aborted.inc();
                continue;
            }
            longest_yet = longest_yet.max(sequence.longest());
            match self.prefill(&mut sequence) {
                Ok((_, new)) if sequence.wants_no_tokens() => {
                    computed += new;
                    self.finish(sequence, FinishReason::Length(0));
                }
                Ok((prefilled, new)) => {
                    computed += new;
                    started.push((sequence, prefilled));
                }
                Err(error) => sequence.fail(GenerateError::Internal(format!(
                    "failed to compute the prompt: {error}"
                ))),
            }
        }
        if let Err(error) = self.first_tokens(started) {
            self.fail_all(&format!("failed to start requests: {error}"));
        }
    }

    /// Whether this many requests of up to `tokens` positions may run together. A single request
    /// always fits.
    fn fits(&self, requests: usize, tokens: usize) -> bool {
        requests == 1
            || requests <= self.settings.max_running && self.cache.admits(requests, tokens)
    }

    /// Returns the prefill of a sequence's context and the number of tokens computed for it.
    fn prefill(&mut self, sequence: &mut Sequence) -> Result<(Rc<Prefilled>, usize), ForwardError> {
        let context = sequence.context();
        let fresh = sequence.is_fresh();
        let (prefilled, scored, cached) = if let Some((start, top)) = sequence.to_score() {
            let (prefilled, scored) = self.model.score(&context, start, top)?;
            (Rc::new(prefilled), scored, 0)
        } else if let Some(prefilled) = self.prompts.get(&context) {
            (prefilled, Vec::new(), context.len())
        } else {
            let prefilled = Rc::new(self.model.prefill(&context)?);
            if fresh {
                self.prompts.insert(&context, Rc::clone(&prefilled));
            }
            (prefilled, Vec::new(), 0)
        };
        sequence.start(cached, scored, Instant::now());
        if fresh {
            self.metrics.prompt_tokens.inc_by(context.len() as u64);
            self.metrics.cached_tokens.inc_by(cached as u64);
            sequence.waited().inspect(|seconds| self.metrics.queue_time.observe(*seconds));
        }
        Ok((prefilled, context.len() - cached))
    }

    /// Samples the first token of each started request. Unfinished requests get a slot.
    fn first_tokens(&mut self, started: Vec<Started>) -> Result<(), ForwardError> {
        if started.is_empty() {
            return Ok(());
        }
        let (sequences, prefills): (Vec<Sequence>, Vec<Rc<Prefilled>>) =
            started.into_iter().unzip();
        let logits = Tensor::f_stack(
            &prefills.iter().map(|prefilled| &prefilled.logits).collect::<Vec<_>>(),
            0,
        )?;
        let sampled = sample(
            &logits,
            &sequences
                .iter()
                .map(|sequence| sequence.draw(&self.settings.eos))
                .collect::<Vec<Draw>>(),
        )?;
        let mut continuing = Vec::new();
        for ((sequence, prefilled), sampled) in sequences.into_iter().zip(prefills).zip(sampled) {
            self.metrics.first_token.observe(sequence.age(Instant::now()));
            if let Some(sequence) = self.take(sequence, sampled) {
                continuing.push((sequence, prefilled));
            }
        }
        let rows =
            continuing.iter().map(|(sequence, _)| sequence.row().position + 1).max().unwrap_or(0);
        self.cache.reserve(self.running.len() + continuing.len(), rows, self.running.len())?;
        for (sequence, prefilled) in continuing {
            self.cache.store(self.running.len(), &prefilled.kv)?;
            self.running.push(sequence);
        }
        Ok(())
    }

    /// Appends a token. Sends the response of a finished request; returns an unfinished one.
    fn take(&self, mut sequence: Sequence, sampled: Option<Sampled>) -> Option<Sequence> {
        match self.push(&mut sequence, sampled) {
            Ok(None) => Some(sequence),
            Ok(Some(reason)) => {
                self.finish(sequence, reason);
                None
            }
            Err(error) => {
                self.metrics.requests.inc();
                sequence.fail(error);
                None
            }
        }
    }

    /// Appends and streams a token; returns the finish reason, if any.
    fn push(
        &self,
        sequence: &mut Sequence,
        sampled: Option<Sampled>,
    ) -> Result<Option<FinishReason>, GenerateError> {
        let Some(sampled) = sampled else {
            tracing::error!(rid = sequence.rid(), NON_FINITE);
            return Err(GenerateError::Internal(NON_FINITE.to_owned()));
        };
        self.metrics.generation_tokens.inc();
        let tokenizer = self.settings.tokenizer.as_ref();
        let pushed = sequence.push(sampled, &self.settings.eos, tokenizer).and_then(|reason| {
            if reason.is_none() {
                let interval = self.settings.stream_interval;
                sequence.stream(interval, &self.info.borrow().weight_version, tokenizer)?;
            }
            Ok(reason)
        });
        pushed.map_err(|error| GenerateError::Internal(error.to_string()))
    }

    /// Decodes one token of every running request.
    pub(super) fn step(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].is_disconnected() {
                self.metrics.aborted.inc();
                drop(self.remove(index));
            }
        }
        if let Some(fault) = self.fault.take() {
            self.fail_all(&fault);
        }
        if self.running.is_empty() {
            return;
        }
        let start = Instant::now();
        match self.decode() {
            Ok(sampled) => {
                self.metrics.inter_token.observe(start.elapsed().as_secs_f64());
                self.take_all(sampled);
            }
            Err(error) => self.fail_all(&format!("failed to decode: {error}")),
        }
    }

    fn decode(&mut self) -> Result<Vec<Option<Sampled>>, ForwardError> {
        let rows: Vec<_> = self.running.iter().map(Sequence::row).collect();
        let tokens = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        self.cache.reserve(rows.len(), tokens, rows.len())?;
        let logits = self.model.decode(&self.cache, &rows)?;
        Ok(sample(
            &logits,
            &self
                .running
                .iter()
                .map(|sequence| sequence.draw(&self.settings.eos))
                .collect::<Vec<Draw>>(),
        )?)
    }

    fn take_all(&mut self, sampled: Vec<Option<Sampled>>) {
        let mut running = std::mem::take(&mut self.running);
        let results = running
            .iter_mut()
            .zip(sampled)
            .map(|(sequence, sampled)| (sampled.is_none(), self.push(sequence, sampled)));
        let results: Vec<_> = results.collect();
        self.running = running;
        // From the last slot to the first, so that requests that finish together cause no copies.
        for (index, (broken, outcome)) in results.into_iter().enumerate().rev() {
            match outcome {
                Ok(None) => {}
                Ok(Some(reason)) => self.end(index, reason),
                Err(error) => self.fail_running(index, broken, error),
            }
        }
    }

    /// Fails a running request; `wipe` zeroes its slot, for non-finite contents.
    fn fail_running(&mut self, index: usize, wipe: bool, error: GenerateError) {
        self.metrics.requests.inc();
        if wipe && let Err(error) = self.cache.wipe(index) {
            self.fault = Some(format!("failed to wipe a slot of the KV cache: {error}"));
        }
        self.remove(index).fail(error);
    }
}
