//! The memory plan of a job, before it has a machine.

use rljob_crds::RunConfig;

use super::device::compute_kind;
use super::error::StartError;
use super::heads::headed;
use crate::memory::described;
use crate::model::{Model, ModelConfig};
use crate::teacher::Teacher;

/// The plan of the learners of a job on GPUs of `bytes`, as lines. Reads the shapes of the model
/// and the teacher, no weights.
///
/// # Errors
/// A shape cannot be read, or the model does not fit.
pub fn memory_plan(config: &RunConfig, bytes: u64) -> Result<String, StartError> {
    let RunConfig { spec, model_directory, .. } = config;
    let model = headed(spec, Model::new(ModelConfig::from_folder(model_directory)?))?;
    let teacher = Teacher::of(spec, &model, model_directory)?;
    let teacher = teacher.as_ref().map(|teacher| teacher.model.layout());
    Ok(described(&model, teacher, spec, bytes, compute_kind(spec.precision()))?)
}
