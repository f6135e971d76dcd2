//! Sampling of one prompt group, from the lease of an engine to the journal.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rljob_crds::RunConfig;
use rljob_crds::algorithm::Capabilities;
use tokio::sync::{mpsc, oneshot};

use super::agent::Agents;
use super::episode::Episode;
use super::episodes::Episodes;
use super::ledger::Outcome;
use super::play::play;
use super::rejections::{NEWEST, RejectionLimit};
use super::request::{Key, Purpose};
use super::sampler::{SampleRequest, Sampler};
use crate::clock::Clock;
use crate::data::Prompt;
use crate::engines::Weights;
use crate::input::{Input, InputError};
use crate::persistence::journal::{Pending, Sample};
use crate::recorder::Recorder;
use crate::reward::RewardError;
use crate::work_error::WorkError;

/// Fewest samples of a group with reward variance.
const COMPARABLE: usize = 2;
/// Tries of a sample that was rejected. Bounded per sample, not per group: which samples a group
/// has must not depend on the order of its rejections.
const REFILLS: u32 = 2;

/// A sample for the journal, and a channel that reports when it is on disk.
pub type Queued = (Sample, oneshot::Sender<()>);

/// Handles that all groups share.
pub struct Groups<'a> {
    pub config: &'a RunConfig,
    pub input: &'a Arc<Input>,
    pub recorder: &'a Recorder,
    pub clock: Clock,
    pub sampler: Sampler<'a>,
    /// Programs of agents, if the workflow has them.
    pub agents: Option<&'a Agents>,
    pub rejections: &'a RejectionLimit,
    /// Queue of the journal writer.
    pub sender: mpsc::Sender<Queued>,
}

/// A group to sample.
#[derive(Clone, Debug)]
pub struct GroupRequest {
    /// Loader position of its prompt.
    pub position: u64,
    /// Weights that may sample it.
    pub weights: Weights,
    /// Its samples in the journal.
    pub have: Vec<Pending>,
}

/// A group whose samples are in the journal.
#[derive(Clone, Debug)]
pub struct FinishedGroup {
    /// Loader position of its prompt.
    pub position: u64,
    /// Time of its first request; `None` if the journal held all samples.
    pub began: Option<Duration>,
    pub outcome: Outcome,
    /// Rewards of its samples.
    pub rewards: Vec<f64>,
    /// Tries of its samples that were rejected, whichever process made them.
    pub rejected: u32,
}

/// Samples of a group that are requested at the same time.
#[derive(Clone, Copy)]
struct Round<'a> {
    episodes: &'a Episodes<'a>,
    prompt: &'a Prompt,
    wanted: &'a [SampleRequest],
    /// Samples of a full group.
    size: u32,
}

