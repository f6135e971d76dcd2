//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) by libtorch's fused kernel, in one pass over
//! memory.

use tch::Tensor;

use crate::{CollectiveError, ffi};

/// Settings of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
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

/// Applies update number `step` (from 1, for the bias correction) to `parameter` and its moments,
/// in place. All four tensors are fp32 and have one shape.
///
/// # Errors
/// Shapes or kinds do not match, or libtorch fails.
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
        operation: format!("apply AdamW update {step}"),
        place: place(),
        message,
    };
    let tensors = [parameter, gradient, exp_avg, exp_avg_sq];
    if tensors
        .iter()
        .any(|tensor| tensor.size() != parameter.size() || tensor.kind() != tch::Kind::Float)
    {
        return Err(failed(
            "parameter, gradient and moments must be fp32 and have one shape".to_owned(),
        ));
    }
    let AdamW { learning_rate, beta1, beta2, weight_decay, epsilon } = *settings;
    let betas = [beta1, beta2];
    ffi::fused_adamw(tensors, step as f64, learning_rate, betas, weight_decay, epsilon)
        .map_err(failed)
}
