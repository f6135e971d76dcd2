//! Scheduler thread, which owns the model. Requests and control commands arrive through one bounded
//! channel and are handled between decode steps.
//!
//! ```text
//!  commands ─┬─ not paused ─▶ waiting ─ admit: prefill ─▶ running ─ step: one token ─▶ responses
//!            └─ paused ─▶ held ─▲ ▲                         │
//!                      continue   └── pause `retract` ──────┤
//!                                     pause `in_place`: kept with its cache
//!                                     pause `abort`, abort, lost client: finished
//! ```
//! Weights change only when no request runs or waits, or during a pause with `flush_cache: false`.
//! Input never causes a panic: an error of libtorch or a non-finite logit fails the affected
//! requests, and the engine continues.

mod batch;
mod command;
mod incoming;
mod pause;
mod sequence;
mod updates;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rljob_collective::Group;
use rljob_protocol::sglang::ModelInfo;
use rljob_text::TextTokenizer;
use tokio::sync::{mpsc, oneshot, watch};

pub use command::Command;
pub use pause::PauseMode;

use crate::cache::KvCache;
use crate::forward::Model;
use crate::generation::FinishReason;
use crate::metrics::Metrics;
use crate::prompts::PromptCache;
use crate::request::{GenerateError, QueuedRequest};
use sequence::Sequence;

/// Version of weights without a published version.
pub const DEFAULT_VERSION: &str = "default";

#[derive(Debug)]
pub struct Settings {
    /// Maximum number of requests decoded together.
    pub max_running: usize,
    /// Token positions of the KV cache. Cached prompts may use a quarter of its memory in addition.
    pub max_total_tokens: usize,
    /// Slots of the KV cache are padded to a multiple of this.
    pub cache_rows: usize,
    /// Tokens between two partial responses.
    pub stream_interval: u32,
    /// End-of-sequence tokens.
    pub eos: Vec<i64>,
    /// Seed of requests without a seed.
    pub random_seed: u64,
    /// Whether a retracted sample restarts, so that its bits equal those of an uninterrupted one.
    pub deterministic: bool,
    pub tokenizer: Option<TextTokenizer>,
}

pub struct Scheduler {
    settings: Settings,
    model: Model,
    cache: KvCache,
    prompts: PromptCache,
    /// Requests that arrived during a pause.
    held: VecDeque<Sequence>,
    waiting: VecDeque<Sequence>,
    /// Request `i` uses slot `i` of the cache.
    running: Vec<Sequence>,
    paused: bool,
    /// Health checks that arrived during a pause.
    probes: Vec<oneshot::Sender<()>>,
    groups: HashMap<String, Group>,
    info: watch::Sender<ModelInfo>,
    metrics: Metrics,
    requests_without_seed: u64,
    /// Failure that invalidates the running requests.
    fault: Option<String>,
    /// Time of the last throughput measurement, and the tokens generated until then.
    window: (Instant, u64),
}

impl Scheduler {
    /// Creates an idle scheduler. Updated weights are announced through `info`.
    pub fn new(
        settings: Settings,
        model: Model,
        info: watch::Sender<ModelInfo>,
        metrics: Metrics,
    ) -> Result<Self, tch::TchError> {
        let cache =
            KvCache::new(model.cache_shape(), settings.max_total_tokens, settings.cache_rows)?;
        let bytes = settings.max_total_tokens as u64 * model.cache_shape().bytes_per_token();
        let prompts = PromptCache::new((bytes / 4) as usize);
        metrics.max_total_tokens.set(settings.max_total_tokens as i64);
        Ok(Self {
            settings,
            model,
            cache,
            prompts,
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            paused: false,
            probes: Vec::new(),
            groups: HashMap::new(),
            info,
            metrics,
            requests_without_seed: 0,
            fault: None,
            window: (Instant::now(), 0),
        })
    }

    /// Runs until all command senders are dropped.
    pub fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let _no_grad = tch::no_grad_guard();
        loop {
            self.measure();
            if self.paused || self.is_idle() {
                let Some(command) = commands.blocking_recv() else { return };
                self.handle(command);
            }
            while let Ok(command) = commands.try_recv() {
                self.handle(command);
            }
            if !self.paused {
                self.admit();
                self.step();
            }
        }
    }

    /// Whether no request runs or waits. Held requests have not started.
    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn version(&self) -> String {
        self.info.borrow().weight_version.clone()
    }

    fn accept(&mut self, job: QueuedRequest) {
        self.requests_without_seed += u64::from(job.request.sampling.seed.is_none());
        let seed = self
            .settings
            .random_seed
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(self.requests_without_seed);
        let sequence = Sequence::new(job, seed);
        if self.paused { self.held.push_back(sequence) } else { self.waiting.push_back(sequence) }
    }

    fn classify(&self, tokens: &[i64]) -> Result<f64, GenerateError> {
        self.metrics.requests.inc();
        self.metrics.prompt_tokens.inc_by(tokens.len() as u64);
        match self.model.classify(tokens) {
            Ok(score) if score.is_finite() => Ok(score),
            Ok(score) => Err(GenerateError::Internal(format!("the score is {score}"))),
            Err(error) => Err(GenerateError::Internal(format!("failed to classify: {error}"))),
        }
    }

    /// Removes a running request; the last request moves into its slot.
    fn remove(&mut self, index: usize) -> Sequence {
        let last = self.running.len() - 1;
        if index < last
            && let Err(error) = self.cache.relocate(last, index, self.running[last].cached_length())
        {
            self.fault = Some(format!("failed to move a slot of the KV cache: {error}"));
        }
        self.running.swap_remove(index)
    }

    fn end(&mut self, index: usize, reason: FinishReason) {
        let sequence = self.remove(index);
        self.finish(sequence, reason);
    }

    fn finish(&self, sequence: Sequence, reason: FinishReason) {
        self.metrics.requests.inc();
        if matches!(reason, FinishReason::Aborted | FinishReason::AbortedWaiting) {
            self.metrics.aborted.inc();
        }
        let now = Instant::now();
        self.metrics.latency.observe(sequence.age(now));
        sequence.finish(reason, &self.version(), now, self.settings.tokenizer.as_ref());
    }

    /// Fails every running request.
    fn fail_all(&mut self, message: &str) {
        tracing::error!(requests = self.running.len(), "{message}");
        for sequence in self.running.drain(..) {
            self.metrics.requests.inc();
            sequence.fail(GenerateError::Internal(message.to_owned()));
        }
    }

    fn measure(&mut self) {
        const WINDOW: Duration = Duration::from_secs(1);
        self.metrics.running.set(self.running.len() as i64);
        self.metrics.queued.set((self.waiting.len() + self.held.len()) as i64);
        self.metrics.paused.set(if self.paused { self.running.len() as i64 } else { 0 });
        let used: usize = self.running.iter().map(Sequence::cached_length).sum();
        self.metrics.used_tokens.set(used as i64);
        self.metrics.token_usage.set(used as f64 / self.settings.max_total_tokens.max(1) as f64);
        let (elapsed, generated) = (self.window.0.elapsed(), self.metrics.generation_tokens.get());
        if self.running.is_empty() || self.paused {
            self.metrics.throughput.set(0.0);
            self.window = (Instant::now(), generated);
        } else if elapsed >= WINDOW {
            self.metrics.throughput.set((generated - self.window.1) as f64 / elapsed.as_secs_f64());
            self.window = (Instant::now(), generated);
        }
    }
}
