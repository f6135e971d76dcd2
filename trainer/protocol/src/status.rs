//! `GET /v1/status`: what a coordinator reports to the operator and to `rljob run`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::learner::ValidationReport;
use crate::version::Version;

/// A coordinator's state, whole each time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoordinatorStatus {
    /// The epoch it acts under; none before the first `PUT /v1/desired`.
    pub epoch: Option<u64>,
    /// Generation of the desired state that is applied.
    pub generation: Option<i64>,
    /// What the run is doing.
    pub phase: Phase,
    /// Incarnation of the learner group.
    pub attempt: u32,
    /// Counted restarts.
    pub restarts: u32,
    /// The first cause of the newest failure of a learner.
    pub last_failure: Option<LearnerFailure>,
    /// Steps done: reported by the learners and never taken back, but by a restore that says so.
    pub step: u32,
    /// Steps in all.
    pub total_steps: u32,
    /// The newest step's numbers.
    pub metrics: Option<StepMetrics>,
    /// The newest evaluation's numbers.
    pub evaluation: Option<EvaluationMetrics>,
    /// Trainer pods (supervisors) that report.
    pub supervisors: Vec<SupervisorState>,
    /// Engines, as listed in the desired state.
    pub engines: Vec<EngineState>,
    /// The newest complete checkpoint.
    pub checkpoint: Option<Version>,
}

/// What the run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting for the desired state, supervisors or engines.
    Starting,
    /// Steps are being made.
    Running,
    /// A learner failed or a supervisor is lost; the group is being started again.
    Restarting,
    /// Asked to drain; the step in progress is being finished.
    Draining,
    /// Drained: a checkpoint holds everything, the learners are gone.
    Drained,
    /// The last step is done and the model is exported.
    Finished,
    /// The restart budget is spent, or the input cannot be run; `last_failure` says why.
    Failed,
}

/// Why a learner failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LearnerFailure {
    /// CamelCase reason: `LearnerExited`, `LearnerKilled`, `LearnerHung`, `LearnerInput`,
    /// `CoordinatorInput`.
    pub reason: String,
    /// One line: what failed, with the last log lines.
    pub message: String,
    /// The supervisor it happened under.
    pub supervisor: Option<String>,
    /// Exit code; 128 + n for signal n.
    pub exit_code: Option<i32>,
}

/// A supervisor that reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SupervisorState {
    /// Its name: the pod's or the process's.
    pub name: String,
    /// Whether it reported within the last seconds.
    pub alive: bool,
    /// Learners running under it in the current attempt.
    pub learners: u32,
}

/// An engine as the coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EngineState {
    /// Its name.
    pub name: String,
    /// What it is good for.
    pub state: EngineCondition,
    /// The weights it was seen to hold; none for weights that no learner published.
    pub version: Option<Version>,
    /// Seconds since it last answered, or since it was listed if it never has; none while it
    /// answers.
    pub silent_seconds: Option<u32>,
}

/// What an engine is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineCondition {
    /// Does not answer.
    Unreachable,
    /// Answers, but holds other weights than the current ones.
    Stale,
    /// Weights are being updated.
    Syncing,
    /// Holds the current weights and is routed to.
    Ready,
}

/// One step's numbers, reduced over all ranks. Written as one line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u32,
    /// Incarnation that computed it.
    pub attempt: u32,
    /// Mean reward of the step's samples; none for `sft`.
    pub reward: Option<f64>,
    /// Loss, as `lossAggregation` says; the mean over minibatches by trainable tokens.
    pub loss: f64,
    /// Estimate k3 of KL(sampler ‖ learner) per token; none for `sft`.
    pub kl: Option<f64>,
    /// Entropy of the learner's distribution, nats per token.
    pub entropy: f64,
    /// Share of trainable tokens whose ratio was clipped at either bound; none for `sft`.
    pub clip_fraction: Option<f64>,
    /// The part of it above 1 + clipHigh.
    pub clip_fraction_upper: Option<f64>,
    /// The part of it below 1 − clipLow.
    pub clip_fraction_lower: Option<f64>,
    /// Share of trainable tokens whose loss was bounded by cClip; none without cClip.
    pub clip_fraction_dual: Option<f64>,
    /// Estimate of KL(learner ‖ model before training) per token by `klEstimator`; none without a
    /// reference model.
    pub reference_kl: Option<f64>,
    /// Mean behaviour weight of trainable tokens, 0 where masked; none without `behaviorWeight`.
    pub behavior_weight: Option<f64>,
    /// Share of trainable tokens that `behaviorWeight` masked or clamped; none without it.
    pub behavior_bounded: Option<f64>,
    /// Mean of |learner − sampler| log-probability over trainable tokens before the update, in
    /// nats; none for `sft`.
    pub mismatch_mean: Option<f64>,
    /// Largest such difference.
    pub mismatch_max: Option<f64>,
    /// L2 norm of the gradient before clipping, of the last minibatch.
    pub gradient_norm: f64,
    /// Learning rate of the last minibatch.
    pub learning_rate: f64,
    /// Minibatches skipped because loss or gradient was not finite.
    pub skipped: u32,
    /// Tokens in the batch, prompts included.
    pub tokens: u64,
    /// Tokens that carry loss.
    pub trainable_tokens: u64,
    /// Mean completion length in tokens; none for `sft`.
    pub completion_tokens: Option<f64>,
    /// Samples by staleness: steps done since the oldest weights that any of a sample's tokens was
    /// sampled with. Empty for `sft`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub staleness: BTreeMap<u32, u32>,
    /// Groups that dynamic sampling left out of the batch.
    #[serde(default)]
    pub dropped_groups: u32,
    /// Samples made again because they were too old.
    #[serde(default)]
    pub stale_samples: u32,
    /// Seconds from the first prompt of the step to its last reward; none for `sft` and for a
    /// replayed batch.
    pub rollout_seconds: Option<f64>,
    /// Seconds in forward, backward and optimizer.
    pub train_seconds: f64,
    /// Seconds in which weights were published before the step's rollouts.
    pub sync_seconds: Option<f64>,
    /// Tokens of the batch ÷ seconds from the end of the step before to the end of this one.
    pub tokens_per_second: f64,
}

/// One evaluation's numbers: accuracy, the loss of `sft`, or both. Written as one line of
/// `evaluations.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationMetrics {
    /// Steps done when it was made.
    pub step: u32,
    /// Prompts.
    pub prompts: u32,
    /// Completions of each prompt beside the greedy one; 0 where accuracy is not measured.
    #[serde(default)]
    pub samples: u32,
    /// Mean reward of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Mean reward of the greedy completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
    /// By k: probability that one of k samples is correct, the unbiased estimate of Chen et al.
    /// (arXiv 2107.03374), as the mean over prompts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_at: BTreeMap<u32, f64>,
    /// By k: share of prompts for which the most frequent answer of the first k samples is correct;
    /// empty where answers cannot be told apart (`http`, `command`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub majority_at: BTreeMap<u32, f64>,
    /// Mean negative log-likelihood of the completions' tokens, in nats; only with
    /// `dataset.evaluation.completion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Tokens that it is the mean over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_tokens: Option<u64>,
    /// Seconds it took.
    pub seconds: f64,
}

impl EvaluationMetrics {
    /// With what the learners measured beside it.
    #[must_use]
    pub fn with_validation(self, report: &ValidationReport) -> Self {
        Self {
            loss: Some(report.loss),
            loss_tokens: Some(report.tokens),
            seconds: self.seconds + report.seconds,
            ..self
        }
    }
}
