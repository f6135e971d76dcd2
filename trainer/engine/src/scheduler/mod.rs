//! The thread that owns the model: requests and control commands come in through one bounded channel and are handled between decode steps.
//!
//! ```text
//!  commands ─▶ handle ─▶ waiting ──admit: prefill, first token──▶ running ──step: one token each──▶ answers
//!                          │ held while paused                      │ pause, abort, lost client: answered at once
//!                          └──────────── weight updates: only when nothing runs or waits ───────────┘
//! ```
//! It never panics on input: a failure of libtorch or a non-finite logit ends the requests concerned with an error, and the engine goes on.

mod batch;
mod command;
mod sequence;
mod updates;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rljob_collective::Group;
use rljob_protocol::sglang::{FinishReason, ModelInfo};
use tokio::sync::{mpsc, watch};

pub use command::Command;

use crate::cache::KvCache;
use crate::forward::Model;
use crate::metrics::Metrics;
use crate::prompts::PromptCache;
use crate::request::{GenerateError, Job};
use sequence::Sequence;

/// Version of weights that no update brought.
pub const DEFAULT_VERSION: &str = "default";

/// What the scheduler is told at start.
#[derive(Debug)]
pub struct Settings {
    /// Requests decoded together.
    pub max_running: usize,
    /// Token positions in the KV cache; cached prompts may take a quarter of its memory beside it.
    pub max_total_tokens: usize,
    /// Tokens that end a completion.
    pub eos: Vec<i64>,
    /// Seed of requests that bring none.
    pub random_seed: u64,
}

/// State of the thread.
pub struct Scheduler {
    settings: Settings,
    model: Model,
    cache: KvCache,
    prompts: PromptCache,
    waiting: VecDeque<Job>,
    /// Request `i` has slot `i` of the cache.
    running: Vec<Sequence>,
    paused: bool,
    groups: HashMap<String, Group>,
    info: watch::Sender<ModelInfo>,
    metrics: Metrics,
    seedless: u64,
    /// A failure after which the running requests cannot be trusted.
    fault: Option<String>,
    /// When the throughput was last measured, and tokens generated until then.
    window: (Instant, u64),
}

impl Scheduler {
    /// An idle engine over `model`. What it loads is announced through `info`.
    pub fn new(settings: Settings, model: Model, info: watch::Sender<ModelInfo>, metrics: Metrics) -> Result<Self, tch::TchError> {
        let cache = KvCache::new(model.cache_shape(), settings.max_total_tokens)?;
        let bytes = settings.max_total_tokens as u64 * model.cache_shape().bytes_per_token();
        let prompts = PromptCache::new((bytes / 4) as usize);
        Ok(Self {
            settings,
            model,
            cache,
            prompts,
            waiting: VecDeque::new(),
            running: Vec::new(),
            paused: false,
            groups: HashMap::new(),
            info,
            metrics,
            seedless: 0,
            fault: None,
            window: (Instant::now(), 0),
        })
    }

    /// Serves until every sender of commands is gone.
    pub fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let _no_grad = tch::no_grad_guard();
        loop {
            self.measure();
            if self.is_idle() {
                let Some(command) = commands.blocking_recv() else { return };
                self.handle(command);
            }
            while let Ok(command) = commands.try_recv() {
                self.handle(command);
            }
            if !self.paused {
                self.admit();
            }
            self.step();
        }
    }

    /// Whether weights may change: nothing runs, and nothing is about to.
    fn is_idle(&self) -> bool {
        self.running.is_empty() && (self.paused || self.waiting.is_empty())
    }

    fn version(&self) -> String {
        self.info.borrow().weight_version.clone()
    }

    /// Queues a request; one that wants no token is answered at once.
    fn accept(&mut self, job: Job) {
        if job.request.sampling_params.max_new_tokens == 0 {
            self.answer(Sequence::new(job, 0, 0), FinishReason::Length { length: 0 });
        } else {
            self.waiting.push_back(job);
        }
    }

    fn pause(&mut self) {
        if !self.paused {
            self.abort(|_| true);
        }
        self.paused = true;
    }

    /// Ends the requests whose id is chosen; running ones keep their tokens.
    fn abort(&mut self, chosen: impl Fn(&str) -> bool) {
        for index in (0..self.running.len()).rev() {
            if chosen(self.running[index].rid()) {
                self.end(index, FinishReason::Abort { message: "Aborted".to_owned() });
            }
        }
        let (ended, kept): (Vec<Job>, Vec<Job>) = self.waiting.drain(..).partition(|job| chosen(&job.request.rid));
        self.waiting = kept.into();
        for job in ended {
            self.answer(Sequence::new(job, 0, 0), FinishReason::Abort { message: "Abort in waiting queue".to_owned() });
        }
    }

    /// Ends `rid` and every request whose id begins with it, if `rid` itself is live: SGLang's rule.
    fn abort_prefix(&mut self, rid: &str) {
        let live = self.running.iter().any(|sequence| sequence.rid() == rid) || self.waiting.iter().any(|job| job.request.rid == rid);
        if live {
            self.abort(|id| id.starts_with(rid));
        }
    }

    /// Takes a running request out; the last one moves into its slot.
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
        self.answer(sequence, reason);
    }

    fn answer(&self, sequence: Sequence, reason: FinishReason) {
        self.metrics.requests.inc();
        if matches!(reason, FinishReason::Abort { .. }) {
            self.metrics.aborted.inc();
        }
        sequence.finish(reason, &self.version(), Instant::now());
    }

    /// Ends every running request with an error.
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
        self.metrics.queued.set(self.waiting.len() as i64);
        let (elapsed, generated) = (self.window.0.elapsed(), self.metrics.generation_tokens.get());
        if self.running.is_empty() {
            self.metrics.throughput.set(0.0);
            self.window = (Instant::now(), generated);
        } else if elapsed >= WINDOW {
            self.metrics.throughput.set((generated - self.window.1) as f64 / elapsed.as_secs_f64());
            self.window = (Instant::now(), generated);
        }
    }
}
