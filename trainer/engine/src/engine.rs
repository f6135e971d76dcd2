//! The engine as the HTTP side sees it: checks, the bounded queue, and a channel to the scheduler's
//! thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rljob_protocol::sglang::ModelInfo;
use rljob_text::TextTokenizer;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::loading::{Identity, Loaded};
use crate::metrics::Metrics;
use crate::request::{GenerateError, Job, Limits, Request};
use crate::scheduler::{Command, DEFAULT_VERSION, Scheduler, Settings};

/// Room in the channel for control commands, beside one entry for each request that may be queued.
const CONTROL_COMMANDS: usize = 64;

/// A handle of a running engine; clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    places: Arc<Semaphore>,
    capacity: usize,
    info: watch::Receiver<ModelInfo>,
    ids: Arc<Ids>,
    /// What requests are checked against.
    pub limits: Limits,
    /// What turns text to tokens and back.
    pub tokenizer: Option<TextTokenizer>,
    /// What the engine was started with: its folder's name, and the kind of model in it.
    pub served: Arc<Served>,
    /// The engine's metrics.
    pub metrics: Metrics,
    /// Cancelled when the engine takes no more requests.
    pub draining: CancellationToken,
}

/// What an engine was started with.
#[derive(Debug)]
pub struct Served {
    /// The folder, which OpenAI's routes know the model by. It stays when weights of another folder
    /// are loaded.
    pub name: String,
    /// The kind of model.
    pub identity: Identity,
    /// When it started, in seconds since 1970.
    pub since: u64,
}

/// Ids for requests that bring none: unlike those of another start, and of one width, so that none
/// is the beginning of another.
#[derive(Debug)]
struct Ids {
    start: u64,
    count: AtomicU64,
}

impl Ids {
    fn next(&self) -> String {
        format!("{:016x}{:016x}", self.start, self.count.fetch_add(1, Ordering::Relaxed))
    }
}

/// A request on its way: the answer, and the answer so far if it streams.
#[derive(Debug)]
pub struct Pending {
    /// The one answer. Dropping it aborts the request.
    pub done: oneshot::Receiver<Result<Answer, GenerateError>>,
    /// The newest answer so far.
    pub partial: Option<watch::Receiver<Option<Answer>>>,
}

/// An engine that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The thread.
    #[error("failed to start the scheduler's thread")]
    Thread(#[from] std::io::Error),
    /// The metrics.
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
    /// The KV cache.
    #[error("failed to make the KV cache")]
    Cache(#[from] tch::TchError),
    /// The thread ended before it served.
    #[error("the scheduler's thread ended at once")]
    Ended,
}

impl Engine {
    /// Starts the scheduler's thread over a loaded model.
    pub async fn start(arguments: &Arguments, loaded: Loaded) -> Result<Self, StartError> {
        let Loaded { model, limits, max_total_tokens, eos, tokenizer, identity } = loaded;
        let max_running = arguments.max_running_requests as usize;
        let capacity = max_running + arguments.max_queued_requests as usize;
        let (commands, receiver) = mpsc::channel(capacity + CONTROL_COMMANDS);
        let model_path = arguments.model_path.display().to_string();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let served = Arc::new(Served { name: model_path.clone(), identity, since: now.as_secs() });
        let ids = Arc::new(Ids { start: now.as_nanos() as u64, count: AtomicU64::new(0) });
        let (announce, info) = watch::channel(ModelInfo {
            model_path,
            is_generation: true,
            weight_version: DEFAULT_VERSION.to_owned(),
        });
        let metrics = Metrics::new()?;
        let (random_seed, deterministic) = (arguments.random_seed, arguments.deterministic);
        let settings = Settings {
            max_running,
            max_total_tokens,
            eos,
            random_seed,
            deterministic,
            tokenizer: tokenizer.clone(),
        };
        let (ready, started) = oneshot::channel();
        let of_scheduler = metrics.clone();
        let threads = arguments.deterministic.then_some(1);
        std::thread::Builder::new().name("scheduler".to_owned()).spawn(move || {
            if let Some(threads) = threads {
                rljob_collective::set_num_threads(threads);
            }
            let scheduler = Scheduler::new(settings, model, announce, of_scheduler);
            let (scheduler, outcome) = match scheduler {
                Ok(scheduler) => (Some(scheduler), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // The starter waits for this.
            let _ = ready.send(outcome);
            if let Some(scheduler) = scheduler {
                scheduler.run(receiver);
            }
        })?;
        started.await.map_err(|_| StartError::Ended)??;
        let places = Arc::new(Semaphore::new(capacity));
        Ok(Self {
            commands,
            places,
            capacity,
            info,
            ids,
            limits,
            tokenizer,
            served,
            metrics,
            draining: CancellationToken::new(),
        })
    }

    /// What the engine holds.
    pub fn info(&self) -> ModelInfo {
        self.info.borrow().clone()
    }

    /// Whether the scheduler's thread lives and requests are taken.
    pub fn is_serving(&self) -> bool {
        !self.commands.is_closed() && !self.draining.is_cancelled()
    }

    /// Requests that have no answer yet.
    pub fn unanswered(&self) -> usize {
        self.capacity.saturating_sub(self.places.available_permits())
    }

    /// An id for a request that brings none.
    pub fn new_rid(&self) -> String {
        self.ids.next()
    }

    /// Checks a request and queues it.
    pub async fn generate(&self, request: Request) -> Result<Pending, GenerateError> {
        let max_new_tokens = self.limits.check(&request)?;
        if self.tokenizer.is_none() && !request.sampling.stop.is_empty() {
            return Err(GenerateError::Invalid(
                "stop needs a tokenizer, and the model's folder has no tokenizer.json.".to_owned(),
            ));
        }
        if self.draining.is_cancelled() {
            return Err(GenerateError::Draining);
        }
        let place =
            Arc::clone(&self.places).try_acquire_owned().map_err(|_| GenerateError::QueueFull)?;
        let (done, answer) = oneshot::channel();
        let (partial, so_far) =
            if request.stream { Some(watch::channel(None)).unzip() } else { (None, None) };
        let job = Job { request, max_new_tokens, arrival: Instant::now(), done, partial, place };
        self.commands
            .send(Command::Generate(job))
            .await
            .map_err(|_| GenerateError::Internal("the scheduler has ended".to_owned()))?;
        Ok(Pending { done: answer, partial: so_far })
    }

    /// Checks requests and queues them all, or none if one cannot be served.
    pub async fn generate_all(
        &self,
        requests: Vec<Request>,
    ) -> Result<Vec<Pending>, GenerateError> {
        for request in &requests {
            self.limits.check(request)?;
        }
        let mut pending = Vec::with_capacity(requests.len());
        for request in requests {
            pending.push(self.generate(request).await?);
        }
        Ok(pending)
    }

    /// Sends a command and waits for its answer; none if the scheduler has ended.
    pub async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.commands.send(command(done)).await.ok()?;
        answer.await.ok()
    }
}
