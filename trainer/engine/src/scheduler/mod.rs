//! The thread that owns the model: requests and control commands come in through one bounded
//! channel and are handled between decode steps.
//!
//! ```text
//!             not paused
//!  commands ─┬──────────▶ waiting ──admit: prompt, first token──▶ running ──step: one token each──▶ answers
//!            └─▶ held ──────▲ ▲ continue                            │ abort, lost client: answered at once
//!              paused         └──────────── pause `retract` ────────┤ pause `in_place`: stays as it is
//!                                                                   └ pause `abort`: answered at once
//! ```
//! Weights change only when nothing runs or waits, or in a pause that keeps the cache because it
//! was asked to. It never panics on input: a failure of libtorch or a non-finite logit ends the
//! requests concerned with an error, and the engine goes on.

mod batch;
mod command;
mod pause;
mod sequence;
mod updates;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rljob_collective::Group;
use rljob_protocol::sglang::ModelInfo;
use rljob_text::TextTokenizer;
use tokio::sync::{mpsc, watch};

pub use command::Command;
pub use pause::PauseMode;

use crate::answer::Finish;
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
    /// Whether a sample that a pause takes back starts anew, so that its bits are those of an
    /// uninterrupted one.
    pub deterministic: bool,
    /// Makes text of tokens, if the model's folder has one.
    pub tokenizer: Option<TextTokenizer>,
}

/// State of the thread.
pub struct Scheduler {
    settings: Settings,
    model: Model,
    cache: KvCache,
    prompts: PromptCache,
    /// Came while paused.
    held: VecDeque<Sequence>,
    waiting: VecDeque<Sequence>,
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
    pub fn new(
        settings: Settings,
        model: Model,
        info: watch::Sender<ModelInfo>,
        metrics: Metrics,
    ) -> Result<Self, tch::TchError> {
        let cache = KvCache::new(model.cache_shape(), settings.max_total_tokens)?;
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

    /// Whether nothing runs or waits. What is held has not begun.
    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn version(&self) -> String {
        self.info.borrow().weight_version.clone()
    }

    fn accept(&mut self, job: Job) {
        self.seedless += u64::from(job.request.sampling.seed.is_none());
        let seed = self
            .settings
            .random_seed
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(self.seedless);
        let sequence = Sequence::new(job, seed);
        if self.paused { self.held.push_back(sequence) } else { self.waiting.push_back(sequence) }
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

    fn end(&mut self, index: usize, reason: Finish) {
        let sequence = self.remove(index);
        self.answer(sequence, reason);
    }

    fn answer(&self, sequence: Sequence, reason: Finish) {
        self.metrics.requests.inc();
        if matches!(reason, Finish::Aborted | Finish::AbortedWaiting) {
            self.metrics.aborted.inc();
        }
        let now = Instant::now();
        self.metrics.latency.observe(sequence.age(now));
        sequence.finish(reason, &self.version(), now, self.settings.tokenizer.as_ref());
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
        self.metrics.queued.set((self.waiting.len() + self.held.len()) as i64);
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
