//! Check of the models of a job, before it has a machine.

use std::path::Path;

use rljob_crds::model::InitialWeights;
use rljob_crds::roles::EngineKind;
use rljob_crds::{EnginePurpose, FixedModel, RLJobSpec, RunConfig};

use super::error::StartError;
use super::heads::headed;
use crate::model::{Head, Model, ModelConfig, ModelError, ModelLayout, hugging_face};
use crate::teacher::Teacher;

/// Checks the models that learners and embedded engines of fixed models load, by their
/// configurations and the headers of their weights.
///
/// # Errors
/// A file cannot be read, or weights do not fit their configuration.
pub fn check_models(config: &RunConfig) -> Result<(), StartError> {
    let RunConfig { spec, model_directory, .. } = config;
    check_fixed_models(spec)?;
    // Engines may serve architectures that learners do not have.
    if !spec.algorithm.has_learners() {
        return Ok(());
    }
    let model = headed(spec, Model::new(ModelConfig::from_folder(model_directory)?))?;
    if spec.model.weights == InitialWeights::Pretrained {
        hugging_face::check_tensors(model_directory, &ModelLayout::new(model.config()))?;
    }
    match Teacher::of(spec, &model, model_directory)? {
        None => Ok(()),
        Some(teacher) => Ok(teacher.check()?),
    }
}

/// Checks the fixed models of embedded engines, unless an earlier job of the file will write them.
fn check_fixed_models(spec: &RLJobSpec) -> Result<(), ModelError> {
    let is_here = |model: &FixedModel<'_>| {
        model.engines.engine() == EngineKind::Embedded && Path::new(model.path).is_dir()
    };
    for FixedModel { purpose, path, .. } in spec.fixed_models().filter(is_here) {
        let folder = Path::new(path);
        let head =
            if purpose == EnginePurpose::Reward { Head::Scalar } else { Head::LanguageModel };
        let config = ModelConfig::with_head(folder, head)?;
        hugging_face::check_tensors(folder, &ModelLayout::with_head(&config, head))?;
    }
    Ok(())
}
