//! The memory plan of a learner: at its start, when it reads the memory of the GPU and logs the
//! plan, and described for GPUs of another machine.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{Capabilities, ModelRole, Sharding, TrainingSpec};
use rljob_kernels::device::{Capacity, capacity};
use tch::{Device, Kind};

use super::fit::{self, DoesNotFit, MemoryError, choose_sharding};
use super::plan::{Critic, MemoryPlan, Offload, Settings};
use crate::mesh::GroupSize;
use crate::model::lora::Lora;
use crate::model::{Head, Model, ModelLayout, Recomputed};

/// A model with the decisions of its plan.
#[derive(Debug)]
pub struct Planned {
    /// With the activations that the spec, or the memory of the GPU, lets it keep.
    pub model: Model,
    /// Of the spec, or that which the memory allows.
    pub sharding: Sharding,
    /// Free bytes of the GPU before anything was loaded; `None` on CPUs.
    pub free: Option<u64>,
}

/// The plan of a learner of a group of `trainer.groups`.
#[derive(Debug)]
pub struct PlannedGroup {
    pub(super) plan: MemoryPlan,
    /// Free bytes of the GPU before anything was loaded, if they are known.
    pub(super) free: Option<u64>,
    /// Layers of the model.
    pub(super) layers: usize,
}

/// Plans the memory of a learner on (device, size of its group). Passes compute in `compute`.
/// `teacher` is the layout of the teacher, if the algorithm has one.
///
/// # Errors
/// The model does not fit, or not beside other processes.
pub fn planned(
    model: Model,
    teacher: Option<&ModelLayout>,
    spec: &RLJobSpec,
    (device, size): (Device, GroupSize),
    compute: Kind,
) -> Result<Planned, MemoryError> {
    let capacity = if let Device::Cuda(index) = device { capacity(index) } else { None };
    let learner = (device.is_cuda(), size);
    let free = capacity.map(|capacity| capacity.free);
    let (plan, sharding) = with_settings(&model, teacher, spec, learner, compute, |settings| {
        let (settings, plan) = decided(settings, spec, capacity)?;
        log(&settings, &plan, free);
        capacity.map_or(Ok(()), |capacity| fit::check_free(&plan, capacity))?;
        Ok::<_, MemoryError>((plan, settings.sharding))
    })?;
    Ok(Planned { model: model.recomputing(plan.recomputed), sharding, free })
}

/// The plan of each of the spec's learners on GPUs of `bytes`, as lines: parts, and what to change
/// if micro-batches may not fit.
///
/// # Errors
/// The model does not fit.
pub fn described(
    model: &Model,
    teacher: Option<&ModelLayout>,
    spec: &RLJobSpec,
    bytes: u64,
    compute: Kind,
) -> Result<String, DoesNotFit> {
    let learner = (true, GroupSize::of(&spec.trainer));
    with_settings(model, teacher, spec, learner, compute, |settings| {
        let capacity = Capacity { free: bytes, total: bytes };
        let (settings, plan) = decided(settings, spec, Some(capacity))?;
        Ok(lines(&learners(learner.1), &settings, &plan, bytes))
    })
}

/// The plan of each learner of a group that holds `model` alone, on GPUs of `bytes`, as
/// [`described`]; `spec` is that which the group sees.
///
/// # Errors
/// The model does not fit.
pub fn described_group(
    model: &Model,
    (group, spec): (&str, &RLJobSpec),
    bytes: u64,
    compute: Kind,
) -> Result<String, DoesNotFit> {
    let settings = group_settings(model, spec, GroupSize::of(&spec.trainer), compute);
    fit::check(&settings, bytes).map_err(|error| error.of_group(group))?;
    let learners = format!("{} of group {group}", learners(settings.size));
    Ok(lines(&learners, &settings, &MemoryPlan::new(&settings, Recomputed::default()), bytes))
}

/// Plans the memory of a learner of a group on (device, size of the group), which holds `model`
/// alone, and logs the plan; `spec` is that which the group sees. `None` on CPUs.
///
/// # Errors
/// The model does not fit, or not beside other processes.
pub fn planned_group(
    model: &Model,
    (group, spec): (&str, &RLJobSpec),
    (device, size): (Device, GroupSize),
    compute: Kind,
) -> Result<Option<PlannedGroup>, MemoryError> {
    let Device::Cuda(index) = device else { return Ok(None) };
    let capacity = capacity(index);
    let settings = group_settings(model, spec, size, compute);
    if let Some(capacity) = capacity {
        fit::check(&settings, capacity.total).map_err(|error| error.of_group(group))?;
    }
    let (plan, free) =
        (MemoryPlan::new(&settings, Recomputed::default()), capacity.map(|capacity| capacity.free));
    log(&settings, &plan, free);
    capacity
        .map_or(Ok(()), |capacity| fit::check_free(&plan, capacity))
        .map_err(|error| error.of_group(group))?;
    Ok(Some(PlannedGroup { plan, free, layers: model.config().num_hidden_layers }))
}

