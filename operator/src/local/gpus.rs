//! GPUs of this machine and their assignment to the processes of a job: the sets of engines first,
//! then trainers and those of a group, replica by replica. Trainers begin again at the first GPU if
//! they share GPUs with the engines.

use std::fs;

use rljob_crds::job::WeightSyncMethod;
use rljob_crds::{EnginePurpose, RLJobSpec};

use super::role::Role;

/// Variable with the settings of libtorch's allocator of GPU memory.
pub const ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// Flag of SGLang for the part of a GPU's free memory that weights and the cache of keys and values
/// use.
const MEMORY_FLAG: &str = "--mem-fraction-static";
/// Percent of an engine's share for weights and the cache; the rest is for activations and CUDA
/// graphs.
const STATIC_PERCENT: u32 = 85;

/// GPUs of this machine for a run.
#[derive(Clone, Debug, Default)]
pub struct Gpus {
    /// Names, in the format of `CUDA_VISIBLE_DEVICES`.
    pub names: Vec<String>,
    /// Percent of a GPU's memory for an engine where engines and learners use the same GPUs.
    pub engine_percent: Option<u8>,
    /// The user's settings of libtorch's allocator, to which a limit is added.
    pub allocator: Option<String>,
}

/// Names of the GPUs that this process may use, in the format of `CUDA_VISIBLE_DEVICES`.
fn available() -> Vec<String> {
    if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
        return visible
            .to_string_lossy()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty() && *name != "-1")
            .map(ToOwned::to_owned)
            .collect();
    }
    let names = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut numbers: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("nvidia")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.iter().map(ToString::to_string).collect()
}

/// GPUs that a role requests.
struct Demand {
    role: Role,
    /// Name of one process.
    process: &'static str,
    field: String,
    replicas: usize,
    /// GPUs of each replica.
    each: usize,
}

impl Demand {
    /// Demands of the sets of engines, of trainers, and of the group of `trainer.groups`.
    fn of(spec: &RLJobSpec) -> Vec<Self> {
        let demand = |role, process, field: &str, replicas: i32, each: u32| Self {
            role,
            process,
            field: format!("spec.{field}.resources.limits"),
            replicas: replicas.max(0) as usize,
            each: each as usize,
        };
        let engines = spec.engine_sets().map(|set| {
            let process = match set.purpose {
                EnginePurpose::Rollouts => "engine",
                EnginePurpose::Evaluation => "evaluation engine",
                EnginePurpose::Reward => "reward engine",
                EnginePurpose::Teacher => "teacher engine",
            };
            let (role, own) = (Role::Engine(set.purpose), set.engines);
            demand(role, process, &set.field, own.replicas, own.gpus())
        });
        let trainer = &spec.trainer;
        let of_trainer =
            demand(Role::Trainer, "trainer", "trainer", spec.trainers(), trainer.gpus());
        let group = spec.frozen_group().map(|group| {
            let (own, process) = (trainer.of_group(group), "trainer.groups replica");
            demand(Role::Group, process, "trainer.groups[0]", own.replicas, own.gpus())
        });
        engines.chain([of_trainer]).chain(group).collect()
    }

    fn total(&self) -> usize {
        self.replicas.saturating_mul(self.each)
    }

    fn is_of_engines(&self) -> bool {
        matches!(self.role, Role::Engine(_))
    }

    /// For example `2 engines with 4 GPUs each`.
    fn text(&self) -> String {
        let processes = counted(self.replicas, self.process);
        let each = if self.replicas == 1 { "" } else { " each" };
        format!("{processes} with {}{each}", counted(self.each, "GPU"))
    }
}

/// For example `1 engine`, `2 engines`.
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Number of GPUs for these demands: of engines and learners together, or of those that have more.
fn wanted(demands: &[Demand], is_shared: bool) -> usize {
    let sum = |of_engines| {
        let own = demands.iter().filter(|demand| demand.is_of_engines() == of_engines);
        own.map(Demand::total).fold(0, usize::saturating_add)
    };
    let [engines, learners] = [true, false].map(sum);
    if is_shared { engines.max(learners) } else { engines.saturating_add(learners) }
}

/// Percent of a GPU's memory for an engine if engines and learners of this job share GPUs.
fn shared_percent(spec: &RLJobSpec, engine_percent: Option<u8>) -> Option<u8> {
    let demands = Demand::of(spec);
    let use_gpus = |of_engines| {
        demands.iter().any(|demand| demand.is_of_engines() == of_engines && demand.total() > 0)
    };
    engine_percent.filter(|_| use_gpus(true) && use_gpus(false))
}

/// Percent of a GPU's memory for the learners of a job, whose engines use `engine_percent` if they
/// share GPUs.
pub fn learner_percent(spec: &RLJobSpec, engine_percent: Option<u8>) -> u8 {
    100_u8.saturating_sub(shared_percent(spec, engine_percent).unwrap_or(0))
}

impl Gpus {
    /// The GPUs that this process may use. `engine_percent` is that of [`Gpus`].
    pub fn available(engine_percent: Option<u8>) -> Self {
        let allocator = std::env::var(ALLOCATOR).ok().filter(|settings| !settings.is_empty());
        Self { names: available(), engine_percent, allocator }
    }

