//! Fit of a plan to the memory of a GPU: which activations are kept, and what to change if a model
//! or its micro-batches do not fit.

use rljob_crds::algorithm::{Activations, Sharding};
use rljob_crds::status::gib;
use rljob_kernels::device::Capacity;

use super::plan::{Critic, MemoryPlan, Offload, Settings};
use crate::mesh::GroupSize;
use crate::model::Recomputed;

/// Percent of the memory for libraries and fragmentation.
const RESERVE_PERCENT: u64 = 6;
/// Most ranks that an advice names: 1,000 pods of 8.
const MAX_RANKS: u32 = 8000;

/// A model that cannot be trained on this GPU, with what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DoesNotFit(String);

impl DoesNotFit {
    /// The error of a group of `trainer.groups`.
    #[must_use]
    pub fn of_group(self, group: &str) -> Self {
        Self(format!("group {group}: {}", self.0))
    }
}

/// A GPU whose memory other processes use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{of}{} of {} are free on the GPU, and {} are needed without activations: end the processes \
     that use the rest, which nvidia-smi lists",
    gib(*free), gib(*total), gib(*needed)
)]
pub struct Occupied {
    /// The group of `trainer.groups`, if it is not the trainer itself.
    of: String,
    free: u64,
    total: u64,
    needed: u64,
}

impl Occupied {
    /// The error of a group of `trainer.groups`.
    #[must_use]
    pub fn of_group(self, group: &str) -> Self {
        Self { of: format!("group {group}: "), ..self }
    }
}

/// Why the memory of a GPU does not suffice for what every batch needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error(transparent)]
    DoesNotFit(#[from] DoesNotFit),
    #[error(transparent)]
    Occupied(#[from] Occupied),
}

/// Bytes of a GPU that tensors can use.
pub fn usable(bytes: u64) -> u64 {
    bytes / 100 * (100 - RESERVE_PERCENT)
}

/// How much of `free` bytes tensors can use, for a log.
pub fn of_gpu(free: u64) -> String {
    format!("{} of {} that are free can be used", gib(usable(free)), gib(free))
}

/// The plan for `activations`. Without them, that which computes the least again and fits into
/// `free` bytes: the norms of some layers, then whole layers. Nothing, if that is not known.
pub fn choose(
    settings: &Settings<'_>,
    activations: Option<Activations>,
    free: Option<u64>,
) -> MemoryPlan {
    let layers = settings.config.num_hidden_layers;
    let fits = |plan: &MemoryPlan| free.is_none_or(|free| plan.total() <= usable(free));
    match activations {
        Some(Activations::Keep) => MemoryPlan::new(settings, Recomputed::default()),
        Some(Activations::Selective) => MemoryPlan::new(settings, selective(0, layers)),
        Some(Activations::Recompute) => MemoryPlan::new(settings, Recomputed::whole(layers)),
        None => (0..=layers)
            .map(|number| selective(0, number))
            .chain((1..layers).map(|whole| selective(whole, layers - whole)))
            .map(|recomputed| MemoryPlan::new(settings, recomputed))
            .find(fits)
            .unwrap_or_else(|| MemoryPlan::new(settings, Recomputed::whole(layers))),
    }
}

fn selective(layers: usize, selective: usize) -> Recomputed {
    Recomputed { layers, selective }
}

/// The sharding of a spec that does not set it: `Gradients`, which is faster, if several ranks have
/// the memory for it and for all activations that they are to keep.
pub fn choose_sharding(
    settings: &Settings<'_>,
    activations: Option<Activations>,
    free: Option<u64>,
) -> Sharding {
    let held = Settings { sharding: Sharding::Gradients, ..*settings };
    let plan = choose(&held, activations.or(Some(Activations::Keep)), free);
    let fits = free.is_some_and(|free| plan.total() <= usable(free));
    if fits && settings.size.world_size > 1 { Sharding::Gradients } else { Sharding::Full }
}

/// Checks that the parts that every batch needs fit into a GPU of `total` bytes.
///
/// # Errors
/// They do not; the message names the parts and what to change.
pub fn check(settings: &Settings<'_>, total: u64) -> Result<(), DoesNotFit> {
    let plan = MemoryPlan::new(settings, Recomputed::whole(settings.config.num_hidden_layers));
    let fits = |settings: &Settings<'_>| {
        let plan = MemoryPlan::new(settings, Recomputed::whole(settings.config.num_hidden_layers));
        plan.fixed() <= usable(total)
    };
    if fits(settings) {
        return Ok(());
    }
    let mut parts = plan.fixed_parts();
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", gib(*bytes))).collect();
    Err(DoesNotFit(format!(
        "the model does not fit: of {} on the GPU, {} can be used, and {} are needed without \
         activations ({}): {}",
        gib(total),
        gib(usable(total)),
        gib(plan.fixed()),
        parts.join(", "),
        remedies(settings, fits).join(", or ")
    )))
}

