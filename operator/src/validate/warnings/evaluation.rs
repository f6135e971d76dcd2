//! Evaluations whose samples are right or wrong by a sum of several rewards.

use rljob_crds::RLJobSpec;
use rljob_crds::data::EvaluationDataset;
use rljob_crds::reward::RewardSpec;

use crate::validate::Problem;

/// Suites for which neither `rewards` nor `correctReward` says which samples are correct, in a job
/// with several weighted rewards.
pub(super) fn check_evaluation(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let weighted: Vec<&RewardSpec> =
        spec.rewards.iter().filter(|reward| reward.weight != 0.0).collect();
    let [first, _, ..] = weighted.as_slice() else { return };
    let judge =
        weighted.iter().find(|reward| reward.math.is_some() || reward.exact_match.is_some());
    let example = &judge.unwrap_or(first).name;
    for suite in spec.dataset.suites() {
        let EvaluationDataset { answer, rewards, correct_reward, .. } = &suite.data;
        // The default and an explicit 1 are the same.
        let is_default = (correct_reward - 1.0).abs() < f64::EPSILON;
        if answer.is_some() && rewards.is_empty() && is_default {
            let message = format!(
                "is not set: pass@k and maj@k compare the weighted sum of {} rewards with \
                 correctReward, 1. Name the rewards of right answers, for example [{example}], or \
                 set correctReward",
                weighted.len()
            );
            warnings.push(Problem::new(format!("{}.rewards", suite.field), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::check_evaluation;
    use crate::validate::test_support::with_spec;

    fn found(rewards: &Value, evaluation: &Value) -> Vec<String> {
        let mut data =
            json!({"path": "/data/test.jsonl", "prompt": "{{question}}", "answer": "answer"});
        let fields = evaluation.as_object().unwrap().clone();
        data.as_object_mut().unwrap().extend(fields);
        let spec = json!({"rewards": rewards, "dataset": {"evaluation": data}});
        let mut warnings = Vec::new();
        check_evaluation(&with_spec(&spec).spec, &mut warnings);
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn evaluations_by_a_sum_of_several_rewards_are_named() {
        let penalty =
            |weight: f64| json!({"name": "brief", "weight": weight, "regex": {"pattern": "a"}});
        let correct = json!({"name": "correct", "math": {}});
        let both = json!([penalty(0.1), correct]);
        let expected = "spec.dataset.evaluation.rewards: is not set: pass@k and maj@k compare the \
                        weighted sum of 2 rewards with correctReward, 1. Name the rewards of right \
                        answers, for example [correct], or set correctReward";
        assert_eq!(found(&both, &json!({})), [expected]);
        for set in [json!({"rewards": ["correct"]}), json!({"correctReward": 0.5})] {
            assert_eq!(found(&both, &set), Vec::<String>::new(), "{set}");
        }
        let measured = json!([correct, penalty(0.0)]);
        for one in [json!([correct]), measured] {
            assert_eq!(found(&one, &json!({})), Vec::<String>::new(), "{one}");
        }
    }
}
