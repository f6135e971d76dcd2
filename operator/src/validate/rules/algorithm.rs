//! Rules of the algorithm, and of the dataset and rewards that it needs.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::grpo::{
    BehaviorAction, BehaviorMetric, GrpoSpec, NormalizationLevel, NormalizationMean,
    NormalizationScale, NormalizationSpec, ProximalLogprobs,
};
use rljob_crds::algorithm::{Algorithm, AlgorithmSpec, DataKind, RolloutSpec, TrainingSpec};
use rljob_crds::data::{DatasetSpec, EvaluationDataset, TrainDataset};
use rljob_crds::model::InitialWeights;
use rljob_crds::reward::RewardSpec;

use super::common::check_union;
use super::pairs::check_pairs;
use super::rewards::check_reward;
use super::{distillation, mixture, prompts, suites};
use crate::validate::Problem;

pub(super) fn check_algorithm(
    spec: &AlgorithmSpec,
    rewards: &[RewardSpec],
    dataset: &DatasetSpec,
    has_agent: bool,
    problems: &mut Vec<Problem>,
) {
    check_union("spec.algorithm", spec, problems);
    for (index, reward) in rewards.iter().enumerate() {
        check_reward(index, reward, rewards.get(..index).unwrap_or_default(), problems);
    }
    let train = &dataset.train;
    if !train.is_absent() {
        mixture::check(train, rewards, problems);
    }
    if let Some(evaluation) = &dataset.evaluation {
        suites::check(evaluation, rewards, problems);
    }
    let Some(algorithm) = spec.resolve() else { return };
    let name = algorithm.name();
    if algorithm.needs_reward() && rewards.is_empty() && !has_agent {
        let message = format!("is missing; algorithm.{name} needs rewards");
        problems.push(Problem::new("spec.rewards", message));
    }
    match algorithm.data() {
        // Reported by `check_training`.
        _ if train.is_absent() => {}
        DataKind::Prompts => {
            let is_used = |reward: &&RewardSpec| {
                train.rewards.is_empty() || train.rewards.contains(&reward.name)
            };
            let compares = rewards.is_empty() && algorithm.needs_reward()
                || rewards.iter().filter(is_used).any(RewardSpec::compares);
            if train.answer.is_none() && compares {
                let message = format!("is missing; algorithm.{name} compares with it");
                problems.push(Problem::new("spec.dataset.train.answer", message));
            }
            if train.completion.is_some() {
                let message = format!("is not used by algorithm.{name}; remove it");
                problems.push(Problem::new("spec.dataset.train.completion", message));
            }
        }
        DataKind::Demonstrations => {
            for part in train.parts() {
                if part.data.completion.is_none() && part.data.conversation.is_none() {
                    let message = format!("is missing; algorithm.{name} learns it");
                    problems.push(Problem::new(format!("{}.completion", part.field), message));
                }
            }
        }
        DataKind::Pairs | DataKind::None => {}
    }
    mixture::check_curriculum(train, algorithm, !rewards.is_empty() || has_agent, problems);
    check_pairs(dataset, algorithm, problems);
    if let Some(evaluation) = &dataset.evaluation {
        check_evaluation(evaluation, algorithm, rewards, problems);
    }
}

/// A run that trains has steps or epochs, any other neither.
fn check_length(training: &TrainingSpec, trains: bool, problems: &mut Vec<Problem>) {
    let (steps, epochs) = ("spec.training.steps", "spec.training.epochs");
    match (training.steps > 0, training.epochs.is_some()) {
        (true, true) if trains => {
            problems.push(Problem::new(epochs, "is set beside training.steps; remove one of them"));
        }
        (false, false) if trains => {
            problems.push(Problem::new(steps, "is missing; set it, or epochs"));
        }
        (has_steps, has_epochs) if !trains => {
            problems.extend(has_steps.then(|| unused(steps)));
            problems.extend(has_epochs.then(|| unused(epochs)));
        }
        _ => {}
    }
}

/// What training needs, and an evaluation must not have.
pub(super) fn check_training(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let trains = spec.algorithm.has_learners();
    let TrainDataset { path, hugging_face, mixture, .. } = &spec.dataset.train;
    // A dataset without a prompt has that problem alone.
    let has_source = path.is_some() || hugging_face.is_some() || !mixture.is_empty();
    if trains && has_source && spec.dataset.train.is_absent() {
        prompts::one_prompt("spec.dataset.train", "", None, problems);
    }
    match (trains, has_source || !spec.dataset.train.is_absent()) {
        (true, false) => problems.push(Problem::new("spec.dataset.train", "is missing")),
        (false, true) => problems.push(unused("spec.dataset.train")),
        (true, true) | (false, false) => {}
    }
    check_length(&spec.training, trains, problems);
    if trains {
        return;
    }
    match &spec.dataset.evaluation {
        None => problems.push(Problem::new(
            "spec.dataset.evaluation",
            "is missing; algorithm.evaluation measures its accuracy",
        )),
        Some(evaluation) if !evaluation.measures_accuracy() => problems.push(Problem::new(
            "spec.dataset.evaluation.answer",
            "is missing; algorithm.evaluation compares with it",
        )),
        Some(_) => {}
    }
    if spec.restore_from.is_some() {
        problems.push(unused("spec.restoreFrom"));
    }
    if spec.rollback_to.is_some() {
        problems.push(unused("spec.rollbackTo"));
    }
    if spec.model.weights != InitialWeights::Pretrained {
        problems.push(Problem::new(
            "spec.model.weights",
            "must be Pretrained: random weights are drawn by learners, which an evaluation lacks",
        ));
    }
}

