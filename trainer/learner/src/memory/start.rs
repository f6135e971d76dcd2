//! The memory plan at the start of a learner: reads the memory of the GPU and logs the plan.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{ModelRole, Sharding, TrainingSpec};
use rljob_kernels::device::capacity;
use tch::{Device, Kind};

use super::fit::{self, DoesNotFit, choose_sharding};
use super::plan::{Critic, MemoryPlan, Settings};
use crate::model::lora::Lora;
use crate::model::{Head, Model, ModelLayout};

/// The model with the activations that the spec, or the memory of the GPU, lets it keep, on
/// (device, number of ranks), and the sharding of the spec, or that which the memory allows. Passes
/// compute in `compute`. `teacher` is the layout of the teacher, if the algorithm has one.
///
/// # Errors
/// The model does not fit.
pub fn planned(
    model: Model,
    teacher: Option<&ModelLayout>,
    spec: &RLJobSpec,
    (device, world_size): (Device, u32),
    compute: Kind,
) -> Result<(Model, Sharding), DoesNotFit> {
    let algorithm = spec.algorithm.resolve();
    let has = |role| algorithm.is_some_and(|algorithm| algorithm.model_roles().contains(&role));
    let critic_optimizer =
        algorithm.and_then(|algorithm| algorithm.critic_optimizer(&spec.optimizer));
    let critic_layout = trained_layout(&model.clone().with_head(Head::Scalar), spec);
    let trained = trained_layout(&model, spec);
    let critic = critic_optimizer.map(|optimizer| Critic {
        layout: &critic_layout,
        offload: optimizer.offload && device.is_cuda(),
    });
    let mut settings = Settings {
        config: model.config(),
        layout: model.layout(),
        world_size,
        element: compute.elt_size_in_bytes() as u64,
        sharding: Sharding::Full,
        offload: spec.optimizer.offload && device.is_cuda(),
        critic,
        adapters: spec.lora.as_ref().map(|_| &trained),
        frozen: u64::from(has(ModelRole::Reference) && teacher.is_none() && spec.lora.is_none()),
        teacher,
        needs_reference: spec.algorithm.dpo.is_some(),
        publishes: true, // at least the export of the last step
        tokens: u64::from(spec.training.max_tokens_per_micro_batch),
    };
    let capacity = if let Device::Cuda(index) = device { capacity(index) } else { None };
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
    log(&settings, &plan, free);
    let (recomputed_layers, sharding) = (plan.recomputed_layers, settings.sharding);
    Ok((model.recomputing(recomputed_layers), sharding))
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