impl Groups<'_> {
    /// Samples the missing samples of a group.
    pub async fn make(&self, request: GroupRequest) -> Result<FinishedGroup, WorkError> {
        let GroupRequest { position, weights, have } = request;
        let size = self.config.spec.algorithm.capabilities().map_or(0, Capabilities::group_size);
        let missing: Vec<u32> =
            (0..size).filter(|index| !have.iter().any(|sample| sample.index == *index)).collect();
        let mut samples = have;
        let (mut began, mut rejected) = (None, 0);
        if !missing.is_empty() {
            (began, rejected) = self.sample(position, weights, missing, size, &mut samples).await?;
        }
        rejected = samples.iter().map(|sample| sample.rejected).fold(rejected, u32::saturating_add);
        let droppable = self.config.spec.rollout.dynamic_sampling.is_some()
            && has_zero_variance(&self.shaped_rewards(&samples));
        let outcome =
            Outcome { droppable, oldest: samples.iter().map(|sample| sample.oldest).min() };
        let rewards = samples.iter().map(|sample| sample.reward).collect();
        Ok(FinishedGroup { position, began, outcome, rewards, rejected })
    }

    /// The rewards as the learners normalize them.
    fn shaped_rewards(&self, samples: &[Pending]) -> Vec<f64> {
        let policy = self.config.spec.algorithm.capabilities().and_then(Capabilities::policy);
        let max_tokens = self.config.spec.rollout.max_trained_tokens();
        let shaped = |sample: &Pending| match &policy {
            Some(policy) => policy.shaped_reward(sample.reward, sample.tokens, max_tokens),
            None => sample.reward,
        };
        samples.iter().map(shaped).collect()
    }

    /// Samples the missing samples, and writes them to the journal and to `samples`. A rejected one
    /// is sampled again with another seed, at most [`REFILLS`] times, unless all of the group are:
    /// then another prompt replaces it. Returns the time of the first request, and the number of
    /// tries of samples that are still missing.
    async fn sample(
        &self,
        position: u64,
        weights: Weights,
        mut missing: Vec<u32>,
        size: u32,
        samples: &mut Vec<Pending>,
    ) -> Result<(Option<Duration>, u32), WorkError> {
        let rollout = &self.config.spec.rollout;
        let prompt = self.input.train()?.prompt(position).map_err(InputError::from)?;
        let lengths = self.input.lengths(&self.config.spec, rollout.max_new_tokens);
        let max_new_tokens =
            self.input.room("training", prompt.row, prompt.tokens.len(), lengths)?;
        // The step that the position is for if no group is dropped: a seed depends on nothing that
        // happens.
        let steps_before = position.checked_div(rollout.batch_size.into()).unwrap_or_default();
        let step = steps_before.saturating_add(1) as u32;
        let key = |index| Key { purpose: Purpose::Rollout, step, position, index, turn: 0 };
        let request = |index| SampleRequest {
            key: key(index),
            temperature: rollout.temperature,
            top_p: 1.0,
            max_new_tokens,
            stop: Vec::new(),
            live: None,
        };
        let (input, sampler) = (self.input, &self.sampler);
        let (data, tool_calls) = (input.train()?, &self.recorder.metrics.tool_calls);
        let episodes = Episodes { input, data, sampler, weights, lengths, tool_calls };
        let (mut began, mut tries) = (None, 0_u32);
        for refill in 0..=REFILLS {
            let indices = missing.iter().map(|&index| seed_index(index, refill, size));
            let wanted: Vec<_> = indices.map(request).collect();
            let round = Round { episodes: &episodes, prompt: &prompt, wanted: &wanted, size };
            let (made, at) = self.play(round).await?;
            began.get_or_insert(at);
            missing.retain(|index| !made.iter().any(|sample| sample.index == *index));
            samples.extend(made);
            tries = (missing.len() as u32).saturating_mul(refill.saturating_add(1));
            if missing.is_empty() || samples.is_empty() {
                break;
            }
        }
        Ok((began, tries))
    }

    /// Plays episodes side by side and writes the samples that were not rejected. Also returns the
    /// time of the first request.
    async fn play(&self, round: Round<'_>) -> Result<(Vec<Pending>, Duration), WorkError> {
        let Round { episodes, prompt, wanted, size } = round;
        let position = prompt.position;
        let (played, engine) = play(episodes, self.agents, prompt, wanted).await;
        let finish = |(index, episode): (u32, Result<Episode, WorkError>)| async move {
            self.sample_of(prompt, try_of(index, size), episode?).await
        };
        let mut finished = played.map(finish).buffer_unordered(wanted.len());
        tracing::debug!(position, engine, samples = wanted.len(), "sampling a group");
        let began = self.clock.now();
        let (mut made, mut written) = (Vec::new(), Vec::new());
        while let Some(sample) = finished.next().await {
            let Some(sample) = sample? else { continue };
            self.rejections.add(false);
            self.recorder.metrics.sampled(sample.trained_tokens());
            made.push(Pending {
                position,
                index: sample.index,
                reward: sample.reward,
                tokens: sample.trained_tokens() as u32,
                oldest: sample.oldest().unwrap_or(0),
                rejected: sample.rejected_tries(),
            });
            let (done, waiting) = oneshot::channel();
            self.sender.send((sample, done)).await.map_err(|_| WorkError::Interrupted)?;
            written.push(waiting);
        }
        for waiting in written {
            waiting.await.map_err(|_| WorkError::Interrupted)?;
        }
        Ok((made, began))
    }

    /// The sample of an episode, by its index and the number of its refill; `None` if it is
    /// rejected.
    async fn sample_of(
        &self,
        prompt: &Prompt,
        (index, refill): (u32, u32),
        mut episode: Episode,
    ) -> Result<Option<Sample>, WorkError> {
        let (kind, cause) = if let Some(rejected) = episode.rejected.take() {
            (rejected.kind(), rejected.line())
        } else {
            let sample = episode.into_sample(prompt, index, &self.input.workflow)?;
            let sample = sample.map(|sample| sample.with_rejected_tries(refill));
            let Some(teacher) = &self.input.teacher else { return Ok(sample) };
            let Some(mut sample) = sample else { return Ok(None) };
            match teacher.add_logprobs(&mut sample).await {
                Ok(()) => return Ok(Some(sample)),
                Err(error @ RewardError::Rejected { .. }) => {
                    (error.kind(), crate::error_line(&error))
                }
                Err(error) => return Err(WorkError::Verifier(error.of_row(prompt.row))),
            }
        };
        let rejected_samples = &self.recorder.metrics.rejected_samples;
        rejected_samples.with_label_values(&[kind]).inc();
        let detail = serde_json::json!({
            "position": prompt.position, "index": index, "cause": &cause,
        });
        self.recorder.event("SampleRejected", detail).await;
        let max_share = self.config.spec.rollout.max_rejected_share;
        match self.rejections.add(true) {
            None => Ok(None),
            Some(rejected) => {
                Err(WorkError::TooManyRejected { rejected, of: NEWEST, max_share, cause })
            }
        }
    }
}

