//! Rollout settings: sampling parameters, staleness, and selection of samples.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::workflow::WorkflowSpec;

const LENGTHS: &str = "!has(self.minNewTokens) || self.minNewTokens <= self.maxNewTokens";
const ORDER: &str = "!has(self.batchOrder) || self.batchOrder == 'Data' || self.maxStaleness >= 1";

/// Sampling of completions.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new(LENGTHS).message("minNewTokens must be at most maxNewTokens")
)]
#[x_kube(
    validation = Rule::new(ORDER)
        .message("batchOrder Finished needs maxStaleness of at least 1: without it no group is \
                 sampled in place of a late one")
)]
pub struct RolloutSpec {
    /// Prompts per step, each with `groupSize` samples. Default 32.
    #[serde(default = "batch_size")]
    #[schemars(range(min = 1, max = 65536))]
    pub batch_size: u32,
    /// Maximum length of a completion in tokens, in each turn of a workflow. Default 1024.
    #[serde(default = "max_new_tokens")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_new_tokens: u32,
    /// Minimum length of a completion in tokens: stop tokens have probability 0 before it. The
    /// log-probabilities of these tokens are those of the remaining tokens. Stop strings end a
    /// completion at any length. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub min_new_tokens: u32,
    /// Strings that end a completion. Rewards and training see the completion with the string.
    /// Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 128)))]
    pub stop: Vec<String>,
    /// Tokens that end a completion, in addition to the end-of-sequence tokens of the model.
    /// Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 0, max = 16_777_216)))]
    pub stop_token_ids: Vec<u32>,
    /// Sampling temperature. Engines and learners compute log-probabilities of logits ÷
    /// temperature. Default 1.
    #[serde(default = "temperature")]
    #[schemars(range(min = 0.01, max = 10.0))]
    pub temperature: f64,
    /// Treatment of completions that reach the maximum length. Default Score.
    #[serde(default)]
    pub truncated: Truncated,
    /// Maximum number of steps by which sampling is ahead of training: while step s is trained,
    /// prompts up to those of step s + maxStaleness are sampled (AReaL, arXiv 2505.24298, eq. 3).
    /// With 0, the prompts of a step are sampled only with the weights of the previous step.
    /// Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub max_staleness: u32,
    /// Treatment of completions whose oldest token exceeds maxStaleness, or twice maxStaleness with
    /// batchOrder Finished, which is possible by up to weightSync.everySteps − 1 steps. Default
    /// Keep.
    #[serde(default)]
    pub stale_samples: StaleSamples,
    /// Order in which prompt groups enter batches. Default Data.
    #[serde(default, skip_serializing_if = "BatchOrder::is_data")]
    pub batch_order: BatchOrder,
    /// Largest share of the newest 512 samples that rewards, tools, environments, a served teacher
    /// or agents may reject; beyond it the run fails. Rejected samples are sampled again, so that a
    /// large share would choose the data. Default 0.5.
    #[serde(default = "max_rejected_share", skip_serializing_if = "is_default_share")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_rejected_share: f64,
    /// Replace prompts whose rewards have zero variance (DAPO, arXiv 2503.14476). Default: every
    /// prompt is trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
    /// Turns of a sample. Default one turn: a prompt and its completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowSpec>,
}

/// Treatment of completions that reach the maximum length. Their rewards are part of the group's
/// normalization in every case.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum Truncated {
    /// Trained on as any other completion.
    #[default]
    Score,
    /// Loss 0 for all tokens (overlong filtering of DAPO, arXiv 2503.14476).
    Mask,
    /// Normalized reward 0; the tokens count in the denominator of the loss.
    Zero,
}

/// Order in which prompt groups enter batches. Every group is trained once in both orders.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum BatchOrder {
    /// The order of the data: a batch waits for its slowest group.
    #[default]
    Data,
    /// The order in which groups finish: at most maxStaleness batches pass over a group after the
    /// step that it was sampled for, then a batch waits for it. Tokens are up to twice as old.
    /// Needs maxStaleness of at least 1, and no training.deterministic.
    Finished,
}

impl BatchOrder {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_data(&self) -> bool {
        *self == Self::Data
    }
}

/// Treatment of completions whose oldest token exceeds maxStaleness, or twice maxStaleness with
/// batchOrder Finished.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum StaleSamples {
    /// Trained on.
    #[default]
    Keep,
    /// Not started before newer weights are published. An existing one (after a change of the spec)
    /// is sampled again.
    Drop,
}

/// Replaces prompts whose completions all have the same reward after overlong penalty and shaping,
/// or of which fewer than two remain after rejections, by the next prompts.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DynamicSampling {
    /// Maximum number of prompts sampled for a step, in multiples of batchSize. Beyond it, prompts
    /// are trained on with any rewards, with a warning. Default 4.
    #[serde(default = "max_attempts")]
    #[schemars(range(min = 2, max = 100))]
    pub max_attempts: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn max_rejected_share() -> f64 {
    0.5
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default_share(share: &f64) -> bool {
    share.total_cmp(&max_rejected_share()).is_eq()
}

fn batch_size() -> u32 {
    32
}

fn max_new_tokens() -> u32 {
    1024
}

fn temperature() -> f64 {
    1.0
}

fn max_attempts() -> u32 {
    4
}

impl RolloutSpec {
    /// Maximum number of trained tokens of a sample: of one completion, or of the turns of a
    /// workflow within its `maxTokens`. The context of the model may be shorter.
    pub fn max_trained_tokens(&self) -> u32 {
        let workflow = self.workflow.as_ref();
        let turns = workflow.and_then(WorkflowSpec::max_turns).unwrap_or(1);
        let limit = workflow.and_then(WorkflowSpec::max_tokens).unwrap_or(u32::MAX);
        self.max_new_tokens.saturating_mul(turns).min(limit)
    }
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            batch_size: batch_size(),
            max_new_tokens: max_new_tokens(),
            min_new_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            temperature: temperature(),
            truncated: Truncated::default(),
            max_staleness: 0,
            stale_samples: StaleSamples::default(),
            batch_order: BatchOrder::default(),
            max_rejected_share: max_rejected_share(),
            dynamic_sampling: None,
            workflow: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::RolloutSpec;
    use crate::algorithm::grpo::{GrpoSpec, OverlongPenalty};

    #[test]
    fn the_overlong_penalty_ends_at_the_longest_sample() {
        let overlong_penalty = Some(OverlongPenalty { tokens: 10, factor: 2.0 });
        let grpo = GrpoSpec { overlong_penalty, ..GrpoSpec::default() };
        let rollout = |workflow| -> RolloutSpec {
            let spec = json!({"maxNewTokens": 20, "workflow": workflow});
            serde_json::from_value(spec).unwrap()
        };
        let turns = |limit| {
            let settings = json!({"maxTurns": 3, "feedback": "no", "maxTokens": limit});
            json!({ "multiTurn": settings })
        };
        for (rollout, longest) in [
            (rollout(json!(null)), 20),
            (rollout(turns(json!(null))), 60),
            (rollout(turns(json!(50))), 50),
        ] {
            assert_eq!(rollout.max_trained_tokens(), longest);
            let of = |tokens| grpo.shaped_reward(1.0, tokens, rollout.max_trained_tokens());
            let rewards = [longest - 11, longest - 5, longest, longest + 40].map(of);
            assert_eq!(rewards.map(f64::to_bits), [1.0_f64, 0.0, -1.0, -1.0].map(f64::to_bits));
        }
    }
}
