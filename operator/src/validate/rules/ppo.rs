//! Rules of `ppo`: its critic, and the estimation of advantages.

use rljob_crds::algorithm::ppo::PpoSpec;

use super::common::{check_optimizer, check_union};
use crate::validate::Problem;

/// Rules of the settings, in a run of `steps` steps, if that is known.
pub(super) fn check(ppo: &PpoSpec, steps: Option<u32>, problems: &mut Vec<Problem>) {
    if let Some(steps) = steps.filter(|steps| ppo.critic_warmup_steps >= *steps) {
        let message =
            format!("must be below training.steps = {steps}: the policy would not be trained");
        problems.push(Problem::new("spec.algorithm.ppo.criticWarmupSteps", message));
    }
    if ppo.adaptive_kl.is_some() && ppo.kl_coefficient <= 0.0 {
        let message = "needs a klCoefficient above 0, with which it begins";
        problems.push(Problem::new("spec.algorithm.ppo.adaptiveKl", message));
    }
    if let Some(adaptive) = &ppo.adaptive_lambda {
        check_union("spec.algorithm.ppo.adaptiveLambda", adaptive, problems);
        if ppo.gae_lambda.total_cmp(&PpoSpec::default().gae_lambda).is_ne() {
            let message = "is not used with adaptiveLambda; remove it";
            problems.push(Problem::new("spec.algorithm.ppo.gaeLambda", message));
        }
    }
    if ppo.value_head.is_some() && ppo.critic_optimizer.is_some() {
        let message = "is not used with valueHead, which has the settings of spec.optimizer and \
            valueHead.learningRate; remove it";
        problems.push(Problem::new("spec.algorithm.ppo.criticOptimizer", message));
    } else if let Some(optimizer) = &ppo.critic_optimizer {
        check_optimizer("spec.algorithm.ppo.criticOptimizer", optimizer, steps, problems);
    }
}