fn unused(path: &str) -> Problem {
    Problem::new(path, "is not used by algorithm.evaluation; remove it")
}

fn check_evaluation(
    evaluation: &EvaluationDataset,
    algorithm: Algorithm<'_>,
    rewards: &[RewardSpec],
    problems: &mut Vec<Problem>,
) {
    let accuracy = evaluation.measures_accuracy();
    match (accuracy, &evaluation.completion) {
        (_, Some(_)) if algorithm.data() != DataKind::Demonstrations => {
            problems.push(Problem::new(
                "spec.dataset.evaluation.completion",
                format!("is not used by algorithm.{}; remove it", algorithm.name()),
            ));
        }
        (false, None)
            if evaluation.measures_loss()
                && evaluation.chosen.is_none()
                && algorithm.data() != DataKind::Demonstrations =>
        {
            let message = "without answer is for algorithm.sft, which measures the loss of the \
                assistant's messages";
            problems.push(Problem::new("spec.dataset.evaluation.conversation", message));
        }
        (true, _) if rewards.is_empty() && !algorithm.needs_reward() => {
            problems.push(Problem::new(
                "spec.rewards",
                "is missing; rewards score completions by dataset.evaluation.answer",
            ));
        }
        _ => {}
    }
}

/// Rules of rewards and of the policy's loss, which algorithms that sample share.
pub(super) fn check_policy(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let Some(algorithm) = spec.algorithm.resolve() else { return };
    distillation::check(spec, problems);
    if spec.algorithm.distillation.is_some() && spec.rollout.dynamic_sampling.is_some() {
        let message = "compares rewards, which algorithm.distillation does not learn from; remove \
            it";
        problems.push(Problem::new("spec.rollout.dynamicSampling", message));
        return;
    }
    let Some(grpo) = algorithm.policy() else { return };
    let (grpo, path) = (grpo.as_ref(), format!("spec.algorithm.{}", algorithm.name()));
    let most = spec.rollout.max_trained_tokens();
    if grpo.overlong_penalty.as_ref().is_some_and(|overlong| overlong.tokens > most) {
        let limit = match &spec.rollout.workflow {
            None => "rollout.maxNewTokens",
            Some(_) => "the longest sample of rollout.workflow",
        };
        problems.push(Problem::new(
            format!("{path}.overlongPenalty.tokens"),
            format!("must not exceed {limit} = {most}"),
        ));
    }
    if grpo.group_size == 1 {
        check_group_of_one(algorithm.name(), grpo, &spec.rollout, problems);
    }
    if grpo.second_moment_limit.is_some() && grpo.proximal_logprobs == ProximalLogprobs::Sampler {
        problems.push(Problem::new(
            format!("{path}.secondMomentLimit"),
            "needs proximalLogprobs Recompute: with the log-probabilities of the sampler, every \
                moment is 0",
        ));
    }
    let Some(weight) = &grpo.behavior_weight else { return };
    let path = format!("{path}.behaviorWeight");
    if grpo.proximal_logprobs == ProximalLogprobs::Sampler {
        problems.push(Problem::new(
            path.clone(),
            "needs proximalLogprobs Recompute: with the log-probabilities of the sampler, every \
                weight is 1",
        ));
    }
    if weight.upper.is_none() && weight.metric != BehaviorMetric::Ratio {
        let message =
            format!("is missing; only metric Ratio has a default, not {:?}", weight.metric);
        problems.push(Problem::new(format!("{path}.upper"), message));
    } else if weight.lower.is_some_and(|lower| lower > weight.upper()) {
        problems.push(Problem::new(
            format!("{path}.lower"),
            format!("must not exceed upper = {}", weight.upper()),
        ));
    }
    if weight.action == BehaviorAction::Clamp && weight.metric != BehaviorMetric::Ratio {
        problems.push(Problem::new(
            format!("{path}.metric"),
            "must be Ratio: action Clamp bounds the weight itself",
        ));
    }
}

/// A sample is normalized by nothing but itself in its group.
fn check_group_of_one(
    name: &str,
    grpo: &GrpoSpec,
    rollout: &RolloutSpec,
    problems: &mut Vec<Problem>,
) {
    let path = format!("spec.algorithm.{name}");
    let mut check = |field: &str, normalization: &NormalizationSpec| {
        let message = "Group needs groupSize of at least 2: a group of one sample is normalized by \
            nothing but itself";
        if normalization.mean == NormalizationMean::Group {
            problems.push(Problem::new(format!("{path}.{field}.mean"), message));
        }
        if normalization.scale == NormalizationScale::Std
            && normalization.scale_level == NormalizationLevel::Group
        {
            problems.push(Problem::new(format!("{path}.{field}.scaleLevel"), message));
        }
    };
    check("rewardNormalization", &grpo.reward_normalization);
    if let Some(normalization) = &grpo.advantage_normalization {
        check("advantageNormalization", normalization);
    }
    if rollout.dynamic_sampling.is_some() {
        problems.push(Problem::new(
            "spec.rollout.dynamicSampling",
            format!(
                "needs algorithm.{name}.groupSize of at least 2: the rewards of one sample are \
                    equal"
            ),
        ));
    }
}
