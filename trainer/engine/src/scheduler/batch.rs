//! Admission and the decode step: the part of the scheduler that computes.

use std::rc::Rc;
use std::time::Instant;

use tch::{TchError, Tensor};

use super::Scheduler;
use super::sequence::{Sequence, longest};
use crate::prompts::Prefilled;
use crate::request::{GenerateError, Job};
use crate::sampling::{Draw, Sampled, sample};

/// Prompt tokens computed between two decode steps; a longer prompt goes alone.
const PREFILL_TOKENS: usize = 4096;

const NON_FINITE: &str = "the model's logits are not finite";

impl Scheduler {
    /// Starts waiting requests, oldest first, as long as there is room.
    pub(super) fn admit(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut started: Vec<(Sequence, Rc<Prefilled>)> = Vec::new();
        let mut longest_yet = self.running.iter().map(Sequence::longest).max().unwrap_or(0);
        let mut computed = 0;
        while computed < PREFILL_TOKENS {
            let requests = self.running.len() + started.len() + 1;
            let fits = self.waiting.front().is_some_and(|job| self.fits(requests, longest_yet.max(longest(job))));
            if !fits {
                break;
            }
            let Some(job) = self.waiting.pop_front() else { break };
            if job.done.is_closed() {
                self.metrics.aborted.inc();
                continue;
            }
            longest_yet = longest_yet.max(longest(&job));
            match self.prefill(&job) {
                Ok((prefilled, cached)) => {
                    computed += job.request.input_ids.len() - cached;
                    started.push((self.start(job, cached), prefilled));
                }
                Err(error) => Sequence::new(job, 0, 0).fail(GenerateError::Internal(format!("failed to compute the prompt: {error}"))),
            }
        }
        if let Err(error) = self.first_tokens(started) {
            self.fail_all(&format!("failed to start requests: {error}"));
        }
    }

    /// Whether so many requests, the longest of which may come to `tokens`, may run together. One alone always may.
    fn fits(&self, requests: usize, tokens: usize) -> bool {
        requests == 1 || requests <= self.settings.max_running && self.cache.admits(requests, tokens)
    }

    /// The prompt's prefill and how many of its tokens came from the cache.
    fn prefill(&mut self, job: &Job) -> Result<(Rc<Prefilled>, usize), TchError> {
        let prompt = &job.request.input_ids;
        if let Some(prefilled) = self.prompts.get(prompt) {
            return Ok((prefilled, prompt.len()));
        }
        let prefilled = Rc::new(self.model.prefill(prompt)?);
        self.prompts.insert(prompt, Rc::clone(&prefilled));
        Ok((prefilled, 0))
    }

    fn start(&mut self, job: Job, cached: usize) -> Sequence {
        let prompt = job.request.input_ids.len();
        self.metrics.prompt_tokens.inc_by(prompt as u64);
        self.metrics.cached_tokens.inc_by(cached as u64);
        self.seedless += u64::from(job.request.sampling_params.sampling_seed.is_none());
        let seed = self.settings.random_seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(self.seedless);
        Sequence::new(job, seed, cached as u32)
    }

    /// Draws the first token of each started request; those that go on get a slot.
    fn first_tokens(&mut self, started: Vec<(Sequence, Rc<Prefilled>)>) -> Result<(), TchError> {
        if started.is_empty() {
            return Ok(());
        }
        let (mut sequences, prefills): (Vec<Sequence>, Vec<Rc<Prefilled>>) = started.into_iter().unzip();
        let logits = Tensor::f_stack(&prefills.iter().map(|prefilled| &prefilled.logits).collect::<Vec<_>>(), 0)?;
        let sampled = sample(&logits, &sequences.iter().map(Sequence::draw).collect::<Vec<Draw>>())?;
        let mut going_on = Vec::new();
        for ((sequence, prefilled), sampled) in sequences.drain(..).zip(prefills).zip(sampled) {
            if let Some(sequence) = self.take(sequence, sampled) {
                going_on.push((sequence, prefilled));
            }
        }
        let rows = going_on.iter().map(|(sequence, _)| sequence.row().position + 1).max().unwrap_or(0);
        self.cache.reserve(self.running.len() + going_on.len(), rows, self.running.len())?;
        for (sequence, prefilled) in going_on {
            self.cache.store(self.running.len(), &prefilled.kv)?;
            self.running.push(sequence);
        }
        Ok(())
    }

    /// Gives a request its token and answers it if it ends so; else hands it back.
    fn take(&self, mut sequence: Sequence, sampled: Option<Sampled>) -> Option<Sequence> {
        let Some(sampled) = sampled else {
            self.metrics.requests.inc();
            tracing::error!(rid = sequence.rid(), NON_FINITE);
            sequence.fail(GenerateError::Internal(NON_FINITE.to_owned()));
            return None;
        };
        self.metrics.generation_tokens.inc();
        if let Some(reason) = sequence.push(sampled, &self.settings.eos) {
            self.answer(sequence, reason);
            return None;
        }
        sequence.stream(&self.info.borrow().weight_version, Instant::now());
        Some(sequence)
    }

    /// One token for every running request.
    pub(super) fn step(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].abandoned() {
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
        match self.decode() {
            Ok(sampled) => self.take_all(&sampled),
            Err(error) => self.fail_all(&format!("failed to decode: {error}")),
        }
    }

    fn decode(&mut self) -> Result<Vec<Option<Sampled>>, TchError> {
        let rows: Vec<_> = self.running.iter().map(Sequence::row).collect();
        let tokens = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        self.cache.reserve(rows.len(), tokens, rows.len())?;
        let logits = self.model.decode(&self.cache, &rows)?;
        sample(&logits, &self.running.iter().map(Sequence::draw).collect::<Vec<Draw>>())
    }

    /// From the last slot to the first, so that those that end together move nothing.
    fn take_all(&mut self, sampled: &[Option<Sampled>]) {
        for index in (0..self.running.len()).rev() {
            let Some(sampled) = sampled[index] else {
                self.metrics.requests.inc();
                if let Err(error) = self.cache.wipe(index) {
                    self.fault = Some(format!("failed to wipe a slot of the KV cache: {error}"));
                }
                self.remove(index).fail(GenerateError::Internal(NON_FINITE.to_owned()));
                continue;
            };
            self.metrics.generation_tokens.inc();
            match self.running[index].push(sampled, &self.settings.eos) {
                Some(reason) => self.end(index, reason),
                None => self.running[index].stream(&self.info.borrow().weight_version, Instant::now()),
            }
        }
    }
}
