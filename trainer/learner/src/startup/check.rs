//! Check of the models of a job, before it has a machine.

use rljob_crds::RunConfig;
use rljob_crds::model::InitialWeights;

use super::error::StartError;
use super::heads::headed;
use crate::model::{Model, ModelConfig, ModelLayout, hugging_face};
use crate::teacher::Teacher;

/// Checks the models that learners load, by their configurations and the headers of their weights.
///
/// # Errors
/// A file cannot be read, or weights do not fit their configuration.
pub fn check_models(config: &RunConfig) -> Result<(), StartError> {
    let RunConfig { spec, model_directory, .. } = config;
    let model = headed(spec, Model::new(ModelConfig::from_folder(model_directory)?))?;
    if spec.model.weights == InitialWeights::Pretrained {
        hugging_face::check_tensors(model_directory, &ModelLayout::new(model.config()))?;
    }
    match Teacher::of(spec, &model, model_directory)? {
        None => Ok(()),
        Some(teacher) => Ok(teacher.check()?),
    }
}
