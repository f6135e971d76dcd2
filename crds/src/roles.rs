//! Roles of a job: inference engines, trainers and the coordinator.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::gang::GangSpec;
use crate::gpus;
use crate::template::PodTemplate;
use crate::topology::TopologySpec;
use crate::trainer_groups::TrainerGroupSpec;

/// Engines of `inference`, `evaluation`, a `model` reward or a teacher. At most one of `sglang` and
/// `embedded`. Default `sglang` if `resources.limits` has GPUs, else `embedded`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("[has(self.sglang), has(self.embedded)].filter(x, x).size() <= 1")
        .message("set at most one of sglang and embedded")
)]
#[x_kube(
    validation = Rule::new(
        "!has(self.embedded) || !has(self.resources.limits) || !['nvidia.com/gpu', \
         'amd.com/gpu'].exists(gpu, gpu in self.resources.limits)"
    )
        .message("the embedded engine runs on CPUs: remove the GPUs from resources.limits or use \
                 sglang")
)]
#[x_kube(
    validation = Rule::new(
        "!has(self.embedded) || !has(self.podsPerReplica) || self.podsPerReplica == 1"
    )
        .message("the embedded engine is one process: remove podsPerReplica or use sglang")
)]
pub struct InferenceSpec {
    /// SGLang server, on GPUs or on CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sglang: Option<SGLangSpec>,
    /// Small engine of rljob for CPUs. It implements the part of the HTTP interface of SGLang that
    /// a run uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<EmbeddedSpec>,
    /// Container image. Default `lmsysorg/sglang:v0.5.12` for sglang and the image of the operator
    /// for embedded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Number of engines; 0 in jobs that sample nothing: `sft`, `dpo` and `orpo` without
    /// `dataset.evaluation.answer` or with `evaluation.engines`, `rewardModel` (required). That of
    /// `inference` may change in a run. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// Fewest engines with which Kueue may admit the job. No effect without a queue, or above
    /// `replicas`. Default `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: Option<i32>,
    /// Pods of each engine. SGLang is tensor parallel over them; the first serves, and when one is
    /// lost or restarts, all are replaced. Only on clusters. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub pods_per_replica: i32,
    /// Completions that an engine samples at a time. Default its own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_running_requests: Option<u32>,
    /// Resources of the engine container. The tensor-parallel size of SGLang is the number of GPUs
    /// in `limits` (`nvidia.com/gpu: 2`), up to 8, times `podsPerReplica`. Default requests: 250m
    /// CPU, 1Gi memory.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Partial PodTemplateSpec, merged with the template of the operator. The main container is
    /// named `engine`; containers with other names are sidecars. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

impl Default for InferenceSpec {
    fn default() -> Self {
        Self {
            sglang: None,
            embedded: None,
            image: None,
            replicas: one(),
            min_replicas: None,
            pods_per_replica: one(),
            max_running_requests: None,
            resources: ResourceRequirements::default(),
            template: None,
        }
    }
}

impl InferenceSpec {
    /// Engine that the spec selects.
    pub fn engine(&self) -> EngineKind {
        match (&self.sglang, &self.embedded) {
            (Some(_), _) => EngineKind::SGLang,
            (None, None) if self.gpus() > 0 => EngineKind::SGLang,
            (None, _) => EngineKind::Embedded,
        }
    }

    /// GPUs of each pod.
    pub fn gpus(&self) -> u32 {
        gpus::count(&self.resources)
    }

    /// Tensor-parallel ranks of each engine: one for each GPU of its pods, at least one in a pod.
    pub fn ranks(&self) -> u32 {
        self.gpus().max(1).saturating_mul(self.pods_per_engine())
    }

    /// Pods of each engine.
    pub fn pods_per_engine(&self) -> u32 {
        self.pods_per_replica.max(1).unsigned_abs()
    }

    /// Engines that have all of their pods among this many.
    pub fn engines_of(&self, pods: i32) -> i32 {
        pods.checked_div(self.pods_per_replica.max(1)).unwrap_or_default()
    }

    /// Pods of this many engines.
    pub fn pods_of(&self, engines: i32) -> i32 {
        engines.saturating_mul(self.pods_per_replica.max(1))
    }

    /// Pods of all engines.
    pub fn pods(&self) -> i32 {
        self.pods_of(self.replicas)
    }

