//! Settings of sampling without effect, in a job that trains on completions of its data.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{Algorithm, RolloutSpec};
use rljob_crds::job::WeightSyncSpec;

use crate::validate::Problem;

/// Fields of `spec.rollout` that evaluations use.
const EVALUATION_FIELDS: [&str; 6] =
    ["maxNewTokens", "minNewTokens", "stop", "stopTokenIds", "temperature", "workflow"];

/// Settings of sampling, in a job that trains on completions of its data.
pub(super) fn check_unsampled(
    spec: &RLJobSpec,
    algorithm: Algorithm<'_>,
    warnings: &mut Vec<Problem>,
) {
    let suites = spec.dataset.suites().into_iter().map(|suite| suite.data);
    let sampled: Vec<_> = suites.filter(|data| data.answer.is_some()).collect();
    let samples = !sampled.is_empty();
    let name = algorithm.name();
    let reason = if samples {
        format!("has no effect: {name} samples for the evaluation only")
    } else {
        format!("has no effect: {name} without dataset.evaluation.answer samples nothing")
    };
    let mut warn = |path: String| warnings.push(Problem::new(path, reason.clone()));
    let (own, default) =
        (serde_json::to_value(&spec.rollout), serde_json::to_value(RolloutSpec::default()));
    let (own, default) = (own.unwrap_or_default(), default.unwrap_or_default());
    for (field, value) in own.as_object().into_iter().flatten() {
        let replaced = sampled.iter().all(|data| match field.as_str() {
            "maxNewTokens" => data.max_new_tokens.is_some(),
            "temperature" => data.temperature.is_some(),
            _ => false,
        });
        let is_used = samples && EVALUATION_FIELDS.contains(&field.as_str()) && !replaced;
        if default.get(field) != Some(value) && !is_used {
            warn(format!("spec.rollout.{field}"));
        }
    }
    if spec.weight_sync.every_steps != WeightSyncSpec::default().every_steps {
        warn("spec.weightSync.everySteps".to_owned());
    }
    if spec.weight_sync.running_completions.is_some() {
        warn("spec.weightSync.runningCompletions".to_owned());
    }
    if samples {
        if spec.evaluation.is_some() && spec.inference.replicas > 0 {
            let message =
                format!("has no effect: {name} samples on evaluation.engines only: set it to 0");
            warnings.push(Problem::new("spec.inference.replicas", message));
        }
        return;
    }
    if spec.weight_sync.method.is_some() {
        warn("spec.weightSync.method".to_owned());
    }
    if !spec.rewards.is_empty() {
        warn("spec.rewards".to_owned());
    }
    if spec.inference.replicas > 0 {
        let message = format!("{reason}: set it to 0");
        warnings.push(Problem::new("spec.inference.replicas", message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::warnings;
    use crate::validate::test_support::{merge, minimal};

    #[test]
    fn settings_of_sampling_have_no_effect_in_a_job_that_does_not_sample() {
        let of = |change: Value| {
            let mut spec = serde_json::to_value(minimal().spec).unwrap();
            spec["algorithm"] = json!({"sft": {}});
            spec["dataset"]["train"]["completion"] = json!("{{ answer }}");
            merge(&mut spec, &change);
            let spec = serde_json::from_value(spec).unwrap();
            warnings(&spec).into_iter().map(|warning| warning.path).collect::<Vec<_>>()
        };
        let none = json!({
            "inference": {"replicas": 0}, "rewards": [], "weightSync": {"method": null},
        });
        assert_eq!(of(none), Vec::<String>::new());
        let sampling = json!({
            "inference": {"replicas": 1},
            "rollout": {"maxStaleness": 2, "temperature": 0.5},
            "weightSync": {"method": "Disk", "everySteps": 2, "runningCompletions": "Recompute"},
        });
        let rollout = ["spec.rollout.maxStaleness", "spec.rollout.temperature"];
        let others = ["method", "everySteps", "runningCompletions"];
        let [method, every, running] = others.map(|field| format!("spec.weightSync.{field}"));
        let unsampled = [&*every, &running, &method, "spec.rewards", "spec.inference.replicas"];
        let expected = [&rollout[..], &unsampled].concat();
        assert_eq!(of(sampling.clone()), expected);
        let mut evaluated = sampling;
        evaluated["dataset"] = json!({"evaluation": {
            "path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer",
        }});
        let warned = ["spec.rollout.maxStaleness", &every, &running];
        assert_eq!(of(evaluated.clone()), warned);
        evaluated["evaluation"] = json!({"engines": {}});
        assert_eq!(of(evaluated), [&warned[..], &["spec.inference.replicas"]].concat());
    }
}