fn group_settings<'a>(
    model: &'a Model,
    spec: &RLJobSpec,
    size: GroupSize,
    compute: Kind,
) -> Settings<'a> {
    let is_teacher = spec.algorithm.capabilities().and_then(Capabilities::teacher).is_some();
    Settings {
        config: model.config(),
        layout: model.layout(),
        size,
        element: compute.elt_size_in_bytes() as u64,
        trains: false,
        sharding: Sharding::Full,
        offload: Offload::default(),
        critic: None,
        adapters: None,
        dropout: false,
        frozen: u64::from(!is_teacher),
        teacher: is_teacher.then(|| model.layout()),
        needs_reference: needs_reference(spec),
        tokens: u64::from(spec.training.max_tokens_per_micro_batch),
    }
}

/// Whether the reference model is more than a penalty of the divergence of samples from it.
fn needs_reference(spec: &RLJobSpec) -> bool {
    spec.algorithm.capabilities().is_some_and(|algorithm| algorithm.policy().is_none())
}

/// How many learners have a plan.
fn learners(size: GroupSize) -> String {
    match size.world_size {
        1 => "the learner".to_owned(),
        ranks => format!("each of {ranks} learners"),
    }
}

/// The plan of `learners`, and a warning if micro-batches may not fit.
fn lines(learners: &str, settings: &Settings<'_>, plan: &MemoryPlan, bytes: u64) -> String {
    let warning = fit::warning(settings, plan, bytes);
    let warning = warning.map(|warning| format!("warning: {warning}\n")).unwrap_or_default();
    let (sharding, of_gpu) = (settings.sharding, fit::of_gpu(bytes));
    format!("memory of {learners}: {plan}; sharding {sharding:?}; {of_gpu}\n{warning}")
}

/// Calls `decide` with the settings of a learner, given by whether it has a GPU and the size of its
/// group, without the sharding.
pub(super) fn with_settings<T>(
    model: &Model,
    teacher: Option<&ModelLayout>,
    spec: &RLJobSpec,
    (has_gpu, size): (bool, GroupSize),
    compute: Kind,
    decide: impl FnOnce(Settings<'_>) -> T,
) -> T {
    let algorithm = spec.algorithm.capabilities();
    let has = |role| algorithm.is_some_and(|algorithm| algorithm.model_roles().contains(&role));
    let holds_reference = has(ModelRole::Reference) && spec.frozen_group().is_none();
    let critic_optimizer =
        algorithm.and_then(|algorithm| algorithm.critic_optimizer(&spec.optimizer));
    let critic_layout = if algorithm.is_some_and(Capabilities::has_value_head) {
        // Adapters do not replace it.
        model.clone().with_head(Head::Value).layout().clone()
    } else {
        trained_layout(&model.clone().with_head(Head::Scalar), spec)
    };
    let trained = trained_layout(model, spec);
    let critic = critic_optimizer.map(|optimizer| Critic {
        layout: &critic_layout,
        offload: Offload::of(&optimizer, has_gpu),
    });
    decide(Settings {
        config: model.config(),
        layout: model.layout(),
        size,
        element: compute.elt_size_in_bytes() as u64,
        trains: true,
        sharding: Sharding::Full,
        offload: Offload::of(&spec.optimizer, has_gpu),
        critic,
        adapters: spec.lora.as_ref().map(|_| &trained),
        dropout: spec.lora.as_ref().is_some_and(|lora| lora.dropout > 0.0),
        frozen: u64::from(holds_reference && teacher.is_none() && spec.lora.is_none()),
        teacher,
        needs_reference: needs_reference(spec),
        tokens: u64::from(spec.training.max_tokens_per_micro_batch),
    })
}

/// The settings with their sharding, and the plan for a GPU of this capacity; on a CPU it is
/// unknown.
fn decided<'a>(
    mut settings: Settings<'a>,
    spec: &RLJobSpec,
    capacity: Option<Capacity>,
) -> Result<(Settings<'a>, MemoryPlan), DoesNotFit> {
    let free = capacity.map(|capacity| capacity.free);
    let TrainingSpec { activations, sharding, deterministic, .. } = spec.training;
    settings.sharding = sharding.unwrap_or_else(|| {
        // The memory that is free now must not decide the order of sums.
        if deterministic { Sharding::Full } else { choose_sharding(&settings, activations, free) }
    });
    if let Some(capacity) = capacity {
        fit::check(&settings, capacity.total)?;
    }
    let plan = fit::choose(&settings, activations, free);
    Ok((settings, plan))
}

fn log(settings: &Settings<'_>, plan: &MemoryPlan, free: Option<u64>) {
    let Some(free) = free else { return };
    tracing::info!("memory plan: {plan}; {}", fit::of_gpu(free));
    if let Some(warning) = fit::warning(settings, plan, free) {
        tracing::warn!("{warning}");
    }
}

/// Layout of what is trained of a model.
fn trained_layout(model: &Model, spec: &RLJobSpec) -> ModelLayout {
    match &spec.lora {
        Some(lora) => Lora::new(model, lora).layout().clone(),
        None => model.layout().clone(),
    }
}
