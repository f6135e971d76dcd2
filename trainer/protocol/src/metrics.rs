//! Numbers of a step and of an evaluation: named scalars, and the registry of their names.
//!
//! An objective or a reward adds a scalar by adding its name here; no type and no reader changes.
//! A line of `metrics.jsonl` is one [`StepMetrics`], a line of `evaluations.jsonl` one
//! [`EvaluationMetrics`]; scalars are fields of these objects, so files of earlier releases have
//! the same names.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::evaluation::CategoryMetrics;

/// A registered scalar of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Key in JSON and tag in TensorBoard.
    pub name: &'static str,
    /// Unit, or `1` for a ratio.
    pub unit: &'static str,
    /// One sentence: what it measures and when it is absent.
    pub description: &'static str,
    /// The process that computes it.
    pub source: Source,
    /// Protocol version that introduced it; it is not sent to peers of an earlier version.
    pub since: u32,
}

/// The process that computes a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Reduced over all ranks by the learners.
    Learner,
    /// Added by the coordinator to the learners' report.
    Coordinator,
}

macro_rules! registry {
    ($($constant:ident, $name:literal, $unit:literal, $source:ident, $since:literal,
        $text:literal;)*) => {
        $(#[doc = $text] pub const $constant: &str = $name;)*

        /// Every registered scalar of a step, by topic. `reward/<name>` for each entry of
        /// `spec.rewards` comes beside them.
        pub const REGISTRY: &[Metric] = &[$(Metric {
            name: $name,
            unit: $unit,
            description: $text,
            source: Source::$source,
            since: $since,
        }),*];
    };
}

registry! {
    LOSS, "loss", "nats", Learner, 1,
        "Loss as `lossAggregation` defines it; mean over minibatches weighted by trainable tokens.";
    ENTROPY, "entropy", "nats per token", Learner, 1,
        "Entropy of the policy's distribution.";
    KL, "kl", "nats per token", Learner, 1,
        "k3 estimate of KL(sampler ‖ learner); absent for `sft`.";
    CLIP_FRACTION, "clipFraction", "1", Learner, 1,
        "Share of trainable tokens whose ratio was clipped at either bound; absent for `sft`.";
    CLIP_FRACTION_UPPER, "clipFractionUpper", "1", Learner, 1,
        "Share of trainable tokens clipped above 1 + clipHigh; absent for `sft`.";
    CLIP_FRACTION_LOWER, "clipFractionLower", "1", Learner, 1,
        "Share of trainable tokens clipped below 1 − clipLow; absent for `sft`.";
    CLIP_FRACTION_DUAL, "clipFractionDual", "1", Learner, 1,
        "Share of trainable tokens whose loss was bounded by cClip; absent without cClip.";
    REFERENCE_KL, "referenceKl", "nats per token", Learner, 1,
        "Estimate of KL(learner ‖ reference), of `distillation` ‖ teacher; absent without either.";
    KL_COEFFICIENT, "klCoefficient", "1", Learner, 3,
        "Coefficient of the KL divergence in the step; absent without `adaptiveKl`.";
    BEHAVIOR_WEIGHT, "behaviorWeight", "1", Learner, 1,
        "Mean behaviour weight of trainable tokens, 0 if masked; absent without `behaviorWeight`.";
    BEHAVIOR_BOUNDED, "behaviorBounded", "1", Learner, 1,
        "Share of trainable tokens that `behaviorWeight` masked or clamped; absent without it.";
    MOMENT_MASKED, "momentMasked", "1", Learner, 3,
        "Share of trainable tokens that `secondMomentLimit` masked; absent without it.";
    MISMATCH_MEAN, "mismatchMean", "nats", Learner, 1,
        "Mean |learner − sampler| log-probability before the update; absent for `sft`.";
    MISMATCH_MAX, "mismatchMax", "nats", Learner, 1,
        "Largest |learner − sampler| log-probability before the update; absent for `sft`.";
    VALUE_LOSS, "valueLoss", "1", Learner, 3,
        "Mean loss of the critic's values of trainable tokens; only of `ppo`, like the next ones.";
    VALUE_CLIP_FRACTION, "valueClipFraction", "1", Learner, 3,
        "Share of trainable tokens whose value was clipped by valueClip.";
    VALUE_MEAN, "valueMean", "1", Learner, 3,
        "Mean value of trainable tokens before the update, in the unit of shaped rewards.";
    RETURN_MEAN, "returnMean", "1", Learner, 3,
        "Mean return of trainable tokens, which the critic learns.";
    EXPLAINED_VARIANCE, "explainedVariance", "1", Learner, 3,
        "1 − variance of (return − value) ÷ variance of returns; 1 for a perfect critic.";
    CRITIC_GRADIENT_NORM, "criticGradientNorm", "1", Learner, 3,
        "L2 norm of the critic's gradient in the last minibatch before clipping.";
    CRITIC_LEARNING_RATE, "criticLearningRate", "1", Learner, 3,
        "Learning rate of the critic in the last minibatch.";
    PERPLEXITY, "perplexity", "1", Learner, 3,
        "e to the mean negative log-likelihood per token; only in evaluations of `sft`.";
    PAIR_ACCURACY, "pairAccuracy", "1", Learner, 3,
        "Share of pairs whose chosen completion has the higher reward; only with pairs.";
    PAIR_MARGIN, "pairMargin", "1", Learner, 3,
        "Mean reward of chosen completions minus that of rejected ones; only with pairs.";
    CHOSEN_REWARD, "chosenReward", "1", Learner, 3,
        "Mean score of chosen completions, of `dpo` β · (log-probability − the reference's).";
    REJECTED_REWARD, "rejectedReward", "1", Learner, 3,
        "Mean score of rejected completions, as `chosenReward`.";
    GRADIENT_NORM, "gradientNorm", "1", Learner, 1,
        "L2 norm of the last minibatch's gradient before clipping; 0 while only the critic trains.";
    LEARNING_RATE, "learningRate", "1", Learner, 1,
        "Learning rate of the last minibatch.";
    SKIPPED, "skipped", "minibatches", Learner, 1,
        "Updates, of policy or critic, skipped because loss or gradient was not finite.";
    TOKENS, "tokens", "tokens", Learner, 1,
        "Tokens in the batch, prompts included.";
    COMPUTED_TOKENS, "computedTokens", "tokens", Learner, 3,
        "Tokens that a pass computes: those of a prompt that samples of a micro-batch share once.";
    TRAINABLE_TOKENS, "trainableTokens", "tokens", Learner, 1,
        "Tokens that carry loss.";
    TRAIN_SECONDS, "trainSeconds", "s", Learner, 1,
        "Time in forward, backward and optimizer.";
    REFERENCE_SECONDS, "referenceSeconds", "s", Learner, 3,
        "Time in passes of the reference model, or of a teacher in learners; absent without one.";
    PROXIMAL_SECONDS, "proximalSeconds", "s", Learner, 3,
        "Time in passes of the policy before the first update; absent where no pass is needed.";
    VALUE_SECONDS, "valueSeconds", "s", Learner, 3,
        "Time in passes for values alone before the first update; only of `ppo`.";
    ADVANTAGE_SECONDS, "advantageSeconds", "s", Learner, 3,
        "Time in which advantages and weights of tokens are computed from these passes.";
    POLICY_SECONDS, "policySeconds", "s", Learner, 3,
        "Time in passes with gradients and updates of the policy, or of a trained reward model.";
    CRITIC_SECONDS, "criticSeconds", "s", Learner, 3,
        "Time in passes with gradients and updates of the critic; absent with `ppo.valueHead`.";
    WAIT_SECONDS, "waitSeconds", "s", Learner, 3,
        "Time in which the learners had no instruction before this step: samples were missing.";
    MFU, "mfu", "1", Learner, 3,
        "Share of the GPUs' bf16 operations that `trainSeconds` used; absent on CPUs and in fp32.";
    PEAK_MEMORY, "peakMemoryBytes", "bytes", Learner, 3,
        "Most memory that tensors used on a GPU of a learner since its start; absent on CPUs.";
    REWARD, "reward", "1", Coordinator, 1,
        "Mean reward of the step's samples; absent for `sft`.";
    COMPLETION_TOKENS, "completionTokens", "tokens", Coordinator, 1,
        "Mean completion length; absent for `sft`.";
    TURNS, "turns", "1", Coordinator, 3,
        "Mean number of turns of the step's samples; absent where each has one.";
    DROPPED_GROUPS, "droppedGroups", "prompt groups", Coordinator, 1,
        "Prompt groups that dynamic sampling left out of the batch.";
    SKIPPED_ROWS, "skippedRows", "rows", Coordinator, 3,
        "Rows that `curriculum` skipped before the batch was complete.";
    STALE_SAMPLES, "staleSamples", "samples", Coordinator, 1,
        "Samples regenerated because their weights were too old.";
    ROLLOUT_SECONDS, "rolloutSeconds", "s", Coordinator, 1,
        "Time from the step's first prompt to its last reward; absent for `sft` and replays.";
    SYNC_SECONDS, "syncSeconds", "s", Coordinator, 1,
        "Time from publication of weights to the first engine with them; absent without a sync.";
    TOKENS_PER_SECOND, "tokensPerSecond", "tokens/s", Coordinator, 1,
        "Tokens of the batch divided by the time from the end of the previous step.";
}

/// Evaluations of several turns: mean reward of the first turns of the sampled completions. The
/// other estimates are those of the last turns.
pub const SAMPLED_FIRST_TURN: &str = "sampledFirstTurn";

/// Evaluations of several turns: mean reward of the first turn of the greedy completion.
pub const GREEDY_FIRST_TURN: &str = "greedyFirstTurn";

/// Prefix of the mean of a reward's component: `reward/<name>`. Since protocol version 2.
pub const REWARD_COMPONENT_PREFIX: &str = "reward/";

/// Prefix of the share of a part of `dataset.train.mixture` in the step's prompts:
/// `mixture/<name>`.
pub const MIXTURE_PREFIX: &str = "mixture/";

/// Names without which a peer of version 1 rejects a step's metrics.
const REQUIRED_BY_VERSION_1: &[&str] = &[
    LOSS,
    ENTROPY,
    GRADIENT_NORM,
    LEARNING_RATE,
    SKIPPED,
    TOKENS,
    TRAINABLE_TOKENS,
    TRAIN_SECONDS,
    TOKENS_PER_SECOND,
];

/// Named numbers. Serialized as JSON fields, whole numbers without a fraction; on reading, fields
/// that are not numbers are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scalars(BTreeMap<String, f64>);

impl Scalars {
    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// The value of `name`, or 0.
    pub fn get_or_zero(&self, name: &str) -> f64 {
        self.get(name).unwrap_or_default()
    }

    /// Sets `name`.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    /// Sets `name`, or removes it.
    pub fn set_option(&mut self, name: &str, value: Option<f64>) {
        match value {
            Some(value) => self.set(name, value),
            None => drop(self.0.remove(name)),
        }
    }

    /// Adds to `name`, which starts at 0.
    pub fn add(&mut self, name: &str, value: f64) {
        *self.0.entry(name.to_owned()).or_default() += value;
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The means of the rewards' components: name without prefix, and value.
    pub fn reward_components(&self) -> impl Iterator<Item = (&str, f64)> {
        self.iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(REWARD_COMPONENT_PREFIX)?, value)))
    }

    /// Removes the names that a peer of this protocol version does not define.
    fn keep_known_by(&mut self, protocol: u32) {
        if protocol < 2 {
            self.0.retain(|name, _| {
                REGISTRY.iter().any(|metric| metric.name == name && metric.since <= protocol)
            });
        }
    }
}

