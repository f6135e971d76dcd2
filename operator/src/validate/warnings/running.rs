//! Treatment of running completions that has no effect, or one that is rarely meant.

use rljob_crds::RLJobSpec;
use rljob_crds::job::RunningCompletions;
use rljob_crds::roles::EngineKind;
use rljob_crds::rollout::BatchOrder;

use crate::validate::Problem;

/// Names a treatment without effect, or one against the order of batches.
pub(super) fn check_running(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let running = spec.weight_sync.running_completions.unwrap_or_default();
    if running == RunningCompletions::Recompute {
        return;
    }
    let path = "spec.weightSync.runningCompletions";
    let is_finish = running == RunningCompletions::Finish;
    if is_finish && spec.rollout.batch_order == BatchOrder::Finished {
        let message = "Finish makes every weight sync wait for slow completions, whose groups \
            rollout.batchOrder Finished passes over: use Recompute or Keep";
        return warnings.push(Problem::new(path, message));
    }
    let reason = if spec.rollout.max_staleness == 0 {
        "with maxStaleness 0 no completion runs when new weights arrive"
    } else if is_finish {
        return;
    } else if spec.training.deterministic {
        "with training.deterministic an interrupted completion starts again"
    } else if spec.inference.engine() == EngineKind::Embedded {
        "the embedded engine computes keys and values again"
    } else {
        return;
    };
    warnings.push(Problem::new(path, format!("has no effect: {reason}")));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::check_running;
    use crate::validate::test_support::{merge, minimal};

    #[test]
    fn a_treatment_of_running_completions_without_effect_is_named() {
        let of = |value: &str, change: Value| {
            let mut spec = serde_json::to_value(minimal().spec).unwrap();
            spec["weightSync"] = json!({"runningCompletions": value});
            spec["inference"] = json!({"sglang": {}});
            spec["rollout"] = json!({"maxStaleness": 1});
            merge(&mut spec, &change);
            let mut warnings = Vec::new();
            check_running(&serde_json::from_value(spec).unwrap(), &mut warnings);
            warnings.into_iter().map(|warning| warning.message).collect::<String>()
        };
        let embedded = json!({"inference": {"sglang": null}});
        let deterministic = json!({"training": {"deterministic": true}});
        let sync = json!({"rollout": {"maxStaleness": 0}});
        let none = "has no effect: with maxStaleness 0 no completion runs when new weights arrive";
        assert_eq!(of("Keep", sync.clone()), none);
        assert_eq!(of("Finish", sync.clone()), none);
        assert_eq!(of("Recompute", sync), "");
        assert_eq!(of("Keep", json!({})), "");
        let none = "has no effect: with training.deterministic an interrupted completion starts \
            again";
        assert_eq!(of("Keep", deterministic.clone()), none);
        assert_eq!(of("Finish", deterministic), "");
        let none = "has no effect: the embedded engine computes keys and values again";
        assert_eq!(of("Keep", embedded.clone()), none);
        assert_eq!(of("Finish", embedded), "");
        let finished = json!({"rollout": {"batchOrder": "Finished"}});
        assert_eq!(of("Keep", finished.clone()), "");
        let slow = "Finish makes every weight sync wait for slow completions, whose groups \
            rollout.batchOrder Finished passes over: use Recompute or Keep";
        assert_eq!(of("Finish", finished), slow);
    }
}