/// Index of a try in the seed and the session of its sample: those of refills are beyond the group,
/// so that no other try has them. The sample keeps its index in the journal, and a resumed run
/// repeats the tries in the same order.
fn seed_index(index: u32, refill: u32, size: u32) -> u32 {
    index.saturating_add(size.saturating_mul(refill))
}

/// Index of a sample, and the number of its refill, from its index in seeds.
fn try_of(seed_index: u32, size: u32) -> (u32, u32) {
    let index = seed_index.checked_rem(size).unwrap_or(seed_index);
    (index, seed_index.checked_div(size).unwrap_or_default())
}

/// Whether all normalized rewards would be 0.
fn has_zero_variance(rewards: &[f64]) -> bool {
    let equal =
        rewards.iter().zip(rewards.iter().skip(1)).all(|(one, next)| one.total_cmp(next).is_eq());
    rewards.len() < COMPARABLE || equal
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{REFILLS, has_zero_variance, seed_index, try_of};

    #[test]
    fn every_try_of_a_group_has_its_own_seed_and_the_first_ones_those_of_the_samples() {
        let size = 8;
        let tries = |refill| (0..size).map(move |index| seed_index(index, refill, size));
        assert!(tries(0).eq(0..size));
        let all: Vec<u32> = (0..=REFILLS).flat_map(tries).collect();
        let tries = (0..=REFILLS).flat_map(|refill| (0..size).map(move |index| (index, refill)));
        assert!(all.iter().map(|index| try_of(*index, size)).eq(tries));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn a_group_has_reward_variance_if_two_rewards_differ() {
        let cases: [&[f64]; 5] = [&[], &[1.0], &[1.0, 1.0], &[0.0, 0.0, 0.0], &[0.0, 0.0, 1.0]];
        assert_eq!(cases.map(has_zero_variance), [true, true, true, true, false]);
    }
}
