//! A step's rollouts: prompts → completions → rewards → journal; when all are there, the batch is fixed.
//!
//! ```text
//!  positions (s−1)·B .. s·B ─▶ groups (sampler) ─▶ score ─▶ queue ─▶ journal, many at a time ─▶ fix_batch
//! ```
//!
//! A sample that its verifier fails on is left out of its group, never scored 0. Samples that the journal has already are not made again. The order in which they finish leaves no trace.

pub mod request;
pub mod sampler;
pub mod score;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::StreamExt;
use rljob_protocol::sglang::GenerateRequest;
use rljob_protocol::version::Version;
use tokio::sync::mpsc;

use crate::coordinator::Coordinator;
use crate::data::Prompt;
use crate::driver::WorkError;
use crate::engines::validate::Completion;
use crate::input::{Input, InputError};
use crate::journal::{Sample, VersionRun};
use request::{Key, Purpose};
use sampler::{Sampler, Wanted};
use score::Verdict;

/// Groups that wait for an engine or are at one.
const GROUPS: usize = 1024;
/// Scored samples that wait for the journal.
const QUEUE: usize = 4096;
/// Most samples in one journal call.
const WRITE: usize = 512;

/// Makes step `version.step + 1`'s batch and fixes it. Answers the seconds from the first prompt to the last reward; none if nothing had to be sampled.
pub async fn run(coordinator: &Coordinator, input: &Arc<Input>, version: Version) -> Result<Option<f64>, WorkError> {
    let step = version.step + 1;
    let have: BTreeSet<_> = coordinator.store.call(move |journal| journal.samples(step)).await?.iter().map(|sample| (sample.position, sample.index)).collect();
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (seconds, ()) = tokio::try_join!(sample(coordinator, input, version, &have, sender), write(coordinator, receiver))?;
    if coordinator.store.call(move |journal| journal.samples(step)).await?.is_empty() {
        return Err(WorkError::AllRejected { step });
    }
    coordinator.store.call(move |journal| journal.fix_batch(step)).await?;
    Ok(seconds)
}

async fn sample(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    version: Version,
    have: &BTreeSet<(u64, u32)>,
    sender: mpsc::Sender<Sample>,
) -> Result<Option<f64>, WorkError> {
    let batch = u64::from(coordinator.config.spec.rollout.batch_size);
    let first = u64::from(version.step) * batch;
    let sampler = coordinator.sampler(input, version);
    let started = std::sync::OnceLock::new();
    let (sampler, started, sender) = (&sampler, &started, &sender);
    let mut groups = futures::stream::iter(first..first + batch)
        .map(|position| group(coordinator, input, sampler, position, have, started, sender))
        .buffer_unordered(GROUPS);
    while let Some(result) = groups.next().await {
        result?;
    }
    Ok(started.get().map(|started: &Duration| coordinator.clock.now().saturating_sub(*started).as_secs_f64()))
}

async fn group(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    sampler: &Sampler<'_>,
    position: u64,
    have: &BTreeSet<(u64, u32)>,
    started: &std::sync::OnceLock<Duration>,
    sender: &mpsc::Sender<Sample>,
) -> Result<(), WorkError> {
    let spec = &coordinator.config.spec;
    let size = spec.algorithm.grpo.as_ref().map_or(0, |grpo| grpo.group_size);
    let missing: Vec<_> = (0..size).filter(|index| !have.contains(&(position, *index))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let prompt = input.train.prompt(position).map_err(InputError::from)?;
    let max_new_tokens = input.room("training", prompt.row, prompt.tokens.len(), spec.rollout.max_new_tokens)?;
    let key = |index| Key { purpose: Purpose::Rollout, step: sampler.version.step + 1, position, index };
    let wanted: Vec<_> = missing.iter().map(|&index| Wanted { key: key(index), temperature: spec.rollout.temperature, max_new_tokens }).collect();
    let lease = sampler.lease(&prompt.tokens, &wanted).await;
    started.get_or_init(|| coordinator.clock.now());
    let mut finished = std::pin::pin!(sampler.group(lease, &prompt.tokens, &wanted));
    while let Some((at, result)) = finished.next().await {
        let (request, completion) = result.map_err(|refused| InputError::Refused { row: prompt.row, message: refused.0 })?;
        let Some(index) = missing.get(at) else { continue };
        let Some(sample) = scored(coordinator, input, &prompt, sampler.version, *index, &request, completion).await? else { continue };
        coordinator.metrics.sampled(sample.completion_tokens.len());
        sender.send(sample).await.map_err(|_| WorkError::Interrupted)?;
    }
    Ok(())
}

/// The finished sample; none if its verifier failed on it.
async fn scored(
    coordinator: &Coordinator,
    input: &Arc<Input>,
    prompt: &Prompt,
    version: Version,
    index: u32,
    request: &GenerateRequest,
    completion: Completion,
) -> Result<Option<Sample>, WorkError> {
    let scored = match score::score(input, prompt, completion.tokens.clone()).await? {
        Verdict::Scored(scored) => scored,
        Verdict::Rejected(error) => {
            let cause = crate::error_line(&error);
            let detail = serde_json::json!({"step": version.step + 1, "position": prompt.position, "index": index, "cause": cause});
            coordinator.event("SampleRejected", detail).await;
            return Ok(None);
        }
    };
    Ok(Some(Sample {
        step: version.step + 1,
        position: prompt.position,
        index,
        row: prompt.row,
        prompt_tokens: prompt.tokens.clone(),
        versions: vec![VersionRun { version, tokens: completion.tokens.len() as u32 }],
        completion_tokens: completion.tokens,
        sampler_logprobs: completion.logprobs,
        finish_reason: completion.finish_reason.to_owned(),
        sampling: serde_json::to_value(&request.sampling_params)?,
        reward: scored.reward.value,
        reward_components: scored.reward.components,
        prompt_text: prompt.text.clone(),
        completion_text: scored.text,
    }))
}

/// Writes what the queue holds, many samples a transaction, until the senders are gone.
async fn write(coordinator: &Coordinator, mut receiver: mpsc::Receiver<Sample>) -> Result<(), WorkError> {
    let mut samples = Vec::with_capacity(WRITE);
    while receiver.recv_many(&mut samples, WRITE).await > 0 {
        let full = std::mem::replace(&mut samples, Vec::with_capacity(WRITE));
        coordinator.store.call(move |journal| journal.put_samples(&full)).await?;
    }
    Ok(())
}

impl Coordinator {
    /// A sampler for one set of weights.
    pub fn sampler<'a>(&'a self, input: &'a Input, version: Version) -> Sampler<'a> {
        Sampler {
            fleet: &self.fleet,
            version,
            run_seed: self.config.spec.training.seed,
            vocabulary: input.vocabulary,
            stop_token_ids: input.tokenizer.stop_token_ids(),
            clock: self.clock,
            nonce: AtomicU64::new(self.incarnation),
        }
    }
}
