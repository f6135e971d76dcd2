//! The memory plan of a job, before it has a machine.

use rljob_crds::{RLJobSpec, RunConfig};

use super::device::compute_kind;
use super::error::StartError;
use super::heads::headed;
use crate::memory::fit::MemoryError;
use crate::memory::{described, described_group};
use crate::model::{Model, ModelConfig};
use crate::teacher::Teacher;

/// The plans of a job's learners and of its group of `trainer.groups`, of those that have GPUs, on
/// GPUs of `bytes`, as lines. Reads the shapes of the model and the teacher, no weights.
///
/// # Errors
/// A shape cannot be read, or the model does not fit.
pub fn memory_plan(config: &RunConfig, bytes: u64) -> Result<String, StartError> {
    let RunConfig { spec, model_directory, .. } = config;
    let policy = Model::new(ModelConfig::from_folder(model_directory)?);
    let of = |spec: &RLJobSpec| Teacher::of(spec, &policy, model_directory);
    let mut lines = String::new();
    if spec.trainer.gpus() > 0 {
        let (model, teacher) = (headed(spec, policy.clone())?, of(spec)?);
        let teacher = teacher.as_ref().map(|teacher| teacher.model.layout());
        let compute = compute_kind(spec.precision());
        let plan = described(&model, teacher, spec, bytes, compute).map_err(MemoryError::from)?;
        lines += &plan;
    }
    let group = spec.frozen_group().map(|group| group.name.as_str());
    let group = group.and_then(|group| Some((group, spec.of_group(group)?)));
    if let Some((group, spec)) = group.filter(|(_, spec)| spec.trainer.gpus() > 0) {
        let teacher = of(&spec)?;
        let model = teacher.as_ref().map_or(&policy, |teacher| &teacher.model);
        let compute = compute_kind(spec.precision());
        let group = (group, &spec);
        lines += &described_group(model, group, bytes, compute).map_err(MemoryError::from)?;
    }
    Ok(lines)
}
