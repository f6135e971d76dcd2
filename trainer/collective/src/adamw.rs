//! AdamW (Loshchilov and Hutter, arXiv 1711.05101), libtorch's fused kernel: one pass over memory.

use tch::Tensor;

use crate::{CollectiveError, ffi};

/// Settings of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub epsilon: f64,
}

/// Makes update number `step` (from 1, for the bias correction) of `parameter` and its moments, in
/// place. All four tensors are fp32 and of one shape.
///
/// # Errors
/// Shapes or kinds that do not fit, in libtorch's words.
pub fn fused_adamw(
    parameter: &Tensor,
    gradient: &Tensor,
    exp_avg: &Tensor,
    exp_avg_sq: &Tensor,
    step: u64,
    settings: &AdamW,
) -> Result<(), CollectiveError> {
    let place = || format!("parameter {:?} {:?}", parameter.kind(), parameter.size());
    let failed = |message| CollectiveError {
        operation: format!("make AdamW update {step}"),
        place: place(),
        message,
    };
    let tensors = [parameter, gradient, exp_avg, exp_avg_sq];
    if tensors
        .iter()
        .any(|tensor| tensor.size() != parameter.size() || tensor.kind() != tch::Kind::Float)
    {
        return Err(failed(
            "parameter, gradient and moments must be fp32 and of one shape".to_owned(),
        ));
    }
    ffi::fused_adamw(tensors, step as f64, settings).map_err(failed)
}