impl<N: Into<String>> FromIterator<(N, f64)> for Scalars {
    fn from_iter<I: IntoIterator<Item = (N, f64)>>(scalars: I) -> Self {
        Self(scalars.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

/// 2^53: larger whole numbers are not exact in f64.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Serialize for Scalars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, value)| {
            // Peers of version 1 read counts as integers.
            let negative_zero = value == 0.0 && value.is_sign_negative();
            let whole = value.fract() == 0.0 && value.abs() < EXACT && !negative_zero;
            (name, if whole { Value::from(value as i64) } else { Value::from(value) })
        }))
    }
}

impl<'de> Deserialize<'de> for Scalars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let numbers = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_f64()?)))
            .map(|(name, value)| {
                if value.is_finite() {
                    Ok((name, value))
                } else {
                    Err(D::Error::custom(format!("metric `{name}` is not finite")))
                }
            });
        Ok(Self(numbers.collect::<Result<_, _>>()?))
    }
}

/// One step's numbers, reduced over all ranks: a line of `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u32,
    /// Attempt of the learner group that computed it.
    pub attempt: u32,
    /// Samples by staleness: steps between the oldest weights that sampled any of a sample's tokens
    /// and the weights that are trained. Empty for `sft`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub staleness: BTreeMap<u32, u32>,
    /// Everything else, by the names of [`REGISTRY`].
    #[serde(flatten)]
    pub scalars: Scalars,
}

