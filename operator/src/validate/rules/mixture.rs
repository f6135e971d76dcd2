//! Rules of training data and the parts of their mixture.

use rljob_crds::algorithm::Algorithm;
use rljob_crds::data::TrainDataset;
use rljob_crds::reward::RewardSpec;

use super::common::check_union;
use super::prompts::{self, NO_COMPLETION};
use super::rewards::check_rewards_of_data;
use crate::validate::Problem;

const FIELD: &str = "spec.dataset.train";

/// Checks training data that are not absent.
pub(super) fn check(train: &TrainDataset, rewards: &[RewardSpec], problems: &mut Vec<Problem>) {
    check_union(FIELD, train, problems);
    for (index, part) in train.mixture.iter().enumerate() {
        let field = format!("{FIELD}.mixture[{index}]");
        check_union(&field, part, problems);
        for (name, is_set, default) in [
            (
                "completion",
                part.completion.is_some(),
                train.completion.is_some() || train.conversation.is_some(),
            ),
            ("chosen", part.chosen.is_some(), train.chosen.is_some()),
            ("rejected", part.rejected.is_some(), train.rejected.is_some()),
        ] {
            if is_set && !default {
                let message = format!("needs {FIELD}.{name}, which it replaces for this part");
                problems.push(Problem::new(format!("{field}.{name}"), message));
            }
        }
        let earlier = train.mixture.get(..index).unwrap_or_default();
        if earlier.iter().any(|other| other.name == part.name) {
            let message = format!("`{}` is the name of an earlier part", part.name);
            problems.push(Problem::new(format!("{field}.name"), message));
        }
    }
    for part in train.parts() {
        let (field, data) = (part.field, part.data);
        prompts::check_train(&field, &data, problems);
        check_rewards_of_data(&field, (&data.rewards, &data.reward_fields), rewards, problems);
        let has_completion =
            data.completion.is_some() || data.chosen.is_some() || data.conversation.is_some();
        if data.max_tokens.is_some() && !has_completion {
            problems.push(Problem::new(format!("{field}.maxTokens"), NO_COMPLETION));
        }
        let (min, max) = (data.min_prompt_tokens, data.max_prompt_tokens);
        if let Some((min, max)) = min.zip(max).filter(|(min, max)| min > max) {
            let message = format!("must be at most maxPromptTokens = {max}, found {min}");
            problems.push(Problem::new(format!("{field}.minPromptTokens"), message));
        }
        if data.pass_rate.is_some_and(|filter| filter.min > filter.max) {
            problems.push(Problem::new(format!("{field}.passRate"), "min must be at most max"));
        }
        let path = format!("{field}.curriculum");
        match data.curriculum {
            Some(rule) if rule.min > rule.max => {
                problems.push(Problem::new(path, "min must be at most max"));
            }
            Some(rule) if !rule.skips() => {
                let message = "skips nothing: set min above 0 or max below 1";
                problems.push(Problem::new(path, message));
            }
            _ => {}
        }
    }
}

/// Checks that completions of training data with a curriculum are sampled and scored.
pub(super) fn check_curriculum(
    train: &TrainDataset,
    algorithm: Algorithm<'_>,
    is_scored: bool,
    problems: &mut Vec<Problem>,
) {
    let message = if !algorithm.has_rollouts() {
        format!("is not used by algorithm.{}, which samples nothing; remove it", algorithm.name())
    } else if !is_scored {
        "needs rewards, which tell what is correct".to_owned()
    } else {
        check_counted_samples(train, algorithm, problems);
        return;
    };
    for part in train.parts().into_iter().filter(|part| part.data.curriculum.is_some()) {
        problems.push(Problem::new(format!("{}.curriculum", part.field), message.clone()));
    }
}

/// Checks that bounds on both sides leave a pass rate that is within them.
fn check_counted_samples(
    train: &TrainDataset,
    algorithm: Algorithm<'_>,
    problems: &mut Vec<Problem>,
) {
    for part in train.parts() {
        let Some(rule) = part.data.curriculum else { continue };
        if rule.min > 0.0
            && rule.max < 1.0
            && algorithm.group_size().saturating_mul(rule.groups) < 2
        {
            let message = format!(
                "skips every row that it measures, because the pass rate of one sample is 0 or 1: \
                 set groups, or algorithm.{}.groupSize, to at least 2",
                algorithm.name()
            );
            problems.push(Problem::new(format!("{}.curriculum", part.field), message));
        }
    }
}
