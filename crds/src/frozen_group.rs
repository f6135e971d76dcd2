//! Which group of `trainer.groups` holds the frozen model of a job, and how its processes see the
//! job.

use crate::RLJobSpec;
use crate::algorithm::{Algorithm, FrozenModel, ModelRole};
use crate::trainer_groups::{GroupRole, TrainerGroupSpec};

impl GroupRole {
    /// The frozen model of an algorithm's learners, if it has one.
    pub fn frozen(algorithm: Algorithm<'_>) -> Option<Self> {
        let role = match algorithm.frozen_model()? {
            FrozenModel::Reference => Self::Reference,
            FrozenModel::Teacher => Self::Teacher,
            // Groups return one log-probability for each token.
            FrozenModel::TeacherTopTokens => return None,
        };
        algorithm.model_roles().contains(&ModelRole::Reference).then_some(role)
    }
}

impl RLJobSpec {
    /// The group that holds the frozen model of the algorithm; `None` if the learners of the
    /// trainer hold it, or if it has none.
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
        Some(Self { trainer: self.trainer.of_group(group), ..self.clone() })
    }
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
        let teacher = json!({"teacher": {"path": "/t"}});
        assert!(!holds(json!({"distillation": teacher})), "a teacher");
        assert!(!holds(json!({"grpo": {"distillation": teacher}})), "a teacher beside rewards");
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