impl StepMetrics {
    /// A step's numbers with these scalars.
    pub fn with_scalars<N: Into<String>>(
        step: u32,
        scalars: impl IntoIterator<Item = (N, f64)>,
    ) -> Self {
        Self { step, scalars: scalars.into_iter().collect(), ..Self::default() }
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.scalars.get(name)
    }

    /// The part that a peer of this protocol version can read, with every name that it requires.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        self.scalars.keep_known_by(protocol);
        if protocol < 2 {
            for name in REQUIRED_BY_VERSION_1 {
                self.scalars.0.entry((*name).to_owned()).or_default();
            }
        }
        self
    }
}

/// One evaluation's numbers: accuracy, the loss of `sft` or of pairs, or both. A line of
/// `evaluations.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationMetrics {
    /// Steps done when it was made.
    pub step: u32,
    /// Prompts.
    pub prompts: u32,
    /// Completions of each prompt beside the greedy one; 0 where accuracy is not measured.
    #[serde(default)]
    pub samples: u32,
    /// Mean over prompts of the mean reward of a prompt's sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Mean reward of the greedy completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
    /// Standard error of `sampled`, clustered by prompt: s ÷ √n of the n prompts' means, with
    /// s² = Σ (xᵢ − x̄)² ÷ (n − 1) (Miller, arXiv 2411.00640). Absent for fewer than two prompts,
    /// like the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_standard_error: Option<f64>,
    /// Standard error of `greedy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy_standard_error: Option<f64>,
    /// Standard errors of `passAt`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_at_standard_error: BTreeMap<u32, f64>,
    /// Standard errors of `majorityAt`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub majority_at_standard_error: BTreeMap<u32, f64>,
    /// By category of `dataset.evaluation.category`: means and standard errors over its prompts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub categories: BTreeMap<String, CategoryMetrics>,
    /// Completions that no estimate contains because their verifier failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<u32>,
    /// Share of completion tokens that were sampled with newer weights than those of `step`; only
    /// of evaluations beside training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_tokens: Option<f64>,
    /// By k: probability that one of k samples is correct, the unbiased estimate of Chen et al.
    /// (arXiv 2107.03374), as the mean over prompts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_at: BTreeMap<u32, f64>,
    /// By k: share of prompts for which the most frequent answer of the first k samples is correct;
    /// empty where answers cannot be compared (`http`, `command`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub majority_at: BTreeMap<u32, f64>,
    /// Mean negative log-likelihood of the completions' tokens, in nats, with
    /// `dataset.evaluation.completion`; mean loss of pairs with `dataset.evaluation.chosen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Tokens of the completions that `loss` is computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_tokens: Option<u64>,
    /// By suite of `dataset.evaluation.suites`: its numbers. Accuracy is then absent above.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub suites: BTreeMap<String, EvaluationMetrics>,
    /// Seconds that it took.
    pub seconds: f64,
    /// Everything else by name: [`SAMPLED_FIRST_TURN`] and [`GREEDY_FIRST_TURN`] with a workflow of
    /// several turns, [`PERPLEXITY`] of `sft`, [`PAIR_ACCURACY`] and [`PAIR_MARGIN`] of pairs.
    #[serde(flatten)]
    pub scalars: Scalars,
}