/// Checks that what every batch needs fits beside other processes of a GPU, before anything is
/// loaded.
///
/// # Errors
/// It does not.
pub fn check_free(plan: &MemoryPlan, capacity: Capacity) -> Result<(), Occupied> {
    let (Capacity { free, total }, needed) = (capacity, plan.fixed());
    if needed <= free { Ok(()) } else { Err(Occupied { of: String::new(), free, total, needed }) }
}

/// What makes the parts of `settings` fit, as `fits` finds.
fn remedies(settings: &Settings<'_>, fits: impl Fn(&Settings<'_>) -> bool) -> Vec<String> {
    let full = Settings { sharding: Sharding::Full, ..*settings };
    let mut remedies = Vec::new();
    if settings.sharding != Sharding::Full && fits(&full) {
        remedies.push("set training.sharding to Full".to_owned());
    }
    // More pods do not divide a replica further.
    let is_hybrid = settings.sharding == Sharding::Hybrid;
    let divided = if is_hybrid { *settings } else { full };
    let moments = Offload { moments: true, ..settings.offload };
    let all = Offload { moments: true, weights: true };
    for (offload, names) in
        [(moments, "optimizer.offload"), (all, "optimizer.offload and optimizer.offloadWeights")]
    {
        let critic = settings.critic.map(|critic| Critic { offload, ..critic });
        if settings.offload != offload && fits(&Settings { offload, critic, ..divided }) {
            let of_critic =
                if critic.is_some() { ", and that of criticOptimizer if it is set" } else { "" };
            remedies.push(format!("set {names} to true{of_critic}"));
            break;
        }
    }
    let now = settings.size.shards(divided.sharding);
    let enough = std::iter::successors(Some(now), |ranks| ranks.checked_add(1))
        .take_while(|ranks| *ranks <= MAX_RANKS)
        .find(|ranks| fits(&Settings { size: GroupSize::one_pod(*ranks), ..divided }));
    remedies.push(match enough {
        Some(ranks) if ranks > now && is_hybrid => {
            format!("use at least {ranks} GPUs in each trainer pod (now {now})")
        }
        Some(ranks) if ranks > now => format!("use at least {ranks} GPUs (now {now})"),
        Some(_) => "use more GPUs".to_owned(),
        None => "use GPUs with more memory".to_owned(),
    });
    if settings.frozen > 0 && !settings.needs_reference {
        remedies.push("set klCoefficient to 0, which needs no reference".to_owned());
    }
    remedies
}

/// What to change if full micro-batches do not fit into `free` bytes.
pub fn warning(settings: &Settings<'_>, plan: &MemoryPlan, free: u64) -> Option<String> {
    if plan.total() <= usable(free) {
        return None;
    }
    let fits = |tokens: u64| {
        let settings = Settings { tokens, ..*settings };
        MemoryPlan::new(&settings, plan.recomputed).total() <= usable(free)
    };
    // The largest number of 256 tokens that fits.
    let (mut fitting, mut above) = (0, settings.tokens / 256 + 1);
    while above - fitting > 1 {
        let middle = u64::midpoint(fitting, above);
        *(if fits(middle * 256) { &mut fitting } else { &mut above }) = middle;
    }
    let mut remedies = Vec::new();
    if fitting > 0 {
        let tokens = fitting * 256;
        remedies.push(format!("lower training.maxTokensPerMicroBatch to {tokens}"));
    }
    if settings.trains && plan.recomputed.layers < settings.config.num_hidden_layers {
        remedies.push("set training.activations to Recompute".to_owned());
    }
    let of_pod = if settings.sharding == Sharding::Hybrid { " in each trainer pod" } else { "" };
    remedies.push(format!("use more GPUs{of_pod}"));
    Some(format!(
        "micro-batches of {} tokens may not fit: they need {} of activations and {} of temporaries \
         beside {} for everything else, and {} can be used: {}",
        settings.tokens,
        gib(plan.activations),
        gib(plan.work),
        gib(plan.fixed()),
        gib(usable(free)),
        remedies.join(" or "),
    ))
}

#[cfg(test)]
mod tests;
