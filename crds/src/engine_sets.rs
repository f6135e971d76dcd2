//! Sets of engines of a job: those of rollouts, of evaluations and of a reward model.

use crate::RLJobSpec;
use crate::roles::InferenceSpec;

/// What engines of a set do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnginePurpose {
    /// They sample rollouts, and evaluations if no other engines do.
    Rollouts,
    /// They sample evaluations only.
    Evaluation,
    /// They serve the reward model.
    Reward,
}

/// Engines of a job for one purpose.
#[derive(Clone, Debug)]
pub struct EngineSet<'a> {
    /// What they do.
    pub purpose: EnginePurpose,
    /// Their field of the spec, for example `evaluation.engines`.
    pub field: String,
    /// Their settings.
    pub engines: &'a InferenceSpec,
}

/// A reward model that engines of the job serve.
#[derive(Clone, Copy, Debug)]
pub struct ServedRewardModel<'a> {
    /// Index of its entry in `rewards`.
    pub index: usize,
    /// Folder of the model.
    pub path: &'a str,
    /// Engines that serve it.
    pub engines: &'a InferenceSpec,
}

impl EnginePurpose {
    /// Name of the role of the engines, in names of pods and processes.
    pub fn role(self) -> &'static str {
        match self {
            Self::Rollouts => "inference",
            Self::Evaluation => "evaluation",
            Self::Reward => "reward",
        }
    }
}

impl RLJobSpec {
    /// The sets of engines of the job, those of rollouts first.
    pub fn engine_sets(&self) -> impl Iterator<Item = EngineSet<'_>> {
        let set = |purpose, field: String, engines| EngineSet { purpose, field, engines };
        let rollouts = set(EnginePurpose::Rollouts, "inference".to_owned(), &self.inference);
        let evaluation = self.evaluation_engines().map(|engines| {
            set(EnginePurpose::Evaluation, "evaluation.engines".to_owned(), engines)
        });
        let reward =
            self.served_reward_model().map(|ServedRewardModel { index, engines, .. }| {
                set(EnginePurpose::Reward, format!("rewards[{index}].model.engines"), engines)
            });
        std::iter::once(rollouts).chain(evaluation).chain(reward)
    }

    /// Engines that only evaluate, if the job has them.
    pub fn evaluation_engines(&self) -> Option<&InferenceSpec> {
        self.evaluation.as_ref().map(|evaluation| &evaluation.engines)
    }

    /// Engines of the reward model, if the job has them.
    pub fn reward_engines(&self) -> Option<&InferenceSpec> {
        self.served_reward_model().map(|model| model.engines)
    }

    /// As [`Self::reward_engines`], to change them.
    pub fn reward_engines_mut(&mut self) -> Option<&mut InferenceSpec> {
        let models = self.rewards.iter_mut().filter_map(|reward| reward.model.as_mut());
        models
            .filter(|model| model.served().is_some())
            .find_map(|model| model.engines.as_deref_mut())
    }

    /// The reward model that engines of the job serve, if they do.
    pub fn served_reward_model(&self) -> Option<ServedRewardModel<'_>> {
        self.rewards.iter().enumerate().find_map(|(index, reward)| {
            let (path, engines) = reward.model.as_ref()?.served()?;
            Some(ServedRewardModel { index, path, engines })
        })
    }

    /// Number of engines that only evaluate.
    pub fn num_evaluation_engines(&self) -> i32 {
        self.evaluation_engines().map_or(0, |engines| engines.replicas)
    }

    /// Number of engines of the reward model.
    pub fn num_reward_engines(&self) -> i32 {
        self.reward_engines().map_or(0, |engines| engines.replicas)
    }
}