impl EvaluationMetrics {
    /// The numbers of each suite with its name; without suites, these numbers without a name.
    pub fn by_suite(&self) -> Vec<(Option<&str>, &Self)> {
        if self.suites.is_empty() {
            return vec![(None, self)];
        }
        self.suites.iter().map(|(name, own)| (Some(name.as_str()), own)).collect()
    }

    /// Adds the suites that only an earlier evaluation has: those that were not due.
    #[must_use]
    pub fn after(mut self, earlier: Option<&Self>) -> Self {
        if !self.suites.is_empty() {
            for (name, own) in earlier.iter().flat_map(|earlier| &earlier.suites) {
                self.suites.entry(name.clone()).or_insert_with(|| own.clone());
            }
        }
        self
    }

    /// Adds the loss that the learners measured, over this number of tokens in `seconds`.
    #[must_use]
    pub fn with_loss(self, loss: f64, tokens: u64, seconds: f64) -> Self {
        Self {
            loss: Some(loss),
            loss_tokens: Some(tokens),
            seconds: self.seconds + seconds,
            ..self
        }
    }

    /// The part that a peer of this protocol version can read.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        if protocol < 2 {
            self.scalars = Scalars::default();
            self.sampled_standard_error = None;
            self.greedy_standard_error = None;
            self.pass_at_standard_error.clear();
            self.majority_at_standard_error.clear();
            self.rejected = None;
            self.newer_tokens = None;
        }
        if protocol < 3 {
            self.categories.clear();
            self.suites.clear();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use rljob_crds::dataflow::{LearnerCall, Phase};

    #[test]
    fn scalars_are_fields_and_whole_numbers_have_no_fraction() {
        let metrics = StepMetrics {
            step: 3,
            attempt: 1,
            staleness: BTreeMap::from([(0, 6), (1, 2)]),
            scalars: [(LOSS, 0.1), (TOKENS, 128.0), ("reward/format", 0.5)].into_iter().collect(),
        };
        let json = concat!(
            r#"{"step":3,"attempt":1,"staleness":{"0":6,"1":2},"#,
            r#""loss":0.1,"reward/format":0.5,"tokens":128}"#
        );
        assert_eq!(serde_json::to_string(&metrics).unwrap(), json);
        assert_eq!(serde_json::from_str::<StepMetrics>(json).unwrap(), metrics);
    }

    #[test]
    fn nulls_and_fields_that_are_not_numbers_are_ignored() {
        let line = r#"{"step":1,"attempt":0,"reward":null,"loss":2.5,"later":{"a":1}}"#;
        let expected = StepMetrics::with_scalars(1, [(LOSS, 2.5)]);
        assert_eq!(serde_json::from_str::<StepMetrics>(line).unwrap(), expected);
    }

    #[test]
    fn durations_of_plans_are_metrics() {
        let phases = [Phase::Sync, Phase::Rollouts, Phase::Batch, Phase::Training];
        let phases = phases.into_iter().filter_map(Phase::seconds);
        let names = phases.chain(LearnerCall::ALL.map(LearnerCall::seconds));
        let is_seconds =
            |name: &str| REGISTRY.iter().any(|metric| (metric.name, metric.unit) == (name, "s"));
        let missing: Vec<&str> = names.filter(|name| !is_seconds(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = REGISTRY.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), REGISTRY.len());
    }

    #[test]
    fn a_peer_of_version_1_gets_the_scalars_of_version_1() {
        let metrics = StepMetrics::with_scalars(1, [(LOSS, 2.5), ("reward/format", 0.5)]);
        let reduced = metrics.clone().for_peer(1);
        assert_eq!((reduced.get(LOSS), reduced.get("reward/format")), (Some(2.5), None));
        assert!(REQUIRED_BY_VERSION_1.iter().all(|name| reduced.get(name).is_some()));
        assert_eq!(metrics.clone().for_peer(2), metrics);
    }
}
