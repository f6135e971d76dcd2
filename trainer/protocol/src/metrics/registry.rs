//! Names, units and sources of the scalars of a step.

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
        "k3 estimate of KL(sampler ‖ learner) before the update; absent for `sft`.";
    CLIP_FRACTION, "clipFraction", "1", Learner, 1,
        "Share of trainable tokens whose ratio was clipped at either bound; absent for `sft`.";
    CLIP_FRACTION_UPPER, "clipFractionUpper", "1", Learner, 1,
        "Share of trainable tokens clipped above 1 + clipHigh; absent for `sft`.";
    CLIP_FRACTION_LOWER, "clipFractionLower", "1", Learner, 1,
        "Share of trainable tokens clipped below 1 − clipLow; absent for `sft`.";
    CLIP_FRACTION_DUAL, "clipFractionDual", "1", Learner, 1,
        "Share of trainable tokens whose loss was bounded by cClip; absent without cClip.";
    REFERENCE_KL, "referenceKl", "nats per token", Learner, 1,
        "Estimate of KL(learner ‖ reference), or ‖ teacher, if there is one; else absent.";
    TEACHER_KL, "teacherKl", "nats per token", Learner, 3,
        "KL(teacher ‖ learner) over the teacher's tokens; only with `distillation.offPolicy`.";
    TEACHER_MASS, "teacherMass", "1", Learner, 3,
        "Mean probability of the teacher's topK tokens together; absent likewise.";
    KL_COEFFICIENT, "klCoefficient", "1", Learner, 3,
        "Coefficient of the KL divergence in the step; absent without `adaptiveKl`.";
    GAE_LAMBDA, "gaeLambda", "1", Learner, 3,
        "Mean over trainable tokens of the λ of their samples; absent without `adaptiveLambda`.";
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
    RETURN_RUNNING_MEAN, "returnRunningMean", "1", Learner, 3,
        "Mean of returns by which values are normalized; absent without `valueNormalization`.";
    RETURN_RUNNING_STD, "returnRunningStd", "1", Learner, 3,
        "Standard deviation of returns by which values are normalized; absent likewise.";
    EXPLAINED_VARIANCE, "explainedVariance", "1", Learner, 3,
        "1 − variance of (return − value) ÷ variance of returns; 1 for a perfect critic, 0 for \
         constant returns.";
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
        "Mean score of chosen completions, of `dpo` β · (log-probability − the reference's), of \
         `orpo` λ · mean log-probability of a token.";
    REJECTED_REWARD, "rejectedReward", "1", Learner, 3,
        "Mean score of rejected completions, as `chosenReward`.";
    NEGATIVE_LOG_LIKELIHOOD, "negativeLogLikelihood", "nats per token", Learner, 3,
        "Mean of that of chosen completions, the first term of the loss; only of `orpo`.";
    LOG_ODDS_RATIO, "logOddsRatio", "nats", Learner, 3,
        "Mean log-odds of chosen completions minus those of rejected ones; only of `orpo`.";
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
        "Prompt groups that dynamic sampling left out of the batch, and those with too few samples \
         after rejections.";
    EQUAL_REWARD_GROUPS, "equalRewardGroups", "1", Coordinator, 3,
        "Share of the prompt groups of the batch whose samples all have one reward, so that they \
         have no advantage over the mean of their group; absent with one sample per prompt.";
    SKIPPED_ROWS, "skippedRows", "rows", Coordinator, 3,
        "Rows that `curriculum` skipped before the batch was complete.";
    STALE_SAMPLES, "staleSamples", "samples", Coordinator, 1,
        "Samples regenerated because their weights were too old.";
    REJECTED_SAMPLES, "rejectedSamples", "samples", Coordinator, 3,
        "Samples that a reward, tool, environment, teacher or agent rejected before the batch was \
         complete. Each is sampled again, at most twice.";
    REJECTED_GROUPS, "rejectedGroups", "prompt groups", Coordinator, 3,
        "Prompt groups left out because all of their samples were rejected, part of \
         `droppedGroups`.";
    ROLLOUT_SECONDS, "rolloutSeconds", "s", Coordinator, 1,
        "Time from the step's first prompt to its last reward; absent for `sft` and replays.";
    SYNC_SECONDS, "syncSeconds", "s", Coordinator, 1,
        "Time from publication of weights to the first engine with them; absent without a sync.";
    SYNC_STAGE_SECONDS, "syncStageSeconds", "s", Coordinator, 3,
        "Part of `syncSeconds` until the learners offer the weights and an update begins.";
    SYNC_JOIN_SECONDS, "syncJoinSeconds", "s", Coordinator, 3,
        "Part of `syncSeconds` in which the engine joins a process group; absent if it is in one.";
    SYNC_PAUSE_SECONDS, "syncPauseSeconds", "s", Coordinator, 3,
        "Part of `syncSeconds` in which the engine's requests end.";
    SYNC_TRANSFER_SECONDS, "syncTransferSeconds", "s", Coordinator, 3,
        "Part of `syncSeconds` in which the engine receives or reads the weights, and loads them.";
    SYNC_RESUME_SECONDS, "syncResumeSeconds", "s", Coordinator, 3,
        "Part of `syncSeconds` in which the engine is checked and samples again.";
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
pub(super) const REQUIRED_BY_VERSION_1: &[&str] = &[
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
