//! Rules of evaluation data and their suites.

use rljob_crds::data::{EvaluationDataset, Suite};
use rljob_crds::reward::RewardSpec;

use super::common::check_union;
use super::prompts::{self, NO_COMPLETION};
use super::rewards::check_rewards_of_data;
use crate::validate::Problem;

const FIELD: &str = "spec.dataset.evaluation";

pub(super) fn check(
    evaluation: &EvaluationDataset,
    rewards: &[RewardSpec],
    problems: &mut Vec<Problem>,
) {
    check_union(FIELD, evaluation, problems);
    if evaluation.max_tokens.is_some() && !evaluation.measures_loss() {
        problems.push(Problem::new(format!("{FIELD}.maxTokens"), NO_COMPLETION));
    }
    if evaluation.suites.is_empty() {
        if !evaluation.measures_loss() && evaluation.answer.is_none() {
            problems.push(Problem::new(
                FIELD,
                "set answer, which the reward compares with, completion, whose loss sft \
                    measures, or chosen and rejected, whose loss dpo, orpo and rewardModel \
                    measure",
            ));
        }
    } else {
        check_suites(evaluation, problems);
    }
    for suite in evaluation.resolved() {
        let Suite { field, data, .. } = suite;
        prompts::check_evaluation(&field, &data, problems);
        check_rewards_of_data(&field, (&data.rewards, &data.reward_fields), rewards, problems);
    }
}

fn check_suites(evaluation: &EvaluationDataset, problems: &mut Vec<Problem>) {
    for (field, is_set) in
        [("completion", evaluation.completion.is_some()), ("chosen", evaluation.chosen.is_some())]
    {
        if is_set {
            let message = "belongs to an evaluation without suites, which measure accuracy";
            problems.push(Problem::new(format!("{FIELD}.{field}"), message));
        }
    }
    for (index, suite) in evaluation.suites.iter().enumerate() {
        let field = format!("{FIELD}.suites[{index}]");
        check_union(&field, suite, problems);
        if suite.answer.is_none() && evaluation.answer.is_none() {
            let message = "is missing; the accuracy of a suite is measured with it";
            problems.push(Problem::new(format!("{field}.answer"), message));
        }
        let earlier = evaluation.suites.get(..index).unwrap_or_default();
        if earlier.iter().any(|other| other.name == suite.name) {
            let message = format!("`{}` is the name of an earlier suite", suite.name);
            problems.push(Problem::new(format!("{field}.name"), message));
        }
    }
}
