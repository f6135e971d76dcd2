//! Sampler: groups of samples from the engines. A group uses one engine for its prefix cache; an
//! interrupted sample continues on another engine until it is complete.
//!
//! ```text
//!  lease ─▶ stream ─┬─ stop, length ─▶ Completion
//!    ▲              └─ paused, lost, invalid ─▶ keep verified tokens (deterministic run: none) ─┐
//!    └─────────────────────── prompt + kept tokens, fewer new ones ◀───────────────────────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::Stream;
use futures::stream::FuturesUnordered;
use hyper::StatusCode;
use prometheus::IntCounter;
use rljob_crds::job::RunningCompletions;
use rljob_crds::roles::EngineKind;
use rljob_crds::{EnginePurpose, RunConfig};
use rljob_protocol::sglang::{GenerateRequest, SamplingParams};

use super::completion::Completion;
use super::request::{self, Key};
use super::stop::Stops;
use crate::clock::Clock;
use crate::engines::live::Live;
use crate::engines::output::Output;
use crate::engines::slots::Leased;
use crate::engines::streams::OpenStream;
use crate::engines::validate::{self, End, Part};
use crate::engines::{EngineError, Fleet, Lease, Place, Wanted, Weights};
use crate::input::Input;

/// So many refusals of one request, and it is the request that is wrong.
const REFUSALS: u32 = 3;
/// Between two tries of one sample: after an abort, and after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// A request for one sample.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    pub key: Key,
    /// 0 is greedy.
    pub temperature: f64,
    /// 1 for all tokens.
    pub top_p: f64,
    /// Longest completion in tokens.
    pub max_new_tokens: u32,
    /// Strings that end the completion beside those of the run.
    pub stop: Vec<String>,
    /// Publishes the tokens while they are sampled, each at once.
    pub live: Option<Live>,
}

/// Samples of a run.
pub struct Sampler<'a> {
    pub fleet: &'a Fleet,
    /// `training.seed`.
    pub run_seed: u64,
    /// Whether requests have seeds. SGLang reads them only in its deterministic mode, and its
    /// default sampler on GPUs rejects them.
    pub seeded: bool,
    /// Token ids are below this.
    pub vocabulary: i64,
    pub stops: Stops,
    /// Whether an interrupted sample starts again from its prompt, so that its bits are those of
    /// one that was not.
    pub deterministic: bool,
    /// Whether an interrupted sample continues with the keys and values of the earlier weights.
    pub keeps_cache: bool,
    /// For engines that are left alone for a while.
    pub clock: Clock,
    /// Counts requests, so that no two have the same id.
    pub nonce: AtomicU64,
    /// Counts interruptions.
    pub interrupted: IntCounter,
}

/// All engines reject this request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RejectedEverywhere(pub String);

/// A complete completion.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// Sampling parameters as sent first.
    pub parameters: SamplingParams,
    pub completion: Completion,
    /// Engine that sampled the last token.
    pub engine: String,
}

impl<'s> Sampler<'s> {
    /// A sampler with the settings of a run.
    pub fn new(
        config: &RunConfig,
        input: &'s Input,
        fleet: &'s Fleet,
        clock: Clock,
        incarnation: u64,
        interrupted: IntCounter,
    ) -> Self {
        let training = &config.spec.training;
        let engines =
            [Some(&config.spec.inference), config.spec.engines(EnginePurpose::Evaluation)];
        let mut engines = engines.into_iter().flatten();
        Self {
            fleet,
            run_seed: training.seed,
            seeded: training.deterministic
                || engines.all(|engines| engines.engine() == EngineKind::Embedded),
            vocabulary: input.vocabulary,
            stops: Stops::of(&config.spec.rollout, input),
            deterministic: training.deterministic,
            keeps_cache: config.spec.weight_sync.running_completions
                == Some(RunningCompletions::Keep),
            clock,
            nonce: AtomicU64::new(incarnation),
            interrupted,
        }
    }

