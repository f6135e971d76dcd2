//! Settings of an optimizer without effect.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{OptimizerSpec, Precision, Schedule};

use crate::validate::Problem;

/// Learning rates are far below: 1e-7 to 1e-2.
const HIGHEST_RATE: f64 = 0.1;

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
    if optimizer.offload_weights {
        let message = if spec.trainer.gpus() == 0 {
            Some("has no effect: learners without GPUs have all weights in memory of the host")
        } else if spec.precision() == Precision::FP32 {
            Some("has no effect with training.precision FP32: passes use the FP32 weights")
        } else if spec.lora.is_some() {
            Some("has no effect with lora: adapters stay on the GPU")
        } else {
            None
        };
        warnings.extend(message.map(|text| Problem::new(format!("{path}.offloadWeights"), text)));
    }
    if *optimizer != OptimizerSpec::default() && optimizer.learning_rate <= 0.0 {
        let message = "is 0: training changes no weights";
        warnings.push(Problem::new(format!("{path}.learningRate"), message));
    }
    if optimizer.learning_rate > HIGHEST_RATE {
        let message = format!("is above {HIGHEST_RATE}: AdamW diverges with such rates");
        warnings.push(Problem::new(format!("{path}.learningRate"), message));
    }
    if optimizer.schedule == Schedule::Constant && optimizer.minimum_learning_rate > 0.0 {
        let message = "has no effect: schedule Constant does not decay";
        warnings.push(Problem::new(format!("{path}.minimumLearningRate"), message));
    }
}
