//! Engine handle for the HTTP server: request validation, the bounded queue and the channel to the
//! scheduler thread.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rljob_protocol::sglang::ModelInfo;
use rljob_text::TextTokenizer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::arguments::Arguments;
use crate::cache::slots_of;
use crate::generation::Generation;
use crate::loading::{Architecture, LoadedModel};
use crate::metrics::Metrics;
use crate::request::{GenerateError, Limits, QueuedRequest, Request};
use crate::scheduler::{Command, DEFAULT_VERSION, Scheduler, Settings};

/// Channel capacity for control commands, in addition to one entry per queued request.
const CONTROL_COMMANDS: usize = 64;

/// SGLang's response to `/classify` with a language model.
const NO_CLASSIFIER: &str = "This model does not appear to be an embedding model by default. \
    Please add `--is-embedding` when launching the server or try another model.";

/// Response to a generation with a classifier.
const NO_GENERATOR: &str = "This model is a sequence classifier, which /classify serves; start \
    the engine without `--is-embedding` and with a language model.";

/// Handle of a running engine; clones share the engine.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::Sender<Command>,
    places: Arc<Semaphore>,
    capacity: usize,
    info: watch::Receiver<ModelInfo>,
    ids: Arc<Ids>,
    pub limits: Limits,
    /// Whether an event of `/generate` has the output since the last one, instead of all.
    pub incremental_streams: bool,
    /// Maximum number of requests decoded together.
    pub max_running: usize,
    pub tokenizer: Option<TextTokenizer>,
    /// Name and architecture of the model.
    pub served: Arc<ServedModel>,
    pub metrics: Metrics,
    /// Cancelled when the engine stops accepting requests.
    pub draining: CancellationToken,
}

/// The served model.
#[derive(Debug)]
pub struct ServedModel {
    /// Initial model folder, which is the model name in the OpenAI API. Weight updates do not
    /// change it.
    pub name: String,
    pub architecture: Architecture,
    /// Start time in seconds since 1970.
    pub since: u64,
}

/// Ids of requests without an id: unique across restarts and of equal width, so that no id is a
/// prefix of another.
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