    /// Reserves an engine with such weights for a full group.
    pub async fn lease(
        &self,
        weights: Weights,
        prompt: &[i64],
        wanted: &[SampleRequest],
    ) -> Lease<'s> {
        let tokens = wanted.iter().map(|wanted| cost(prompt, wanted)).sum();
        let place = wanted.first().map_or(Place::default(), |first| first.key.place());
        let requests = wanted.len() as u32;
        self.fleet.lease(place, Wanted { preferred: None, weights, requests, tokens }).await
    }

    async fn lease_one(
        &self,
        preferred: Option<&str>,
        weights: Weights,
        prompt: &[i64],
        wanted: &SampleRequest,
    ) -> Lease<'s> {
        let (preferred, tokens) = (preferred.map(str::to_owned), cost(prompt, wanted));
        let one = Wanted { preferred, weights, requests: 1, tokens };
        self.fleet.lease(wanted.key.place(), one).await
    }

    /// The group's completions as they finish, each with its request. Each sample returns its part
    /// of the reservation when it ends or is interrupted.
    pub fn group<'g>(
        &'g self,
        mut lease: Lease<'s>,
        weights: Weights,
        prompt: &'g [i64],
        wanted: &'g [SampleRequest],
    ) -> impl Stream<Item = (SampleRequest, Result<Sampled, RejectedEverywhere>)> + 'g
    where
        's: 'g,
    {
        let sample = |wanted: &'g SampleRequest| {
            let own = lease.split_one(cost(prompt, wanted));
            async move { (wanted.clone(), self.sample(own, weights, prompt, wanted).await) }
        };
        wanted.iter().map(sample).collect::<FuturesUnordered<_>>()
    }

    /// One sample, on the preferred engine if it is free: its prefix cache may have the prompt.
    pub async fn sample_near(
        &self,
        preferred: Option<&str>,
        weights: Weights,
        prompt: &[i64],
        wanted: &SampleRequest,
    ) -> Result<Sampled, RejectedEverywhere> {
        let lease = self.lease_one(preferred, weights, prompt, wanted).await;
        self.sample(lease, weights, prompt, wanted).await
    }

    /// One sample, which begins with a reservation. An interrupted one returns it before it waits
    /// for another: the engine that has room may be this one.
    async fn sample(
        &self,
        mut lease: Lease<'_>,
        weights: Weights,
        prompt: &[i64],
        wanted: &SampleRequest,
    ) -> Result<Sampled, RejectedEverywhere> {
        let mut refusals = 0_u32;
        let mut completion = Completion::default();
        let mut result =
            self.attempt(&lease.engine, weights, prompt, wanted, &mut completion).await;
        while let Err(error) = result {
            if let EngineError::Rejected { status: StatusCode::BAD_REQUEST, message, .. } = &error {
                refusals = refusals.saturating_add(1);
                if refusals >= REFUSALS {
                    return Err(RejectedEverywhere(message.clone()));
                }
            }
            if self.deterministic {
                completion = Completion::default();
            }
            self.interrupted.inc();
            let is_abort = matches!(error, EngineError::Aborted(_));
            drop(lease);
            tokio::time::sleep(if is_abort { RETRY.0 } else { RETRY.1 }).await;
            lease = self.lease_one(None, weights, prompt, wanted).await;
            result = self.attempt(&lease.engine, weights, prompt, wanted, &mut completion).await;
        }
        let stop = self.stop_strings(wanted);
        let sampling = self.sampling(wanted, &stop);
        let parameters = request::parameters(wanted.key, &sampling, 0, wanted.max_new_tokens);
        Ok(Sampled { parameters, completion, engine: lease.engine.name.clone() })
    }

    fn stop_strings(&self, wanted: &SampleRequest) -> Vec<String> {
        [self.stops.strings.as_slice(), &wanted.stop].concat()
    }

    fn sampling<'p>(&'p self, wanted: &SampleRequest, stop: &'p [String]) -> request::Sampling<'p> {
        request::Sampling {
            run_seed: self.seeded.then_some(self.run_seed),
            stop_token_ids: &self.stops.token_ids,
            stop,
            min_new_tokens: self.stops.min_new_tokens,
            temperature: wanted.temperature,
            top_p: wanted.top_p,
        }
    }

    /// Key of the cached prefixes that a completion may use: the weights of its first token. Other
    /// completions see no keys and values of older weights than theirs.
    fn cache_key(&self, engine: &str, kept: &Completion) -> Option<String> {
        if !self.keeps_cache {
            return None;
        }
        let first = kept.versions.first().map(|run| run.version);
        first.or_else(|| self.fleet.version(engine)).map(|version| version.to_string())
    }

    /// Request for the missing tokens of a completion.
    fn request(
        &self,
        engine: &str,
        prompt: &[i64],
        wanted: &SampleRequest,
        kept: &Completion,
    ) -> GenerateRequest {
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
        let mut request = request::generate(
            wanted.key,
            nonce,
            &self.sampling(wanted, &self.stop_strings(wanted)),
            prompt,
            &kept.tokens,
            wanted.max_new_tokens,
            self.cache_key(engine, kept),
        );
        request.sampling_params.stream_interval = wanted.live.as_ref().map(|_| 1);
        request
    }

    /// Continues a completion on one engine and appends its tokens. Fails if the completion is
    /// still incomplete.
    async fn attempt(
        &self,
        engine: &Leased,
        weights: Weights,
        prompt: &[i64],
        wanted: &SampleRequest,
        completion: &mut Completion,
    ) -> Result<(), EngineError> {
        // An update does not begin while a stream is open.
        let open = engine.streams.open();
        let request = Arc::new(self.request(&engine.name, prompt, wanted, completion));
        let kept = completion.tokens.len();
        let live = wanted.live.as_ref().map(|live| live.part(kept, weights, self.vocabulary));
        let output = Output::new(&request, Arc::clone(&engine.chunks), live);
        let ended = self.stream(engine, open, &request, &output).await;
        let part = output
            .take()
            .map(|received| validate::part(&request, received, weights, self.vocabulary))
            .transpose();
        let result = judge(part, ended, |part| {
            let part = self.stops.cut(&self.stop_strings(wanted), &completion.tokens, part);
            completion.append(part, wanted.max_new_tokens, &self.stops.token_ids);
        });
        let result = if completion.finish_reason.is_some() { Ok(()) } else { result };
        if let Err(error) = &result {
            let (rid, kept) = (request.rid.as_str(), completion.tokens.len());
            if matches!(error, EngineError::Joint) {
                tracing::debug!(
                    engine = engine.name,
                    rid,
                    kept,
                    "a sample is interrupted with another one",
                );
            } else {
                tracing::warn!(
                    engine = engine.name, rid, kept, error = %crate::error_line(error),
                    "a sample is interrupted",
                );
            }
            self.blame(&engine.name, error);
        }
        result
    }

    /// Streams a response into `output`, unless the engine is being updated.
    async fn stream(
        &self,
        engine: &Leased,
        open: Option<OpenStream>,
        request: &Arc<GenerateRequest>,
        output: &Output,
    ) -> Result<(), EngineError> {
        let aborted = |cause: &str| Err(EngineError::Aborted(cause.to_owned()));
        let Some(open) = open else {
            return aborted("the engine's weights are being updated");
        };
        let (request, output) = (Arc::clone(request), output.clone());
        tokio::select! {
            () = engine.lost.cancelled() => aborted("the engine no longer responds"),
            ended = self.fleet.client.generate(&engine.url, request, output, open) => ended,
        }
    }

    /// Takes an engine that failed out of routing for a while.
    fn blame(&self, engine: &str, error: &EngineError) {
        let now = self.clock.now();
        match error {
            EngineError::Aborted(_)
            | EngineError::Joint
            | EngineError::Rejected { status: StatusCode::BAD_REQUEST, .. } => {}
            EngineError::WrongWeights { found, .. } => {
                self.fleet.update(engine, |slot| slot.answered(found.clone()));
            }
            EngineError::Unreachable { .. }
            | EngineError::Rejected { .. }
            | EngineError::InvalidResponse { .. }
            | EngineError::WrongElement { .. } => {
                self.fleet.update(engine, |slot| slot.failed(now));
            }
        }
    }
}

/// Adds a valid part. Returns why the completion is not complete, if it is not.
fn judge(
    part: Result<Option<Part>, EngineError>,
    ended: Result<(), EngineError>,
    keep: impl FnOnce(Part),
) -> Result<(), EngineError> {
    let broke_off = || EngineError::Aborted("the stream broke off".to_owned());
    let Some(part) = part? else { return ended.and_then(|()| Err(broke_off())) };
    let cause = match &part.end {
        End::Stop | End::Length => Ok(()),
        End::Aborted(message) => Err(EngineError::Aborted(message.clone())),
        End::Open => ended.and_then(|()| Err(broke_off())),
    };
    keep(part);
    cause
}

fn cost(prompt: &[i64], wanted: &SampleRequest) -> u64 {
    (prompt.len() as u64).saturating_add(wanted.max_new_tokens.into())
}
