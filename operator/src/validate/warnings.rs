//! Settings that have no effect in combination with others. Such a job can run.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{OptimizerSpec, Schedule};
use rljob_crds::grpo::{GrpoSpec, ProximalLogprobs};

use super::Problem;

/// Every setting that is set and has no effect, with the reason.
pub fn warnings(spec: &RLJobSpec) -> Vec<Problem> {
    let mut warnings = Vec::new();
    if let Some(grpo) = &spec.algorithm.grpo {
        check_clipping(spec, grpo, &mut warnings);
        check_kl(grpo, &mut warnings);
    }
    let optimizer = &spec.optimizer;
    if optimizer.schedule == Schedule::Constant && optimizer.minimum_learning_rate > 0.0 {
        let message = "has no effect: schedule Constant does not decay";
        warnings.push(Problem::new("spec.optimizer.minimumLearningRate", message));
    }
    if *optimizer != OptimizerSpec::default() && optimizer.learning_rate <= 0.0 {
        let message = "is 0: training changes no weights";
        warnings.push(Problem::new("spec.optimizer.learningRate", message));
    }
    warnings
}

/// With one update and recomputed log-probabilities, the importance ratio is 1.
fn check_clipping(spec: &RLJobSpec, grpo: &GrpoSpec, warnings: &mut Vec<Problem>) {
    let is_on_policy =
        spec.training.minibatches <= 1 && grpo.proximal_logprobs == ProximalLogprobs::Recompute;
    if !is_on_policy {
        return;
    }
    let default = GrpoSpec::default();
    let differs = |own: f64, other: f64| own.total_cmp(&other).is_ne();
    let fields = [
        ("clipLow", differs(grpo.clip_low, default.clip_low)),
        ("clipHigh", differs(grpo.clip_high, default.clip_high)),
        ("cClip", grpo.c_clip.is_some()),
    ];
    for (field, _) in fields.iter().filter(|(_, is_set)| *is_set) {
        let message = "has no effect: with training.minibatches 1 and proximalLogprobs Recompute, \
            the importance ratio is 1";
        warnings.push(Problem::new(format!("spec.algorithm.grpo.{field}"), message));
    }
}

fn check_kl(grpo: &GrpoSpec, warnings: &mut Vec<Problem>) {
    let default = GrpoSpec::default();
    let fields = [
        ("klEstimator", grpo.kl_estimator != default.kl_estimator),
        ("klTerm", grpo.kl_term != default.kl_term),
    ];
    for (field, is_set) in fields {
        if is_set && grpo.kl_coefficient <= 0.0 {
            let message = "has no effect: klCoefficient is 0";
            warnings.push(Problem::new(format!("spec.algorithm.grpo.{field}"), message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::warnings;
    use crate::validate::test_support::minimal;

    fn found(algorithm: &Value, minibatches: u32) -> Vec<String> {
        let mut spec = minimal().spec;
        spec.algorithm = serde_json::from_value(algorithm.clone()).unwrap();
        spec.training.minibatches = minibatches;
        warnings(&spec).into_iter().map(|warning| warning.path).collect()
    }

    #[test]
    fn settings_without_effect_are_named() {
        let dapo = json!({"grpo": {"clipHigh": 0.28, "cClip": 3.0}});
        let clips = ["spec.algorithm.grpo.clipHigh", "spec.algorithm.grpo.cClip"];
        assert_eq!(found(&dapo, 1), clips);
        assert_eq!(found(&dapo, 4), Vec::<String>::new());
        let sampler = json!({"grpo": {"clipHigh": 0.28, "proximalLogprobs": "Sampler"}});
        assert_eq!(found(&sampler, 1), Vec::<String>::new());
        let kl = json!({"grpo": {"klTerm": "Loss"}});
        assert_eq!(found(&kl, 1), ["spec.algorithm.grpo.klTerm"]);
        assert_eq!(found(&json!({"sft": {}}), 1), Vec::<String>::new());
    }
}