/// A queued request.
#[derive(Debug)]
pub struct Pending {
    /// Final response. Dropping it aborts the request.
    pub done: oneshot::Receiver<Result<Generation, GenerateError>>,
    /// Newest partial response of a stream.
    pub partial: Option<watch::Receiver<Option<Generation>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("failed to start the scheduler thread")]
    Thread(#[from] std::io::Error),
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
    #[error("failed to allocate the KV cache")]
    Cache(#[from] tch::TchError),
    /// The thread exited before it was ready.
    #[error("the scheduler thread exited during startup")]
    Ended,
}

impl Engine {
    /// Starts the scheduler thread with a loaded model.
    pub async fn start(arguments: &Arguments, loaded: LoadedModel) -> Result<Self, StartError> {
        let LoadedModel { model, limits, max_total_tokens, eos, tokenizer, architecture } = loaded;
        let max_running = arguments.max_running_requests as usize;
        let capacity = max_running.saturating_add(arguments.max_queued_requests as usize);
        let (commands, receiver) = mpsc::channel(capacity.saturating_add(CONTROL_COMMANDS));
        let model_path = arguments.model_path.display().to_string();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let served =
            Arc::new(ServedModel { name: model_path.clone(), architecture, since: now.as_secs() });
        let ids = Arc::new(Ids { start: now.as_nanos() as u64, count: AtomicU64::new(0) });
        let (announce, info) = watch::channel(ModelInfo {
            model_path,
            is_generation: !arguments.is_embedding,
            weight_version: DEFAULT_VERSION.to_owned(),
        });
        let metrics = Metrics::new(&served.name)?;
        metrics.context_length.set(limits.context_length as i64);
        let deterministic = arguments.deterministic;
        let settings = Settings {
            max_running,
            max_total_tokens,
            cache_rows: slots_of(deterministic),
            stream_interval: arguments.stream_interval,
            eos,
            random_seed: arguments.random_seed,
            deterministic,
            tokenizer: tokenizer.clone(),
        };
        let (ready, started) = oneshot::channel();
        let of_scheduler = metrics.clone();
        let threads = deterministic.then_some(1);
        std::thread::Builder::new().name("scheduler".to_owned()).spawn(move || {
            if let Some(threads) = threads {
                rljob_collective::set_num_threads(threads);
            }
            match Scheduler::new(settings, model, announce, of_scheduler) {
                Ok(scheduler) => {
                    let _ = ready.send(Ok(()));
                    scheduler.run(receiver);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        started.await.map_err(|_| StartError::Ended)??;
        Ok(Self {
            commands,
            places: Arc::new(Semaphore::new(capacity)),
            capacity,
            info,
            ids,
            limits,
            incremental_streams: arguments.incremental_streaming_output,
            max_running,
            tokenizer,
            served,
            metrics,
            draining: CancellationToken::new(),
        })
    }

    /// Current model and weight version.
    pub fn info(&self) -> ModelInfo {
        self.info.borrow().clone()
    }

    /// Whether the scheduler runs and the engine accepts requests.
    pub fn is_serving(&self) -> bool {
        !self.commands.is_closed() && !self.draining.is_cancelled()
    }

    /// Number of requests without a response.
    pub fn pending_requests(&self) -> usize {
        self.capacity.saturating_sub(self.places.available_permits())
    }

    /// Returns an id for a request without one.
    pub fn new_rid(&self) -> String {
        self.ids.next()
    }

    /// Validates and queues a request.
    pub async fn generate(&self, request: Request) -> Result<Pending, GenerateError> {
        if !self.info.borrow().is_generation {
            return Err(GenerateError::Invalid(NO_GENERATOR.to_owned()));
        }
        let max_new_tokens = self.limits.check(&request)?;
        if self.tokenizer.is_none() && !request.sampling.stop.is_empty() {
            return Err(GenerateError::Invalid(
                "stop requires a tokenizer; the model folder has no tokenizer.json.".to_owned(),
            ));
        }
        let permit = self.permit()?;
        let (done, response) = oneshot::channel();
        let (partial, so_far) =
            if request.stream { Some(watch::channel(None)).unzip() } else { (None, None) };
        let job = QueuedRequest {
            request,
            max_new_tokens,
            arrival: Instant::now(),
            done,
            partial,
            permit,
        };
        self.commands.send(Command::Generate(job)).await.map_err(|_| scheduler_exited())?;
        Ok(Pending { done: response, partial: so_far })
    }

    /// Validates and queues requests: all of them, or none if one is invalid.
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

    /// Validates sequences and scores them with a classifier; an invalid one fails all.
    pub async fn classify_all(&self, sequences: &[Vec<i64>]) -> Result<Vec<f64>, GenerateError> {
        if self.info.borrow().is_generation {
            return Err(GenerateError::Invalid(NO_CLASSIFIER.to_owned()));
        }
        sequences.iter().try_for_each(|tokens| self.limits.check_tokens(tokens))?;
        let mut scores = Vec::with_capacity(sequences.len());
        for tokens in sequences {
            let _permit = self.permit()?;
            let score = self.call(|done| Command::Classify(tokens.clone(), done)).await;
            scores.push(score.unwrap_or_else(|| Err(scheduler_exited()))?);
        }
        Ok(scores)
    }

    /// A place in the bounded queue.
    fn permit(&self) -> Result<OwnedSemaphorePermit, GenerateError> {
        if self.draining.is_cancelled() {
            return Err(GenerateError::Draining);
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| GenerateError::QueueFull)
    }

    /// Sends a command and waits for its result; `None` if the scheduler has exited.
    pub async fn call<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (done, response) = oneshot::channel();
        self.commands.send(command(done)).await.ok()?;
        response.await.ok()
    }
}

fn scheduler_exited() -> GenerateError {
    GenerateError::Internal("the scheduler has exited".to_owned())
}
