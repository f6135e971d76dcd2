//! Accuracy on held-out prompts: for each, one completion at `rollout.temperature` and a greedy one, all with the same weights.

use std::sync::Arc;

use futures::StreamExt;
use rljob_protocol::status::EvaluationMetrics;
use rljob_protocol::version::Version;

use crate::coordinator::Coordinator;
use crate::data::Dataset;
use crate::driver::WorkError;
use crate::input::{Input, InputError};
use crate::rollout::request::{Key, Purpose};
use crate::rollout::sampler::{Sampler, Wanted};
use crate::rollout::score::{Verdict, score};

/// Prompts at engines, or waiting for one.
const PROMPTS: usize = 1024;

/// Evaluates `version` and records the result, in the journal and in `evaluations.jsonl`.
pub async fn run(coordinator: &Coordinator, input: &Arc<Input>, version: Version) -> Result<EvaluationMetrics, WorkError> {
    let data = input.evaluation.as_ref().ok_or(WorkError::NoEvaluationData)?;
    let started = coordinator.clock.now();
    let prompts = data.len();
    let sampler = coordinator.sampler(input, version);
    let (mut sampled, mut greedy) = (Vec::new(), Vec::new());
    let mut pairs = futures::stream::iter(0..prompts).map(|row| pair(coordinator, input, &sampler, data, row)).buffer_unordered(PROMPTS);
    while let Some(rewards) = pairs.next().await {
        let (one, other) = rewards?;
        sampled.extend(one);
        greedy.extend(other);
    }
    if sampled.is_empty() || greedy.is_empty() {
        return Err(WorkError::AllRejected { step: version.step });
    }
    let metrics = EvaluationMetrics {
        step: version.step,
        prompts: prompts as u32,
        sampled: mean(sampled),
        greedy: mean(greedy),
        seconds: coordinator.clock.now().saturating_sub(started).as_secs_f64(),
    };
    coordinator.record_evaluation(metrics.clone()).await?;
    Ok(metrics)
}

/// Rewards of the sampled and of the greedy completion; none where the verifier failed.
async fn pair(coordinator: &Coordinator, input: &Arc<Input>, sampler: &Sampler<'_>, data: &Dataset, row: u64) -> Result<(Option<f64>, Option<f64>), WorkError> {
    let rollout = &coordinator.config.spec.rollout;
    let prompt = data.prompt(row).map_err(InputError::from)?;
    let max_new_tokens = input.room("evaluation", prompt.row, prompt.tokens.len(), rollout.max_new_tokens)?;
    let key = |index| Key { purpose: Purpose::Evaluation, step: sampler.version.step, position: row, index };
    let wanted = [rollout.temperature, 0.0].into_iter().zip(0..).map(|(temperature, index)| Wanted { key: key(index), temperature, max_new_tokens });
    let wanted: Vec<_> = wanted.collect();
    let lease = sampler.lease(&prompt.tokens, &wanted).await;
    let mut rewards = [None; 2];
    let mut finished = std::pin::pin!(sampler.group(lease, &prompt.tokens, &wanted));
    while let Some((at, result)) = finished.next().await {
        let (_, completion) = result.map_err(|refused| InputError::Refused { row: prompt.row, message: refused.0 })?;
        match (score(input, &prompt, completion.tokens).await?, rewards.get_mut(at)) {
            (Verdict::Scored(scored), Some(reward)) => *reward = Some(scored.reward.value),
            (Verdict::Rejected(error), _) => tracing::warn!(row, error = %crate::error_line(&error), "a completion is left out of the evaluation"),
            (Verdict::Scored(_), None) => {}
        }
    }
    Ok((rewards[0], rewards[1]))
}

/// The mean of rewards in any order of arrival: summed in order of size, so that the same rewards give the same bits.
fn mean(mut rewards: Vec<f64>) -> f64 {
    rewards.sort_by(f64::total_cmp);
    rewards.iter().sum::<f64>() / (rewards.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::mean;

    #[test]
    fn the_mean_does_not_depend_on_the_order_of_arrival() {
        let forwards = [0.1, 0.7, 0.2, 1.0, 0.3];
        let backwards: Vec<_> = forwards.iter().rev().copied().collect();
        assert_eq!(mean(forwards.to_vec()).to_bits(), mean(backwards).to_bits());
    }
}