    fn shared_percent(&self, spec: &RLJobSpec) -> Option<u8> {
        shared_percent(spec, self.engine_percent)
    }

    /// `CUDA_VISIBLE_DEVICES` of process `index` of a role; empty if the role runs on CPUs.
    pub fn visible(&self, spec: &RLJobSpec, role: Role, index: i32) -> String {
        self.share(&Demand::of(spec), role, index)
    }

    /// GPUs of replica `index` of the role's demand, after those of the demands before it.
    fn share(&self, demands: &[Demand], role: Role, index: i32) -> String {
        let Some(own) = demands.iter().find(|demand| demand.role == role) else {
            return String::new();
        };
        let before = demands.iter().take_while(|demand| demand.role != role).filter(|demand| {
            self.engine_percent.is_none() || demand.is_of_engines() == own.is_of_engines()
        });
        let before = before.map(Demand::total).fold(0, usize::saturating_add);
        let first = before.saturating_add(own.each.saturating_mul(index.max(0) as usize));
        let names = self.names.get(first..first.saturating_add(own.each));
        names.unwrap_or_default().join(",")
    }

    /// Flag of SGLang with the memory of an engine that shares its GPU.
    pub fn engine_memory(&self, spec: &RLJobSpec) -> Option<String> {
        let percent = u32::from(self.shared_percent(spec)?).saturating_mul(STATIC_PERCENT) / 100;
        Some(format!("{MEMORY_FLAG}=0.{percent:02}"))
    }

    /// Settings of libtorch's allocator that limit the memory of a learner that shares its GPU.
    pub fn learner_memory(&self, spec: &RLJobSpec) -> Option<String> {
        self.shared_percent(spec)?;
        let percent = learner_percent(spec, self.engine_percent);
        let limit = format!("per_process_memory_fraction:0.{percent:02}");
        let kept = self.allocator.as_deref().map(|settings| format!("{settings},"));
        Some(format!("{}{limit}", kept.unwrap_or_default()))
    }

    /// Problems if the processes of a job request more GPUs than there are, or cannot share them.
    pub fn problems(&self, spec: &RLJobSpec) -> Vec<String> {
        let sharing = self.shared_percent(spec).map(|_| sharing_problems(spec));
        self.shortage(spec).into_iter().chain(sharing.into_iter().flatten()).collect()
    }

    fn shortage(&self, spec: &RLJobSpec) -> Option<String> {
        let (demands, available) = (Demand::of(spec), self.names.len());
        let wanted = |is_shared| wanted(&demands, is_shared);
        let is_shared = self.engine_percent.is_some();
        if wanted(is_shared) <= available {
            return None;
        }
        let on_gpus = || demands.iter().filter(|demand| demand.total() > 0);
        let fields: Vec<&str> = on_gpus().map(|demand| demand.field.as_str()).collect();
        let parts: Vec<String> = on_gpus().map(Demand::text).collect();
        let sharing = if !is_shared && wanted(true) <= available {
            "let engines and learners use the same GPUs with --share-gpus, "
        } else {
            ""
        };
        Some(format!(
            "{}: the job needs {} ({}), and this machine has {available}; {sharing}reduce replicas \
             or GPUs, or remove the GPUs from the limits to run on CPUs",
            fields.join(", "),
            counted(wanted(is_shared), "GPU"),
            parts.join(", "),
        ))
    }

    /// One line for each role, with the GPUs of its processes, and how they share them; none for a
    /// job without GPUs.
    pub fn lines(&self, spec: &RLJobSpec) -> Vec<String> {
        let demands = Demand::of(spec);
        if demands.iter().all(|demand| demand.total() == 0) {
            return Vec::new();
        }
        let line = |demand: &Demand| {
            if demand.each == 0 {
                return format!("{}s run on CPUs", demand.process);
            }
            let replicas = (0..).take(demand.replicas);
            let shares: Vec<String> = replicas
                .map(|index| format!("[{}]", self.share(&demands, demand.role, index)))
                .collect();
            format!("{}s run on GPUs {}", demand.process, shares.join(" "))
        };
        let sharing = self.shared_percent(spec).map(|percent| {
            let rest = 100_u8.saturating_sub(percent);
            format!("engines use {percent} % of the memory of a GPU, and learners {rest} %")
        });
        demands.iter().filter(|demand| demand.replicas > 0).map(line).chain(sharing).collect()
    }
}

/// What keeps the engines and learners of a job from sharing GPUs.
fn sharing_problems(spec: &RLJobSpec) -> Vec<String> {
    let method = (spec.weight_sync_method() == WeightSyncMethod::Distributed).then(|| {
        "spec.weightSync.method: NCCL connects no two processes of one GPU; set it to Disk, or \
         remove --share-gpus"
            .to_owned()
    });
    let memory = spec.engine_sets().filter_map(|set| {
        let is_set = set.engines.extra_args().iter().any(|flag| flag.starts_with(MEMORY_FLAG));
        is_set.then(|| {
            let field = &set.field;
            format!(
                "spec.{field}.sglang.extraArgs: --share-gpus sets {MEMORY_FLAG}; remove it, and \
                 use --share-gpus=PERCENT"
            )
        })
    });
    method.into_iter().chain(memory).collect()
}

#[cfg(test)]
mod tests;
