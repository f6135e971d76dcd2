//! Rules of what is optimised, and of what that needs: the dataset's fields and the reward.

use rljob_crds::algorithm::AlgorithmSpec;
use rljob_crds::data::{DatasetSpec, EvaluationDataset};
use rljob_crds::grpo::{BehaviorAction, BehaviorMetric, GrpoSpec, ProximalLogprobs};
use rljob_crds::reward::{AnswerPlace, RewardSpec};

use super::exactly_one;
use crate::validate::Problem;

pub(super) fn check_algorithm(
    algorithm: &AlgorithmSpec,
    reward: Option<&RewardSpec>,
    dataset: &DatasetSpec,
    problems: &mut Vec<Problem>,
) {
    exactly_one(
        "spec.algorithm",
        &[("grpo", algorithm.grpo.is_some()), ("sft", algorithm.sft.is_some())],
        problems,
    );
    if let Some(reward) = reward {
        check_reward(reward, problems);
    }
    if algorithm.grpo.is_some() {
        if reward.is_none() {
            problems.push(Problem::new("spec.reward", "is missing; algorithm.grpo needs a reward"));
        }
        if dataset.train.answer.is_none() && reward.is_none_or(compares) {
            problems.push(Problem::new(
                "spec.dataset.train.answer",
                "is missing; algorithm.grpo compares with it",
            ));
        }
        if dataset.train.completion.is_some() {
            problems.push(Problem::new(
                "spec.dataset.train.completion",
                "is not used by algorithm.grpo; remove it",
            ));
        }
    }
    if algorithm.sft.is_some() && dataset.train.completion.is_none() {
        problems.push(Problem::new(
            "spec.dataset.train.completion",
            "is missing; algorithm.sft learns it",
        ));
    }
    if let Some(evaluation) = &dataset.evaluation {
        check_evaluation(evaluation, algorithm, reward, problems);
    }
}

fn check_evaluation(
    evaluation: &EvaluationDataset,
    algorithm: &AlgorithmSpec,
    reward: Option<&RewardSpec>,
    problems: &mut Vec<Problem>,
) {
    match (&evaluation.answer, &evaluation.completion) {
        (None, None) => problems
            .push(Problem::new("spec.dataset.evaluation", "set answer, which the reward compares with, or completion, whose loss sft measures, or both")),
        (_, Some(_)) if algorithm.grpo.is_some() => {
            problems.push(Problem::new("spec.dataset.evaluation.completion", "is not used by algorithm.grpo; remove it"));
        }
        (Some(_), _) if reward.is_none() && algorithm.grpo.is_none() => {
            problems.push(Problem::new("spec.reward", "is missing; it scores completions by dataset.evaluation.answer"));
        }
        _ => {}
    }
}

/// Whether the reward is nothing without a reference answer.
fn compares(reward: &RewardSpec) -> bool {
    reward.math.is_some() || reward.exact_match.is_some()
}

fn check_reward(reward: &RewardSpec, problems: &mut Vec<Problem>) {
    let kinds = [
        ("math", reward.math.is_some()),
        ("exactMatch", reward.exact_match.is_some()),
        ("regex", reward.regex.is_some()),
        ("http", reward.http.is_some()),
        ("command", reward.command.is_some()),
    ];
    exactly_one("spec.reward", &kinds, problems);
    let places: &[AnswerPlace] = reward.math.as_ref().map_or(&[], |math| &math.extract);
    for (index, place) in places.iter().enumerate() {
        if places[..index].contains(place) {
            problems.push(Problem::new(
                format!("spec.reward.math.extract[{index}]"),
                format!("{place:?} is there already"),
            ));
        }
    }
}

pub(super) fn check_grpo(grpo: &GrpoSpec, max_new_tokens: u32, problems: &mut Vec<Problem>) {
    if grpo.overlong_penalty.as_ref().is_some_and(|overlong| overlong.tokens > max_new_tokens) {
        problems.push(Problem::new(
            "spec.algorithm.grpo.overlongPenalty.tokens",
            format!("must not exceed rollout.maxNewTokens = {max_new_tokens}"),
        ));
    }
    let Some(weight) = &grpo.behavior_weight else { return };
    let path = "spec.algorithm.grpo.behaviorWeight";
    if grpo.proximal_logprobs == ProximalLogprobs::Sampler {
        problems.push(Problem::new(path, "needs proximalLogprobs Recompute: of the sampler's own log-probabilities every weight is 1"));
    }
    if weight.lower.is_some_and(|lower| lower > weight.upper) {
        problems.push(Problem::new(
            format!("{path}.lower"),
            format!("must not exceed upper = {}", weight.upper),
        ));
    }
    if weight.action == BehaviorAction::Clamp && weight.metric != BehaviorMetric::Ratio {
        problems.push(Problem::new(
            format!("{path}.metric"),
            "must be Ratio: action Clamp bounds the weight itself",
        ));
    }
}
