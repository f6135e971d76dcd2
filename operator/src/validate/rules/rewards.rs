//! Rules of rewards.

use rljob_crds::reward::{AnswerPlace, RewardSpec};

use super::common::check_union;
use crate::validate::Problem;

/// Checks names of rewards that score the data at `path`, and fields that they receive.
pub(super) fn check_rewards_of_data(
    path: &str,
    (names, fields): (&[String], &[String]),
    rewards: &[RewardSpec],
    problems: &mut Vec<Problem>,
) {
    if !fields.is_empty() && !rewards.iter().any(RewardSpec::receives_fields) {
        let message = "has no use: only http, command and python rewards receive fields of rows";
        problems.push(Problem::new(format!("{path}.rewardFields"), message));
    }
    for (index, name) in names.iter().enumerate() {
        if !rewards.iter().any(|reward| reward.name == *name) {
            let message = format!("`{name}` is not the name of an entry of spec.rewards");
            problems.push(Problem::new(format!("{path}.rewards[{index}]"), message));
        }
    }
}

/// Checks `spec.rewards[index]`, which has `earlier` before it.
pub(super) fn check_reward(
    index: usize,
    reward: &RewardSpec,
    earlier: &[RewardSpec],
    problems: &mut Vec<Problem>,
) {
    let path = format!("spec.rewards[{index}]");
    check_union(&path, reward, problems);
    if earlier.iter().any(|other| other.name == reward.name) {
        let message = format!("`{}` is the name of an earlier reward", reward.name);
        problems.push(Problem::new(format!("{path}.name"), message));
    }
    let pattern = reward.regex.as_ref().map(|regex| regex::Regex::new(&regex.pattern));
    if let Some(Err(error)) = pattern {
        let error = error.to_string();
        let cause = error.lines().next_back().unwrap_or_default().trim_start_matches("error: ");
        let message = format!("is not a regular expression: {cause}");
        problems.push(Problem::new(format!("{path}.regex.pattern"), message));
    }
    let places: &[AnswerPlace] = reward.math.as_ref().map_or(&[], |math| &math.extract);
    for (place_index, place) in places.iter().enumerate() {
        if places.iter().take(place_index).any(|earlier| earlier == place) {
            problems.push(Problem::new(
                format!("{path}.math.extract[{place_index}]"),
                format!("{place:?} is a duplicate"),
            ));
        }
    }
}
