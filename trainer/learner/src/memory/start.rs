//! The memory plan at the start of a learner: reads the memory of the GPU and logs the plan.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{ModelRole, Sharding, TrainingSpec};
use rljob_kernels::device::capacity;
use tch::{Device, Kind};

use super::fit::{self, DoesNotFit, choose_sharding};
use super::plan::{Critic, Settings};
use crate::model::{Head, Model, ModelLayout};

/// The model with the activations that the spec, or the memory of the GPU, lets it keep, on
/// (device, number of ranks), and the sharding of the spec, or that which the memory allows. Passes
/// compute in `compute`.
///
/// # Errors
/// The model does not fit.
pub fn planned(
    model: Model,
    spec: &RLJobSpec,
    (device, world_size): (Device, u32),
    compute: Kind,
) -> Result<(Model, Sharding), DoesNotFit> {
    let roles = spec.algorithm.resolve().map(rljob_crds::algorithm::Algorithm::model_roles);
    let has = |role| roles.as_ref().is_some_and(|roles| roles.contains(&role));
    let critic_optimizer =
        spec.algorithm.resolve().and_then(|algorithm| algorithm.critic_optimizer(&spec.optimizer));
    let critic_layout = ModelLayout::with_head(model.config(), Head::Scalar);
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
        frozen: u64::from(has(ModelRole::Reference)),
        needs_reference: spec.algorithm.dpo.is_some(),
        publishes: true, // at least the export of the last step
        tokens: u64::from(spec.training.max_tokens_per_micro_batch),
    };
    let capacity = match device {
        Device::Cuda(index) => capacity(index),
        _ => None,
    };
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
    if let Some(free) = free {
        tracing::info!("memory plan: {plan}; {}", fit::of_gpu(free));
        if let Some(warning) = fit::warning(&settings, &plan, free) {
            tracing::warn!("{warning}");
        }
    }
    let (recomputed_layers, sharding) = (plan.recomputed_layers, settings.sharding);
    Ok((model.recomputing(recomputed_layers), sharding))
}
