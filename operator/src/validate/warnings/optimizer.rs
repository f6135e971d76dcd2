//! Settings of an optimizer without effect.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{OptimizerSpec, Schedule};

use crate::validate::Problem;

pub(super) fn check_optimizer(
    path: &str,
    optimizer: &OptimizerSpec,
    spec: &RLJobSpec,
    warnings: &mut Vec<Problem>,
) {
    if optimizer.offload && spec.trainer.gpus() == 0 {
        let message = "has no effect: learners without GPUs have all states in memory of the host";
        warnings.push(Problem::new(format!("{path}.offload"), message));
    }
    if *optimizer != OptimizerSpec::default() && optimizer.learning_rate <= 0.0 {
        let message = "is 0: training changes no weights";
        warnings.push(Problem::new(format!("{path}.learningRate"), message));
    }
    if optimizer.schedule == Schedule::Constant && optimizer.minimum_learning_rate > 0.0 {
        let message = "has no effect: schedule Constant does not decay";
        warnings.push(Problem::new(format!("{path}.minimumLearningRate"), message));
    }
}
