//! Learner groups beside the trainer: frozen models in separate processes.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::template::PodTemplate;

/// Most groups of a job.
pub const MAX_GROUPS: usize = 4;

/// A learner group with frozen models, in separate trainer pods.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!self.roles.exists(role, role in ['Policy', 'Critic'])")
        .message("Policy and Critic are trained by spec.trainer itself: a group has Reference or \
                 Teacher")
)]
pub struct TrainerGroupSpec {
    /// Name of the group, a DNS label that starts with a letter, and no role of pods. Its pods are
    /// `<job>-trainer-<name>-<n>`; without `-<n>`, that has at most 52 characters.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Frozen models that the group holds instead of the trainer.
    #[schemars(length(min = 1, max = 4), extend("x-kubernetes-list-type" = "set"))]
    pub roles: Vec<GroupRole>,
    /// Pods. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: i32,
    /// Learner processes in each pod, among which the models are divided. With GPUs in
    /// `resources.limits` it must equal their number. Default one for each GPU, 1 without GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub processes_per_replica: Option<i32>,
    /// Requests and limits of the container, as in `spec.trainer`. Default requests: 250m CPU, 1Gi
    /// memory.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Partial PodTemplateSpec, merged with the template of the operator, as in `spec.trainer`.
    /// Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// Model of a learner group.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupRole {
    /// The policy before training, of an algorithm with a KL term and of `dpo`.
    Reference,
    /// The teacher of a distillation, in a folder.
    Teacher,
    /// The model that is trained. Rejected: the trainer trains it.
    Policy,
    /// The value model of `ppo`. Rejected: the trainer trains it.
    Critic,
}

fn one() -> i32 {
    1
}
