//! Learner groups beside the trainer: frozen models on processes of their own.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::RLJobSpec;
use crate::algorithm::{Algorithm, ModelRole};
use crate::roles::TrainerSpec;
use crate::template::PodTemplate;

/// Most groups of a job.
pub const MAX_GROUPS: usize = 4;

/// A learner group with frozen models, in trainer pods of its own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("!self.roles.exists(role, role in ['Policy', 'Critic'])")
        .message("Policy and Critic are trained by spec.trainer itself: a group has Reference or \
                 Teacher")
)]
pub struct TrainerGroupSpec {
    /// Name of the group, a DNS label that starts with a letter. Its pods are
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
    /// The teacher of `distillation` in a folder.
    Teacher,
    /// The model that is trained. Rejected: the trainer trains it.
    Policy,
    /// The value model of `ppo`. Rejected: the trainer trains it.
    Critic,
}

impl GroupRole {
    /// The frozen model of an algorithm's learners, if it has one.
    pub fn frozen(algorithm: Algorithm<'_>) -> Option<Self> {
        let has_reference = algorithm.model_roles().contains(&ModelRole::Reference);
        let role = if matches!(algorithm, Algorithm::Distillation(_)) {
            Self::Teacher
        } else {
            Self::Reference
        };
        has_reference.then_some(role)
    }
}

impl TrainerGroupSpec {
    /// The pods of the group as those of a trainer. They have the image of `trainer`.
    pub fn as_trainer(&self, trainer: &TrainerSpec) -> TrainerSpec {
        TrainerSpec {
            image: trainer.image.clone(),
            replicas: self.replicas,
            processes_per_replica: self.processes_per_replica,
            resources: self.resources.clone(),
            template: self.template.clone(),
            groups: Vec::new(),
        }
    }
}

impl RLJobSpec {
    /// The group that holds the frozen model of the algorithm; `None` if the learners of the
    /// trainer hold it, or if there is none.
    pub fn frozen_group(&self) -> Option<&TrainerGroupSpec> {
        let role = GroupRole::frozen(self.algorithm.resolve()?)?;
        self.trainer.groups.iter().find(|group| group.roles.contains(&role))
    }

    /// [`Self::frozen_group`], to change it.
    pub fn frozen_group_mut(&mut self) -> Option<&mut TrainerGroupSpec> {
        let name = self.frozen_group()?.name.clone();
        self.trainer.groups.iter_mut().find(|group| group.name == name)
    }

    /// Pods of the group that holds the frozen model; 0 without one.
    pub fn group_replicas(&self) -> i32 {
        self.frozen_group().map_or(0, |group| group.replicas)
    }

    /// The spec as processes of a group see it: their pods are the trainer, which holds the frozen
    /// model itself.
    pub fn of_group(&self, name: &str) -> Option<Self> {
        let group = self.trainer.groups.iter().find(|group| group.name == name)?;
        Some(Self { trainer: group.as_trainer(&self.trainer), ..self.clone() })
    }
}

fn one() -> i32 {
    1
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(algorithm: &Value) -> RLJobSpec {
        let limits = json!({"limits": {"nvidia.com/gpu": 2}});
        let group = json!({"name": "frozen", "roles": ["Reference"], "resources": limits});
        serde_json::from_value(json!({
            "model": {"path": "/m"}, "storage": {"hostPath": {"path": "/s"}},
            "dataset": {"train": {"path": "/d", "prompt": "{{q}}"}}, "training": {"steps": 1},
            "trainer": {"image": "i", "replicas": 3, "groups": [group]}, "algorithm": algorithm,
        }))
        .unwrap()
    }

    #[test]
    fn a_group_holds_the_model_that_the_algorithm_has() {
        let holds = |algorithm: Value| spec(&algorithm).frozen_group().is_some();
        assert!(holds(json!({"grpo": {"klCoefficient": 0.1}})) && holds(json!({"dpo": {}})));
        assert!(!holds(json!({"grpo": {}})), "no KL term, no reference");
        assert!(!holds(json!({"distillation": {"teacher": {"path": "/t"}}})), "a teacher");
    }

    #[test]
    fn processes_of_a_group_see_its_pods_as_the_trainer() {
        let spec = spec(&json!({"dpo": {}}));
        let of_group = spec.of_group("frozen").unwrap();
        let trainer = &of_group.trainer;
        assert_eq!((trainer.replicas, trainer.processes(), trainer.gpus()), (1, 2, 2));
        assert_eq!((trainer.image.as_deref(), of_group.frozen_group()), (Some("i"), None));
        assert!(spec.of_group("other").is_none());
    }
}
