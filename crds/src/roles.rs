//! The three roles: inference, trainer, coordinator.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The inference engines.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.engine == 'SGLang' || self.gpusPerReplica == 0").message("the embedded engine runs on CPUs: gpusPerReplica needs engine SGLang"))]
#[x_kube(validation = Rule::new("self.engine == 'SGLang' || !has(self.extraArgs)").message("the embedded engine takes no extraArgs: they need engine SGLang"))]
pub struct InferenceSpec {
    /// The server that generates: `SGLang`, or `Embedded`, rljob's own small engine for CPUs.
    /// Default Embedded.
    #[serde(default)]
    pub engine: EngineKind,
    /// Container image. Default the operator's for Embedded, `lmsysorg/sglang:v0.5.12` for SGLang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Engines. `sft` without evaluation needs none. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
    /// GPUs of each engine, over which its model is split (tensor parallelism); 0 is a server on
    /// the CPU. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 8))]
    pub gpus_per_replica: i32,
    /// Resource name of GPUs. Default `nvidia.com/gpu`.
    #[serde(default = "gpu_resource_name")]
    #[schemars(length(min = 1, max = 253))]
    pub gpu_resource_name: String,
    /// Further flags of the SGLang server, for example `--mem-fraction-static=0.8`. Those that the
    /// run sets itself are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub extra_args: Vec<String>,
    /// Requests and limits of an engine's container.
    #[serde(default)]
    pub resources: Resources,
}

impl Default for InferenceSpec {
    fn default() -> Self {
        Self {
            engine: EngineKind::default(),
            image: None,
            replicas: one(),
            gpus_per_replica: 0,
            gpu_resource_name: gpu_resource_name(),
            extra_args: Vec::new(),
            resources: Resources::default(),
        }
    }
}

/// The server that generates.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default,
)]
pub enum EngineKind {
    /// rljob's own small engine, which speaks the part of SGLang's HTTP interface that a run needs.
    #[default]
    Embedded,
    /// The SGLang server, version 0.5.12 or one with the same interface.
    SGLang,
}

fn gpu_resource_name() -> String {
    "nvidia.com/gpu".to_owned()
}

/// The trainer pods and the learner processes in them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainerSpec {
    /// Container image. Default the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Trainer pods. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: i32,
    /// Learner processes (FSDP ranks) in each pod. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 8))]
    pub processes_per_replica: i32,
    /// Requests and limits of a trainer's container.
    #[serde(default)]
    pub resources: Resources,
}

impl Default for TrainerSpec {
    fn default() -> Self {
        Self {
            image: None,
            replicas: one(),
            processes_per_replica: one(),
            resources: Resources::default(),
        }
    }
}

impl TrainerSpec {
    /// FSDP ranks over all pods.
    pub fn world_size(&self) -> u32 {
        self.replicas.max(0).unsigned_abs() * self.processes_per_replica.max(0).unsigned_abs()
    }
}

/// The coordinator pod.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CoordinatorSpec {
    /// Container image. Default the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Requests and limits of the coordinator's container.
    #[serde(default)]
    pub resources: Resources,
}

/// Requests and limits of a container, as in a pod.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// Amounts reserved, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
    /// Amounts that may not be exceeded, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

fn one() -> i32 {
    1
}