    /// Further flags of the SGLang server.
    pub fn extra_args(&self) -> &[String] {
        self.sglang.as_ref().map_or(&[], |sglang| &sglang.extra_args)
    }
}

/// Settings of `sglang`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SGLangSpec {
    /// Further flags of the server, for example `--mem-fraction-static=0.8`. Flags that the run
    /// sets are rejected. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub extra_args: Vec<String>,
}

/// Settings of `embedded`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EmbeddedSpec {}

/// Server that generates completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Engine of rljob for CPUs.
    Embedded,
    /// SGLang 0.5.12, or a server with the same interface.
    SGLang,
}

/// Trainer pods and their learner processes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new(
        "!has(self.resources.limits) || !['amd.com/gpu', 'aws.amazon.com/neuron', \
         'google.com/tpu', 'habana.ai/gaudi'].exists(name, name in self.resources.limits)"
    )
        .message("learners support NVIDIA GPUs only: remove other accelerators from \
                 trainer.resources.limits")
)]
#[x_kube(
    validation = Rule::new(
        "!has(self.processesPerReplica) || !has(self.resources.limits) || !('nvidia.com/gpu' in \
         self.resources.limits) || string(self.resources.limits['nvidia.com/gpu']) in ['0', \
         string(self.processesPerReplica)]"
    )
        .message("trainer.processesPerReplica must equal the number of GPUs in \
                 trainer.resources.limits: each learner has one GPU; remove it or set that number")
)]
pub struct TrainerSpec {
    /// Container image. Learners on GPUs need one that is built from `Containerfile.cuda`. Default
    /// the image of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Trainer pods. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: i32,
    /// Learner processes (FSDP ranks) in each pod. With GPUs in `resources.limits` it must equal
    /// their number. Default one for each GPU, 1 without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub processes_per_replica: Option<i32>,
    /// Requests and limits of the trainer container. Learners run on GPUs if `limits` has NVIDIA
    /// GPUs, for example `nvidia.com/gpu: 4`, else on CPUs. A pod has up to 8 GPUs, and one learner
    /// for each. Other accelerators are rejected. Default requests: 250m CPU, 1Gi memory.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Partial PodTemplateSpec, merged with the template of the operator. The main container is
    /// named `trainer`; containers with other names are sidecars. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
    /// Groups of further trainer pods, each with frozen models that the trainer then does not hold.
    /// A group restarts alone. Default none: the trainer holds all models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 4),
        extend("x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub groups: Vec<TrainerGroupSpec>,
}

impl Default for TrainerSpec {
    fn default() -> Self {
        Self {
            image: None,
            replicas: one(),
            processes_per_replica: None,
            resources: ResourceRequirements::default(),
            template: None,
            groups: Vec::new(),
        }
    }
}

impl TrainerSpec {
    /// GPUs of each pod. Learners run on CPUs if 0.
    pub fn gpus(&self) -> u32 {
        gpus::count(&self.resources)
    }

    /// Learner processes in each pod: one for each GPU, at least one.
    pub fn processes(&self) -> u32 {
        let set = self.processes_per_replica.map(|processes| processes.max(1).unsigned_abs());
        set.unwrap_or_else(|| self.gpus().max(1))
    }

    /// The pods of a group as those of a trainer. They have the image of this one.
    #[must_use]
    pub fn of_group(&self, group: &TrainerGroupSpec) -> Self {
        Self {
            image: self.image.clone(),
            replicas: group.replicas,
            processes_per_replica: group.processes_per_replica,
            resources: group.resources.clone(),
            template: group.template.clone(),
            groups: Vec::new(),
        }
    }

    /// FSDP ranks of all pods.
    pub fn world_size(&self) -> u32 {
        self.replicas.max(0).unsigned_abs().saturating_mul(self.processes())
    }
}

/// Coordinator pod.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoordinatorSpec {
    /// Container image. Default the image of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Requests and limits of the coordinator container. Default requests: 100m CPU, 256Mi memory.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Partial PodTemplateSpec, merged with the template of the operator. The main container is
    /// named `coordinator`, and that of `command` rewards `rewards`; containers with other names
    /// are sidecars. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// Scheduling of all pods of the job.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SchedulingSpec {
    /// PriorityClass of all pods; `template.spec.priorityClassName` of a role overrides it. Default
    /// the default class of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Schedules engines and trainers all together or not at all. Default each pod alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangSpec>,
    /// Keeps pods together in domains of nodes. Default any nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySpec>,
}

fn one() -> i32 {
    1
}

#[cfg(test)]
mod tests;
