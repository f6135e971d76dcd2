//! Heads of the models that an algorithm trains.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::OptimizerSpec;

use super::error::StartError;
use crate::model::{Head, Model};

/// The model with the head that the algorithm trains.
pub(super) fn headed(spec: &RLJobSpec, model: Model) -> Result<Model, StartError> {
    let algorithm = spec.algorithm.resolve().ok_or(StartError::Algorithm)?;
    let head = if algorithm.trains_scores() { Head::Scalar } else { Head::LanguageModel };
    Ok(model.with_head(head))
}

/// The critic of a policy and its optimizer, if the algorithm trains one.
pub(super) fn critic(
    spec: &RLJobSpec,
    policy: &Model,
) -> Result<Option<(Model, OptimizerSpec)>, StartError> {
    let algorithm = spec.algorithm.resolve().ok_or(StartError::Algorithm)?;
    let head = if algorithm.has_value_head() { Head::Value } else { Head::Scalar };
    let optimizer = algorithm.critic_optimizer(&spec.optimizer);
    Ok(optimizer.map(|optimizer| (policy.clone().with_head(head), optimizer)))
}
