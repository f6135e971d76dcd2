//! Name of what evaluations of a job measure. Pure.

use rljob_crds::RLJobSpec;
use rljob_crds::reward::RewardSpec;

/// `accuracy` if each completion of the suite is right or wrong, which is the reward 1 or 0 of one
/// verifier; otherwise `reward`. Rewards of environments and agents are those of a program.
pub fn measure(spec: &RLJobSpec, suite: Option<&str>) -> &'static str {
    let suites = spec.dataset.suites();
    let scored_by = suites.iter().find(|own| own.name.as_deref() == suite);
    let scored_by = scored_by.map_or(&[][..], |own| &own.data.rewards);
    let is_used = |reward: &&RewardSpec| {
        reward.weight != 0.0 && (scored_by.is_empty() || scored_by.contains(&reward.name))
    };
    let workflow = spec.rollout.workflow.as_ref();
    let has_other_rewards =
        workflow.is_some_and(|workflow| workflow.environment.is_some() || workflow.agent.is_some());
    let mut used = spec.rewards.iter().filter(is_used);
    match (used.next(), used.next()) {
        (Some(reward), None) if !has_other_rewards && reward.is_verdict() => "accuracy",
        _ => "reward",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::measure;
    use crate::validate::test_support::with_spec;

    fn of(rewards: &Value, more: &Value, suite: Option<&str>) -> &'static str {
        let mut spec = more.clone();
        spec["rewards"] = rewards.clone();
        measure(&with_spec(&spec).spec, suite)
    }

    #[test]
    fn only_verdicts_of_one_verifier_are_an_accuracy() {
        let none = json!({});
        let correct = json!({"name": "correct", "math": {}});
        let measured = json!({"name": "length", "weight": 0, "command": {"command": ["count"]}});
        assert_eq!(of(&json!([correct, measured]), &none, None), "accuracy");
        assert_eq!(of(&json!([{"name": "tests", "code": {}}]), &none, None), "accuracy");
        for rewards in [
            json!([correct, {"name": "form", "regex": {"pattern": "x"}}]),
            json!([{"name": "correct", "weight": 2, "math": {}}]),
            json!([{"name": "digits", "command": {"command": ["digits"]}}]),
            json!([{"name": "tests", "code": {"verdict": "Share"}}]),
        ] {
            assert_eq!(of(&rewards, &none, None), "reward", "{rewards}");
        }
        let agent = json!({"rollout": {"workflow": {"agent": {"command": ["agent"]}}}});
        assert_eq!(of(&json!([correct]), &agent, None), "reward");
    }

    #[test]
    fn a_suite_has_its_rewards() {
        let path = "/test.jsonl";
        let suite = |name: &str, reward: &str| -> Value {
            json!({"name": name, "path": path, "rewards": [reward]})
        };
        let evaluation = json!({
            "prompt": "{{q}}", "answer": "a", "suites": [suite("x", "correct"), suite("y", "form")],
        });
        let train = json!({"path": "/train.jsonl", "prompt": "{{q}}", "answer": "a"});
        let data = json!({"dataset": {"train": train, "evaluation": evaluation}});
        let form = json!({"name": "form", "http": {"url": "http://form"}});
        let rewards = json!([{"name": "correct", "exactMatch": {}}, form]);
        assert_eq!(of(&rewards, &data, Some("x")), "accuracy");
        assert_eq!(of(&rewards, &data, Some("y")), "reward");
    }
}
