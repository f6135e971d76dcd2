//! Steps of a run with `training.epochs`: they depend on the rows that the run uses, and so do the
//! rules that compare them with other settings.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{Algorithm, OptimizerSpec};
use rljob_crds::training::steps_of_epochs as steps;

use super::InputError;
use crate::core::record::StepsOfEpochs;

/// Most steps of a run, as of `training.steps`.
const MAX_STEPS: u64 = 10_000_000;

/// Steps of a run whose training data has this many rows; none if the spec has them.
pub fn steps_of_epochs(spec: &RLJobSpec, rows: u64) -> Option<StepsOfEpochs> {
    let (epochs, algorithm) = (spec.training.epochs?, spec.algorithm.resolve()?);
    let steps = steps(epochs, rows, algorithm.batch_size(&spec.rollout));
    Some(StepsOfEpochs { epochs, steps: u32::try_from(steps).unwrap_or(u32::MAX) })
}

/// Checks the steps of a run that has done `done` of them.
///
/// # Errors
/// They are too many, fewer than are done, or too few for another setting.
pub fn check_epochs(spec: &RLJobSpec, rows: u64, done: u32) -> Result<(), InputError> {
    let Some(StepsOfEpochs { epochs, steps }) = steps_of_epochs(spec, rows) else { return Ok(()) };
    let failed = |problem: String| Err(InputError::Epochs { epochs, steps, problem });
    if u64::from(steps) > MAX_STEPS {
        return failed(format!("a run has at most {MAX_STEPS}; lower training.epochs"));
    }
    if done > steps {
        return failed(format!("the run has done {done}; raise training.epochs"));
    }
    let algorithm = spec.algorithm.resolve();
    let critic = algorithm.and_then(|algorithm| algorithm.critic_optimizer(&spec.optimizer));
    let warmup = |optimizer: &OptimizerSpec| optimizer.warmup_steps;
    for (field, found) in [
        ("optimizer.warmupSteps", warmup(&spec.optimizer)),
        ("algorithm.ppo.criticOptimizer.warmupSteps", critic.as_ref().map_or(0, warmup)),
    ] {
        if found > steps {
            return failed(format!("{field} is {found}; lower it to {steps} or less"));
        }
    }
    match algorithm {
        Some(Algorithm::Ppo(ppo)) if ppo.critic_warmup_steps >= steps => failed(format!(
            "algorithm.ppo.criticWarmupSteps is {}, so that the policy would not be trained; \
             lower it",
            ppo.critic_warmup_steps
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rljob_crds::RLJobSpec;
    use serde_json::{Value, json};

    use super::*;

    fn spec(algorithm: &Value, warmup_steps: u32) -> RLJobSpec {
        serde_json::from_value(json!({
            "model": {"path": "/m"}, "storage": {"hostPath": {"path": "/s"}},
            "dataset": {"train": {"path": "/d", "prompt": "{{q}}"}},
            "training": {"epochs": 2}, "rollout": {"batchSize": 8}, "algorithm": algorithm,
            "optimizer": {"warmupSteps": warmup_steps},
        }))
        .unwrap()
    }

    #[test]
    fn a_step_has_the_rows_of_a_batch_of_the_algorithm() {
        let steps = |algorithm: Value| steps_of_epochs(&spec(&algorithm, 0), 20).unwrap().steps;
        assert_eq!(steps(json!({"grpo": {"groupSize": 4}})), 5, "40 prompts in batches of 8");
        assert_eq!(steps(json!({"sft": {"batchSize": 16}})), 3);
        assert_eq!(steps(json!({"dpo": {"batchSize": 4}})), 10, "a pair is a row");
        let mut of_steps = spec(&json!({"grpo": {}}), 0);
        (of_steps.training.steps, of_steps.training.epochs) = (7, None);
        assert_eq!(steps_of_epochs(&of_steps, 20), None);
    }

    #[test]
    fn steps_must_suffice_for_what_is_done_and_for_other_settings() {
        let check = |spec: &RLJobSpec, rows, done| {
            check_epochs(spec, rows, done).map_err(|error| error.to_string())
        };
        let grpo = spec(&json!({"grpo": {}}), 5);
        assert_eq!(check(&grpo, 20, 5), Ok(()));
        let begins = "training.epochs is 2, which is 5 steps of this data, but ";
        let failed = |problem: &str| Err(format!("{begins}{problem}"));
        let done = failed("the run has done 6; raise training.epochs");
        assert_eq!(check(&grpo, 20, 6), done);
        let warmup = failed("optimizer.warmupSteps is 6; lower it to 5 or less");
        assert_eq!(check(&spec(&json!({"grpo": {}}), 6), 20, 0), warmup);
        let ppo = spec(&json!({"ppo": {"criticWarmupSteps": 5}}), 0);
        let critic = "algorithm.ppo.criticWarmupSteps is 5, so that the policy would not be \
            trained; lower it";
        assert_eq!(check(&ppo, 20, 0), failed(critic));
        let many = check(&grpo, u64::MAX, 0).unwrap_err();
        assert!(many.ends_with("a run has at most 10000000; lower training.epochs"), "{many}");
    }
}
