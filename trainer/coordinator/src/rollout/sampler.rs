//! Groups of samples from the fleet: each group on one engine for the sake of its prefix cache, each failed sample again on another, until it succeeds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use reqwest::StatusCode;
use rljob_protocol::sglang::GenerateRequest;
use rljob_protocol::version::Version;
use tokio_util::sync::CancellationToken;

use super::request::{self, Key};
use crate::clock::Clock;
use crate::engines::validate::{self, Completion};
use crate::engines::{EngineError, Fleet, Lease};

/// So many refusals of one request, and it is the request that is wrong.
const REFUSALS: u32 = 3;
/// Between two tries of one sample.
const RETRY: Duration = Duration::from_millis(100);

/// What is wanted of one sample.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Which one.
    pub key: Key,
    /// 0 is greedy.
    pub temperature: f64,
    /// Longest completion in tokens.
    pub max_new_tokens: u32,
}

/// Samples with one set of weights.
pub struct Sampler<'a> {
    /// The engines.
    pub fleet: &'a Fleet,
    /// The weights.
    pub version: Version,
    /// `training.seed`.
    pub run_seed: u64,
    /// Token ids are below this.
    pub vocabulary: i64,
    /// Tokens that end a completion.
    pub stop_token_ids: &'a [i64],
    /// For engines that are left alone for a while.
    pub clock: Clock,
    /// Counts requests, so that no two have the same id.
    pub nonce: AtomicU64,
}

/// Engines refuse this request whatever they are asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RefusedEverywhere(pub String);

/// Where a request goes.
struct Target {
    name: String,
    url: String,
    lost: CancellationToken,
}

impl Target {
    fn of(lease: &Lease<'_>) -> Self {
        Self { name: lease.name.clone(), url: lease.url.clone(), lost: lease.lost.clone() }
    }
}

impl<'s> Sampler<'s> {
    /// Reserves an engine for a whole group.
    pub async fn lease(&self, prompt: &[i64], wanted: &[Wanted]) -> Lease<'s> {
        let tokens = wanted.iter().map(|wanted| cost(prompt, wanted)).sum();
        self.fleet.lease(self.version, wanted.len() as u32, tokens).await
    }

    /// The group's samples as they finish, each with its index in `wanted`. The lease shrinks with them.
    pub fn group<'g>(
        &'g self,
        lease: Lease<'s>,
        prompt: &'g [i64],
        wanted: &'g [Wanted],
    ) -> impl Stream<Item = (usize, Result<(GenerateRequest, Completion), RefusedEverywhere>)> + 'g
    where
        's: 'g,
    {
        let samples: FuturesUnordered<_> = wanted
            .iter()
            .enumerate()
            .map(|(index, wanted)| {
                let target = Target::of(&lease);
                async move { (index, self.sample(target, prompt, wanted).await) }
            })
            .collect();
        let mut lease = lease;
        samples.inspect(move |(index, _)| lease.finish_one(wanted.get(*index).map_or(0, |wanted| cost(prompt, wanted))))
    }

    async fn sample(&self, first: Target, prompt: &[i64], wanted: &Wanted) -> Result<(GenerateRequest, Completion), RefusedEverywhere> {
        let mut refusals = 0;
        let mut request = self.request(prompt, wanted);
        let mut result = self.attempt(&first, &request).await;
        loop {
            let error = match result {
                Ok(completion) => return Ok((request, completion)),
                Err(error) => error,
            };
            if let EngineError::Refused { status: StatusCode::BAD_REQUEST, message, .. } = &error {
                refusals += 1;
                if refusals >= REFUSALS {
                    return Err(RefusedEverywhere(message.clone()));
                }
            }
            tokio::time::sleep(RETRY).await;
            let lease = self.fleet.lease(self.version, 1, cost(prompt, wanted)).await;
            request = self.request(prompt, wanted);
            result = self.attempt(&Target::of(&lease), &request).await;
        }
    }

    fn request(&self, prompt: &[i64], wanted: &Wanted) -> GenerateRequest {
        let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
        request::generate(wanted.key, nonce, self.run_seed, prompt, self.stop_token_ids, wanted.temperature, wanted.max_new_tokens)
    }

    async fn attempt(&self, target: &Target, request: &GenerateRequest) -> Result<Completion, EngineError> {
        let result = tokio::select! {
            () = target.lost.cancelled() => Err(EngineError::Aborted("it does not answer any more".to_owned())),
            answer = self.fleet.client.generate(&target.url, request) => {
                answer.and_then(|answer| validate::completion(request, answer, self.version, self.vocabulary))
            }
        };
        if let Err(error) = &result {
            tracing::warn!(engine = target.name, rid = request.rid, error = %crate::error_line(error), "a sample is tried again");
            self.blame(&target.name, error);
        }
        result
    }

    /// Takes an engine that failed out of routing for a while.
    fn blame(&self, engine: &str, error: &EngineError) {
        let now = self.clock.now();
        match error {
            EngineError::Aborted(_) | EngineError::Refused { status: StatusCode::BAD_REQUEST, .. } => {}
            EngineError::OtherWeights { found, .. } => {
                self.fleet.update(engine, |slot| slot.answered(found.clone()));
            }
            EngineError::Unreachable { .. } | EngineError::Refused { .. } | EngineError::Garbage { .. } => {
                self.fleet.update(engine, |slot| slot.failed(now));
            }
        }
    }
}

fn cost(prompt: &[i64], wanted: &Wanted) -> u64 {
    prompt.len() as u64 + u64::from(wanted.max_new_tokens)
}
