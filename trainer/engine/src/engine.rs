//! The engine as the HTTP side sees it: checks, the bounded queue, and a channel to the scheduler's thread.

use std::sync::Arc;
use std::time::Instant;

use rljob_protocol::sglang::{GenerateRequest, GenerateResponse, ModelInfo};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::arguments::Arguments;
use crate::loading::Loaded;
use crate::metrics::Metrics;
use crate::request::{GenerateError, Job, Limits};
use crate::scheduler::{Command, DEFAULT_VERSION, Scheduler, Settings};

/// Room in the channel for control commands, beside one entry for each request that may be queued.
const CONTROL_COMMANDS: usize = 64;

/// A handle of a running engine; clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    places: Arc<Semaphore>,
    capacity: usize,
    limits: Limits,
    info: watch::Receiver<ModelInfo>,
    /// The engine's metrics.
    pub metrics: Metrics,
    /// Cancelled when the engine takes no more requests.
    pub draining: CancellationToken,
}

/// A request on its way: the answer, and the answer so far if it streams.
#[derive(Debug)]
pub struct Pending {
    /// The one answer. Dropping it aborts the request.
    pub done: oneshot::Receiver<Result<GenerateResponse, GenerateError>>,
    /// The newest answer so far.
    pub partial: Option<watch::Receiver<Option<GenerateResponse>>>,
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
        let Loaded { model, limits, max_total_tokens, eos } = loaded;
        let max_running = arguments.max_running_requests as usize;
        let capacity = max_running + arguments.max_queued_requests as usize;
        let (commands, receiver) = mpsc::channel(capacity + CONTROL_COMMANDS);
        let model_path = arguments.model_path.display().to_string();
        let (announce, info) = watch::channel(ModelInfo { model_path, is_generation: true, weight_version: DEFAULT_VERSION.to_owned() });
        let metrics = Metrics::new()?;
        let settings = Settings { max_running, max_total_tokens, eos, random_seed: arguments.random_seed };
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
        Ok(Self { commands, places: Arc::new(Semaphore::new(capacity)), capacity, limits, info, metrics, draining: CancellationToken::new() })
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

    /// Checks a request and queues it.
    pub async fn generate(&self, request: GenerateRequest) -> Result<Pending, GenerateError> {
        self.limits.check(&request)?;
        if self.draining.is_cancelled() {
            return Err(GenerateError::Draining);
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| GenerateError::QueueFull)?;
        let (done, answer) = oneshot::channel();
        let (partial, so_far) = if request.stream { Some(watch::channel(None)).unzip() } else { (None, None) };
        let job = Job { request, arrival: Instant::now(), done, partial, place };
        self.commands.send(Command::Generate(job)).await.map_err(|_| GenerateError::Internal("the scheduler has ended".to_owned()))?;
        Ok(Pending { done: answer, partial: so_far })
    }

    /// Sends a command and waits for its answer; none if the scheduler has ended.
    pub async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.commands.send(command(done)).await.ok()?;
        answer.await.ok()
    }
}
