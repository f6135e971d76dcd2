//! Models that are not trained: the base of adapters, and the reference model.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::ModelRole;

use super::device::compute_kind;
use super::error::StartError;
use super::initial::initial_blocks;
use crate::fsdp::{Base, FrozenParameters};
use crate::model::lora::Lora;
use crate::model::{Head, Model, ModelError};
use crate::models::{FrozenModel, RoleModel};
use crate::ranks::Ranks;
use crate::teacher::Teacher;

/// The frozen model under the adapters, if the spec has them: the weights before training.
pub(super) fn base(
    spec: &RLJobSpec,
    model: &Model,
    ranks: &Rc<Ranks>,
    model_directory: &Path,
) -> Result<Option<Base>, ModelError> {
    if spec.lora.is_none() {
        return Ok(None);
    }
    let blocks = initial_blocks(spec, model, model_directory)?;
    Ok(Some(Base::new(Rc::clone(ranks), compute_kind(spec.precision()), blocks)?))
}

/// Adapters of a model, if the spec has them. A value head has no layers to adapt.
pub(super) fn adapters(
    spec: &RLJobSpec,
    model: &Model,
    base: Option<&Base>,
) -> Option<(Lora, Base)> {
    let lora = spec.lora.as_ref().filter(|_| model.head() != Head::Value)?;
    Some((Lora::new(model, lora), base?.clone()))
}

/// The reference model, if the algorithm needs one and no group holds it.
pub(super) fn frozen_models(
    spec: &RLJobSpec,
    model: &Model,
    ranks: &Rc<Ranks>,
    (model_directory, base): (&Path, Option<&Base>),
) -> Result<BTreeMap<ModelRole, RoleModel>, StartError> {
    let roles = spec.algorithm.resolve().ok_or(StartError::Algorithm)?.model_roles();
    if !roles.contains(&ModelRole::Reference) || spec.frozen_group().is_some() {
        return Ok(BTreeMap::new());
    }
    let reference = reference(spec, model, ranks, (model_directory, base))?;
    Ok(BTreeMap::from([(ModelRole::Reference, RoleModel::Frozen(Box::new(reference)))]))
}

/// The reference model: the teacher, or the weights before training, which `base` has.
pub(super) fn reference(
    spec: &RLJobSpec,
    model: &Model,
    ranks: &Rc<Ranks>,
    (model_directory, base): (&Path, Option<&Base>),
) -> Result<FrozenModel, StartError> {
    let compute = compute_kind(spec.precision());
    Ok(if let Some(teacher) = Teacher::of(spec, model, model_directory)? {
        teacher.load(ranks, compute)?
    } else if let Some(base) = base {
        FrozenModel { model: model.clone(), parameters: base.parameters() }
    } else {
        let blocks = initial_blocks(spec, model, model_directory)?;
        let parameters = FrozenParameters::new(Rc::clone(ranks), compute, blocks)?;
        FrozenModel { model: model.clone(), parameters }
    })
}
